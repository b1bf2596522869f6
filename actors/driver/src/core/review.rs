//! The review: what is wanted against what is, whenever something that may wait has changed; and the timers.

use std::collections::BTreeSet;

use elastic_protocol::messages::DriverToAgent;
use elastic_protocol::{Time, WorkerId};
use elastic_runtime::planted::{Bug, is_planted};

use super::DriverCore;
use super::config::Mode;
use super::output::{DriverOutput, EventKind};
use super::phase::Phase;
use super::table::{Link, SlotId, Stance, WorkerRecord};
use super::timers::Timer;

impl DriverCore {
    /// Time has passed; call at or after `poll_timeout`.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Phase => self.handle_phase_deadline(now),
                Timer::LastCall | Timer::Slot(_) => self.ask_review(now),
                Timer::Start(worker) => self.handle_start_deadline(now, &worker),
                Timer::Join(host) => self.resolve_pending_join(now, &host),
                Timer::Silence(worker) => self.handle_silence_deadline(now, &worker),
                Timer::Departure(worker) => self.handle_departure_deadline(now, &worker),
            }
        }
        if self.review_at.is_some_and(|at| at <= now) {
            self.review(now);
        }
    }

    fn review(&mut self, now: Time) {
        self.review_at = None;
        if self.phase.is_over() {
            return;
        }
        let desired = self.desired_slots(now);
        self.start_missing(now, &desired);
        self.let_go_of_the_unwanted(now, &desired);
        self.release_drained_agents();
        if self.everything_is_done_without_attaching() {
            return self.succeed(now);
        }
        match self.phase {
            Phase::Gather(_) => self.try_form(now),
            Phase::Run => self.consider_interrupt(now),
            _ => {}
        }
    }

    fn start_missing(&mut self, now: Time, desired: &[SlotId]) {
        for slot in desired {
            if self.worker_in(slot).is_some() {
                continue;
            }
            let (host, number) = slot;
            let Some(agent) = self.agents.get(host).map(|agent| agent.node.clone()) else {
                continue;
            };
            let worker = WorkerId {
                host: host.clone(),
                slot: *number,
                incarnation: self.next_incarnation(),
            };
            let environment = self.worker_environment(&worker, desired);
            self.workers.insert(worker.clone(), WorkerRecord::starting(now));
            let record = self.slots.entry(slot.clone()).or_default();
            record.worker = Some(worker.clone());
            record.backoff_until = None;
            let deadline = now + self.config.deadlines.start;
            self.timers.set(deadline, Timer::Start(worker.clone()));
            self.event(EventKind::WorkerStarted { worker: worker.to_string() });
            self.output(DriverOutput::StartWorker { agent, worker, environment });
        }
    }

    /// Workers whose slots are not wanted, and who are no members: those leave here. Members leave by an
    /// interrupt.
    fn let_go_of_the_unwanted(&mut self, now: Time, desired: &[SlotId]) {
        let desired: BTreeSet<&SlotId> = desired.iter().collect();
        let unwanted: Vec<(WorkerId, Stance)> = self
            .workers
            .iter()
            .filter(|(worker, record)| {
                let slot = (worker.host.clone(), worker.slot);
                record.leaving.is_some() || !desired.contains(&slot)
            })
            .map(|(worker, record)| (worker.clone(), record.stance))
            .collect();
        for (worker, stance) in unwanted {
            match stance {
                // Unless it was there before, and holds what nobody else does.
                Stance::Starting if self.is_dispensable(&worker) => {
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
        }
        self.no_longer_waited_for(now, worker);
    }

    /// Whether somebody who stays holds a commit that is as late as this worker's (G-5), or it has none.
    fn is_dispensable(&self, worker: &WorkerId) -> bool {
        let in_the_way = self.is_member(worker) && !matches!(self.phase, Phase::Gather(_));
        let Some(record) = self.workers.get(worker) else { return true };
        let Some(commit) = record.commit else { return !in_the_way };
        let mine = (commit.generation, commit.step);
        let kept = self.workers.iter().any(|(other, record)| {
            let stays = other != worker && record.is_wanted() && self.holds_slot(other);
            let newer_generation = matches!(record.stance, Stance::Member | Stance::Finished)
                && self.phase_has_state()
                && self.is_member(other);
            let holds =
                record.commit.is_some_and(|theirs| (theirs.generation, theirs.step) >= mine);
            stays && (newer_generation || (record.stance == Stance::Arrived && holds))
        });
        kept && !in_the_way
    }

    /// Whether members hold the root's commit: it has been shared.
    fn phase_has_state(&self) -> bool {
        matches!(self.phase, Phase::Run | Phase::Pausing { .. } | Phase::Stopping { .. })
    }

    fn holds_slot(&self, worker: &WorkerId) -> bool {
        self.worker_in(&(worker.host.clone(), worker.slot)) == Some(worker)
    }

    /// Agents that asked to leave may go once nothing runs on their hosts.
    fn release_drained_agents(&mut self) {
        let free: Vec<_> = self
            .agents
            .iter()
            .filter(|(_, agent)| agent.draining.is_some() && !agent.dismissed)
            .map(|(host, agent)| (host.clone(), agent.node.clone()))
            .collect();
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

    /// A program that never attaches, such as `echo`, is done when every slot's process has exited with 0.
    fn everything_is_done_without_attaching(&self) -> bool {
        if self.config.mode != Mode::Auto || self.current.is_some() || !self.workers.is_empty() {
            return false;
        }
        let done = self.slots.values().filter(|slot| slot.done_without_attaching).count();
        done > 0 && done >= self.workers_needed() as usize
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
