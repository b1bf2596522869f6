//! [`FirstSteps`]: the time of each host from a reset's decision to its first step. A part of the core. The measurement
//! begins when all members of the new generation are READY (`gather`). Members' progress gives the times (`workers`). They
//! are reported as an event once every member has committed, at a deadline, or when the generation ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use elastic_protocol::{GenerationId, HostName, Stamp, Step, Time, WorkerId};
use elastic_registry::MemberVotes;
use serde::{Deserialize, Serialize};

use super::DriverCore;
use super::event::{EventKind, HostResetMs};
use super::timers::Timer;

/// Longest wait of the report for members that have not trained a step: a first step may compile the model.
const FIRST_STEPS_WITHIN: Duration = Duration::from_secs(300);

/// The members' first steps after the last reset.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct FirstSteps {
    watched: Option<WatchedSteps>,
}

/// A generation whose first steps are not reported yet.
#[derive(Debug, Deserialize, Serialize)]
struct WatchedSteps {
    stamp: Stamp,
    /// The generation that ended.
    from: GenerationId,
    /// Time at which the reset was decided.
    decided_at: Time,
    /// The step that the generation begins from.
    begins_at: Step,
    /// Members that have not committed, nor ended.
    awaited: BTreeSet<WorkerId>,
    /// The last first commit of each host's members.
    stepped_at: BTreeMap<HostName, Time>,
    /// Each host's last READY and SYNCED; none until all are SYNCED.
    votes: Option<BTreeMap<HostName, MemberVotes>>,
    /// Deadline at which the times are reported as far as they are known.
    until: Time,
}

impl FirstSteps {
    fn of(&mut self, stamp: Option<Stamp>) -> Option<&mut WatchedSteps> {
        self.watched.as_mut().filter(|watched| Some(watched.stamp) == stamp)
    }
}

impl WatchedSteps {
    fn event(&self) -> Option<EventKind> {
        let late: BTreeSet<&HostName> = self.awaited.iter().map(|worker| &worker.host).collect();
        let since = |at: Time| at.ms_since(self.decided_at);
        let host = |(host, votes): (&HostName, &MemberVotes)| {
            let stepped_at = self.stepped_at.get(host).filter(|_| !late.contains(host));
            // A member may commit before the last SYNCED of all is taken.
            let first_step = stepped_at.map(|at| since(*at.max(&votes.synced_at)));
            let (ready, synced) = (since(votes.ready_at), since(votes.synced_at));
            (host.clone(), HostResetMs { ready, synced, first_step })
        };
        let hosts = self.votes.as_ref()?.iter().map(host).collect();
        Some(EventKind::FirstSteps { from: self.from, hosts })
    }
}

impl DriverCore {
    /// Waits for the first steps of the generation that is READY, if a reset led to it.
    pub(crate) fn watch_first_steps(&mut self) {
        let (Some(reset), Some(current)) = (self.round.reset(), self.round.current()) else {
            self.first_steps.watched = None;
            return;
        };
        // Processes that live for one generation do not report their steps.
        let by_restart = self.is_by_restart();
        let awaited = if by_restart { BTreeSet::new() } else { current.alive.clone() };
        self.first_steps.watched = Some(WatchedSteps {
            stamp: current.stamp,
            from: reset.from,
            decided_at: reset.decided_at,
            begins_at: current.formation.step,
            awaited,
            stepped_at: BTreeMap::new(),
            votes: None,
            until: Time(u64::MAX),
        });
    }

    /// Takes the members' votes, by rank, when all are SYNCED.
    pub(crate) fn time_hosts(&mut self, now: Time, votes: &[MemberVotes]) {
        let Some(current) = self.round.current() else { return };
        let Some(watched) = self.first_steps.of(Some(current.stamp)) else { return };
        let mut hosts: BTreeMap<HostName, MemberVotes> = BTreeMap::new();
        for (member, votes) in current.assignment.members().zip(votes) {
            let last = hosts.entry(member.worker.host.clone()).or_insert(*votes);
            last.ready_at = last.ready_at.max(votes.ready_at);
            last.synced_at = last.synced_at.max(votes.synced_at);
        }
        watched.votes = Some(hosts);
        watched.until = now + FIRST_STEPS_WITHIN;
        self.agenda.set(now + FIRST_STEPS_WITHIN, Timer::FirstSteps);
        self.tell_first_steps_if_known();
    }

    /// Takes a member's last commit in the current generation.
    pub(crate) fn note_first_step(&mut self, now: Time, worker: &WorkerId, step: Step) {
        let Some(watched) = self.first_steps.of(self.round.stamp()) else { return };
        if step > watched.begins_at && watched.awaited.remove(worker) {
            watched.stepped_at.insert(worker.host.clone(), now);
            self.tell_first_steps_if_known();
        }
    }

    /// Waits no longer for a member that has finished.
    pub(crate) fn note_finished_before_step(&mut self, worker: &WorkerId) {
        let Some(watched) = self.first_steps.of(self.round.stamp()) else { return };
        if watched.awaited.remove(worker) {
            self.tell_first_steps_if_known();
        }
    }

    /// Handles the end of the wait.
    pub(crate) fn handle_first_steps_deadline(&mut self, now: Time) {
        if self.first_steps.watched.as_ref().is_some_and(|watched| watched.until <= now) {
            self.report_held_reset();
            self.tell_first_steps();
        }
    }

    /// Reports the first steps if all members have taken theirs, once the reset itself is reported.
    pub(crate) fn tell_first_steps_if_known(&mut self) {
        let is_known = |it: &WatchedSteps| it.awaited.is_empty() && it.votes.is_some();
        if self.round.held_report_until().is_none()
            && self.first_steps.watched.as_ref().is_some_and(is_known)
        {
            self.tell_first_steps();
        }
    }

    /// Reports the first steps as far as they are known; nothing if the generation has not trained.
    pub(crate) fn tell_first_steps(&mut self) {
        let event = self.first_steps.watched.take().and_then(|watched| watched.event());
        if let Some(event) = event {
            self.event(event);
        }
    }
}
