//! The enrol exchange: the only messages that a node without a certificate may send, and their encoding.

use elastic_protocol::codec::{self, CodecError};
use elastic_protocol::{HostName, NodeId, NodeName, WorkerId};
use serde::{Deserialize, Serialize};

use crate::identity::secret::TokenSecret;

/// Largest request or answer, in bytes: names are at most 255 bytes, a certificate is below 1 KiB.
pub const ENROL_BYTES_MAX: usize = 4096;

/// The name that a node asks for.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum EnrolClaim {
    /// The agent of a host.
    Agent(HostName),
    /// A worker, with the credential that was issued to it.
    Worker(WorkerId),
    /// A process that only asks.
    Client,
}

impl EnrolClaim {
    /// The name that is claimed.
    pub fn name(&self) -> NodeName {
        match self {
            Self::Agent(host) => NodeName::Agent(host.clone()),
            Self::Worker(worker) => NodeName::Worker(worker.host.clone(), worker.slot),
            Self::Client => NodeName::Client,
        }
    }
}

/// The request of a node without a certificate.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct EnrolRequest {
    /// The name that it asks for.
    pub claim: EnrolClaim,
    /// The secret of its token.
    pub secret: TokenSecret,
    /// The public key for the certificate: an uncompressed point of P-256.
    pub public_key: Vec<u8>,
}

/// Reason for which a node was not let in.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, thiserror::Error)]
pub enum EnrolRefusal {
    /// The secret is not the one that the claim requires.
    #[error("the token's secret is not valid for {0:?}")]
    WrongSecret(NodeName),
    /// This worker's credential has been used, or was withdrawn.
    #[error("the credential of worker {0} has been used or withdrawn")]
    Spent(WorkerId),
    /// Any other reason, in the driver's words.
    #[error("{0}")]
    Other(String),
}

/// The driver's answer.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum EnrolAnswer {
    /// The node is let in.
    Issued {
        /// The node's id from now on.
        node: NodeId,
        /// Its certificate, in DER.
        certificate: Vec<u8>,
    },
    /// The node is not let in.
    Refused(EnrolRefusal),
}

/// Reason for which bytes are not part of an enrol exchange.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// More bytes than [`ENROL_BYTES_MAX`].
    #[error("{bytes} bytes; at most {ENROL_BYTES_MAX} are allowed")]
    TooLarge {
        /// Number of bytes.
        bytes: usize,
    },
    /// Bytes that are not of the expected form.
    #[error("neither a request to enrol nor an answer")]
    Malformed(#[source] CodecError),
}

macro_rules! bytes_of {
    ($name:ident) => {
        impl $name {
            /// Encodes the message.
            ///
            /// # Errors
            /// [`EnrolError::TooLarge`].
            pub fn encode(&self) -> Result<Vec<u8>, EnrolError> {
                let bytes = codec::encode(self).map_err(EnrolError::Malformed)?;
                if bytes.len() > ENROL_BYTES_MAX {
                    return Err(EnrolError::TooLarge { bytes: bytes.len() });
                }
                Ok(bytes)
            }

            /// Decodes the message; any input is safe.
            ///
            /// # Errors
            /// [`EnrolError`] says what is wrong.
            pub fn decode(bytes: &[u8]) -> Result<Self, EnrolError> {
                if bytes.len() > ENROL_BYTES_MAX {
                    return Err(EnrolError::TooLarge { bytes: bytes.len() });
                }
                codec::decode(bytes).map_err(EnrolError::Malformed)
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
        let secret = TokenSecret::generate().expect("random numbers");
        let request = EnrolRequest { claim: EnrolClaim::Client, secret, public_key: vec![4; 65] };
        let read = EnrolRequest::decode(&request.encode().expect("small")).expect("just encoded");
        assert!(read.secret.is(&request.secret));
        assert!(format!("{read:?}").contains("hidden"));
    }
}
