//! The enrol exchange: the only words that a node without a certificate may say, and their bytes.

use elastic_protocol::messages::{self, CodecError};
use elastic_protocol::{HostName, NodeId, NodeName, WorkerId};
use serde::{Deserialize, Serialize};

use crate::secret::Secret;

/// Largest request or answer, in bytes: names are at most 255 bytes, a certificate is below 1 KiB.
pub const ENROL_BYTES_MAX: usize = 4096;

/// Whom a node wants to be.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Claim {
    /// The agent of a host.
    Agent(HostName),
    /// A worker, by the credential that was issued to it.
    Worker(WorkerId),
    /// Somebody who only asks.
    Client,
}

impl Claim {
    /// The name that is claimed.
    pub fn name(&self) -> NodeName {
        match self {
            Self::Agent(host) => NodeName::Agent(host.clone()),
            Self::Worker(worker) => NodeName::Worker(worker.host.clone(), worker.slot),
            Self::Client => NodeName::Client,
        }
    }
}

/// What a node without a certificate shows.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct EnrolRequest {
    /// Whom it wants to be.
    pub claim: Claim,
    /// The secret of its token.
    pub secret: Secret,
    /// The public key that the certificate shall be for: an uncompressed point of P-256.
    pub public_key: Vec<u8>,
}

/// Why a node was not let in.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, thiserror::Error)]
pub enum Refusal {
    /// The secret is not the one that the claim needs.
    #[error("the token's secret is not valid for {0:?}")]
    WrongSecret(NodeName),
    /// This worker's credential has been used, or was withdrawn.
    #[error("the credential of worker {0} has been used or withdrawn")]
    Spent(WorkerId),
    /// Whatever else the driver says.
    #[error("{0}")]
    Other(String),
}

/// What the driver answers.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum EnrolAnswer {
    /// Let in.
    Issued {
        /// Who it is now.
        node: NodeId,
        /// Its certificate, in DER.
        certificate: Vec<u8>,
    },
    /// Not let in.
    Refused(Refusal),
}

/// Why bytes are not part of an enrol exchange.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// More than [`ENROL_BYTES_MAX`].
    #[error("{bytes} bytes; at most {ENROL_BYTES_MAX} are allowed")]
    TooLarge {
        /// How many.
        bytes: usize,
    },
    /// Not of the expected form.
    #[error("neither a request to enrol nor an answer")]
    Malformed(#[source] CodecError),
}

macro_rules! bytes_of {
    ($name:ident) => {
        impl $name {
            /// Its bytes.
            ///
            /// # Errors
            /// [`EnrolError::TooLarge`].
            pub fn encode(&self) -> Result<Vec<u8>, EnrolError> {
                let bytes = messages::encode(self).map_err(EnrolError::Malformed)?;
                if bytes.len() > ENROL_BYTES_MAX {
                    return Err(EnrolError::TooLarge { bytes: bytes.len() });
                }
                Ok(bytes)
            }

            /// Reads it; any input is safe.
            ///
            /// # Errors
            /// [`EnrolError`] says what is wrong.
            pub fn decode(bytes: &[u8]) -> Result<Self, EnrolError> {
                if bytes.len() > ENROL_BYTES_MAX {
                    return Err(EnrolError::TooLarge { bytes: bytes.len() });
                }
                messages::decode(bytes).map_err(EnrolError::Malformed)
            }
        }
    };
}

bytes_of!(EnrolRequest);
bytes_of!(EnrolAnswer);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_safe(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            let _ = EnrolRequest::decode(&bytes);
            let _ = EnrolAnswer::decode(&bytes);
        }
    }

    #[test]
    fn a_request_survives_and_hides_its_secret() {
        let secret = Secret::generate().expect("random numbers");
        let request = EnrolRequest { claim: Claim::Client, secret, public_key: vec![4; 65] };
        let read = EnrolRequest::decode(&request.encode().expect("small")).expect("just encoded");
        assert!(read.secret.is(&request.secret));
        assert!(format!("{read:?}").contains("hidden"));
    }
}
