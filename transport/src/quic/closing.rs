//! Ends of connections: the codes with which this end closes one ([`CloseCode`]), and the meaning of an end that quinn
//! reports. Used by links, listener and dialer.

use quinn::{Connection, ConnectionError, VarInt};
use rustls::AlertDescription;

use crate::peers::{CloseCode, LinkEnd};

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

/// The meaning of a connection's end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ConnectionClose {
    /// The other end has ended the session, or its process ended.
    Closed(String),
    /// The other end speaks this version.
    Version(String),
    /// The other end refused this end's attempt.
    Refused(String),
    /// TLS failed, as the other end said.
    Alert(AlertDescription),
    /// Any other end: another connection may resume the session.
    Broken(String),
}

impl From<&ConnectionError> for ConnectionClose {
    fn from(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) => {
                let reason = String::from_utf8_lossy(&close.reason).into_owned();
                match close.error_code.into_inner() {
                    // The code that quinn sends when a process drops its endpoint.
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

impl From<ConnectionClose> for LinkEnd {
    fn from(ending: ConnectionClose) -> Self {
        match ending {
            ConnectionClose::Closed(reason) => Self::Closed(reason),
            ConnectionClose::Version(_)
            | ConnectionClose::Refused(_)
            | ConnectionClose::Alert(_)
            | ConnectionClose::Broken(_) => Self::Broken,
        }
    }
}
