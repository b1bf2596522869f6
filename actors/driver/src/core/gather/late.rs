//! Members that do not come in time while a generation is formed: deadlines of the phases, and who is evicted. Called by
//! timers, and by the registry's verdict on a barrier.

use std::collections::BTreeSet;

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{ResetCause, Stamp, Time, WorkerId, counted};

use super::missing::{list, needed_text};
use crate::core::DriverCore;
use crate::core::output::DriverOutput;
use crate::core::phase::RoundPhase;
use crate::core::standing::WorkerStanding;
use crate::core::table::{PeerLink, WorkerRecord};
use crate::core::timers::Timer;

impl DriverCore {
    /// Evicts the members whose READY or SYNCED is missing, as the registry named them, after the phase's deadline.
    pub fn handle_missing(&mut self, now: Time, stamp: Stamp, mut missing: Vec<WorkerId>) {
        // A driver that stood still asks once for each deadline that passed meanwhile. A member is evicted once.
        missing.retain(|worker| self.round.is_member(worker));
        if self.round.stamp() != Some(stamp) || missing.is_empty() {
            return;
        }
        let phase = match self.round.phase() {
            RoundPhase::Form { deadline } if *deadline <= now => "form",
            RoundPhase::Sync { deadline } if *deadline <= now => "sync",
            _ => return,
        };
        if phase == "sync" && self.fails_of_slow_load(now) {
            return;
        }
        let cause =
            ResetCause::DeadlinePassed { phase: phase.to_owned(), waiting_for: missing.clone() };
        self.evict(now, &missing, &cause);
    }

    /// Evicts late members: the others go on without them (G-9). If the state would be lost with them (G-5), all try
    /// again within the elastic timeout.
    pub(crate) fn evict(&mut self, now: Time, missing: &[WorkerId], cause: &ResetCause) {
        if self.round.phase().is_generation_active() && self.are_last_holders(now, missing) {
            return self.accuse_generation(cause.clone(), now);
        }
        let reason = cause.to_string();
        for worker in missing {
            self.lose_member(now, worker, cause, now);
            if self.round.phase().is_over() {
                return;
            }
            self.stop_process(now, worker, self.grace_ms(), &reason);
            self.handle_missed_start(now, worker, &reason);
        }
    }

    /// Whether only these members hold the commit that the generation is to begin from, or that its members return with.
    pub(crate) fn are_last_holders(&mut self, now: Time, missing: &[WorkerId]) -> bool {
        self.roster.refresh_seating(now, &self.round);
        let Some(current) = self.round.current() else { return false };
        // The members train until a planned stop. Its own deadline is the first one that they can miss.
        let trains = matches!(self.round.phase(), RoundPhase::Stopping { .. });
        let is_too_late = self
            .round
            .reset_counts_from()
            .is_some_and(|from| from + self.config.deadlines.elastic <= now);
        if is_too_late && !trains {
            return false;
        }
        let missing: BTreeSet<&WorkerId> = missing.iter().collect();
        // A commit does not count if its holder is about to leave, or is silent: the holder may be gone already.
        let is_heard = |worker: &WorkerId| {
            self.roster.worker(worker).is_some_and(|record| record.link != PeerLink::Silent)
        };
        let stays = |worker: &&WorkerId| {
            !self.roster.seating().unwanted().contains(*worker) && is_heard(worker)
        };
        let (late, others): (Vec<_>, Vec<_>) =
            current.alive.iter().partition(|worker| missing.contains(worker));
        let others: Vec<&WorkerId> = others.into_iter().filter(stays).collect();
        if others.is_empty() {
            return true;
        }
        let forms = matches!(self.round.phase(), RoundPhase::Form { .. });
        let may_differ = forms || matches!(self.round.phase(), RoundPhase::Gather(_));
        let order = |worker: &WorkerId| self.roster.commit_order_of(worker);
        // A driver that takes a forming generation over assumes of each member that it has begun already. None needs to.
        let counts = |worker: &WorkerId| {
            order(worker).filter(|(generation, _)| !forms || *generation < current.stamp.generation)
        };
        may_differ
            && others.into_iter().filter_map(counts).max()
                < late.into_iter().filter_map(order).max()
    }

    /// Whether a worker that is no member now holds a later commit than every other worker that is heard. Without it
    /// the next generation would roll the commit back.
    pub(crate) fn holds_alone_outside(&self, worker: &WorkerId) -> bool {
        let Some(record) = self.roster.worker(worker) else { return false };
        let held = self.order_outside(record);
        if held.is_none() || self.is_checkpoint_later(held.map(|(generation, _)| generation)) {
            return false;
        }
        let is_heard_holder = |other: &WorkerRecord| {
            other.link != PeerLink::Silent && other.standing() != WorkerStanding::Departing
        };
        self.roster
            .workers()
            .filter(|(other, record)| *other != worker && is_heard_holder(record))
            .all(|(_, other)| self.order_outside(other) < held)
    }

    pub(crate) fn handle_phase_deadline(&mut self, now: Time) {
        if self.is_phase_held(now) {
            // Nodes that have not been told yet are not late: their time begins when they are.
            return self.agenda.set(now + self.config.deadlines.suspect, Timer::Phase);
        }
        match self.round.phase() {
            RoundPhase::Gather(gather)
                if gather.deadline <= now && !is_planted(Bug::ElasticTimeoutIgnored) =>
            {
                let late: Vec<WorkerId> = gather.waiting_for.iter().cloned().collect();
                self.handle_gather_deadline(now, late);
            }
            RoundPhase::Gather(gather) if gather.ends_by.is_some_and(|ends_by| ends_by <= now) => {
                let late: Vec<WorkerId> = gather.waiting_for.iter().cloned().collect();
                self.go_on_without_unending(now, late);
            }
            RoundPhase::Form { deadline } | RoundPhase::Sync { deadline } if *deadline <= now => {
                let Some(stamp) = self.round.stamp() else { return };
                self.output(DriverOutput::NameMissing { stamp });
            }
            RoundPhase::Pausing { deadline, waiting_for, .. } if *deadline <= now => {
                let late = waiting_for.iter().cloned().collect();
                self.evict_from_interrupt(now, late);
            }
            RoundPhase::Stopping { deadline, waiting_for, .. } if *deadline <= now => {
                let late = waiting_for.iter().cloned().collect();
                self.evict_from_interrupt(now, late);
            }
            RoundPhase::Failing { deadline, .. } if *deadline <= now => self.conclude_failure(now),
            RoundPhase::Ending { deadline, .. } if *deadline <= now => {
                self.handle_ending_deadline(now)
            }
            _ => {}
        }
    }

    fn evict_from_interrupt(&mut self, now: Time, mut late: Vec<WorkerId>) {
        // A driver that stood still comes here once for each deadline that passed meanwhile. A member is evicted once.
        late.retain(|worker| self.round.is_member(worker));
        if late.is_empty() {
            return;
        }
        let phase = "interrupt".to_owned();
        let cause = ResetCause::DeadlinePassed { phase, waiting_for: late.clone() };
        self.evict(now, &late, &cause);
    }

    /// End of the pause between two generations, if enough workers are ready and only this pause holds them up.
    fn pause_of_enough(&self, now: Time) -> Option<Time> {
        let are_enough = self.roster.seating().ready().len() >= self.workers_needed() as usize;
        self.pacing.pause_ends(now).filter(|_| are_enough)
    }

    /// Handles the elastic timeout: goes on without late members if the others are enough, else fails the job.
    fn handle_gather_deadline(&mut self, now: Time, late: Vec<WorkerId>) {
        if !late.is_empty() {
            let phase = "gather".to_owned();
            let cause = ResetCause::DeadlinePassed { phase, waiting_for: late.clone() };
            self.evict(now, &late, &cause);
        }
        self.try_form(now);
        let RoundPhase::Gather(_) = self.round.phase() else { return };
        // These waits are the driver's own: no worker is missing.
        if let Some(end) = self.pause_of_enough(now).or_else(|| self.quarreller_gone_by(now)) {
            return self.agenda.set(end, Timer::Phase);
        }
        let there: BTreeSet<&WorkerId> = self.workers_there().collect();
        let needed = self.workers_needed();
        let mut missing = self.who_is_missing(now, &late);
        if missing.is_empty() {
            let more = (needed as usize).saturating_sub(there.len());
            let why = if self.roster.hosts().is_empty() { " (no host has joined)" } else { "" };
            let more = format!("{}{why}", counted(more as u64, "more worker"));
            missing.push(self.short_nodes().unwrap_or(more));
        }
        let reason = format!(
            "the elastic timeout of {} s passed: {}; there: {}; missing: {}",
            self.config.deadlines.elastic.as_secs_f64(),
            needed_text(needed),
            list(there.iter().map(ToString::to_string)),
            missing.join(", "),
        );
        let hint = "add hosts or slots, lower --min-np, or raise --elastic-timeout";
        self.fail(now, &reason, Some(hint));
    }
}
