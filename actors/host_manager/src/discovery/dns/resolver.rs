//! Resolver: chooses servers and names to query, as the system's `resolv.conf` says. Used by `DnsDiscovery`.
//! The file is read at each poll, since it may change.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use resolv_conf::Config;
use tokio::time::timeout;

use super::query::{Family, QueryError, ask};
use super::target::DnsTarget;

/// The system's settings.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The port of its name servers.
const PORT: u16 = 53;

/// Timeout for the answer of one server, before the next one is asked.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// No server gave an answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    #[error("{}", with_source(.0))]
    Query(QueryError),
    #[error("{server} does not answer within {ANSWER_WITHIN:?}")]
    Silent { server: SocketAddr },
    #[error("{RESOLV_CONF} names no server")]
    NoServer,
}

fn with_source(error: &QueryError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The questions of one poll.
#[derive(Debug)]
pub(super) struct Resolver {
    names: Vec<String>,
    servers: Vec<SocketAddr>,
    id: u16,
}

impl Resolver {
    pub(super) fn new(target: &DnsTarget, rng: &mut ChaCha8Rng) -> Self {
        // Without the file there is one server, on this machine, as resolv.conf(5) says.
        let text = std::fs::read(RESOLV_CONF).unwrap_or_default();
        let (config, _lines_that_are_none) = Config::parse_with_errors(&text);
        let servers = match target.server {
            Some(server) => vec![server],
            None => servers(&config),
        };
        Self { names: names(&target.name, &config), servers, id: rng.random() }
    }

    /// The addresses of the first name that has any. IPv6 addresses are used only if there are none of IPv4, so
    /// that a host with both is one host.
    pub(super) async fn addresses(&self) -> Result<BTreeSet<IpAddr>, ResolveError> {
        for name in &self.names {
            for family in [Family::V4, Family::V6] {
                let addresses = self.ask_servers(name, family).await?;
                if !addresses.is_empty() {
                    return Ok(addresses);
                }
            }
        }
        Ok(BTreeSet::new())
    }

    /// The answer of the first server that gives one.
    async fn ask_servers(
        &self,
        name: &str,
        family: Family,
    ) -> Result<BTreeSet<IpAddr>, ResolveError> {
        let mut failure = ResolveError::NoServer;
        for &server in &self.servers {
            match timeout(ANSWER_WITHIN, ask(server, self.id, name, family)).await {
                Ok(Ok(addresses)) => return Ok(addresses),
                Ok(Err(error)) => failure = ResolveError::Query(error),
                Err(_elapsed) => failure = ResolveError::Silent { server },
            }
        }
        Err(failure)
    }
}

fn servers(config: &Config) -> Vec<SocketAddr> {
    let servers = config.get_nameservers_or_local();
    servers.into_iter().map(|server| SocketAddr::new(server.into(), PORT)).collect()
}

/// Candidates for a name: itself, and the name below each domain of the search list; `ndots` decides the order.
fn names(name: &str, config: &Config) -> Vec<String> {
    if let Some(whole) = name.strip_suffix('.') {
        return vec![whole.to_owned()];
    }
    let domains = config.get_last_search_or_domain().map(|domain| domain.trim_matches('.'));
    let below =
        domains.filter(|domain| !domain.is_empty()).map(|domain| format!("{name}.{domain}"));
    let dots = name.bytes().filter(|byte| *byte == b'.').count();
    let is_first = dots >= usize::try_from(config.ndots).unwrap_or(usize::MAX);
    let mut names: Vec<String> = below.collect();
    names.insert(if is_first { 0 } else { names.len() }, name.to_owned());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g_9_each_name_server_that_says_nothing_has_its_time_and_the_next_one_is_asked() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(ask_silent_servers());
    }

    async fn ask_silent_servers() {
        let silent = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let servers = [silent(), silent()];
        let addresses: Vec<_> = servers.iter().filter_map(|it| it.local_addr().ok()).collect();
        let resolver =
            Resolver { names: vec!["workers".to_owned()], servers: addresses.clone(), id: 7 };
        let begun = tokio::time::Instant::now();
        let error = resolver.addresses().await.expect_err("nobody answers");
        assert!(error.to_string().contains(&addresses[1].to_string()), "the last one: {error}");
        assert_eq!(begun.elapsed().as_millis(), 2 * ANSWER_WITHIN.as_millis());
        for server in servers {
            server.set_nonblocking(true).expect("a socket");
            assert!(server.accept().is_ok(), "each was asked");
        }
    }

    #[test]
    fn a_name_is_looked_for_where_the_system_looks() {
        let pod = "nameserver 10.96.0.10\nsearch ns.svc.cluster.local svc.cluster.local\noptions ndots:5\n";
        let config = Config::parse(pod).expect("a pod's");
        assert_eq!(servers(&config), ["10.96.0.10:53".parse().expect("an address")]);
        let searched = ["workers.ns.svc.cluster.local", "workers.svc.cluster.local", "workers"];
        assert_eq!(names("workers", &config), searched);
        assert_eq!(names("workers.ns.", &config), ["workers.ns"]);
        let plain = Config::parse("search example.org\n").expect("a plain one");
        assert_eq!(names("a.b", &plain), ["a.b", "a.b.example.org"]);
        assert_eq!(names("a", &plain), ["a.example.org", "a"]);
    }
}
