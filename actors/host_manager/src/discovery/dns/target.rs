//! The target of a `dns://…` flag. Read by the command line.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// The port of name servers.
const PORT: u16 = 53;

/// The longest name, in bytes (RFC 1035).
const NAME_BYTES_MAX: usize = 253;

/// A name whose addresses are hosts, and the name server to ask.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DnsTarget {
    /// The name. With a final dot it is complete; otherwise the system's search list applies.
    pub name: String,
    /// The name server; `None`: the system's.
    pub server: Option<SocketAddr>,
}

/// Errors of parsing a target.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidDnsTarget {
    /// The text does not begin with `dns://`.
    #[error("{text:?} is not of the form dns://NAME or dns://SERVER[:PORT]/NAME")]
    Form {
        /// The text.
        text: String,
    },
    /// The name server is not an address.
    #[error("the name server {server:?} is not an address, or an address and a port")]
    Server {
        /// The text in the place of the server.
        server: String,
    },
    /// The name is not a name in DNS.
    #[error("{name:?} is not a name in DNS")]
    Name {
        /// The text in the place of the name.
        name: String,
    },
}

impl FromStr for DnsTarget {
    type Err = InvalidDnsTarget;

    fn from_str(text: &str) -> Result<Self, InvalidDnsTarget> {
        let rest = text.strip_prefix("dns://");
        let rest = rest.ok_or_else(|| InvalidDnsTarget::Form { text: text.to_owned() })?;
        let (server, name) = match rest.rsplit_once('/') {
            Some((server, name)) => (Some(server_at(server)?), name),
            None => (None, rest),
        };
        let is_label = |label: &str| {
            let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            (1..=63).contains(&label.len()) && label.bytes().all(legal)
        };
        let labels = name.strip_suffix('.').unwrap_or(name);
        if labels.len() > NAME_BYTES_MAX || !labels.split('.').all(is_label) {
            return Err(InvalidDnsTarget::Name { name: name.to_owned() });
        }
        Ok(Self { name: name.to_owned(), server })
    }
}

fn server_at(text: &str) -> Result<SocketAddr, InvalidDnsTarget> {
    let plain = || text.trim_matches(['[', ']']).parse::<IpAddr>();
    text.parse::<SocketAddr>()
        .or_else(|_| plain().map(|ip| SocketAddr::new(ip, PORT)))
        .map_err(|_| InvalidDnsTarget::Server { server: text.to_owned() })
}

impl fmt::Display for DnsTarget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.server {
            Some(server) => write!(formatter, "dns://{server}/{}", self.name),
            None => write!(formatter, "dns://{}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_perhaps_who_is_asked() {
        let read = |text: &str| text.parse::<DnsTarget>().map(|target| target.to_string());
        for whole in ["dns://workers.default.svc", "dns://10.0.0.10:5353/_a.b.", "dns://[::1]:53/a"]
        {
            assert_eq!(read(whole).as_deref(), Ok(whole));
        }
        assert_eq!(read("dns://10.0.0.10/a").as_deref(), Ok("dns://10.0.0.10:53/a"));
        assert_eq!(read("dns://::1/a").as_deref(), Ok("dns://[::1]:53/a"));
    }

    #[test]
    fn what_is_none_is_named() {
        let refused = |text: &str| text.parse::<DnsTarget>().expect_err(text).to_string();
        assert!(refused("workers").contains("dns://NAME"));
        assert!(refused("dns://kube-dns/a").contains("\"kube-dns\""));
        for name in ["", "a..b", "a b", "ä", &"a".repeat(64), &"abc.".repeat(64)] {
            assert!(refused(&format!("dns://{name}")).contains("is not a name"), "{name}");
        }
    }
}
