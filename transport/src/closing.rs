//! Why connections end: the codes that this program closes them with, and what the other end makes of
//! them.

use quinn::{Connection, ConnectionError, VarInt};
use rustls::AlertDescription;

/// Why a connection is closed. The code is part of the protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CloseCode {
    /// The session is over (TR-2).
    Closed = 1,
    /// A newer connection of the same node took its place.
    Replaced = 2,
    /// This connection is of no use any more; the session goes on over another.
    Broken = 3,
    /// The two ends speak different versions. The reason is the speaker's version.
    Version = 4,
    /// The other end may not do what it tries.
    Refused = 5,
    /// What this connection was made for was not granted, and the answer was read.
    Done = 6,
}

pub(crate) fn close(connection: &Connection, code: CloseCode, reason: &str) {
    // A reason must fit into one datagram.
    const REASON_BYTES_MAX: usize = 512;
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    connection.close(VarInt::from_u32(code as u32), &reason.as_bytes()[..end]);
}

/// QUIC's own code of a server that takes no connections (RFC 9000 §20.1).
const CONNECTION_REFUSED: u64 = 0x2;

/// What the end of a connection means.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// The other end is done with this session, or its process ended.
    Closed(String),
    /// The other end speaks this version.
    Version(String),
    /// The other end refused what this end tried.
    Refused(String),
    /// TLS failed, as the other end said.
    Alert(AlertDescription),
    /// Anything else: another connection may go on.
    Broken(String),
}

impl From<&ConnectionError> for Ending {
    fn from(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) => {
                let reason = String::from_utf8_lossy(&close.reason).into_owned();
                match close.error_code.into_inner() {
                    // quinn's own code when a process lets go of its endpoint.
                    0 => Self::Closed("its process ended".to_owned()),
                    code if code == CloseCode::Closed as u64 => Self::Closed(reason),
                    code if code == CloseCode::Version as u64 => Self::Version(reason),
                    code if code == CloseCode::Refused as u64 => Self::Refused(reason),
                    _ => Self::Broken(reason),
                }
            }
            ConnectionError::ConnectionClosed(close) => {
                let code = u64::from(close.error_code);
                if code == CONNECTION_REFUSED {
                    let reason = "the driver there stands by, or lets nobody in at present";
                    return Self::Broken(reason.to_owned());
                }
                match code.checked_sub(0x100).and_then(|alert| u8::try_from(alert).ok()) {
                    Some(alert) => Self::Alert(AlertDescription::from(alert)),
                    None => Self::Broken(error.to_string()),
                }
            }
            _ => Self::Broken(error.to_string()),
        }
    }
}
