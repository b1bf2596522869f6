//! The table of a generation: who takes part, with which ranks. Made by the driver, read by everyone.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::{HostName, WorkerId};

/// One worker's place in a generation.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Member {
    /// Who.
    pub worker: WorkerId,
    /// Where its collectives are reached.
    pub data_address: SocketAddr,
    /// Number among the members of its host, from 0.
    pub local_rank: u32,
    /// Number of its host among the hosts that have a member with this local rank, from 0.
    pub cross_rank: u32,
}

/// Who takes part in a generation; a member's rank is its index.
///
/// Hosts stand one after the other, the oldest first, so members of a host have neighbouring ranks.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Assignment {
    /// By rank.
    pub members: Vec<Member>,
}

impl Assignment {
    /// Largest world size that is ever assigned: bounds what a decoder accepts.
    pub const WORLD_SIZE_MAX: usize = 65_536;

    /// Lays out ranks for workers that are already in order: hosts oldest first, slots ascending.
    ///
    /// Local rank counts within a host; cross rank is the index among hosts having that local rank,
    /// as Horovod defines it (`h1:1,h2:2` gives cross ranks 0, 1, 0).
    pub fn new(workers: impl IntoIterator<Item = (WorkerId, SocketAddr)>) -> Self {
        let mut local: BTreeMap<HostName, u32> = BTreeMap::new();
        let mut cross: BTreeMap<u32, u32> = BTreeMap::new();
        let members = workers
            .into_iter()
            .map(|(worker, data_address)| {
                let next_local = local.entry(worker.host.clone()).or_default();
                let local_rank = *next_local;
                *next_local += 1;
                let next_cross = cross.entry(local_rank).or_default();
                let cross_rank = *next_cross;
                *next_cross += 1;
                Member { worker, data_address, local_rank, cross_rank }
            })
            .collect();
        Self { members }
    }

    /// Number of members.
    pub fn world_size(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    /// A worker's rank.
    pub fn rank_of(&self, worker: &WorkerId) -> Option<u32> {
        let index = self.members.iter().position(|member| member.worker == *worker)?;
        u32::try_from(index).ok()
    }

    /// A rank's member.
    pub fn member(&self, rank: u32) -> Option<&Member> {
        self.members.get(usize::try_from(rank).ok()?)
    }

    /// How many members a host has.
    pub fn local_size(&self, host: &HostName) -> u32 {
        count(self.members.iter().filter(|member| member.worker.host == *host))
    }

    /// How many hosts have a member with this local rank.
    pub fn cross_size(&self, local_rank: u32) -> u32 {
        count(self.members.iter().filter(|member| member.local_rank == local_rank))
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Incarnation;

    fn table(hosts: &[(&str, u32)]) -> Assignment {
        Assignment::new(hosts.iter().flat_map(|(host, slots)| {
            (0..*slots).map(|slot| {
                let host = HostName::new(host).expect("a literal");
                let worker = WorkerId { host, slot, incarnation: Incarnation(1) };
                (worker, SocketAddr::from(([127, 0, 0, 1], 1)))
            })
        }))
    }

    fn ranks(table: &Assignment) -> Vec<(u32, u32, u32, u32)> {
        table
            .members
            .iter()
            .map(|member| {
                let local_size = table.local_size(&member.worker.host);
                let cross_size = table.cross_size(member.local_rank);
                (member.local_rank, local_size, member.cross_rank, cross_size)
            })
            .collect()
    }

    #[test]
    fn h_1_two_hosts_of_two() {
        let expected = vec![(0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)];
        assert_eq!(ranks(&table(&[("h1", 2), ("h2", 2)])), expected);
    }

    #[test]
    fn h_2_unequal_hosts() {
        let expected = vec![(0, 1, 0, 2), (0, 2, 1, 2), (1, 2, 0, 1)];
        assert_eq!(ranks(&table(&[("w0", 1), ("w1", 2)])), expected);
    }
}
