//! Why a node could not connect, in words for the person who started it.

use std::io;

use elastic_protocol::NodeName;

use crate::enrol::Refusal;
use crate::secret::NoRandomness;
use crate::tls::TlsError;
use crate::token::Fingerprint;

/// Why no session with the driver came about.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No answer.
    #[error("no driver answered at {address} within {waited_ms} ms: {last}")]
    Unreachable {
        /// Where.
        address: String,
        /// For how long it was tried.
        waited_ms: u128,
        /// What the last attempt said.
        last: String,
    },
    /// The driver there is not the one that the token is for.
    #[error("the driver at {address} is not of this token's job: its authority is not {expected}")]
    WrongAuthority {
        /// Where.
        address: String,
        /// What the token pins.
        expected: Fingerprint,
    },
    /// The driver refused the token's secret.
    #[error("the driver refused the token: {0}")]
    WrongSecret(#[source] Refusal),
    /// The driver refused this node for another reason.
    #[error("the driver refused this node: {reason}")]
    Refused {
        /// What it said.
        reason: String,
    },
    /// Another version of this program is on the other side.
    #[error(
        "the driver speaks protocol version {}, this program version {ours}; use the same release on both",
        theirs.as_deref().unwrap_or("unknown")
    )]
    Version {
        /// What the driver speaks, if it said so.
        theirs: Option<String>,
        /// What this program speaks.
        ours: u32,
    },
    /// A certificate's time is over, or a clock is wrong.
    #[error("{whose} certificate has expired, or a clock is wrong")]
    Expired {
        /// `the driver's` or `this node's`.
        whose: &'static str,
    },
    /// The other end's certificate is not a driver's.
    #[error("the other end at {address} is not a driver: {reason}")]
    NotADriver {
        /// Where.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The token is for somebody else.
    #[error("this token does not let {0:?} enrol")]
    TokenNotFor(NodeName),
    /// No UDP socket.
    #[error("could not open a UDP socket")]
    Socket(#[source] io::Error),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No key could be made.
    #[error("could not make a key")]
    Key(#[source] rcgen::Error),
    /// No random numbers.
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
}

/// What came of one attempt.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another attempt may succeed.
    Passing(String),
    /// It makes no sense to try again before somebody has changed something.
    Lasting(ConnectError),
}

impl<E: Into<ConnectError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Lasting(error.into())
    }
}
