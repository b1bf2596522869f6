//! The addresses of a name as a discovery: each is a host, as those of a headless service of Kubernetes are. Asked
//! anew at each poll, so a change of the answer is a change of hosts.
//!
//! A name without addresses is one whose hosts have not come yet. Once it had some, it is a failure of DNS, which
//! changes nothing (H-15): hosts that are really gone are lost by their agents, too.

mod query;
mod resolver;
mod target;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use tokio::time::timeout;

use self::resolver::Resolver;
pub use self::target::{DnsTarget, InvalidDnsTarget};
use super::{Discovery, DiscoveryRun};
use crate::core::DiscoveryError;

/// Asks for the addresses of a name.
#[derive(Debug)]
pub struct DnsDiscovery {
    target: DnsTarget,
    rng: ChaCha8Rng,
    had_hosts: Rc<Cell<bool>>,
}

impl DnsDiscovery {
    /// Of this name. `rng` is for the ids of queries and nothing else.
    pub fn new(target: DnsTarget, rng: ChaCha8Rng) -> Self {
        Self { target, rng, had_hosts: Rc::default() }
    }
}

impl Discovery for DnsDiscovery {
    fn run(&mut self, limit: Duration) -> DiscoveryRun {
        let name = self.target.to_string();
        let had_hosts = Rc::clone(&self.had_hosts);
        let resolver = Resolver::new(&self.target, &mut self.rng);
        Box::pin(async move {
            let failed =
                |message: String| DiscoveryError::NoAddresses { name: name.clone(), message };
            let asked = timeout(limit, resolver.addresses()).await;
            let addresses = match asked {
                Err(_elapsed) => return Err(failed(format!("no answer within {limit:?}"))),
                Ok(Err(error)) => return Err(failed(error.to_string())),
                Ok(Ok(addresses)) => addresses,
            };
            if addresses.is_empty() && had_hosts.get() {
                return Err(failed("it has none any more".to_owned()));
            }
            if addresses.is_empty() {
                tracing::info!(name, "it has no addresses yet");
            }
            had_hosts.set(!addresses.is_empty());
            Ok(lines(&addresses))
        })
    }
}

/// As a host file has them; in the order of addresses, since servers rotate theirs.
fn lines(addresses: &BTreeSet<IpAddr>) -> String {
    addresses.iter().fold(String::new(), |mut text, address| {
        let _ = match address {
            IpAddr::V4(address) => writeln!(text, "{address}"),
            IpAddr::V6(address) => writeln!(text, "[{address}]"),
        };
        text
    })
}
