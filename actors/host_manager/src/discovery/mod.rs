//! How hosts are discovered: the port that the host manager's actor uses, and what stands behind it in
//! production. The simulation and tests give their own.

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

/// One run of a discovery. Dropping it ends it.
pub type DiscoveryRun = Pin<Box<dyn Future<Output = Result<String, DiscoveryError>>>>;

/// Says which hosts there are, in the format that [`parse_hosts`](crate::parse_hosts) reads.
pub trait Discovery {
    /// Asks. The actor calls it again only after the run has ended or was dropped, and drops a run that
    /// takes clearly longer than `limit`.
    fn run(&mut self, limit: Duration) -> DiscoveryRun;
}
