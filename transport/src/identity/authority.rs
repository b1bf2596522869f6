//! [`Authority`]: the certificate authority of one job. The driver makes it, and issues certificates with it.

use elastic_protocol::{JobId, NodeId, NodeName};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PublicKeyData, SanType,
    SerialNumber, SignatureAlgorithm, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::identity::bearer::{Bearer, NodeIdentity};
use crate::identity::secret::{NoRandomness, TokenSecret, random_bytes};
use crate::identity::token::Fingerprint;

/// The name in the driver's certificate. Addresses need no check, because the token pins the authority.
pub(crate) const DRIVER_SERVER_NAME: &str = "driver.elastic";

/// The years in which certificates are valid, from the first day of one to the first day of the other.
///
/// By default they are valid at any time that a clock may show: clocks of hosts differ, jump, and stand at 1970 on a
/// machine without a battery, and nothing renews certificates. A short time would not help security: the
/// authority belongs to one job and ends with it.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    /// The first year. Default 1970.
    pub from_year: i32,
    /// The year after the last. Default 2120.
    pub until_year: i32,
}

impl Default for Validity {
    fn default() -> Self {
        Self { from_year: 1970, until_year: 2120 }
    }
}

/// Reason for which a certificate could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The certificate library failed.
    #[error("the certificate could not be made")]
    Certificate(#[from] rcgen::Error),
    /// There are no random numbers for a serial number.
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
    /// The public key is not a P-256 point.
    #[error("a public key must have 65 bytes, an uncompressed point of P-256")]
    PublicKey,
    /// The stored certificate cannot be read.
    #[error("the stored certificate of the authority cannot be read")]
    StoredCertificate(#[source] rustls::pki_types::pem::Error),
    /// The stored certificate and key do not belong together.
    #[error("the stored key of the authority does not belong to its certificate")]
    StoredKey,
}

/// The bytes before the seed in an Ed25519 key of RFC 8410, section 7.
const ED25519_PKCS8: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// The certificate authority of a job: ECDSA over P-256, or Ed25519 if it is derived from a secret.
pub struct Authority {
    job: JobId,
    validity: Validity,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Authority").field("job", &self.job).finish_non_exhaustive()
    }
}

/// A public key that a node sent: an uncompressed point of P-256.
struct NodeKey<'a>(&'a [u8]);

impl PublicKeyData for NodeKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// Bytes of an uncompressed point of P-256: a tag and two coordinates.
pub(crate) const PUBLIC_KEY_BYTES: usize = 65;

impl Authority {
    /// A new authority for a job.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn new(job: JobId, validity: Validity) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = authority_params();
        set_validity(&mut params, validity);
        params.serial_number = Some(serial_number()?);
        let certificate = params.self_signed(&key)?.der().clone();
        let issuer = Issuer::new(authority_params(), key);
        Ok(Self { job, validity, certificate, issuer })
    }

    /// The authority that is derived from a secret: the same certificate, to the byte, wherever it is made. It
    /// uses Ed25519, which signs without randomness; ECDSA needs randomness.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub(crate) fn derived(job: JobId, secret: &TokenSecret) -> Result<Self, AuthorityError> {
        let key = [&ED25519_PKCS8[..], secret.derive(b"key").bytes()].concat();
        let key = PrivatePkcs8KeyDer::from(key);
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519)?;
        let mut params = authority_params();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2120, 1, 1);
        // A cleared top bit keeps the number positive; the bit below, set, keeps its length constant.
        let mut number = *secret.derive(b"serial number").bytes();
        number[0] = number[0] & 0x7f | 0x40;
        params.serial_number = Some(SerialNumber::from_slice(&number[..16]));
        let certificate = params.self_signed(&key)?.der().clone();
        let (validity, issuer) = (Validity::default(), Issuer::new(authority_params(), key));
        Ok(Self { job, validity, certificate, issuer })
    }

    /// An authority that was stored by [`Self::certificate_pem`] and [`Self::key_pem`].
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn from_pem(
        job: JobId,
        validity: Validity,
        certificate_pem: &str,
        key_pem: &str,
    ) -> Result<Self, AuthorityError> {
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(AuthorityError::StoredCertificate)?;
        let key = KeyPair::from_pem(key_pem)?;
        let public = key.public_key_raw();
        if !certificate.windows(public.len()).any(|window| window == public) {
            return Err(AuthorityError::StoredKey);
        }
        Ok(Self { job, validity, certificate, issuer: Issuer::new(authority_params(), key) })
    }

    /// The authority's certificate, as PEM.
    pub fn certificate_pem(&self) -> String {
        let body = base64::Engine::encode(
            &base64::engine::general_purpose::STANDARD,
            self.certificate.as_ref(),
        );
        let lines: Vec<_> = body.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    }

    /// The authority's private key, as PEM: for a file of mode 0600 only.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// The job.
    pub fn job(&self) -> JobId {
        self.job
    }

    /// The fingerprint that tokens pin.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// The authority's certificate, in DER.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// A certificate for a node that holds the private key of `public_key`.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn issue(
        &self,
        node: &NodeId,
        public_key: &[u8],
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        if public_key.len() != PUBLIC_KEY_BYTES || public_key[0] != 4 {
            return Err(AuthorityError::PublicKey);
        }
        let bearer = Bearer { job: self.job, node: node.clone() };
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name("node");
        params.serial_number = Some(serial_number()?);
        set_validity(&mut params, self.validity);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.subject_alt_names = vec![SanType::URI(bearer.to_uri().try_into()?)];
        // Only the driver may be a server, so no other node can pose as the driver; and the driver is never a
        // client.
        params.extended_key_usages = if node.name == NodeName::Driver {
            params.subject_alt_names.push(SanType::DnsName(DRIVER_SERVER_NAME.try_into()?));
            vec![ExtendedKeyUsagePurpose::ServerAuth]
        } else {
            vec![ExtendedKeyUsagePurpose::ClientAuth]
        };
        Ok(params.signed_by(&NodeKey(public_key), &self.issuer)?.der().clone())
    }

    /// A whole identity, key included, for a node in this process.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn identity(&self, node: &NodeId) -> Result<NodeIdentity, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        Ok(NodeIdentity {
            bearer: Bearer { job: self.job, node: node.clone() },
            certificate: self.issue(node, key.public_key_raw())?,
            authority: self.certificate.clone(),
            key: key.serialize_der(),
        })
    }
}

/// The authority's certificate parameters except times and number. They are always the same, so that a stored
/// authority can be read back. Names are short, because certificates travel with every handshake; a token's
/// fingerprint tells authorities apart.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name("elastic-node");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn distinguished_name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn serial_number() -> Result<SerialNumber, NoRandomness> {
    // A cleared top bit keeps the number positive.
    let mut bytes = random_bytes::<16>()?;
    bytes[0] &= 0x7f;
    Ok(SerialNumber::from_slice(&bytes))
}

fn set_validity(params: &mut CertificateParams, validity: Validity) {
    params.not_before = date_time_ymd(validity.from_year, 1, 1);
    params.not_after = date_time_ymd(validity.until_year, 1, 1);
}

#[cfg(test)]
mod tests {
    use elastic_protocol::{HostName, Incarnation};
    use uuid::Uuid;

    use super::*;
    use crate::identity::bearer::NoBearer;

    #[test]
    fn a_certificate_names_its_node() {
        let job = JobId(Uuid::from_u128(5));
        let authority = Authority::new(job, Validity::default()).expect("made");
        let host = HostName::new("größe ../x").expect("a name");
        let node = NodeId { name: NodeName::Agent(host), incarnation: Incarnation(3) };
        let identity = authority.identity(&node).expect("issued");
        assert_eq!(Bearer::of_certificate(&identity.certificate), Ok(Bearer { job, node }));
        assert_eq!(Bearer::of_certificate(authority.certificate()), Err(NoBearer));
    }

    #[test]
    fn an_authority_can_be_stored() {
        let job = JobId(Uuid::from_u128(5));
        let authority = Authority::new(job, Validity::default()).expect("made");
        let (certificate, key) = (authority.certificate_pem(), authority.key_pem());
        let read = Authority::from_pem(job, Validity::default(), &certificate, &key).expect("read");
        assert_eq!(read.fingerprint(), authority.fingerprint());
        let other = Authority::new(job, Validity::default()).expect("made");
        let mixed = Authority::from_pem(job, Validity::default(), &certificate, &other.key_pem());
        assert!(matches!(mixed, Err(AuthorityError::StoredKey)));
    }

    #[test]
    fn a_public_key_is_checked() {
        let job = JobId(Uuid::from_u128(5));
        let authority = Authority::new(job, Validity::default()).expect("made");
        let node = NodeId { name: NodeName::Client, incarnation: Incarnation(1) };
        assert!(matches!(authority.issue(&node, &[4; 64]), Err(AuthorityError::PublicKey)));
    }
}
