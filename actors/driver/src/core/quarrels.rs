//! Quarrels: hosts that do not reach each other although the driver hears both. Used by `gather` and `workers`.
//!
//! A member that reports a broken link may be right about its peer. Then the peer's process, host or connection to
//! the driver shows it, and the loss is handled elsewhere. If neither has another fault, the network between their
//! hosts has, and every generation with both breaks again. So accusations between two hosts are remembered until a
//! generation with both makes progress. After several breaks, or one and a generation that could not form, one of the
//! two hosts is left out (G-9).
//!
//! Members of one host that do not reach each other (its loopback interface is down) are a quarrel of that host with
//! itself. Members of other hosts wait for them meanwhile, and their reports are a consequence of that quarrel.

use std::collections::{BTreeMap, BTreeSet};

use elastic_host_manager::{HostEntry, HostFault, HostState};
use elastic_protocol::messages::UnreachableHost;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{HostName, Time, WorkerId};
use serde::{Deserialize, Serialize};

use self::accusations::Accusations;
use super::DriverCore;
use super::event::EventKind;
use super::phase::FormedGeneration;

mod accusations;

/// Generations in a row that break between two hosts before one of them is left out.
const BREAKS_MAX: u32 = 3;

/// Bound of the accusations of one generation, and of the pairs. More are not needed to find a culprit.
const REMEMBERED_MAX: usize = 4096;

/// Accusations between members, and counts of breaks between hosts.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Quarrels {
    /// The broken links that were reported in the generation formed last.
    accusations: Accusations,
    /// Paths between two hosts, the lesser name first, over which generations broke in a row.
    #[serde(with = "crate::recording::readable::pairs")]
    breaks: BTreeMap<HostPair, BrokenPath>,
    /// The host that is to be left out, until the host manager has said that it is.
    #[serde(default)]
    going: Option<HostName>,
    /// Time at which the host manager was told to leave that host out.
    #[serde(default)]
    told_at: Time,
}

/// A path between two hosts over which generations broke.
#[derive(Debug, Default, Deserialize, Serialize)]
struct BrokenPath {
    /// Number of generations in a row, or [`BREAKS_MAX`] where fewer are enough.
    breaks: u32,
    /// Number of generations in a row, as it is told.
    #[serde(default)]
    generations: u32,
    /// The hosts whose workers reported a break of the path, with the last report of each.
    reports: BTreeMap<HostName, String>,
}

/// Progress of a generation that ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum BrokenOutcome {
    /// Not all of its members were connected.
    NotFormed,
    /// It trained, and got no further than where it began.
    Trained,
    /// It got further.
    GotOn,
}

impl Quarrels {
    /// Notes that a member could not reach a peer, or was told by another member that this one could not.
    pub(crate) fn note(
        &mut self,
        reporter: &WorkerId,
        peer: &WorkerId,
        told_by: Option<WorkerId>,
        error: &str,
    ) {
        if self.accusations.len() < REMEMBERED_MAX {
            self.accusations.note(reporter, peer, told_by, error);
        }
    }

    /// Counts the pairs of hosts between which the ended generation broke; `members` go on into the next one. Returns
    /// these pairs.
    fn count(
        &mut self,
        ended: &FormedGeneration,
        outcome: BrokenOutcome,
        members: &[WorkerId],
    ) -> BTreeSet<HostPair> {
        if outcome == BrokenOutcome::GotOn {
            let hosts = hosts_of(ended);
            self.breaks.retain(|(one, other), _| !hosts.contains(one) || !hosts.contains(other));
        }
        let mut accusations = std::mem::take(&mut self.accusations).of_witnesses();
        accusations.retain(|(reporter, peer), _| {
            let go_on = members.contains(reporter) && members.contains(peer);
            // While a generation trains, members of a host report each other for many reasons.
            go_on && (reporter.host != peer.host || outcome == BrokenOutcome::NotFormed)
        });
        let apart = accusations.keys().filter(|(reporter, peer)| reporter.host == peer.host);
        let apart: BTreeSet<HostName> = apart.map(|(_, peer)| peer.host.clone()).collect();
        let mut counted = BTreeSet::new();
        for ((reporter, peer), error) in accusations {
            let follows = reporter.host != peer.host
                && (apart.contains(&reporter.host) || apart.contains(&peer.host));
            let pair = pair(reporter.host.clone(), peer.host.clone());
            if follows || self.breaks.len() >= REMEMBERED_MAX && !self.breaks.contains_key(&pair) {
                continue;
            }
            let path = self.breaks.entry(pair.clone()).or_default();
            if counted.insert(pair) {
                // Two hosts between which a generation broke and the next one did not even form: each further
                // attempt would take as long as this one.
                let is_hopeless = outcome == BrokenOutcome::NotFormed && path.breaks > 0;
                path.breaks = if is_hopeless { BREAKS_MAX } else { path.breaks + 1 };
                path.generations = path.generations.saturating_add(1);
            }
            path.reports.insert(reporter.host, error);
        }
        counted
    }

    /// The pairs between which too many generations have broken.
    fn too_often(&self) -> Vec<HostPair> {
        let too_often = self.breaks.iter().filter(|(_, path)| path.breaks >= BREAKS_MAX);
        too_often.map(|(pair, _)| pair.clone()).collect()
    }

    /// The reports of broken paths, each from a host to another one.
    fn reports(&self) -> impl Iterator<Item = (&HostPair, UnreachableHost)> {
        self.breaks.iter().flat_map(|(pair, path)| {
            path.reports.iter().map(move |(from, error)| {
                let to = if *from == pair.0 { &pair.1 } else { &pair.0 };
                let (from, to) = (from.clone(), to.clone());
                let (breaks, error) = (path.generations, error.clone());
                (pair, UnreachableHost { from, to, breaks, error })
            })
        })
    }

    /// Checks that pairs are in order, have broken and been reported, and are bounded.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.accusations.len() > REMEMBERED_MAX || self.breaks.len() > REMEMBERED_MAX {
            return Err(format!("more than {REMEMBERED_MAX} quarrels are remembered"));
        }
        for ((one, other), path) in &self.breaks {
            let is_reported = path.reports.keys().all(|from| from == one || from == other);
            if one > other || path.breaks == 0 || path.reports.is_empty() || !is_reported {
                return Err(format!("the quarrel of {one} and {other} is {path:?}"));
            }
        }
        Ok(())
    }

    /// Takes the hosts that the job may use now.
    pub(crate) fn handle_hosts(&mut self, hosts: &[HostEntry]) {
        let is_listed = |host: &HostName| {
            hosts.iter().any(|entry| entry.name == *host && entry.state == HostState::Listed)
        };
        self.going = self.going.take().filter(is_listed);
    }

    /// Lowers the counts of a host that was left out: once it is back, its next break is enough.
    fn settled(&mut self, host: &HostName) {
        for ((one, other), path) in &mut self.breaks {
            if one == host || other == host {
                path.breaks = path.breaks.min(BREAKS_MAX - 1);
            }
        }
    }
}

fn hosts_of(generation: &FormedGeneration) -> BTreeSet<HostName> {
    generation.assignment.members().map(|member| member.worker.host).collect()
}

type HostPair = (HostName, HostName);

fn pair(one: HostName, other: HostName) -> HostPair {
    if one <= other { (one, other) } else { (other, one) }
}

impl DriverCore {
    /// Whether a host must be left out before these members form the next generation, since generations break between
    /// it and others again and again. The host manager is told, and its answer removes the host's workers.
    pub(crate) fn leaves_a_quarreller_out(&mut self, now: Time, members: &[WorkerId]) -> bool {
        if self.quarrels.going.is_some() {
            return true;
        }
        let Some(ended) = self.round.current() else { return false };
        let outcome = if self.has_got_on(ended, members) {
            BrokenOutcome::GotOn
        } else if self.pacing.has_run() {
            BrokenOutcome::Trained
        } else {
            BrokenOutcome::NotFormed
        };
        let counted = self.quarrels.count(ended, outcome, members);
        let reports = self.quarrels.reports().filter(|(pair, _)| counted.contains(*pair));
        let told: Vec<UnreachableHost> = reports.map(|(_, report)| report).collect();
        for report in told {
            self.event(EventKind::HostUnreachable(report));
        }
        let pairs = self.quarrels.too_often();
        if pairs.is_empty() || is_planted(Bug::QuarrelNeverEnds) {
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
        let (fault, reason) = if others.contains(&host.as_str()) {
            let reason = "its workers do not reach each other: is its loopback interface up?";
            (HostFault::Failed, reason.to_owned())
        } else {
            let reason = format!(
                "its workers and those of {} do not reach each other: one generation after the other has broken there",
                others.join(", ")
            );
            (HostFault::Unreached, reason)
        };
        self.quarrels.settled(&host);
        self.quarrels.going = Some(host.clone());
        self.quarrels.told_at = now;
        self.report_failed_host(host, fault, reason);
        true
    }

    /// Time by which the host manager is expected to leave out the host that it was told to; none if it has, or if the time has
    /// passed.
    pub(crate) fn quarreller_gone_by(&self, now: Time) -> Option<Time> {
        let gone_by = self.quarrels.told_at + self.config.deadlines.suspect;
        (self.quarrels.going.is_some() && now < gone_by).then_some(gone_by)
    }

    /// Pairs of hosts that do not reach each other, with the reports. Pairs that train together are not listed.
    pub(crate) fn unreachable(&self) -> Vec<UnreachableHost> {
        let trains = self.round.current().filter(|current| {
            let begins_at = current.formation.step;
            let steps = current
                .assignment
                .members()
                .filter_map(|member| self.roster.worker(&member.worker).map(|record| record.step));
            self.round.phase().is_generation_active() && steps.max() > Some(begins_at)
        });
        let reached = trains.map(hosts_of).unwrap_or_default();
        let reports = self.quarrels.reports();
        let broken =
            reports.filter(|((one, other), _)| !reached.contains(one) || !reached.contains(other));
        broken.map(|(_, report)| report).collect()
    }

    /// The host of these pairs to leave out: one whose workers do not reach each other, the one in most broken paths
    /// between hosts of these members, and among equals the one with the higher ranks (G-8). Paths that broke less often
    /// count too: the first break ends a generation, so a host that reaches nobody is in one such pair at a time.
    /// Without the host, enough members (`min_np`) and the highest commit (G-5) must be left.
    fn quarreller(&self, pairs: &[HostPair], members: &[WorkerId]) -> Option<HostName> {
        let needed = self.workers_needed() as usize;
        let best = members.iter().filter_map(|worker| self.roster.commit_order_of(worker)).max();
        let can_go = |host: &HostName| {
            let others = || members.iter().filter(|worker| worker.host != *host);
            let best_left = others().filter_map(|worker| self.roster.commit_order_of(worker)).max();
            let keeps_commit = best_left >= best || is_planted(Bug::PartedWithTheCommit);
            others().count() >= needed && keeps_commit
        };
        let rank = |host: &HostName| members.iter().position(|worker| worker.host == *host);
        // A quarrel within a host is that host's alone: the other host of the pair does not count.
        let is_apart = |host: &HostName| pairs.contains(&(host.clone(), host.clone()));
        let hosts: BTreeSet<&HostName> = pairs
            .iter()
            .flat_map(|(one, other)| match (is_apart(one), is_apart(other)) {
                (true, false) => [one, one],
                (false, true) => [other, other],
                _ => [one, other],
            })
            .collect();
        hosts
            .into_iter()
            .filter(|host| rank(host).is_some() && can_go(host))
            .max_by_key(|host| (is_apart(host), self.quarrels_of(host, &rank), rank(host)))
            .cloned()
    }

    /// Number of broken paths between this host and others that have a `rank` among the members.
    fn quarrels_of(&self, host: &HostName, rank: &impl Fn(&HostName) -> Option<usize>) -> usize {
        let broken = self.quarrels.breaks.keys().filter(|(one, other)| {
            (one == host || other == host) && rank(one).is_some() && rank(other).is_some()
        });
        broken.count()
    }

    fn warn_of_quarrel(&mut self, pairs: &[HostPair]) {
        for (one, other) in pairs {
            let message = if one == other {
                format!(
                    "workers of {one} do not reach each other, and the host cannot be spared; \
                     hint: check that its loopback interface is up"
                )
            } else {
                format!(
                    "workers of {one} and {other} do not reach each other, and neither host can be spared; \
                     hint: check the network between them, or lower --min-np"
                )
            };
            self.event(EventKind::Warning { message });
        }
    }
}
