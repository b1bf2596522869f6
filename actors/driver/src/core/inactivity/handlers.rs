//! Has agents look at the processes of members by restart, and names inactive members. Called when a generation runs, by
//! the timer of inactivity, and by the handler of agents' messages.

use elastic_protocol::messages::{HangSureness, ProcessSight, StalledWorker, StatusReport};
use elastic_protocol::{ResetCause, Time, WorkerId};

use super::{Inactivity, InactivityNaming, REVIEW_AFTER, STACK_WITHIN, Suspect, WatchedMember};
use crate::core::DriverCore;
use crate::core::config::OnHang;
use crate::core::event::EventKind;
use crate::core::phase::RoundPhase;
use crate::core::restart::ProcessStage;
use crate::core::timers::Timer;

/// Name of the operation that the others wait in: programs by restart do not tell theirs.
const OWN_COLLECTIVES: &str = "its own collectives";

impl DriverCore {
    /// Begins to look at the members of a generation by restart, or goes on. Forgets them if no such generation trains.
    pub(crate) fn watch_activity(&mut self, now: Time) {
        let trains = matches!(self.round.phase(), RoundPhase::Run) && self.is_by_restart();
        self.inactivity.turn_to(self.round.stamp().filter(|_| trains));
        if !trains {
            return;
        }
        self.inactivity.review_at = None;
        let every = Inactivity::look_every(Inactivity::limit(self.config.hang_timeout));
        let look_at = self.inactivity.look_at.unwrap_or(now + every);
        if look_at <= now {
            self.inactivity.looked_at = Some(now);
            // A single member has no peers to be compared with.
            let running = self.members_at(|stage| stage == ProcessStage::Running);
            for worker in running.iter().filter(|_| running.len() > 1) {
                self.look_at(worker, false);
            }
        }
        let next = if look_at <= now { now + every } else { look_at };
        self.inactivity.look_at = Some(next);
        self.name_inactive(now);
        if let Some(at) = self.inactivity.due_at() {
            self.agenda.set(at.max(now), Timer::Inactivity);
        }
    }

    /// Takes an agent's look at the process of a member by restart.
    pub(crate) fn handle_activity(&mut self, now: Time, worker: &WorkerId, sight: ProcessSight) {
        if !self.round.is_member(worker) || self.inactivity.stamp != self.round.stamp() {
            return;
        }
        match self.inactivity.members.get_mut(worker) {
            Some(member) => member.take(now, sight),
            None => {
                self.inactivity.members.insert(worker.clone(), WatchedMember::new(now, sight));
            }
        }
        let at = *self.inactivity.review_at.get_or_insert(now + REVIEW_AFTER);
        self.agenda.set(at, Timer::Inactivity);
    }

    /// Names members that are inactive for too long against their peers, and tells of those that go on again.
    fn name_inactive(&mut self, now: Time) {
        let limit = Inactivity::limit(self.config.hang_timeout);
        let running = self.members_at(|stage| stage == ProcessStage::Running);
        let mut suspects = self.inactivity.suspects(now, &running, limit);
        suspects.truncate(StatusReport::AWAITED_MAX);
        self.tell_going_on_again(now, &suspects);
        let wants_stack = self.config.on_hang != OnHang::Tell;
        for suspect in suspects {
            let Some(member) = self.inactivity.members.get_mut(&suspect.worker) else { continue };
            let shows_more = wants_stack && !member.sight.is_by_force();
            match member.naming {
                InactivityNaming::NotYet if shows_more => {
                    member.naming = InactivityNaming::Looking { until: now + STACK_WITHIN };
                    self.look_at(&suspect.worker, true);
                }
                InactivityNaming::Looking { until } if now < until && !member.sight.has_stack() => {
                }
                InactivityNaming::NotYet | InactivityNaming::Looking { .. } => {
                    self.name_suspect(now, suspect);
                    if !matches!(self.round.phase(), RoundPhase::Run) {
                        return;
                    }
                }
                InactivityNaming::Done { .. } => {}
            }
        }
    }

    fn name_suspect(&mut self, now: Time, suspect: Suspect) {
        let Suspect { worker, grounds, since } = suspect;
        let Some(member) = self.inactivity.members.get_mut(&worker) else { return };
        member.naming = InactivityNaming::Done { grounds, since };
        let Some(stalled) = self.inactive(now, &worker) else { return };
        let waiting = self.members_at(|stage| stage == ProcessStage::Running).len() - 1;
        let certain = stalled.grounds.as_ref().filter(|it| it.sureness == HangSureness::Certain);
        let error = certain.map(|it| format!("it hung: {}, and it {}", it.why, stalled.doing));
        self.tell_stalled(worker.clone(), waiting, stalled);
        // A hang that is only likely or possible is not enough to stop a job.
        if let Some(error) = error.filter(|_| self.config.on_hang == OnHang::Restart) {
            let cause = ResetCause::WorkerFailed { worker: worker.clone(), error };
            self.evict(now, std::slice::from_ref(&worker), &cause);
        }
    }

    /// Tells of members that were named and go on, and forgets those that were about to be named.
    fn tell_going_on_again(&mut self, now: Time, suspects: &[Suspect]) {
        let mut ended = Vec::new();
        for (worker, member) in &self.inactivity.members {
            let ends = match &member.naming {
                InactivityNaming::NotYet => None,
                InactivityNaming::Looking { until } => {
                    let is_suspect = suspects.iter().any(|it| it.worker == *worker);
                    (!is_suspect && *until <= now).then_some(None)
                }
                InactivityNaming::Done { grounds, since } => {
                    self.inactivity.goes_on(worker, grounds).then_some(Some(*since))
                }
            };
            ended.extend(ends.map(|since| (worker.clone(), since)));
        }
        for (worker, since) in ended {
            if let Some(member) = self.inactivity.members.get_mut(&worker) {
                member.naming = InactivityNaming::NotYet;
                // The next hang has other stacks.
                member.sight.drop_stacks();
            }
            if let Some(since) = since {
                let ms = now.ms_since(since);
                self.event(EventKind::StallEnded { worker, ms, usual: false });
            }
        }
    }

    /// A member by restart that was named, as the status shows it.
    fn inactive(&self, now: Time, worker: &WorkerId) -> Option<StalledWorker> {
        let member = self.inactivity.members.get(worker)?;
        let InactivityNaming::Done { grounds, since } = &member.naming else { return None };
        let shown = |stack: &String| Some(stack.clone()).filter(|stack| !stack.is_empty());
        Some(StalledWorker {
            rank: self.round.rank_of(worker)?,
            host: worker.host.clone(),
            slot: worker.slot,
            pid: self.pid_of(worker),
            operation: OWN_COLLECTIVES.to_owned(),
            late_ms: u64::try_from(now.since(*since).as_millis()).unwrap_or(u64::MAX),
            doing: member.sight.to_string(),
            stack: shown(&member.sight.stack),
            native_stack: shown(&member.sight.native_stack),
            grounds: Some(grounds.told()),
        })
    }

    /// Members by restart that hang.
    pub(crate) fn inactive_workers(&self, now: Time) -> Vec<StalledWorker> {
        let trains = matches!(self.round.phase(), RoundPhase::Run)
            && self.inactivity.stamp == self.round.stamp();
        let members = self.inactivity.members.keys().filter(|_| trains);
        members
            .filter_map(|worker| self.inactive(now, worker))
            .take(StatusReport::AWAITED_MAX)
            .collect()
    }
}
