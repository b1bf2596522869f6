//! The bearer of a certificate: job and node, from its URI name, and the key that proves it. Used by TLS and
//! enrolling.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use elastic_protocol::{JobId, NodeId};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use uuid::Uuid;

const SCHEME: &str = "elastic-node:";

/// A node of a job, as its certificate names it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Bearer {
    /// The job.
    pub job: JobId,
    /// The node.
    pub node: NodeId,
}

/// The certificate names no node.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the certificate names no node of a job")]
pub struct NoBearer;

impl Bearer {
    /// Encodes it as `elastic-node:JOB/NODE`. The node is postcard in base 64, because host names may hold any
    /// character.
    pub fn to_uri(&self) -> String {
        let node = postcard::to_stdvec(&self.node).expect("a node's id has no part that can fail");
        format!("{SCHEME}{}/{}", self.job, URL_SAFE_NO_PAD.encode(node))
    }

    /// Decodes the form of [`Self::to_uri`]; any input is safe.
    ///
    /// # Errors
    /// [`NoBearer`].
    pub fn from_uri(uri: &str) -> Result<Self, NoBearer> {
        let (job, node) =
            uri.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/')).ok_or(NoBearer)?;
        let job = JobId(Uuid::try_parse(job).map_err(|_| NoBearer)?);
        let node = URL_SAFE_NO_PAD.decode(node).map_err(|_| NoBearer)?;
        match postcard::take_from_bytes(&node) {
            Ok((node, [])) => Ok(Self { job, node }),
            _ => Err(NoBearer),
        }
    }

    /// Reads the bearer from a certificate whose signature is checked already.
    ///
    /// # Errors
    /// [`NoBearer`].
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Result<Self, NoBearer> {
        let certificate = webpki::EndEntityCert::try_from(certificate).map_err(|_| NoBearer)?;
        certificate.valid_uri_names().find_map(|uri| Self::from_uri(uri).ok()).ok_or(NoBearer)
    }
}

/// A node's certificate, the authority's, and the node's private key.
pub struct NodeIdentity {
    /// The node, as its certificate names it.
    pub bearer: Bearer,
    /// The node's certificate, in DER.
    pub certificate: CertificateDer<'static>,
    /// The authority's certificate, in DER.
    pub authority: CertificateDer<'static>,
    /// The private key: PKCS #8, in DER.
    pub(crate) key: Vec<u8>,
}

impl NodeIdentity {
    /// The certificates that the driver shows: its own and the authority's, of which other nodes know only the
    /// fingerprint.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone(), self.authority.clone()]
    }

    /// The private key, in the form that TLS takes.
    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()))
    }
}

impl std::fmt::Debug for NodeIdentity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Identity").field("bearer", &self.bearer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::{HostName, Incarnation, NodeName};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_host_name_survives(name in "[^\\p{C}]{1,60}x") {
            let host = HostName::new(&name).expect("no control characters");
            let node = NodeId { name: NodeName::Agent(host), incarnation: Incarnation(7) };
            let bearer = Bearer { job: JobId(Uuid::from_u128(9)), node };
            prop_assert_eq!(Bearer::from_uri(&bearer.to_uri()), Ok(bearer));
        }

        #[test]
        fn any_text_is_safe(text in ".{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Bearer::from_uri(&text);
            let node = URL_SAFE_NO_PAD.encode(bytes);
            let _ = Bearer::from_uri(&format!("{SCHEME}{}/{node}", Uuid::nil()));
        }
    }
}
