//! Quarrels: hosts that do not reach each other although the driver hears both. Used by the core.
//!
//! A member that names a peer's link as broken may be right about the peer: then its process, its host or its
//! connection to the driver shows it, and that is dealt with elsewhere. Where nothing else is wrong with either, the
//! network between their hosts is, and every generation that has both breaks again. So what is said of pairs
//! of hosts is remembered for as long as no generation with both gets on, and then one of the two is left out (G-9).

use std::collections::{BTreeMap, BTreeSet};

use elastic_protocol::{HostName, Step, WorkerId};

use super::DriverCore;
use super::output::{DriverOutput, EventKind};
use super::phase::Generation;

/// So many generations in a row break between two hosts before one of them is left out.
const BREAKS_MAX: u32 = 3;

/// So much is remembered of one generation, and of all pairs; what is more is not needed to find a culprit.
const REMEMBERED_MAX: usize = 4096;

/// What members said of each other's links.
#[derive(Debug, Default)]
pub(crate) struct Quarrels {
    /// Of the generation formed last: who could not reach whom.
    accusations: BTreeSet<(WorkerId, WorkerId)>,
    /// Generations in a row that broke between two hosts, the lesser name first.
    breaks: BTreeMap<(HostName, HostName), u32>,
}

impl Quarrels {
    /// A member could not reach another.
    pub(crate) fn note(&mut self, reporter: &WorkerId, peer: &WorkerId) {
        if reporter.host != peer.host && self.accusations.len() < REMEMBERED_MAX {
            self.accusations.insert((reporter.clone(), peer.clone()));
        }
    }

    /// The generation has ended, and these go on into the next one: counts the pairs between which it broke.
    /// Gives those that have broken too often.
    fn count(&mut self, ended: &Generation, got_on: bool, members: &[WorkerId]) -> Vec<Pair> {
        if got_on {
            let hosts: BTreeSet<HostName> =
                ended.assignment.members().map(|member| member.worker.host).collect();
            self.breaks.retain(|(one, other), _| !hosts.contains(one) || !hosts.contains(other));
        }
        let accused: BTreeSet<Pair> = std::mem::take(&mut self.accusations)
            .into_iter()
            .filter(|(reporter, peer)| members.contains(reporter) && members.contains(peer))
            .map(|(reporter, peer)| pair(reporter.host, peer.host))
            .collect();
        for pair in accused {
            if self.breaks.len() < REMEMBERED_MAX || self.breaks.contains_key(&pair) {
                *self.breaks.entry(pair).or_default() += 1;
            }
        }
        let too_often = self.breaks.iter().filter(|(_, breaks)| **breaks >= BREAKS_MAX);
        too_often.map(|(pair, _)| pair.clone()).collect()
    }

    /// One of them was left out: once it is back, its next break is enough.
    fn settled(&mut self, host: &HostName) {
        for ((one, other), breaks) in &mut self.breaks {
            if one == host || other == host {
                *breaks = (*breaks).min(BREAKS_MAX - 1);
            }
        }
    }
}

type Pair = (HostName, HostName);

fn pair(one: HostName, other: HostName) -> Pair {
    if one <= other { (one, other) } else { (other, one) }
}

impl DriverCore {
    /// Before these form the next generation: whether a host is to be left out, since generations break between
    /// it and others again and again. The host manager is told; its answer takes the host's workers away.
    pub(crate) fn leaves_a_quarreller_out(&mut self, members: &[WorkerId]) -> bool {
        let Some(ended) = &self.current else { return false };
        let got_on = self.best_step(members) > Some(ended.formation.step);
        let pairs = self.quarrels.count(ended, got_on, members);
        if pairs.is_empty() {
            return false;
        }
        let Some(host) = self.quarreller(&pairs, members) else {
            self.warn_of_quarrel(&pairs);
            return false;
        };
        let others: Vec<&str> = pairs
            .iter()
            .filter(|(one, other)| *one == host || *other == host)
            .map(|(one, other)| if *one == host { other.as_str() } else { one.as_str() })
            .collect();
        let reason = format!(
            "its workers and those of {} do not reach each other: {BREAKS_MAX} generations in a row have broken there",
            others.join(", ")
        );
        self.quarrels.settled(&host);
        self.output(DriverOutput::HostFailed { host, reason });
        true
    }

    /// Who is in most of these pairs; among equals the one whose ranks are the higher (G-8). Only a host without which
    /// enough are left, and with them the highest commit (G-5).
    fn quarreller(&self, pairs: &[Pair], members: &[WorkerId]) -> Option<HostName> {
        let needed = self.workers_needed() as usize;
        let best = members.iter().filter_map(|worker| self.commit_order_of(worker)).max();
        let can_go = |host: &HostName| {
            let others = || members.iter().filter(|worker| worker.host != *host);
            let best_left = others().filter_map(|worker| self.commit_order_of(worker)).max();
            others().count() >= needed && best_left >= best
        };
        let rank = |host: &HostName| members.iter().position(|worker| worker.host == *host);
        let hosts: BTreeSet<&HostName> =
            pairs.iter().flat_map(|(one, other)| [one, other]).collect();
        hosts
            .into_iter()
            .filter(|host| rank(host).is_some() && can_go(host))
            .max_by_key(|host| {
                let quarrels = pairs.iter().filter(|(one, other)| one == *host || other == *host);
                (quarrels.count(), rank(host))
            })
            .cloned()
    }

    fn warn_of_quarrel(&mut self, pairs: &[Pair]) {
        for (one, other) in pairs {
            let message = format!(
                "workers of {one} and {other} do not reach each other, and neither host can be spared; \
                 hint: check the network between them, or lower --min-np"
            );
            self.event(EventKind::Warning { message });
        }
    }

    fn best_step(&self, members: &[WorkerId]) -> Option<Step> {
        let held = members.iter().filter_map(|worker| self.workers.get(worker)?.commit);
        held.map(|commit| commit.step).max()
    }
}
