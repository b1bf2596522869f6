//! [`CollectorClient`]: requests to a collector, by the HTTP client that the journal uses too. Used by OpenTelemetry's
//! exporter, on the thread of `traces`.

use std::fs;
use std::sync::Arc;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use rustls::crypto::ring::default_provider;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::TracesRefused;
use super::settings::TracesSettings;

/// Most bytes of a collector's answer that are read: it may report refused spans.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// A client of one collector.
#[derive(Clone, Debug)]
pub(super) struct CollectorClient(Agent);

impl CollectorClient {
    /// A client. Nothing is asked yet.
    ///
    /// # Errors
    /// [`TracesRefused::Authority`]: the collector is reached over TLS, and there are no authorities to trust.
    pub(super) fn new(settings: &TracesSettings) -> Result<Self, TracesRefused> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(settings.timeout));
        let config = match settings.is_secure() {
            true => config.tls_config(tls(settings)?).build(),
            false => config.build(),
        };
        Ok(Self(Agent::new_with_config(config)))
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    /// Blocks: the thread of `traces` has nothing else to do.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let response = self.0.run(Request::from_parts(parts, body.as_ref()))?;
        let (parts, mut body) = response.into_parts();
        let body = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(parts, Bytes::from(body)))
    }
}

/// The authorities that the settings name, or else those that the system trusts.
fn tls(settings: &TracesSettings) -> Result<TlsConfig, TracesRefused> {
    let authorities: Vec<Certificate<'static>> = match &settings.authority {
        Some(path) => {
            let refused = |source| TracesRefused::Authority { path: path.clone(), source };
            let pem = fs::read(path).map_err(refused)?;
            parse_pem(&pem)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect()
        }
        None => {
            let trusted = rustls_native_certs::load_native_certs().certs;
            trusted.iter().map(|it| Certificate::from_der(it).to_owned()).collect()
        }
    };
    if authorities.is_empty() {
        return Err(TracesRefused::NoAuthority);
    }
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(authorities)))
        .unversioned_rustls_crypto_provider(Arc::new(default_provider()))
        .build())
}
