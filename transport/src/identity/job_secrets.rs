//! [`JobSecrets`]: all secrets that a driver must keep, so that its job's nodes recognise it after it was
//! killed and started anew. The driver's process puts them into the journal, and nowhere else.

use std::fmt;
use std::rc::Rc;

use elastic_protocol::{Incarnation, JobId};
use serde::{Deserialize, Serialize};

use crate::identity::authority::{Authority, AuthorityError, Validity};
use crate::identity::credentials::Credentials;
use crate::identity::secret::TokenSecret;
use crate::identity::shared::SharedSecret;

/// A job's secrets, made once, at the job's beginning.
#[derive(Clone, Deserialize, Serialize)]
pub struct JobSecrets {
    job: JobId,
    certificate_pem: String,
    key_pem: String,
    pub(crate) join: TokenSecret,
    pub(crate) client: TokenSecret,
    /// The secret from which workers' secrets are derived.
    pub(crate) workers: TokenSecret,
    /// The secret with which a restarted driver tells peers that its predecessor's connections are over.
    pub(crate) reset: TokenSecret,
}

/// Stored secrets that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StoredSecretsError {
    /// The bytes are not stored secrets.
    #[error("the stored secrets of the job are malformed")]
    Malformed(#[from] postcard::Error),
    /// More bytes follow the secrets.
    #[error("the stored secrets of the job are followed by {0} bytes")]
    Trailing(usize),
}

impl fmt::Debug for JobSecrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("JobSecrets").field("job", &self.job).finish_non_exhaustive()
    }
}

impl JobSecrets {
    /// Secrets of a new job.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn new(job: JobId) -> Result<Self, AuthorityError> {
        let authority = Authority::new(job, Validity::default())?;
        Self::of(&authority, TokenSecret::generate()?)
    }

    /// Secrets of a new job whose nodes derive the token themselves.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn shared(job: JobId, shared: &SharedSecret) -> Result<Self, AuthorityError> {
        Self::of(&Authority::derived(job, &shared.authority())?, shared.join())
    }

    fn of(authority: &Authority, join: TokenSecret) -> Result<Self, AuthorityError> {
        Ok(Self {
            job: authority.job(),
            certificate_pem: authority.certificate_pem(),
            key_pem: authority.key_pem(),
            join,
            client: TokenSecret::generate()?,
            workers: TokenSecret::generate()?,
            reset: TokenSecret::generate()?,
        })
    }

    /// The job.
    pub fn job(&self) -> JobId {
        self.job
    }

    /// The job's certificate authority.
    ///
    /// # Errors
    /// [`AuthorityError`] if the stored certificate or key cannot be used.
    pub fn authority(&self) -> Result<Rc<Authority>, AuthorityError> {
        let (certificate, key) = (&self.certificate_pem, &self.key_pem);
        Authority::from_pem(self.job, Validity::default(), certificate, key).map(Rc::new)
    }

    /// The table of nodes that may enrol with a driver. `first` is the incarnation of the first agent or client
    /// that enrols; each further one gets the next number, so that none is given out twice.
    pub fn credentials(&self, authority: &Authority, first: Incarnation) -> Credentials {
        Credentials::new(authority.fingerprint(), self, first)
    }

    /// Encodes the secrets for the journal.
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("no part of them can fail")
    }

    /// Decodes secrets from the journal.
    ///
    /// # Errors
    /// [`StoredSecretsError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StoredSecretsError> {
        match postcard::take_from_bytes(bytes)? {
            (secrets, []) => Ok(secrets),
            (_, rest) => Err(StoredSecretsError::Trailing(rest.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::{HostName, WorkerId};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_was_given_out_before_opens_the_same_doors_after_a_restart() {
        let secrets = JobSecrets::new(JobId(Uuid::from_u128(5))).expect("made");
        let restored = JobSecrets::from_bytes(&secrets.to_bytes()).expect("read");
        let authorities = [&secrets, &restored].map(|it| it.authority().expect("kept"));
        assert_eq!(authorities[0].fingerprint(), authorities[1].fingerprint());
        let mut before = secrets.credentials(&authorities[0], Incarnation(1));
        let mut after = restored.credentials(&authorities[1], Incarnation(9));
        assert_eq!(before.join_token().to_line(), after.join_token().to_line());
        let host = HostName::new("a").expect("a name");
        let worker = WorkerId { host, slot: 0, incarnation: Incarnation(1) };
        let other = WorkerId { slot: 1, ..worker.clone() };
        let token = before.issue_worker(&worker);
        assert_eq!(token.to_line(), after.issue_worker(&worker).to_line());
        assert!(!token.secret.is(&after.issue_worker(&other).secret));
        assert!(!format!("{secrets:?}").contains("PRIVATE"));
        assert!(JobSecrets::from_bytes(&secrets.to_bytes()[..40]).is_err());
    }
}
