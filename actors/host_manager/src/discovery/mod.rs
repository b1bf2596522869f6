//! Discovery of hosts: the port that the host manager's actor uses, and its implementations for production. The
//! simulation and tests have their own.

mod dns;
mod file;
mod process;
mod script;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::time::Duration;

pub use self::dns::{DnsDiscovery, DnsTarget, InvalidDnsTarget};
pub use self::file::HostFileDiscovery;
pub use self::script::ScriptDiscovery;
use crate::core::DiscoveryError;

/// A run of a discovery. Dropping it ends it.
pub type DiscoveryRun = Pin<Box<dyn Future<Output = Result<String, DiscoveryError>>>>;

/// Lists the hosts, in the format that [`parse_hosts`](crate::parse_hosts) reads.
pub trait Discovery {
    /// Starts a run. The actor starts the next one only after this run has ended or was dropped. It drops a run
    /// that takes clearly longer than `limit`.
    fn run(&mut self, limit: Duration) -> DiscoveryRun;
}

/// Discovery of a job whose hosts join by themselves. The host manager never runs it.
#[derive(Clone, Copy, Debug)]
pub struct NoDiscovery;

impl Discovery for NoDiscovery {
    fn run(&mut self, _limit: Duration) -> DiscoveryRun {
        Box::pin(std::future::pending())
    }
}
