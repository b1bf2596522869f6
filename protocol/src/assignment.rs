//! The table of a generation: its members and their ranks. Made by the driver, read by everyone.
//!
//! The table is a list of hosts; ranks, local ranks and cross ranks are counted rather than stored. So the
//! entry of a host is the same in every generation in which the host has the same members, and a
//! [delta](AssignmentDelta) is as small as the change.

mod delta;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use xxhash_rust::xxh3::xxh3_64;

pub use self::delta::{AssignmentDelta, BaseMismatch, Edit};
use crate::ids::{HostName, Incarnation, WorkerId};

/// One worker's place in a generation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Member {
    /// The worker.
    pub worker: WorkerId,
    /// The address of its collectives.
    pub data_address: SocketAddr,
    /// Number among the members of its host, from 0.
    pub local_rank: u32,
    /// Number of its host among the hosts that have a member with this local rank, from 0.
    pub cross_rank: u32,
}

/// A member, as stored in its host's entry of the table.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MemberEntry {
    /// Its slot.
    pub slot: u32,
    /// Number of this life of the slot's worker.
    pub incarnation: Incarnation,
    /// The address of its collectives.
    pub data_address: SocketAddr,
}

/// A host's entry in the table: its members by local rank, at least one.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct HostSeats {
    name: HostName,
    seats: Vec<MemberEntry>,
    #[serde(skip)]
    digest: u64,
}

impl HostSeats {
    fn new(name: HostName, seats: Vec<MemberEntry>) -> Self {
        let bytes = postcard::to_stdvec(&(&name, &seats)).unwrap_or_default();
        Self { digest: xxh3_64(&bytes), name, seats }
    }

    fn len(&self) -> u32 {
        u32::try_from(self.seats.len()).unwrap_or(u32::MAX)
    }

    fn worker(&self, seat: &MemberEntry) -> WorkerId {
        WorkerId { host: self.name.clone(), slot: seat.slot, incarnation: seat.incarnation }
    }
}

impl<'de> Deserialize<'de> for HostSeats {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (name, seats) = <(HostName, Vec<MemberEntry>)>::deserialize(deserializer)?;
        if seats.is_empty() {
            return Err(serde::de::Error::custom("a host without members stands in no table"));
        }
        Ok(Self::new(name, seats))
    }
}

/// The members of a generation, by rank.
///
/// The entries of hosts are in order of age, the oldest first, so members of one host have neighbouring ranks.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Assignment {
    hosts: Vec<Arc<HostSeats>>,
    #[serde(skip)]
    world_size: u32,
    #[serde(skip)]
    digest: u64,
}

impl<'de> Deserialize<'de> for Assignment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hosts = Vec::<Arc<HostSeats>>::deserialize(deserializer)?;
        Self::of_hosts(hosts).ok_or_else(|| {
            serde::de::Error::custom(format_args!("more than {} members", Self::WORLD_SIZE_MAX))
        })
    }
}

impl Assignment {
    /// Largest world size that is ever assigned; bounds what a decoder accepts. A table takes about 12 bytes
    /// for each member, and for each host 2 more than the length of its name. So a table of this size fits into
    /// a control frame ([`FRAME_BYTES_MAX`](crate::codec::FRAME_BYTES_MAX), 8 MiB): with names of up to 110
    /// bytes if every host has one member, and with names of any length from 4 members a host on.
    pub const WORLD_SIZE_MAX: usize = 65_536;

    /// Lays out ranks for workers that are already in order: hosts oldest first, slots ascending. Members of
    /// one host are put together, at the place of the first of them.
    pub fn new(workers: impl IntoIterator<Item = (WorkerId, SocketAddr)>) -> Self {
        let mut index: BTreeMap<HostName, usize> = BTreeMap::new();
        let mut hosts: Vec<(HostName, Vec<MemberEntry>)> = Vec::new();
        for (worker, data_address) in workers {
            let WorkerId { host, slot, incarnation } = worker;
            let place = match hosts.last() {
                Some((last, _)) if *last == host => hosts.len() - 1,
                _ => *index.entry(host.clone()).or_insert_with(|| {
                    hosts.push((host, Vec::new()));
                    hosts.len() - 1
                }),
            };
            hosts[place].1.push(MemberEntry { slot, incarnation, data_address });
        }
        let hosts = hosts.into_iter().map(|(name, seats)| Arc::new(HostSeats::new(name, seats)));
        Self::with_size(hosts.collect())
    }

    /// The assignment; `None` if there are more than `WORLD_SIZE_MAX` members.
    fn of_hosts(hosts: Vec<Arc<HostSeats>>) -> Option<Self> {
        let members: usize = hosts.iter().map(|host| host.seats.len()).sum();
        (members <= Self::WORLD_SIZE_MAX).then(|| Self::with_size(hosts))
    }

    fn with_size(hosts: Vec<Arc<HostSeats>>) -> Self {
        let digests: Vec<u8> = hosts.iter().flat_map(|host| host.digest.to_le_bytes()).collect();
        let world_size = hosts.iter().map(|host| host.len()).sum();
        Self { digest: xxh3_64(&digests), world_size, hosts }
    }

    /// Number of members.
    pub const fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Number of hosts that have a member.
    pub fn hosts(&self) -> u32 {
        count(self.hosts.iter())
    }

    /// XXH3-64 of the table's content: two tables with one digest count as the same.
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// The members, by rank.
    ///
    /// The local rank counts within a host. The cross rank is the index among the hosts that have that local
    /// rank, as Horovod defines it (`h1:1,h2:2` gives cross ranks 0, 1, 0).
    pub fn members(&self) -> impl Iterator<Item = Member> {
        let mut cross: Vec<u32> = Vec::new();
        let seats =
            self.hosts.iter().flat_map(|host| (0..).zip(&host.seats).map(move |at| (host, at)));
        seats.map(move |(host, (local_rank, seat))| {
            let index = local_rank as usize;
            if index == cross.len() {
                cross.push(0);
            }
            let cross_rank = cross[index];
            cross[index] += 1;
            let worker = host.worker(seat);
            Member { worker, data_address: seat.data_address, local_rank, cross_rank }
        })
    }

    /// A worker's rank; `None` if it is not a member.
    pub fn rank_of(&self, worker: &WorkerId) -> Option<u32> {
        let mut before = 0;
        for host in &self.hosts {
            if host.name == worker.host {
                let of_worker = |seat: &MemberEntry| {
                    (seat.slot, seat.incarnation) == (worker.slot, worker.incarnation)
                };
                let local_rank = host.seats.iter().position(of_worker)?;
                return Some(before + u32::try_from(local_rank).ok()?);
            }
            before += host.len();
        }
        None
    }

    /// The member with this rank; `None` past the world size.
    pub fn member(&self, rank: u32) -> Option<Member> {
        let mut local_rank = rank;
        let mut hosts = self.hosts.iter();
        let mut earlier = 0;
        let host = hosts.find(|host| {
            let is_here = local_rank < host.len();
            if !is_here {
                local_rank -= host.len();
                earlier += 1;
            }
            is_here
        })?;
        let seat = host.seats.get(usize::try_from(local_rank).ok()?)?;
        let before = &self.hosts[..earlier];
        Some(Member {
            worker: host.worker(seat),
            data_address: seat.data_address,
            local_rank,
            cross_rank: count(before.iter().filter(|host| host.len() > local_rank)),
        })
    }

    /// Number of members on a host.
    pub fn local_size(&self, host: &HostName) -> u32 {
        self.hosts.iter().find(|entry| entry.name == *host).map_or(0, |entry| entry.len())
    }

    /// Number of hosts that have a member with this local rank.
    pub fn cross_size(&self, local_rank: u32) -> u32 {
        count(self.hosts.iter().filter(|host| host.len() > local_rank))
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn worker(host: &str, slot: u32, incarnation: u64) -> (WorkerId, SocketAddr) {
        let host = HostName::new(host).expect("a literal");
        let worker = WorkerId { host, slot, incarnation: Incarnation(incarnation) };
        (worker, SocketAddr::from(([127, 0, 0, 1], 1)))
    }

    pub(super) fn table(hosts: &[(&str, u32)]) -> Assignment {
        Assignment::new(
            hosts.iter().flat_map(|(host, slots)| (0..*slots).map(|slot| worker(host, slot, 1))),
        )
    }

    fn ranks(table: &Assignment) -> Vec<(u32, u32, u32, u32)> {
        let ranks = table.members().enumerate().map(|(rank, member)| {
            assert_eq!(table.member(rank as u32).as_ref(), Some(&member));
            assert_eq!(table.rank_of(&member.worker), Some(rank as u32));
            let local_size = table.local_size(&member.worker.host);
            let cross_size = table.cross_size(member.local_rank);
            (member.local_rank, local_size, member.cross_rank, cross_size)
        });
        ranks.collect()
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

    #[test]
    fn nobody_has_a_rank_beyond_the_last() {
        let table = table(&[("a", 2)]);
        assert_eq!(table.member(2), None);
        assert_eq!(table.rank_of(&worker("b", 0, 1).0), None);
        assert_eq!(table.rank_of(&worker("a", 0, 2).0), None, "another life");
    }

    #[test]
    fn members_of_a_host_stand_together() {
        let table = Assignment::new([worker("a", 0, 1), worker("b", 0, 1), worker("a", 1, 1)]);
        let order: Vec<String> = table.members().map(|member| member.worker.to_string()).collect();
        assert_eq!(order, ["a[0]#1", "a[1]#1", "b[0]#1"]);
    }
}
