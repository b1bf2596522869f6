//! [`EtcdTls`]: the certificates for etcd over TLS. Made by the command line, used by `gateway`.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// The authority that etcd's certificate must come from, and the certificate that this client shows, if etcd asks for
/// one. Clones share them.
#[derive(Clone, Eq, PartialEq)]
pub struct EtcdTls(Arc<EtcdCertificates>);

#[derive(Eq, PartialEq)]
struct EtcdCertificates {
    authority: Vec<u8>,
    /// Certificate chain and private key.
    client: Option<(Vec<u8>, Vec<u8>)>,
}

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidEtcdTls {
    /// There is no certificate in the text, or a malformed one.
    #[error("{0} has no certificate in PEM")]
    NoCertificate(&'static str),
    /// There is no private key in the text.
    #[error("the client's key has no private key in PEM")]
    NoKey,
    /// A certificate, or the key, is refused by the TLS library.
    #[error("{0} cannot be used")]
    Refused(&'static str, #[source] rustls::Error),
}

impl EtcdTls {
    /// Takes certificates and a key in PEM, and checks them.
    ///
    /// # Errors
    /// [`InvalidEtcdTls`].
    pub fn from_pem(
        authority: &[u8],
        client: Option<(&[u8], &[u8])>,
    ) -> Result<Self, InvalidEtcdTls> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority, "the authority")? {
            roots
                .add(certificate)
                .map_err(|error| InvalidEtcdTls::Refused("the authority's certificate", error))?;
        }
        if let Some((chain, key)) = client {
            let chain = certificates(chain, "the client's certificate")?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| InvalidEtcdTls::NoKey)?;
            CertifiedKey::from_der(chain, key, &default_provider())
                .map_err(|error| InvalidEtcdTls::Refused("the client's certificate", error))?;
        }
        let client = client.map(|(chain, key)| (chain.to_vec(), key.to_vec()));
        Ok(Self(Arc::new(EtcdCertificates { authority: authority.to_vec(), client })))
    }

    pub(super) fn config(&self) -> TlsConfig {
        let client = self.0.client.as_ref().and_then(|(chain, key)| {
            let key = PrivateKey::from_pem(key).ok()?;
            Some(ClientCert::new_with_certs(&of_client(chain), key))
        });
        let provider: Arc<CryptoProvider> = Arc::new(default_provider());
        TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&of_client(&self.0.authority)))
            .client_cert(client)
            .unversioned_rustls_crypto_provider(provider)
            .build()
    }
}

/// The certificates of a text, at least one.
fn certificates(
    pem: &[u8],
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, InvalidEtcdTls> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(InvalidEtcdTls::NoCertificate(what)),
    }
}

/// The same for the HTTP client; the text was checked when it came.
fn of_client(pem: &[u8]) -> Vec<Certificate<'static>> {
    let all = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
    all.map(|certificate| Certificate::from_der(&certificate).to_owned()).collect()
}

impl fmt::Debug for EtcdTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EtcdTls").finish_non_exhaustive()
    }
}
