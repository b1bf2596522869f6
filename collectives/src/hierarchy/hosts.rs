//! The ranks of each host, in a world whose hosts have neighbouring ranks. Used by the hierarchical communicator.

use std::ops::Range;

/// The hosts of a world, in the order of their ranks. The first rank of a host is its leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hosts {
    ranks: Vec<Range<u32>>,
    own: usize,
}

impl Hosts {
    /// The hosts of a world, from the number of each rank's host. `None` where a hierarchy would not help: a single
    /// host, hosts of one rank each, or hosts whose ranks are no neighbours.
    pub(super) fn new(hosts: &[u32], rank: u32) -> Option<Hosts> {
        let mut ranks: Vec<Range<u32>> = Vec::new();
        let mut seen: Vec<u32> = Vec::new();
        for (rank, host) in (0..).zip(hosts) {
            match ranks.last_mut() {
                Some(last) if seen.last() == Some(host) => last.end = rank + 1,
                _ if seen.contains(host) => return None,
                _ => {
                    seen.push(*host);
                    ranks.push(rank..rank + 1);
                }
            }
        }
        let own = ranks.iter().position(|ranks| ranks.contains(&rank))?;
        (ranks.len() > 1 && ranks.len() < hosts.len()).then_some(Hosts { ranks, own })
    }

    pub(super) fn count(&self) -> usize {
        self.ranks.len()
    }

    /// The number of this rank's host.
    pub(super) fn own(&self) -> usize {
        self.own
    }

    /// The ranks of a host.
    pub(super) fn ranks(&self, host: usize) -> Range<u32> {
        self.ranks[host].clone()
    }

    pub(super) fn leader(&self, host: usize) -> u32 {
        self.ranks[host].start
    }

    /// The host of a rank.
    pub(super) fn of(&self, rank: u32) -> usize {
        self.ranks.partition_point(|ranks| ranks.end <= rank)
    }

    /// The host whose leader `rank` is, if it is one.
    pub(super) fn led_by(&self, rank: u32) -> Option<usize> {
        Some(self.of(rank)).filter(|host| self.leader(*host) == rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_a_host_are_found() {
        let hosts = Hosts::new(&[4, 4, 9, 2, 2, 2], 3).unwrap();
        assert_eq!((hosts.count(), hosts.own(), hosts.leader(2)), (3, 2, 3));
        assert_eq!([0, 1, 2, 3, 5].map(|rank| hosts.of(rank)), [0, 0, 1, 2, 2]);
        assert_eq!([0, 1, 2, 4].map(|rank| hosts.led_by(rank)), [Some(0), None, Some(1), None]);
        assert_eq!(hosts.ranks(2), 3..6);
    }

    #[test]
    fn worlds_without_a_hierarchy_have_none() {
        for hosts in [&[1, 1, 1][..], &[1, 2, 3], &[1, 2, 1], &[]] {
            assert_eq!(Hosts::new(hosts, 0), None);
        }
    }
}
