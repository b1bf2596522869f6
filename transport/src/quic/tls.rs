//! TLS 1.3 with client certificates: the driver's side, and the client's side, which trusts only the authority
//! that its token pins.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use quinn::Connection;
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::identity::bearer::{Bearer, NoBearer, NodeIdentity};
use crate::identity::token::Fingerprint;

/// The version of the protocol between nodes. Two nodes must have the same, and the same messages.
pub const PROTOCOL_VERSION: u32 = 2;

/// Digest of the messages' definitions, from the build script.
const MESSAGES: &str = env!("ELASTIC_MESSAGES");

/// ALPN that all versions speak, so that an end can tell the other its version.
const ALPN_ANY_VERSION: &[u8] = b"elastic";

/// The ALPN of a version, with the digest of its messages.
pub fn alpn(version: u32) -> Vec<u8> {
    format!("elastic/{version}.{MESSAGES}").into_bytes()
}

/// This program with its version of the protocol, for people.
pub(crate) fn release(version: u32) -> String {
    format!("elastic-node {}, protocol {version}.{MESSAGES}", env!("CARGO_PKG_VERSION"))
}

/// TLS could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("TLS could not be set up")]
pub struct TlsError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl TlsError {
    fn new(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Box::new(source))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The driver's configuration. A client may come without a certificate: then it can only enrol.
pub(crate) fn server(identity: &NodeIdentity, version: u32) -> Result<QuicServerConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add(identity.authority.clone()).map_err(TlsError::new)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .allow_unauthenticated()
        // Nodes have one certificate, and need no hint which one to show.
        .clear_root_hint_subjects()
        .build()
        .map_err(TlsError::new)?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::new)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain(), identity.private_key())
        .map_err(TlsError::new)?;
    config.alpn_protocols = vec![alpn(version), ALPN_ANY_VERSION.to_vec()];
    // A resumed TLS session would skip the check of the certificate's validity.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    QuicServerConfig::try_from(config).map_err(TlsError::new)
}

/// A client's configuration, and its verifier, which remembers its finding.
pub(crate) fn client(
    authority: Fingerprint,
    identity: Option<&NodeIdentity>,
    version: u32,
) -> Result<(QuicClientConfig, Arc<PinnedAuthority>), TlsError> {
    let verifier = Arc::new(PinnedAuthority::new(authority));
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::new)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<dyn ServerCertVerifier>);
    let mut config = match identity {
        Some(identity) => config
            // The authority's certificate is left out, because the driver has it.
            .with_client_auth_cert(vec![identity.certificate.clone()], identity.private_key())
            .map_err(TlsError::new)?,
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn(version), ALPN_ANY_VERSION.to_vec()];
    config.resumption = Resumption::disabled();
    Ok((QuicClientConfig::try_from(config).map_err(TlsError::new)?, verifier))
}

/// Whether both ends speak the same version, once the handshake is done.
pub(crate) fn is_same_version(connection: &Connection, version: u32) -> bool {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    data.and_then(|data| data.protocol).is_some_and(|protocol| protocol == alpn(version))
}

/// The node at the other end; `None` if it showed no certificate.
pub(crate) fn bearer(connection: &Connection) -> Option<Result<Bearer, NoBearer>> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    Some(Bearer::of_certificate(chain.first()?))
}

/// A client's finding about the certificate of the other end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum CertificateFinding {
    /// The certificate is good.
    Good = 0,
    /// No certificate of its chain has the fingerprint.
    WrongAuthority = 1,
    /// The certificate has expired.
    Expired = 2,
    /// The certificate has any other fault.
    Invalid = 3,
}

/// Verifies that a server's chain leads to the one authority that a token pins.
#[derive(Debug)]
pub(crate) struct PinnedAuthority {
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
    finding: AtomicU8,
    authority: OnceLock<CertificateDer<'static>>,
}

impl PinnedAuthority {
    fn new(fingerprint: Fingerprint) -> Self {
        let finding = AtomicU8::new(CertificateFinding::Good as u8);
        Self { fingerprint, provider: provider(), finding, authority: OnceLock::new() }
    }

    /// The authority's certificate, once a driver has shown it.
    pub(crate) fn authority(&self) -> Option<CertificateDer<'static>> {
        self.authority.get().cloned()
    }

    /// The finding of the last handshake.
    pub(crate) fn finding(&self) -> CertificateFinding {
        match self.finding.load(Ordering::Relaxed) {
            0 => CertificateFinding::Good,
            1 => CertificateFinding::WrongAuthority,
            2 => CertificateFinding::Expired,
            _ => CertificateFinding::Invalid,
        }
    }

    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<ServerCertVerified, (CertificateFinding, rustls::Error)> {
        let authority = intermediates
            .iter()
            .find(|certificate| Fingerprint::of(certificate) == self.fingerprint)
            .ok_or((CertificateFinding::WrongAuthority, CertificateError::UnknownIssuer.into()))?;
        let invalid = |error: rustls::Error| (CertificateFinding::Invalid, error);
        let authority = self.authority.get_or_init(|| authority.clone().into_owned());
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone()).map_err(invalid)?;
        let provider = Arc::clone(&self.provider);
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| invalid(rustls::Error::General(error.to_string())))?;
        verifier.verify_server_cert(end_entity, &[], server_name, &[], now).map_err(|error| {
            use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
            match error {
                rustls::Error::InvalidCertificate(
                    Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. },
                ) => (CertificateFinding::Expired, error),
                _ => invalid(error),
            }
        })
    }
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.verify(end_entity, intermediates, server_name, now);
        let finding =
            verified.as_ref().map_or_else(|(finding, _)| *finding, |_| CertificateFinding::Good);
        self.finding.store(finding as u8, Ordering::Relaxed);
        verified.map_err(|(_, error)| error)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls13RequiredForQuic.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
