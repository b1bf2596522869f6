//! [`EtcdAddress`]: the value of `--store`. Parsed by the command line.

use std::fmt;
use std::str::FromStr;

use super::tls::EtcdTls;

/// Default key prefix.
const DEFAULT_PREFIX: &str = "elastic-node";

/// The members of an etcd cluster, and the key prefix of this project:
/// `etcd://HOST:PORT[,HOST:PORT…][/PREFIX]`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EtcdAddress {
    /// `host:port` of each member, in the order in which they are tried.
    pub members: Vec<String>,
    /// The key prefix, without slashes at its ends. Default: `elastic-node`.
    pub prefix: String,
    /// The certificates where etcd is called over TLS; not a part of the text.
    pub tls: Option<EtcdTls>,
}

/// An address of etcd is invalid.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{given}` is no address of etcd: {why}; expected etcd://HOST:PORT[,HOST:PORT…][/PREFIX]")]
pub struct InvalidAddress {
    /// The given text.
    pub given: String,
    /// The problem with it.
    pub why: &'static str,
}

impl FromStr for EtcdAddress {
    type Err = InvalidAddress;

    fn from_str(given: &str) -> Result<Self, InvalidAddress> {
        let invalid = |why| InvalidAddress { given: given.to_owned(), why };
        let rest =
            given.strip_prefix("etcd://").ok_or(invalid("it does not begin with etcd://"))?;
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let members: Vec<String> = members.split(',').map(str::to_owned).collect();
        for member in &members {
            let (host, port) = member.rsplit_once(':').ok_or(invalid("a member has no port"))?;
            if host.is_empty() || host.contains(['@', '?', '#', ' ']) {
                return Err(invalid("a member has no host"));
            }
            match port.parse() {
                Ok(1..=u16::MAX) => {}
                _ => return Err(invalid("a member's port is not a number from 1 to 65535")),
            }
        }
        let prefix = prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { DEFAULT_PREFIX } else { prefix };
        Ok(Self { members, prefix: prefix.to_owned(), tls: None })
    }
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "etcd://{}/{}", self.members.join(","), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_prefix_are_taken_apart() {
        let address: EtcdAddress =
            "etcd://a:2379,[::1]:2380/jobs/mine/".parse().expect("it is one");
        assert_eq!(address.members, ["a:2379", "[::1]:2380"]);
        assert_eq!(address.prefix, "jobs/mine");
        assert_eq!(address.to_string().parse(), Ok(address));
        let plain: EtcdAddress = "etcd://a:2379".parse().expect("it is one");
        assert_eq!(plain.prefix, DEFAULT_PREFIX);
    }

    #[test]
    fn what_is_no_address_is_named_with_the_reason() {
        for (given, why) in [
            ("http://a:1", "etcd://"),
            ("etcd://", "no port"),
            ("etcd://a", "no port"),
            ("etcd://:1", "no host"),
            ("etcd://a:1,b:0", "1 to 65535"),
            ("etcd://user@a:1", "no host"),
        ] {
            let error = given.parse::<EtcdAddress>().expect_err(given).to_string();
            assert!(error.contains(why) && error.contains(given), "{error}");
        }
    }
}
