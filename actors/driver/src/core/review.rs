//! The review: what is wanted against what is, whenever something that may wait has changed; and the timers.

use elastic_protocol::messages::DriverToAgent;
use elastic_protocol::{HostName, Time, WorkerId};
use elastic_runtime::planted::{Bug, is_planted};

use super::DriverCore;
use super::output::{DriverOutput, EventKind};
use super::phase::Phase;
use super::table::{Link, SlotId, Stance, WorkerRecord};
use super::timers::Timer;
use crate::journal::Record;

impl DriverCore {
    /// Time has passed; call at or after `poll_timeout`.
    pub fn handle_timeout(&mut self, now: Time) {
        if let Some(ledger) = &mut self.ledger {
            ledger.handle_timeout(now);
        }
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Phase => self.handle_phase_deadline(now),
                Timer::LastCall => self.ask_review(now),
                Timer::Slot((host, _)) => {
                    self.slots.touch(&host);
                    self.ask_review(now);
                }
                Timer::Start(worker) => self.handle_start_deadline(now, &worker),
                Timer::Forgiveness(slot) => self.consider_forgiveness(now, &slot),
                Timer::Join(host) => self.resolve_pending_join(now, &host),
                Timer::Silence(worker) => self.handle_silence_deadline(now, &worker),
                Timer::Departure(worker) => self.handle_departure_deadline(now, &worker),
                Timer::Takeover => self.handle_takeover_deadline(now),
                Timer::Reports(host) => self.handle_reports_deadline(now, &host),
            }
        }
        if self.review_at.is_some_and(|at| at <= now) {
            self.review(now);
        }
    }

    fn review(&mut self, now: Time) {
        self.review_at = None;
        if self.is_taking_over(now) {
            return;
        }
        if self.phase.is_over() {
            return self.continue_ending(now);
        }
        self.refresh_seating(now);
        self.start_missing(now);
        self.let_go_of_the_unwanted(now);
        self.release_drained_agents();
        match self.phase {
            Phase::Gather(_) => self.try_form(now),
            Phase::Run => self.consider_interrupt(now),
            _ => {}
        }
    }

    fn start_missing(&mut self, now: Time) {
        let empty = self.seating.empty();
        if empty.is_empty() {
            return;
        }
        if self.is_by_restart() {
            return empty.iter().for_each(|slot| self.plan_process(now, slot));
        }
        let layout = self.layout(self.seating.wanted_by_host());
        for slot in empty {
            let Some(agent) = self.agents.get(&slot.0).map(|agent| agent.node.clone()) else {
                continue;
            };
            let worker = self.take_slot(&slot);
            let environment = self.worker_environment(&worker, &layout);
            self.workers.insert(worker.clone(), WorkerRecord::starting(now));
            let deadline = now + self.config.deadlines.start;
            self.timers.set(deadline, Timer::Start(worker.clone()));
            self.record(&Record::WorkerStarted { worker: worker.clone() });
            self.event(EventKind::WorkerStarted { worker: worker.to_string() });
            let place = None;
            self.output(DriverOutput::StartWorker { agent, worker, environment, place });
        }
    }

    /// A new life on an empty slot.
    pub(crate) fn take_slot(&mut self, slot: &SlotId) -> WorkerId {
        let incarnation = self.next_incarnation();
        let worker = WorkerId { host: slot.0.clone(), slot: slot.1, incarnation };
        let record = self.slots.get_or_default(slot.clone());
        record.worker = Some(worker.clone());
        record.backoff_until = None;
        worker
    }

    /// Workers whose slots are not wanted, and who are no members: those leave here. Members leave by an
    /// interrupt.
    fn let_go_of_the_unwanted(&mut self, now: Time) {
        let stance = |worker: &WorkerId| Some((worker.clone(), self.workers.get(worker)?.stance));
        let unwanted: Vec<(WorkerId, Stance)> =
            self.seating.unwanted().iter().filter_map(stance).collect();
        for (worker, stance) in unwanted {
            match stance {
                // Unless it was there before, and holds what nobody else does.
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

    /// A worker that leaves as planned is no member any more, and nobody's loss.
    fn lose_nothing(&mut self, now: Time, worker: &WorkerId) {
        if let Some(current) = &mut self.current {
            current.alive.remove(worker);
            self.workers.touch(&worker.host);
        }
        self.no_longer_waited_for(now, worker);
    }

    /// Whether an unwanted worker has no commit, or somebody who stays and is at rest, or trains, holds one
    /// that is as late (G-5).
    fn is_dispensable(&self, worker: &WorkerId) -> bool {
        let in_the_way = self.is_member(worker) && !matches!(self.phase, Phase::Gather(_));
        let Some(record) = self.workers.get(worker) else { return true };
        let mine = record.commit_order();
        let is_kept =
            mine.is_none() || self.seating.best_ready_commit() >= mine || self.some_member_stays();
        is_kept && !in_the_way
    }

    /// Whether there is a member that stays, and holds the root's commit or a later one.
    fn some_member_stays(&self) -> bool {
        let Some(current) = &self.current else { return false };
        let stays = |worker: &&WorkerId| !self.seating.unwanted().contains(*worker);
        self.phase_has_state() && current.alive.iter().any(|worker| stays(&worker))
    }

    /// Whether members hold the root's commit: it has been shared.
    fn phase_has_state(&self) -> bool {
        matches!(self.phase, Phase::Run | Phase::Pausing { .. } | Phase::Stopping { .. })
    }

    /// Agents that asked to leave may go once nothing runs on their hosts.
    fn release_drained_agents(&mut self) {
        let node = |host: &HostName| Some((host.clone(), self.agents.get(host)?.node.clone()));
        let free: Vec<_> = self.seating.draining().iter().filter_map(node).collect();
        for (host, to) in free {
            if !self.workers_of(&host).is_empty() {
                continue;
            }
            if let Some(agent) = self.agents.get_mut(&host) {
                agent.dismissed = true;
            }
            let message = DriverToAgent::Leave {
                code: 0,
                reason: "its workers have been taken out".to_owned(),
            };
            self.output(DriverOutput::ToAgent { to, message });
            self.output(DriverOutput::HostLeft { host });
        }
    }

    fn handle_start_deadline(&mut self, now: Time, worker: &WorkerId) {
        let waited = self.config.deadlines.start;
        let is_late = self.workers.get(worker).is_some_and(|record| {
            record.stance == Stance::Starting && record.since + waited <= now
        });
        if !is_late || is_planted(Bug::StartHasNoDeadline) {
            return;
        }
        let message = format!(
            "{worker} did not attach within {} s of its start: does the program call \
             elastic_node::run?",
            waited.as_secs_f64()
        );
        self.event(EventKind::Warning { message: message.clone() });
        self.stop_process(now, worker, self.grace_ms(), &message);
        self.handle_missed_start(now, worker, &message);
    }

    /// Somebody was to leave by itself and has not.
    fn handle_departure_deadline(&mut self, now: Time, worker: &WorkerId) {
        let grace = self.config.deadlines.grace;
        let Some(record) = self.workers.get(worker) else { return };
        let is_due = record.since + grace <= now;
        match record.stance {
            // Where its agent is out of reach it is told again when that is back.
            Stance::Leaving if is_due && self.agent_of(worker).is_some() => {
                self.stop_process(now, worker, self.grace_ms(), "it did not end by itself");
            }
            Stance::Lost if is_due => match self.agents.get(&worker.host).map(|agent| agent.link) {
                Some(Link::Up) => self.stop_process(now, worker, 0, "it did not come back"),
                // Its host is out of reach as well, and is not lost yet: it may come back with its host.
                Some(Link::Silent) => {
                    self.timers.set(now + grace, Timer::Departure(worker.clone()))
                }
                Some(Link::Down) | None => {}
            },
            Stance::Member | Stance::Finished | Stance::Arrived if record.leaving.is_some() => {
                let reason = record.leaving.clone().unwrap_or_default();
                self.let_the_last_holder_go(now, worker, &reason);
            }
            _ => {}
        }
    }
}
