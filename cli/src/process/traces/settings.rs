//! [`TracesSettings`]: the settings of traces from OpenTelemetry's environment variables. Read by `traces`; endpoint,
//! headers and resource are read by OpenTelemetry's own crates.

use std::path::PathBuf;
use std::time::Duration;

/// Timeout for a collector's answer, attempts included, where `OTEL_EXPORTER_OTLP_TIMEOUT` says nothing.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The destination of traces, and the connection's settings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct TracesSettings {
    /// The endpoint as it was given, which may contain secrets.
    pub(super) endpoint: String,
    /// Timeout of one answer.
    pub(super) timeout: Duration,
    /// The authority of the collector's certificate, in PEM; none: those that the system trusts.
    pub(super) authority: Option<PathBuf>,
}

/// A setting that cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum UnusableTraces {
    /// Another protocol than the one that this program speaks.
    #[error(
        "{variable}={protocol} is not spoken, only http/protobuf is; hint: set it to http/protobuf, and the endpoint to \
         the collector's port for HTTP (4318 by default)"
    )]
    Protocol {
        /// The variable.
        variable: &'static str,
        /// Its value.
        protocol: String,
    },
    /// An exporter that this program does not have.
    #[error("OTEL_TRACES_EXPORTER={0} is not known; hint: otlp or none")]
    Exporter(String),
}

impl TracesSettings {
    /// Reads the environment; none if it asks for no traces.
    ///
    /// # Errors
    /// [`UnusableTraces`].
    pub(super) fn read(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, UnusableTraces> {
        // As the specification says, an empty variable is as good as none.
        let set =
            |name: &str| variable(name).map(|it| it.trim().to_owned()).filter(|it| !it.is_empty());
        // Of two variables, the one for traces goes first.
        let either = |traces: &'static str, all: &'static str| {
            set(traces).map(|value| (traces, value)).or_else(|| Some((all, set(all)?)))
        };
        let endpoint = either("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT");
        let Some((_, endpoint)) = endpoint else { return Ok(None) };
        if set("OTEL_SDK_DISABLED").is_some_and(|it| it.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        match set("OTEL_TRACES_EXPORTER").as_deref() {
            None | Some("otlp") => {}
            Some("none") => return Ok(None),
            Some(other) => return Err(UnusableTraces::Exporter(other.to_owned())),
        }
        let protocol = either("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL");
        if let Some((variable, protocol)) = protocol.filter(|(_, it)| it != "http/protobuf") {
            return Err(UnusableTraces::Protocol { variable, protocol });
        }
        let timeout = either("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT");
        let timeout = timeout.and_then(|(_, ms)| ms.parse().ok()).map(Duration::from_millis);
        let timeout = timeout.filter(|it| !it.is_zero()).unwrap_or(DEFAULT_TIMEOUT);
        let authority =
            either("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE");
        let authority = authority.map(|(_, path)| PathBuf::from(path));
        Ok(Some(Self { endpoint, timeout, authority }))
    }

    /// The endpoint for logs and warnings: without a user, a password and a query, which may be secrets.
    pub(super) fn shown_endpoint(&self) -> String {
        let url = self.endpoint.split(['?', '#']).next().unwrap_or_default();
        let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
        let authority = rest.split('/').next().unwrap_or_default();
        let user = authority.rfind('@').map_or(0, |at| at + 1);
        format!("{scheme}://{}", &rest[user..])
    }

    /// Whether the collector is reached over TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.endpoint.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<TracesSettings>, UnusableTraces> {
        TracesSettings::read(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");

    #[test]
    fn traces_are_off_unless_an_endpoint_is_given() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), Ok(None));
        assert_eq!(read(&[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")]), Ok(None));
        assert_eq!(read(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
        let settings = read(&[ENDPOINT, ("OTEL_SDK_DISABLED", "false")]).expect("usable");
        let settings = settings.expect("on");
        assert_eq!((settings.timeout, settings.is_secure()), (DEFAULT_TIMEOUT, false));
    }

    #[test]
    fn what_is_said_of_traces_goes_before_what_is_said_of_all_signals() {
        let variables = [
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "HTTPS://collector/v1/traces"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "5000"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
        ];
        let settings = read(&variables).expect("usable").expect("on");
        let expected = TracesSettings {
            endpoint: "HTTPS://collector/v1/traces".to_owned(),
            timeout: Duration::from_millis(250),
            authority: Some("/ca.pem".into()),
        };
        assert_eq!(settings, expected);
        assert!(settings.is_secure());
    }

    #[test]
    fn an_endpoint_is_shown_without_its_secrets() {
        for (endpoint, shown) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
            ("https://me:pass@word@collector/v1/traces?key=secret", "https://collector/v1/traces"),
            ("http://collector/a@b", "http://collector/a@b"),
            ("nonsense?key=secret", "nonsense"),
        ] {
            let variable = ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
            let settings = read(&[variable]).expect("usable").expect("on");
            assert_eq!(settings.shown_endpoint(), shown);
        }
    }

    #[test]
    fn what_is_not_spoken_is_told_with_the_variable_and_the_way_out() {
        let error =
            read(&[ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).expect_err("refused");
        let text = error.to_string();
        assert!(text.contains("OTEL_EXPORTER_OTLP_PROTOCOL=grpc"), "{text}");
        assert!(text.contains("http/protobuf"), "{text}");
        assert!(read(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "zipkin")]).is_err());
    }
}
