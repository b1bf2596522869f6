//! Discovery through DNS: each address of a name is a host, as for a headless service of Kubernetes. The name
//! is resolved again at each poll, so a changed answer changes the hosts.
//!
//! A name without addresses means that no host has come yet. If the name had addresses before, it counts as a
//! failure of DNS, which changes nothing (H-15): hosts that are really gone are also noticed by the loss of
//! their agents.

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

/// A discovery that resolves the addresses of a name.
#[derive(Debug)]
pub struct DnsDiscovery {
    target: DnsTarget,
    rng: ChaCha8Rng,
    had_hosts: Rc<Cell<bool>>,
}

impl DnsDiscovery {
    /// A discovery for this name. `rng` is for the ids of queries only.
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

/// The addresses as lines of a host file. They are sorted, since servers rotate their order.
fn lines(addresses: &BTreeSet<IpAddr>) -> String {
    addresses.iter().fold(String::new(), |mut text, address| {
        let _ = match address {
            IpAddr::V4(address) => writeln!(text, "{address}"),
            IpAddr::V6(address) => writeln!(text, "[{address}]"),
        };
        text
    })
}
