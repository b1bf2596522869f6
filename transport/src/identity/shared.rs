//! [`SharedSecret`]: a secret of nodes that are all started alike, before there is a driver among them. Each
//! node derives the job's authority and join token from it.

use std::fmt;
use std::num::NonZeroU32;

use ring::pbkdf2;

use crate::identity::authority::{Authority, AuthorityError};
use crate::identity::secret::TokenSecret;
use crate::identity::token::{JoinToken, TokenKind};

/// Rounds of the derivation: they make each guess of a text take time.
const ROUNDS: NonZeroU32 = NonZeroU32::new(100_000).expect("a literal that is not 0");

/// Purpose of the derivation: no other program derives the same bytes.
const PURPOSE: &[u8] = b"elastic-node: the secret of a job's nodes, 1";

/// A job's secret, from a text that the job's nodes share. It is as strong as the text.
#[derive(Clone)]
pub struct SharedSecret(TokenSecret);

impl SharedSecret {
    /// Derives the secret from a text, without the white space around it. Takes a tenth of a second.
    pub fn of(text: &str) -> Self {
        let mut bytes = [0; 32];
        let text = text.trim().as_bytes();
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ROUNDS, PURPOSE, text, &mut bytes);
        Self(TokenSecret::from_bytes(bytes))
    }

    /// The token that lets nodes into the job.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn join_token(&self) -> Result<JoinToken, AuthorityError> {
        let job = elastic_protocol::JobId(uuid::Uuid::nil());
        let authority = Authority::derived(job, &self.authority())?.fingerprint();
        Ok(JoinToken { authority, kind: TokenKind::Join, secret: self.join() })
    }

    pub(crate) fn authority(&self) -> TokenSecret {
        self.0.derive(b"authority")
    }

    /// The key of [`sealed`](super::sealed).
    pub(crate) fn sealing(&self) -> [u8; 32] {
        self.0.derive(b"sealing").bytes().to_owned()
    }

    /// A digest by which holders of one secret know each other. It opens nothing, and costs whoever guesses the text as much
    /// as what is sealed with it does.
    pub fn digest(&self) -> String {
        let bytes = *self.0.derive(b"digest").bytes();
        bytes[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn join(&self) -> TokenSecret {
        self.0.derive(b"join")
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SharedSecret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::{Incarnation, JobId};
    use uuid::Uuid;

    use super::*;
    use crate::identity::job_secrets::JobSecrets;

    #[test]
    fn every_node_has_the_token_of_the_driver_that_shares_its_text() {
        let shared = SharedSecret::of("a long text\n");
        let driver = JobSecrets::shared(JobId(Uuid::from_u128(5)), &shared).expect("made");
        let driver = JobSecrets::from_bytes(&driver.to_bytes()).expect("stored and read");
        let authority = driver.authority().expect("kept");
        let token = driver.credentials(&authority, Incarnation(1)).join_token();
        let of_node = SharedSecret::of("a long text").join_token().expect("made");
        assert_eq!(token.to_line(), of_node.to_line());
        let other = SharedSecret::of("another text").join_token().expect("made");
        assert_ne!(other.authority, of_node.authority);
        assert!(!other.secret.is(&of_node.secret));
        let digest = SharedSecret::of("a long text").digest();
        assert_eq!(digest, shared.digest());
        assert_ne!(digest, SharedSecret::of("another text").digest());
        // The authority's signatures verify.
        let node = elastic_protocol::NodeId {
            name: elastic_protocol::NodeName::Driver,
            incarnation: Incarnation(1),
        };
        assert!(authority.identity(&node).is_ok());
        assert!(!format!("{shared:?}").contains("text"));
    }
}
