//! Errors of a node that could not connect, in words for the person who started it. The dialer makes these errors.

use std::io;

use elastic_protocol::NodeName;

use crate::identity::enrol::EnrolRefusal;
use crate::identity::secret::NoRandomness;
use crate::identity::token::Fingerprint;
use crate::quic::tls::TlsError;

/// Reason for which there is no session with the driver.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The driver does not answer.
    #[error("no driver answered at {address} within {waited_ms} ms: {last}")]
    Unreachable {
        /// The driver's address.
        address: String,
        /// Time for which the node tried, in milliseconds.
        waited_ms: u128,
        /// The failure of the last attempt.
        last: String,
    },
    /// The token is for another driver than the one at this address.
    #[error("the driver at {address} is not of this token's job: its authority is not {expected}")]
    WrongAuthority {
        /// The driver's address.
        address: String,
        /// The fingerprint that the token pins.
        expected: Fingerprint,
    },
    /// The driver refused the token's secret.
    #[error("the driver refused the token: {0}")]
    WrongSecret(#[source] EnrolRefusal),
    /// The driver refused this node for another reason.
    #[error("the driver refused this node: {reason}")]
    Refused {
        /// The driver's words.
        reason: String,
    },
    /// The driver runs another version of this program.
    #[error("this is {ours}; the driver is {theirs}: they do not understand each other")]
    Version {
        /// The driver's release and version of the protocol.
        theirs: String,
        /// This program's.
        ours: String,
    },
    /// A certificate has expired or is not valid yet, or a clock is wrong.
    #[error("{whose} certificate has expired or is not valid yet, or a clock is wrong")]
    Expired {
        /// `the driver's` or `this node's`.
        whose: &'static str,
    },
    /// The other end's certificate is not a driver's.
    #[error("the other end at {address} is not a driver: {reason}")]
    NotADriver {
        /// The other end's address.
        address: String,
        /// The fault of its certificate.
        reason: String,
    },
    /// The token is for another node.
    #[error("this token does not let {0:?} enrol")]
    TokenNotFor(NodeName),
    /// There is no UDP socket.
    #[error("could not open a UDP socket")]
    Socket(#[source] io::Error),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No key could be generated.
    #[error("could not make a key")]
    Key(#[source] rcgen::Error),
    /// There are no random numbers.
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
}

/// The failure of one attempt.
#[derive(Debug)]
pub(crate) enum AttemptFailure {
    /// Another attempt may succeed.
    Passing(String),
    /// A further attempt cannot succeed before somebody has changed something.
    Lasting(ConnectError),
}

impl<E: Into<ConnectError>> From<E> for AttemptFailure {
    fn from(error: E) -> Self {
        Self::Lasting(error.into())
    }
}
