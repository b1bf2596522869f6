//! Who may read the dashboard: on a loopback address any process of this machine, elsewhere whoever has the job's token.
//! Called by `answer`.

use std::net::{IpAddr, SocketAddr};

use elastic_transport::JoinToken;
use subtle::ConstantTimeEq as _;

use super::request::DashboardRequest;

/// Who may read.
#[derive(Clone)]
pub(super) struct Access {
    is_loopback: bool,
    /// The job's token, as its file has it.
    token: String,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum AccessDenied {
    /// It does not show the job's token.
    NoToken,
    /// It was sent to a name. A page of another site could have made a browser send it, by a name that it lets point to
    /// this machine.
    ForeignName,
}

impl Access {
    pub(super) fn new(address: SocketAddr, token: &JoinToken) -> Self {
        Self { is_loopback: address.ip().is_loopback(), token: token.to_line() }
    }

    /// Whether a request may be answered.
    pub(super) fn check(&self, request: &DashboardRequest) -> Result<(), AccessDenied> {
        if self.is_loopback {
            return match request.host.as_deref().is_none_or(is_address) {
                true => Ok(()),
                false => Err(AccessDenied::ForeignName),
            };
        }
        let shown = request.authorization.as_deref().unwrap_or_default();
        let shown = shown.strip_prefix("Bearer ").unwrap_or_default();
        match bool::from(shown.trim().as_bytes().ct_eq(self.token.trim().as_bytes())) {
            true => Ok(()),
            false => Err(AccessDenied::NoToken),
        }
    }
}

/// Whether what a request was sent to is an address or `localhost`, with or without a port.
fn is_address(host: &str) -> bool {
    let without_port = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host }
    });
    let inner = |name: &str| {
        name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).map(ToOwned::to_owned)
    };
    let is_ip = |name: &str| inner(name).as_deref().unwrap_or(name).parse::<IpAddr>().is_ok();
    without_port == "localhost" || is_ip(without_port) || is_ip(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_to(host: &str, authorization: Option<&str>) -> DashboardRequest {
        DashboardRequest {
            host: Some(host.to_owned()),
            authorization: authorization.map(ToOwned::to_owned),
            ..DashboardRequest::default()
        }
    }

    fn access(is_loopback: bool) -> Access {
        Access { is_loopback, token: "secret\n".to_owned() }
    }

    #[test]
    fn on_loopback_nobody_needs_a_token_and_no_other_site_can_ask() {
        for host in ["127.0.0.1:9000", "localhost:9000", "localhost", "[::1]:9000", "::1"] {
            assert_eq!(access(true).check(&sent_to(host, None)), Ok(()), "{host}");
        }
        for host in ["evil.example:9000", "evil.example", "localhost.evil.example", ""] {
            let checked = access(true).check(&sent_to(host, None));
            assert_eq!(checked, Err(AccessDenied::ForeignName), "{host}");
        }
    }

    #[test]
    fn elsewhere_only_the_token_opens() {
        let host = "10.0.0.1:9000";
        assert_eq!(access(false).check(&sent_to(host, Some("Bearer secret"))), Ok(()));
        for shown in [None, Some("Bearer "), Some("Bearer secre"), Some("secret")] {
            let checked = access(false).check(&sent_to(host, shown));
            assert_eq!(checked, Err(AccessDenied::NoToken), "{shown:?}");
        }
    }
}
