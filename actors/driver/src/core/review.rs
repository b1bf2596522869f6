//! The review, which compares the wanted state with the actual one after each change that may wait, and the handlers of
//! timers. Called by `actor`.

use elastic_protocol::messages::DriverToAgent;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{HostName, Time, WorkerId};

use super::DriverCore;
use super::event::EventKind;
use super::output::DriverOutput;
use super::phase::RoundPhase;
use super::table::{PeerLink, Stance};
use super::timers::Timer;
use crate::journal::JournalRecord;

impl DriverCore {
    /// Handles all timers that are due; call at or after `poll_timeout`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.outbox.handle_timeout(now);
        if self.agenda.is_late(now, self.config.deadlines.suspect) {
            self.excuse_own_pause(now);
        }
        // A timer that is set for now, or for a moment that has passed, fires with the next call: no handler is called without end.
        for _ in 0..self.agenda.due(now) {
            let Some(timer) = self.agenda.pop_due(now) else { break };
            match timer {
                Timer::Phase => self.handle_phase_deadline(now),
                Timer::LastCall => self.agenda.ask_review(now),
                Timer::Slot((host, _)) => {
                    self.roster.back_off_is_over(&host);
                    self.agenda.ask_review(now);
                }
                Timer::Rest(slot) => self.handle_rest_over(now, &slot),
                Timer::Start(worker) => self.handle_start_deadline(now, &worker),
                Timer::Forgiveness(slot) => self.consider_forgiveness(now, &slot),
                Timer::Join(host) => self.resolve_pending_join(now, &host),
                Timer::Silence(worker) => self.handle_silence_deadline(now, &worker),
                Timer::Departure(worker) => self.handle_departure_deadline(now, &worker),
                Timer::Hang => {
                    self.review_hangs(now);
                    self.consider_stop(now);
                }
                Timer::Inactivity => self.watch_activity(now),
                Timer::Straggler => self.review_stragglers(now),
                Timer::Checkpoint => self.handle_checkpoint_timer(now),
                Timer::ResetReport => self.handle_report_deadline(now),
                Timer::FirstSteps => self.handle_first_steps_deadline(now),
                Timer::Takeover => self.handle_takeover_deadline(now),
                Timer::Reports(host) => self.handle_reports_deadline(now, &host),
                Timer::SlowEnd => self.handle_slow_end(now),
                Timer::Unstored => self.handle_unstored_end(),
                Timer::HealthCheck(host) => self.handle_health_timer(now, &host),
            }
        }
        if self.agenda.take_review(now) {
            self.review(now);
        }
    }

    /// Extends deadlines after a pause of this driver, which a late timer shows. Nodes may have answered or ended meanwhile,
    /// and their messages have yet to be read. No node counts as late before that, and before silence is judged again (G-5).
    fn excuse_own_pause(&mut self, now: Time) {
        if is_planted(Bug::LateForOwnPause) {
            return;
        }
        let deadline = now + self.config.deadlines.judged_after_pause();
        self.round.restart_deadline(deadline, &mut self.agenda);
        self.agenda.put_off_departures(now, deadline);
        self.begin_start_deadlines(now);
    }

    fn review(&mut self, now: Time) {
        if self.is_taking_over(now) {
            return;
        }
        if self.round.phase().is_over() {
            return self.continue_ending(now);
        }
        if self.stopping.is_some() {
            return self.consider_stop(now);
        }
        self.roster.keep_at_least(self.min_np() as usize);
        self.roster.refresh_seating(now, &self.round);
        self.consider_untrained_ends(now);
        if self.round.phase().is_over() {
            return;
        }
        self.start_missing(now);
        self.let_go_of_the_unwanted(now);
        self.release_drained_agents();
        self.ask_health_checks(now);
        match self.round.phase() {
            RoundPhase::Gather(_) => self.try_form(now),
            RoundPhase::Run => {
                self.hurry_checkpoints_of_leavers(now);
                self.consider_interrupt(now);
            }
            _ => {}
        }
    }

    fn start_missing(&mut self, now: Time) {
        let empty = self.slots_to_fill();
        if empty.is_empty() {
            return;
        }
        if self.is_by_restart() {
            return empty.iter().for_each(|slot| self.plan_process(now, slot));
        }
        let layout = self.layout(self.roster.seating().wanted_by_host());
        for slot in empty {
            let Some(agent) = self.roster.agent(&slot.0).map(|agent| agent.node.clone()) else {
                continue;
            };
            let worker = self.roster.start(now, &slot);
            let environment = self.worker_environment(&worker, &layout);
            let deadline = now + self.config.deadlines.start;
            self.agenda.set(deadline, Timer::Start(worker.clone()));
            self.record(&JournalRecord::WorkerStarted { worker: worker.clone() });
            self.event(EventKind::WorkerStarted { worker: worker.clone() });
            let place = None;
            self.output(DriverOutput::StartWorker { agent, worker, environment, place });
        }
    }

    /// Removes workers that are no members and whose slots are not wanted. Members leave by an interrupt.
    ///
    /// Not while outputs wait for the journal: the order would leave later, and the worker that makes this one dispensable
    /// now may be gone by then (G-5). `handle_journaled` asks for another review.
    fn let_go_of_the_unwanted(&mut self, now: Time) {
        if self.is_held() {
            return;
        }
        let stance = |worker: &WorkerId| Some((worker.clone(), self.roster.worker(worker)?.stance));
        let unwanted: Vec<(WorkerId, Stance)> =
            self.roster.seating().unwanted().iter().filter_map(stance).collect();
        let kept = self.leavers_to_go_on_with(now, self.workers_needed() as usize);
        for (worker, stance) in unwanted.into_iter().filter(|(it, _)| !kept.contains(it)) {
            match stance {
                // A worker that was there before may hold a commit that no other holds: it stays.
                Stance::Starting
                    if self.is_dispensable(&worker) || is_planted(Bug::HolderBackStopped) =>
                {
                    self.stop_process(
                        now,
                        &worker,
                        self.grace_ms(),
                        "its slot is not used any more",
                    );
                }
                Stance::Attached | Stance::Arrived if self.is_dispensable(&worker) => {
                    self.lose_nothing(now, &worker);
                    self.dismiss(now, &worker, "its slot is not used any more");
                }
                _ => {}
            }
        }
    }

    /// Removes a worker from its generation that leaves as planned: this is not a loss.
    fn lose_nothing(&mut self, now: Time, worker: &WorkerId) {
        self.round.lose(worker);
        self.roster.membership_changed(worker);
        self.no_longer_waited_for(now, worker);
    }

    /// Whether an unwanted worker may go: it has no commit, or a worker that stays and is at rest or trains holds one
    /// as late (G-5).
    fn is_dispensable(&self, worker: &WorkerId) -> bool {
        let in_the_way =
            self.round.is_member(worker) && !matches!(self.round.phase(), RoundPhase::Gather(_));
        let Some(record) = self.roster.worker(worker) else { return true };
        let needed = self.workers_needed() as usize;
        if matches!(self.round.phase(), RoundPhase::Gather(_))
            && self.roster.is_at_rest(worker)
            && self.roster.seating().ready().len() < needed
        {
            // Its replacement has not come yet.
            return false;
        }
        let mine = record.commit_order();
        let is_kept = mine.is_none()
            || self.roster.seating().best_ready_commit() >= mine
            || self.some_member_stays();
        is_kept && !in_the_way
    }

    /// Whether some member stays that holds the root's commit or a later one.
    fn some_member_stays(&self) -> bool {
        let Some(current) = self.round.current() else { return false };
        let stays = |worker: &&WorkerId| !self.roster.seating().unwanted().contains(*worker);
        self.phase_has_state() && current.alive.iter().any(|worker| stays(&worker))
    }

    /// Whether members hold the root's commit, since it has been shared.
    fn phase_has_state(&self) -> bool {
        matches!(
            self.round.phase(),
            RoundPhase::Run | RoundPhase::Pausing { .. } | RoundPhase::Stopping { .. }
        )
    }

    /// Dismisses agents that asked to leave, once no worker is left on their hosts. The record of one that is lost already
    /// is removed.
    fn release_drained_agents(&mut self) {
        let of_host = |host: &HostName| {
            let agent = self.roster.agent(host)?;
            Some((host.clone(), agent.node.clone(), agent.link == PeerLink::Down))
        };
        let free: Vec<_> = self.roster.seating().draining().iter().filter_map(of_host).collect();
        for (host, to, is_lost) in free {
            if !self.roster.has_drained(&host) {
                continue;
            }
            if is_lost {
                self.roster.remove_agent(&host);
                continue;
            }
            self.roster.dismiss_agent(&host);
            let message = DriverToAgent::Leave {
                code: 0,
                reason: "its workers have been taken out".to_owned(),
            };
            self.output(DriverOutput::ToAgent { to, message });
            self.output(DriverOutput::HostLeft { host });
        }
    }

    /// Restarts the deadlines of ordered processes, and of attached workers that do not rest yet, once the journal can
    /// be written again, or this driver goes on after a pause. Their orders or their welcome did not leave before, or their
    /// messages were not read.
    pub(crate) fn begin_start_deadlines(&mut self, now: Time) {
        for worker in self.roster.restart_waits(now) {
            for wait in [self.config.deadlines.start, self.rest_deadline()] {
                self.agenda.set(now + wait, Timer::Start(worker.clone()));
            }
        }
    }

    /// Time that an attached worker may take to come to rest.
    pub(crate) fn rest_deadline(&self) -> std::time::Duration {
        self.config.deadlines.elastic.max(self.config.deadlines.start)
    }

    fn handle_start_deadline(&mut self, now: Time, worker: &WorkerId) {
        if self.is_held() {
            // The order to start may not have left.
            let at = now + self.config.deadlines.suspect;
            return self.agenda.set(at, Timer::Start(worker.clone()));
        }
        let Some(record) = self.roster.worker(worker) else { return };
        let (waited, rest) = (self.config.deadlines.start, self.rest_deadline());
        let message = match record.stance {
            Stance::Starting if record.since + waited <= now => format!(
                "{worker} did not attach within {} s of its start: does the program call \
                 elastic_node::run?",
                waited.as_secs_f64()
            ),
            Stance::Attached if record.since + rest <= now => format!(
                "{worker} attached and did not come to rest within {} s: its training thread hangs, or the program \
                 does not come to elastic_node::run",
                rest.as_secs_f64()
            ),
            _ => return,
        };
        if is_planted(Bug::StartHasNoDeadline) {
            return;
        }
        self.event(EventKind::Warning { message: message.clone() });
        self.stop_process(now, worker, self.grace_ms(), &message);
        self.handle_missed_start(now, worker, &message);
    }

    /// Handles a worker that was to leave by itself, or to come back, and has not within `grace`.
    fn handle_departure_deadline(&mut self, now: Time, worker: &WorkerId) {
        let grace = self.config.deadlines.grace;
        let Some(record) = self.roster.worker(worker) else { return };
        let is_due = record.since + grace <= now;
        match record.stance {
            // If the agent is out of reach, the order is repeated when it is back.
            Stance::Leaving if is_due && self.roster.agent_of(worker).is_some() => {
                self.stop_process(now, worker, self.grace_ms(), "it did not end by itself");
            }
            Stance::Dying if is_due && self.roster.agent_of(worker).is_some() => {
                let message = "it died, and its process did not end";
                self.stop_process(now, worker, 0, message);
                self.count_failure(now, worker, message);
            }
            // The order to stop it would not leave, and until it could, the worker may come back with its commit.
            Stance::Lost if is_due && self.is_held() => {
                let at = now + self.config.deadlines.suspect;
                self.agenda.set(at, Timer::Departure(worker.clone()));
            }
            Stance::Lost if is_due => {
                match self.roster.agent(&worker.host).map(|agent| agent.link) {
                    Some(PeerLink::Up) => self.stop_process(now, worker, 0, "it did not come back"),
                    // The host is out of reach as well, but is not lost yet: the worker may come back with it.
                    Some(PeerLink::Silent) => {
                        self.agenda.set(now + grace, Timer::Departure(worker.clone()))
                    }
                    Some(PeerLink::Down) | None => {}
                }
            }
            Stance::Member | Stance::Finished | Stance::Arrived if record.leaving.is_some() => {
                let reason = record.leaving.clone().unwrap_or_default();
                self.let_the_last_holder_go(now, worker, &reason);
            }
            _ => {}
        }
    }
}
