//! [`LinkPace`]: data rate from another host to a worker, carried by the worker's progress. [`SlowLink`]: a link
//! between two hosts that is slow compared with the others, as `status` shows it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::HostName;

/// Data rate from another host to a worker. Measured in collectives, over transfers for which the worker waited before
/// they began: a late sender does not make a link slow.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LinkPace {
    /// The host that sends.
    pub from: HostName,
    /// The rate of a transfer, in bytes a second: a median of the last ones.
    pub rate: u64,
    /// Average rate of incoming data, in bytes a second: the load of the link.
    pub load: u64,
}

impl LinkPace {
    /// Most links in a worker's report: those with the lowest rates.
    pub const LINKS_MAX: usize = 16;
}

/// A link between two hosts that carries data more slowly than the others do. Its receiver waits for it in each step.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct SlowLink {
    /// The host that sends.
    pub from: HostName,
    /// The host that receives.
    pub to: HostName,
    /// The median rate of the other links, divided by its own.
    pub factor: f64,
    /// Its rate, in megabytes a second.
    pub rate_mb_per_s: f64,
    /// The median of the others' rates, in megabytes a second.
    pub others_mb_per_s: f64,
    /// Delay that it adds to a step of the receiving rank, in milliseconds.
    pub loss_ms: f64,
    /// Time for which it has been slow, in milliseconds.
    pub slow_ms: u64,
    /// The host at fault, if all of its links in this direction are slow; absent if it is this link alone.
    #[serde(default)]
    pub host: Option<HostName>,
}

impl SlowLink {
    /// Bytes a second as the megabytes a second that `status` shows.
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes a second are 9 PB/s")]
    pub fn shown_mb_per_s(rate: u64) -> f64 {
        rate as f64 / 1e6
    }
}

/// One line: the link, and its pace.
impl fmt::Display for SlowLink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, factor, rate_mb_per_s, others_mb_per_s, loss_ms, slow_ms, .. } = self;
        let seconds = slow_ms / 1000;
        write!(
            formatter,
            "the link from {from} to {to} carries {rate_mb_per_s:.1} MB/s, the others {others_mb_per_s:.1} MB/s ({factor:.1} \
             times as fast), for {seconds} s; {to} loses {loss_ms:.1} ms a step"
        )?;
        match &self.host {
            Some(host) if host == from => write!(formatter, "; all links from {host} are slow"),
            Some(host) => write!(formatter, "; all links to {host} are slow"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(host: Option<&str>) -> SlowLink {
        let name = |name: &str| name.parse::<HostName>().expect("a name");
        SlowLink {
            from: name("a"),
            to: name("b"),
            factor: 125.0,
            rate_mb_per_s: SlowLink::shown_mb_per_s(2_400_000),
            others_mb_per_s: 300.0,
            loss_ms: 41.25,
            slow_ms: 12_900,
            host: host.map(name),
        }
    }

    #[test]
    fn a_slow_link_is_named_by_both_hosts_and_the_host_at_fault_by_the_direction() {
        let link = "the link from a to b carries 2.4 MB/s, the others 300.0 MB/s (125.0 times as fast), for 12 s; b loses \
                    41.2 ms a step";
        assert_eq!(slow(None).to_string(), link);
        assert_eq!(slow(Some("a")).to_string(), format!("{link}; all links from a are slow"));
        assert_eq!(slow(Some("b")).to_string(), format!("{link}; all links to b are slow"));
    }
}
