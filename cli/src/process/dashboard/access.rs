//! Access to the dashboard: on a loopback address for any process of this machine, elsewhere for readers that have
//! shown the job's token, in each request or once in a login. Called by `answer`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use elastic_transport::JoinToken;
use rand::RngCore as _;
use subtle::ConstantTimeEq as _;

use super::request::{DashboardRequest, form_field};
use crate::process::random::system_rng;

/// Most logins that are remembered: the last ones.
const SESSIONS_MAX: usize = 64;

/// Bytes of a session's secret.
const SESSION_BYTES: usize = 32;

/// The access rules of one address.
pub(super) struct Access {
    address: SocketAddr,
    /// The job's token, as its file has it.
    token: String,
    /// The secrets of logins.
    sessions: RefCell<VecDeque<String>>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum AccessDenied {
    /// It does not show the job's token.
    NoToken,
    /// It was sent to a name. A page of another site could have made a browser send it, by a name that it lets point to
    /// this machine.
    ForeignName,
    /// A page of another site sent it, or a proxy passes it under a name of its own.
    ForeignPage,
}

impl Access {
    pub(super) fn new(address: SocketAddr, token: &JoinToken) -> Self {
        Self::with_token(address, token.to_line())
    }

    fn with_token(address: SocketAddr, token: String) -> Self {
        Self { address, token, sessions: RefCell::default() }
    }

    /// Whether there is a login.
    pub(super) const fn has_login(&self) -> bool {
        !self.address.ip().is_loopback()
    }

    /// Whether a request may be answered.
    pub(super) fn check(&self, request: &DashboardRequest) -> Result<(), AccessDenied> {
        if !self.has_login() {
            return match request.host.as_deref().is_none_or(is_address) {
                true => Ok(()),
                false => Err(AccessDenied::ForeignName),
            };
        }
        let shown = request.authorization.as_deref().and_then(bearer_token);
        let is_in_session = || {
            let shown = self.cookie_of(request)?;
            // Each of them is compared, in the same time.
            let sessions = self.sessions.borrow();
            Some(sessions.iter().fold(false, |found, session| found | is_same(session, shown)))
        };
        match shown.is_some_and(|shown| is_same(&self.token, shown))
            || is_in_session().unwrap_or_default()
        {
            true => Ok(()),
            false => Err(AccessDenied::NoToken),
        }
    }

    /// Begins a session for a form that shows the job's token; returns its cookie.
    pub(super) fn log_in(&self, request: &DashboardRequest) -> Result<String, AccessDenied> {
        let origin = request.origin.as_deref().and_then(|origin| origin.split_once("://"));
        if let (Some((_, origin)), Some(host)) = (origin, request.host.as_deref())
            && origin != host
        {
            return Err(AccessDenied::ForeignPage);
        }
        let shown = form_field(&request.body, "token").unwrap_or_default();
        if !is_same(&self.token, &shown) {
            return Err(AccessDenied::NoToken);
        }
        let mut secret = [0; SESSION_BYTES];
        system_rng().fill_bytes(&mut secret);
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let cookie = format!("{}={secret}; Path=/; HttpOnly; SameSite=Strict", self.cookie_name());
        let mut sessions = self.sessions.borrow_mut();
        sessions.push_back(secret);
        while sessions.len() > SESSIONS_MAX {
            sessions.pop_front();
        }
        Ok(cookie)
    }

    /// The name of the cookie. Browsers send cookies to all ports of a host: each job has a name of its own.
    fn cookie_name(&self) -> String {
        format!("elastic-node-{}", self.address.port())
    }

    fn cookie_of<'a>(&self, request: &'a DashboardRequest) -> Option<&'a str> {
        let name = self.cookie_name();
        let cookies = request.cookie.as_deref()?.split(';');
        let mut cookies = cookies.filter_map(|cookie| cookie.trim().split_once('='));
        cookies.find(|(it, _)| *it == name).map(|(_, value)| value)
    }
}

/// The token in a header `Authorization`. Its scheme has no case (RFC 9110, 11.1).
fn bearer_token(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then_some(token)
}

fn is_same(secret: &str, shown: &str) -> bool {
    bool::from(shown.trim().as_bytes().ct_eq(secret.trim().as_bytes()))
}

/// Whether the host that a request was sent to is an address or `localhost`, with or without a port.
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
pub(super) fn access(address: &str) -> Access {
    Access::with_token(address.parse().expect("an address"), "secret+/\n".to_owned())
}

#[cfg(test)]
mod tests {
    use hyper::body::Bytes;

    use super::*;

    const LOOPBACK: &str = "127.0.0.1:9000";
    const ELSEWHERE: &str = "10.0.0.1:9000";

    fn sent_to(host: &str, authorization: Option<&str>) -> DashboardRequest {
        DashboardRequest {
            host: Some(host.to_owned()),
            authorization: authorization.map(ToOwned::to_owned),
            ..DashboardRequest::default()
        }
    }

    fn login(form: &'static str) -> DashboardRequest {
        DashboardRequest { body: Bytes::from_static(form.as_bytes()), ..sent_to(ELSEWHERE, None) }
    }

    #[test]
    fn on_loopback_nobody_needs_a_token_and_no_other_site_can_ask() {
        for host in ["127.0.0.1:9000", "localhost:9000", "localhost", "[::1]:9000", "::1"] {
            assert_eq!(access(LOOPBACK).check(&sent_to(host, None)), Ok(()), "{host}");
        }
        for host in ["evil.example:9000", "evil.example", "localhost.evil.example", ""] {
            let checked = access(LOOPBACK).check(&sent_to(host, None));
            assert_eq!(checked, Err(AccessDenied::ForeignName), "{host}");
        }
    }

    #[test]
    fn elsewhere_only_the_token_opens() {
        let access = access(ELSEWHERE);
        assert_eq!(access.check(&sent_to(ELSEWHERE, Some("Bearer secret+/"))), Ok(()));
        assert_eq!(access.check(&sent_to(ELSEWHERE, Some("bearer secret+/"))), Ok(()));
        for shown in
            [None, Some("Bearer "), Some("Bearer secret"), Some("secret+/"), Some("Basic secret+/")]
        {
            let checked = access.check(&sent_to(ELSEWHERE, shown));
            assert_eq!(checked, Err(AccessDenied::NoToken), "{shown:?}");
        }
        // An address in the header opens nothing, as it does on loopback.
        assert_eq!(access.check(&sent_to("127.0.0.1", None)), Err(AccessDenied::NoToken));
    }

    #[test]
    fn a_login_gives_a_cookie_that_opens_and_that_no_script_and_no_other_site_can_use() {
        let access = access(ELSEWHERE);
        for form in ["", "token=", "token=secret", "other=secret%2B%2F"] {
            assert_eq!(access.log_in(&login(form)), Err(AccessDenied::NoToken), "{form}");
        }
        let cookie = access.log_in(&login("token=secret%2B%2F%0A")).expect("the token");
        assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
        let (pair, _) = cookie.split_once(';').expect("attributes");
        assert!(!pair.contains("secret"), "the token itself is in no cookie");
        let with =
            |cookie: String| DashboardRequest { cookie: Some(cookie), ..sent_to(ELSEWHERE, None) };
        assert_eq!(access.check(&with(format!("a=b; {pair}"))), Ok(()));
        let (name, _) = pair.split_once('=').expect("a value");
        for wrong in [format!("{pair}0"), format!("{name}="), format!("x{pair}"), name.to_owned()] {
            assert_eq!(access.check(&with(wrong)), Err(AccessDenied::NoToken));
        }
        let foreign = DashboardRequest {
            origin: Some("http://evil.example".to_owned()),
            ..login("token=secret%2B%2F")
        };
        assert_eq!(access.log_in(&foreign), Err(AccessDenied::ForeignPage));
    }

    #[test]
    fn the_number_of_logins_is_bounded_and_the_oldest_is_forgotten() {
        let access = access(ELSEWHERE);
        let mut cookies = (0..=SESSIONS_MAX)
            .map(|_| access.log_in(&login("token=secret%2B%2F")).expect("the token"));
        let first = cookies.next();
        let last = cookies.last();
        let is_open = |cookie: Option<String>| {
            access.check(&DashboardRequest { cookie, ..sent_to(ELSEWHERE, None) }).is_ok()
        };
        assert_eq!((is_open(first), is_open(last)), (false, true));
        assert_eq!(access.sessions.borrow().len(), SESSIONS_MAX);
    }
}
