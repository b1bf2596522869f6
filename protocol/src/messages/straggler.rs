//! [`StragglingWorker`]: a member whose steps take longer than those of the others, as `status` shows it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::HostName;
use crate::words::counted;

/// A member that computes for longer than its peers, which wait for it in each step.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct StragglingWorker {
    /// Its rank.
    pub rank: u32,
    /// Its host.
    pub host: HostName,
    /// Its slot.
    pub slot: u32,
    /// Its time of computation, divided by the median of its peers.
    pub factor: f64,
    /// Its time of computation, divided by its own earlier one; absent if it has never been faster.
    #[serde(default)]
    pub own_factor: Option<f64>,
    /// Its time of computation in a step, in milliseconds.
    pub compute_ms: f64,
    /// The median of its peers' times, in milliseconds.
    pub peers_ms: f64,
    /// Time for which it has been slow, in milliseconds.
    pub slow_ms: u64,
    /// Whether its host is at fault: other members there are slow, too, and members elsewhere are not.
    pub is_host: bool,
    /// The logical shards that it carries in a step; absent if it deals by none. Then its time and its peers' are for an equal
    /// part of all shards.
    #[serde(default)]
    pub shards: Option<u32>,
}

/// One line: the worker, and its pace.
impl fmt::Display for StragglingWorker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, host, slot, factor, compute_ms, peers_ms, slow_ms, .. } = self;
        let seconds = slow_ms / 1000;
        write!(
            formatter,
            "rank {rank} ({host}:{slot}) computes {factor:.1} times as long as its peers: {compute_ms:.1} ms a step, they \
             {peers_ms:.1} ms, for {seconds} s"
        )?;
        if let Some(shards) = self.shards {
            write!(formatter, "; it carries {}", counted(shards, "shard"))?;
        }
        match self.is_host {
            true => write!(formatter, "; other ranks of {host} are slow, too"),
            false => Ok(()),
        }
    }
}
