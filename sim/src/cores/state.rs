//! The State's core of each process, between the session with the driver and the training thread. Part of the simulated
//! world.

use elastic_protocol::messages::{DriverToWorker, WorkerToDriver};
use elastic_protocol::{Term, Time};
use elastic_runtime::transport::LinkEvent;
use elastic_worker::state::core::{CheckpointOutcome, StateCore, StateOutput, TrainingEvent};

use super::network::{LinkDirection, LinkFrame};
use super::{Happening, World};
use crate::trace::TraceKind;

/// A message from the training thread to the State's thread.
#[derive(Debug)]
pub(super) enum ThreadTell {
    Event(TrainingEvent),
    /// The thread saw the pause flag at this boundary and asks for a verdict.
    Boundary(u64),
    Progress,
    /// Result of an order to save.
    Checkpoint(CheckpointOutcome),
}

impl World {
    pub(super) fn with_state(&mut self, process: u32, input: impl FnOnce(&mut StateCore, Time)) {
        let world = self.now;
        let entry = &mut self.processes[process as usize];
        if !entry.is_alive {
            return;
        }
        let now = entry.clock.local(world);
        let Some(core) = entry.state.core() else { return };
        input(core, now);
        self.drain_state(process);
    }

    /// Delivers a message from the driver of a term. A worker that a later driver has welcomed drops it (G-2).
    pub(super) fn worker_hears(&mut self, process: u32, term: Term, message: DriverToWorker) {
        let entry = &mut self.processes[process as usize];
        let heeds = |core: &mut StateCore| core.heeds(term);
        if !entry.is_alive || !entry.state.core().is_some_and(heeds) {
            return;
        }
        if matches!(message, DriverToWorker::Leave { .. } | DriverToWorker::Finished { .. }) {
            entry.note_told_to_leave();
        }
        self.with_state(process, |core, now| core.handle_driver(now, message));
    }

    pub(super) fn worker_link_event(&mut self, process: u32, event: &LinkEvent) {
        self.with_state(process, |core, now| core.handle_link(now, event));
    }

    pub(super) fn terminate_state(&mut self, process: u32) {
        if let Some(node) = self.processes[process as usize].state.node() {
            return node.depart();
        }
        self.with_state(process, StateCore::handle_sigterm);
    }

    pub(super) fn handle_state_timer(&mut self, process: u32) {
        let world = self.now;
        let entry = &mut self.processes[process as usize];
        if entry.armed != world || self.freeze(process, Happening::StateTimer { process }) {
            return;
        }
        let entry = &mut self.processes[process as usize];
        entry.armed = u64::MAX;
        let now = entry.clock.local(world);
        let Some(core) = entry.state.core() else { return };
        if core.poll_timeout().is_some_and(|at| at <= now) {
            core.handle_timeout(now);
            let place = entry.place;
            self.record(TraceKind::Timer, place, (0, 0), String::new);
        }
        self.drain_state(process);
    }

    /// Delivers the training thread's message to the State's thread.
    pub(super) fn handle_told(&mut self, process: u32) {
        if self.freeze(process, Happening::Told { process }) {
            return;
        }
        let world = self.now;
        let entry = &mut self.processes[process as usize];
        let Some((_, tell)) = entry.program.tells.items.pop_front() else { return };
        let (place, now) = (entry.place, entry.clock.local(world));
        let code = match &tell {
            ThreadTell::Event(TrainingEvent::Moved { .. }) => 8,
            ThreadTell::Event(TrainingEvent::AtRest { .. }) => 0,
            ThreadTell::Event(TrainingEvent::Formed { .. }) => 1,
            ThreadTell::Event(TrainingEvent::Synced { .. }) => 2,
            ThreadTell::Event(TrainingEvent::CollectiveFailed { .. }) => 3,
            ThreadTell::Event(TrainingEvent::Returned { .. }) => 4,
            ThreadTell::Event(TrainingEvent::Failed { .. }) => 5,
            ThreadTell::Event(TrainingEvent::Resumed { .. }) => 9,
            ThreadTell::Event(TrainingEvent::Warned { .. }) => 11,
            ThreadTell::Event(TrainingEvent::NotResumed { .. }) => 12,
            ThreadTell::Checkpoint(outcome) => 10 | outcome.step.0 << 8,
            ThreadTell::Boundary(boundary) => 6 | boundary << 8,
            ThreadTell::Progress => 7,
        };
        let words = if self.trace.wants_words() { format!("{tell:?}") } else { String::new() };
        self.record(TraceKind::Thread, place, (0, code), || words);
        let entry = &mut self.processes[process as usize];
        let Some(core) = entry.state.core() else { return self.tell_state_actor(process, tell) };
        match tell {
            ThreadTell::Event(event) => core.handle_training(now, event),
            ThreadTell::Checkpoint(outcome) => core.handle_checkpoint(now, outcome),
            ThreadTell::Progress => {
                let progress = self.progress_of(process);
                self.with_state(process, |core, now| core.handle_progress(now, progress));
            }
            ThreadTell::Boundary(boundary) => {
                let verdict = core.handle_boundary(now, entry.program.stamp, boundary);
                self.drain_state(process);
                return self.take_verdict(process, verdict);
            }
        }
        self.drain_state(process);
    }

    pub(super) fn drain_state(&mut self, process: u32) {
        let mut outputs = 0_u32;
        loop {
            let entry = &mut self.processes[process as usize];
            let Some(output) = entry.state.core().and_then(StateCore::poll_output) else { break };
            let (link, place) = (entry.link, entry.place);
            outputs += 1;
            self.put_out(place, "state", &output);
            let has_effect = matches!(output, StateOutput::Training(_) | StateOutput::Abort { .. });
            if self.hears_outdated && has_effect {
                let id = self.processes[process as usize].id.clone();
                self.fail_safety(format!(
                    "D-2: {id} obeys a driver that was succeeded: {output:?}"
                ));
            }
            let entry = &mut self.processes[process as usize];
            match output {
                StateOutput::ToDriver(message) => {
                    self.check_said(process, &message);
                    let _undelivered =
                        self.send(link, LinkDirection::ToDriver, LinkFrame::FromWorker(message));
                }
                StateOutput::Vote(vote) => {
                    let _undelivered =
                        self.send(link, LinkDirection::ToDriver, LinkFrame::Vote(vote));
                }
                StateOutput::Training(command) => self.command(process, command),
                StateOutput::Abort { stamp, .. } => self.abort(process, stamp),
                StateOutput::PauseFlag { on } => {
                    let place = entry.place;
                    self.decide(place, || format!("pause flag {on}"));
                    let entry = &mut self.processes[process as usize];
                    entry.program.set_pause_flag(on, self.now);
                    let now = entry.clock.local(self.now);
                    if let Some(core) = entry.state.core().filter(|_| on) {
                        core.handle_pause_read(now, entry.program.boundary);
                    }
                }
                StateOutput::Checkpoint(command) => {
                    let outcome = self.checkpoint_ordered(process, command);
                    let entry = &mut self.processes[process as usize];
                    let now = entry.clock.local(self.now);
                    if let (Some(outcome), Some(core)) = (outcome, entry.state.core()) {
                        core.handle_checkpoint(now, outcome);
                    }
                }
                StateOutput::SampleProgress => self.tell(process, ThreadTell::Progress),
            }
        }
        if outputs > 64 {
            let id = self.processes[process as usize].id.clone();
            self.fail_safety(format!("one input of the State of {id} gave {outputs} outputs"));
        }
        let entry = &mut self.processes[process as usize];
        let Some(core) = entry.state.core() else { return };
        let (stamp, timeout, always) = (core.stamp(), core.poll_timeout(), core.check());
        let checked = self.oracle.state_stamp(entry.job, &mut entry.program.newest, stamp);
        let checked = checked.and(always);
        if checked.is_err() {
            let id = entry.id.clone();
            self.demand(checked.map_err(|error| format!("{error} at {id}")));
        }
        let entry = &mut self.processes[process as usize];
        if let Some(at) = timeout {
            let at = entry.clock.world(at).max(self.now);
            if at < entry.armed {
                entry.armed = at;
                self.agenda.push(at, Happening::StateTimer { process });
            }
        }
    }

    /// Checks for errors that a State reports only after another node's mistake: the simulated programs all commit
    /// alike.
    pub(super) fn check_said(&mut self, process: u32, message: &WorkerToDriver) {
        let WorkerToDriver::CollectiveFailed { error, .. } = message else { return };
        if error.contains("do not commit alike") || error.contains("(G-6)") {
            let id = self.processes[process as usize].id.clone();
            self.fail_safety(format!("{id} {error}"));
        }
    }
}
