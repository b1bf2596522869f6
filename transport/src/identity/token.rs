//! [`JoinToken`]: the one line with which a node enters a job. The driver prints it; agents, workers and clients
//! are given it.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use elastic_protocol::WorkerId;
use serde::{Deserialize, Serialize};

use crate::identity::secret::TokenSecret;

/// SHA-256 of the certificate of a job's authority.
#[derive(Clone, Copy, Deserialize, Eq, PartialEq, Serialize)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The fingerprint of a certificate in DER.
    pub fn of(certificate: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The nodes that a token admits.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum TokenKind {
    /// Agents of any number of hosts, and clients.
    Join,
    /// This worker, once.
    Worker(WorkerId),
    /// Clients only.
    Client,
}

/// A join token: the authority to trust, and the secret that the authority's driver asks for.
///
/// [`JoinToken::to_line`] is the only access to its text; `Debug` hides the secret.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct JoinToken {
    /// Fingerprint of the job's authority. A driver of another authority is told nothing.
    pub authority: Fingerprint,
    /// The nodes that it admits.
    pub kind: TokenKind,
    /// The secret that it proves.
    pub secret: TokenSecret,
}

/// Reason for which a text is not a token. The text itself is never repeated, because it may be a secret.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidToken {
    /// The text is empty, or white space alone.
    #[error("the token is empty")]
    Empty,
    /// The text does not begin as tokens do.
    #[error("not a token: it does not begin with \"en1-\"")]
    NotAToken,
    /// The token is of another version of this program.
    #[error("the token is of version {version}; this program reads version 1")]
    OtherVersion {
        /// Its version.
        version: u32,
    },
    /// The text is longer than any token.
    #[error("the token has {bytes} bytes; at most {} are allowed", JoinToken::LINE_BYTES_MAX)]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The text has a character that no token has.
    #[error("the token has a character that no token has; was more than the token copied?")]
    NotBase64,
    /// The checksum does not match.
    #[error("the token is damaged or not complete; copy the whole line again")]
    Damaged,
    /// The content is undamaged, but meaningless.
    #[error("the token is malformed")]
    Malformed,
}

const PREFIX: &str = "en1-";
const CHECKSUM_BYTES: usize = 4;

impl JoinToken {
    /// Longest line, in bytes. A worker's token has two digests, a name of at most 255 bytes, two numbers and
    /// the checksum: about 350 bytes, and a third more in base 64.
    pub const LINE_BYTES_MAX: usize = 512;

    /// The token as one line of text. The line is a secret: it may go into a file of mode 0600, into an
    /// environment, or to the terminal of the person who asked for it, and never into a log.
    pub fn to_line(&self) -> String {
        let mut bytes = postcard::to_stdvec(self).expect("a token has no part that can fail");
        let checksum = Fingerprint::of(&bytes).0;
        bytes.extend_from_slice(&checksum[..CHECKSUM_BYTES]);
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for JoinToken {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let line = text.trim();
        if line.is_empty() {
            return Err(InvalidToken::Empty);
        }
        if line.len() > Self::LINE_BYTES_MAX {
            return Err(InvalidToken::TooLong { bytes: line.len() });
        }
        let Some(body) = line.strip_prefix(PREFIX) else {
            let version = line.strip_prefix("en").and_then(|rest| rest.split_once('-'));
            return Err(match version.and_then(|(version, _)| version.parse().ok()) {
                Some(version) => InvalidToken::OtherVersion { version },
                None => InvalidToken::NotAToken,
            });
        };
        let bytes = URL_SAFE_NO_PAD.decode(body).map_err(|error| match error {
            base64::DecodeError::InvalidByte(..) => InvalidToken::NotBase64,
            _ => InvalidToken::Damaged,
        })?;
        let (body, checksum) =
            bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(InvalidToken::Damaged)?;
        if Fingerprint::of(body).0[..CHECKSUM_BYTES] != *checksum {
            return Err(InvalidToken::Damaged);
        }
        match postcard::take_from_bytes(body) {
            Ok((token, [])) => Ok(token),
            _ => Err(InvalidToken::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::{HostName, Incarnation};
    use proptest::prelude::*;

    use super::*;

    fn token(kind: TokenKind) -> JoinToken {
        let secret = TokenSecret::generate().expect("random numbers");
        JoinToken { authority: Fingerprint::of(b"authority"), kind, secret }
    }

    #[test]
    fn a_token_survives_its_line() {
        let host = HostName::new(&"h".repeat(255)).expect("a name");
        let worker = WorkerId { host, slot: u32::MAX, incarnation: Incarnation(u64::MAX) };
        for kind in [TokenKind::Join, TokenKind::Client, TokenKind::Worker(worker)] {
            let token = token(kind);
            let line = token.to_line();
            assert!(line.len() <= JoinToken::LINE_BYTES_MAX && !line.contains(char::is_whitespace));
            let read: JoinToken = format!("  {line}\n").parse().expect("just written");
            assert!(read.secret.is(&token.secret));
            assert_eq!((read.kind, read.authority), (token.kind, token.authority));
        }
    }

    #[test]
    fn what_is_wrong_is_named_and_the_secret_is_not() {
        let token = token(TokenKind::Join);
        let line = token.to_line();
        let read = |text: &str| text.parse::<JoinToken>().expect_err("not a token");
        assert_eq!(read(" "), InvalidToken::Empty);
        assert_eq!(read("hunter2"), InvalidToken::NotAToken);
        assert_eq!(read("en2-AAAA"), InvalidToken::OtherVersion { version: 2 });
        assert_eq!(read(&format!("{line}!")), InvalidToken::NotBase64);
        assert_eq!(read(&line[..line.len() - 4]), InvalidToken::Damaged);
        assert_eq!(read(&"x".repeat(600)), InvalidToken::TooLong { bytes: 600 });
        assert!(format!("{token:?}").contains("hidden"));
    }

    proptest! {
        #[test]
        fn any_text_is_safe(text in ".{0,600}", bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = text.parse::<JoinToken>();
            let mut bytes = bytes;
            bytes.extend_from_slice(&Fingerprint::of(&bytes.clone()).0[..CHECKSUM_BYTES]);
            let _ = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)).parse::<JoinToken>();
        }
    }
}
