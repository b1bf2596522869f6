//! Messages of the driver to one or many workers. Called by the core's handlers.

use std::sync::Arc;

use elastic_protocol::messages::{DriverToWorker, Formation, FormationTable};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Assignment, AssignmentDelta, NodeId, ResetCause, Stamp, WorkerId};

use super::DriverCore;
use super::output::DriverOutput;
use super::phase::RoundPhase;

impl DriverCore {
    pub(crate) fn tell(&mut self, worker: &WorkerId, message: DriverToWorker) {
        if !self.roster.listens(worker) {
            return;
        }
        self.output(DriverOutput::ToWorker { to: worker.clone(), message });
    }

    /// Sends the same message to all of these workers. It is encoded once.
    pub(crate) fn tell_all(&mut self, to: Vec<WorkerId>, message: DriverToWorker) {
        if let Some(told) = self.to_listening(to, message) {
            self.output(told);
        }
    }

    /// A message to those of these workers that listen; none if nobody does.
    fn to_listening(&self, mut to: Vec<WorkerId>, message: DriverToWorker) -> Option<DriverOutput> {
        to.retain(|worker| self.roster.listens(worker));
        (!to.is_empty()).then(|| DriverOutput::ToWorkers { to: planted_order(to), message })
    }

    /// Tells members that their generation ends. The message of a broken generation depends only on the record after which they
    /// were told it. So a blocked member does not wait for later records that a slow or full disk keeps unstored (G-12).
    pub(crate) fn tell_broken(&mut self, to: Vec<WorkerId>, stamp: Stamp, cause: &ResetCause) {
        let message = DriverToWorker::Abort { stamp, cause: cause.clone() };
        if cause.is_planned() {
            self.tell_all(to, message);
        } else if let Some(told) = self.to_listening(to, message) {
            self.output_for_generation(told);
        }
    }

    /// Adds an output about the generation formed last that depends only on the record after which members were told it. It
    /// overtakes outputs that wait for later records.
    pub(crate) fn output_for_generation(&mut self, output: DriverOutput) {
        let record = self.round.current().map(|current| current.record);
        self.outbox.put_after(record, output);
    }

    /// Welcomes a node. A welcome depends on the driver's term alone, which is stored before its core begins. So it does not
    /// wait for the disk: a node without an answer ends for want of a driver, and its end would count as a failure (G-9, G-10).
    pub(crate) fn welcome(&mut self, welcome: DriverOutput) {
        match is_planted(Bug::WelcomeHeld) {
            true => self.output(welcome),
            false => self.outbox.put_after(Some(0), welcome),
        }
    }

    /// Withdraws pending messages to a node that begins a new session. They were decided for an earlier session. The
    /// node would take them for news, although it has been handled as lost since (G-7).
    pub(crate) fn forget_untold(&mut self, node: &NodeId) {
        let worker = node.as_worker();
        let is_it = |to: &WorkerId| Some(to) == worker.as_ref();
        let mut missed = None;
        let mut note = |message: &DriverToWorker| {
            if let DriverToWorker::Assign(formation) = message {
                missed = Some(formation.stamp);
            }
        };
        self.outbox.retain(|output| match output {
            DriverOutput::ToAgent { to, .. } => to != node,
            DriverOutput::StartWorker { agent, .. } => agent != node,
            DriverOutput::ToWorker { to, message } if is_it(to) => {
                note(message);
                false
            }
            DriverOutput::ToWorkers { to, message } if to.iter().any(is_it) => {
                note(message);
                to.retain(|to| !is_it(to));
                !to.is_empty()
            }
            DriverOutput::ToWorker { .. }
            | DriverOutput::ToWorkers { .. }
            | DriverOutput::KnownDrivers { .. }
            | DriverOutput::OpenGeneration { .. }
            | DriverOutput::Vote(_)
            | DriverOutput::NameMissing { .. }
            | DriverOutput::Incident(_)
            | DriverOutput::HostJoined { .. }
            | DriverOutput::HostLeft { .. }
            | DriverOutput::HostFailed { .. }
            | DriverOutput::Event(_)
            | DriverOutput::Ended(_)
            | DriverOutput::Abandoned { .. }
            | DriverOutput::HandedOver => true,
        });
        if let (Some(worker), Some(missed)) = (worker, missed) {
            self.round.note_untold(worker, missed);
        }
    }

    pub(crate) fn tell_leave(&mut self, worker: &WorkerId, reason: &str) {
        self.tell(worker, DriverToWorker::Leave { reason: reason.to_owned() });
    }

    /// Tells the members of a new generation their assignment, as soon as `record` is stored. Members of the one before get the
    /// changes, the others the full table.
    ///
    /// Members of the generation before were told its table. If a member did not receive it, or holds another one by
    /// now, the delta's digests show that, and the member asks for the full table.
    pub(crate) fn tell_formation(
        &mut self,
        members: &[WorkerId],
        next: &Arc<Assignment>,
        formation: &Formation,
        record: u64,
    ) {
        let base = self.round.current().map(|current| Arc::clone(&current.assignment));
        let base = base.unwrap_or_default();
        let was_told = |worker: &WorkerId| {
            self.round.current().is_none_or(|current| !current.untold.contains(worker))
        };
        let delta = AssignmentDelta::between(&base, next);
        let pays = u64::from(delta.members_named()) * 2 <= u64::from(next.world_size());
        let had_base: std::collections::BTreeSet<WorkerId> = match pays {
            true => base.members().map(|member| member.worker).filter(was_told).collect(),
            false => Default::default(),
        };
        let (old, new): (Vec<WorkerId>, Vec<WorkerId>) =
            members.iter().cloned().partition(|worker| {
                had_base.contains(worker) || (pays && is_planted(Bug::DeltaToNewcomer))
            });
        let table = FormationTable::Delta(Arc::new(delta));
        let changes = DriverToWorker::Assign(Formation { table, ..formation.clone() });
        for (to, message) in [(old, changes), (new, DriverToWorker::Assign(formation.clone()))] {
            if let Some(told) = self.to_listening(to, message) {
                self.outbox.put_after(Some(record), told);
            }
        }
    }

    /// Sends the full table to a member that holds another table than the driver assumed, as soon as it may be told its generation.
    /// If the generation has ended, the member is told the next one in full: peers may fail a generation sooner than it can
    /// ask, each time.
    pub(crate) fn handle_table_wanted(&mut self, worker: &WorkerId, stamp: Stamp) {
        match self.round.current() {
            Some(current)
                if current.stamp == stamp
                    && current.alive.contains(worker)
                    && matches!(self.round.phase(), RoundPhase::Form { .. }) =>
            {
                let message = DriverToWorker::Assign(current.formation.clone());
                if let Some(told) = self.to_listening(vec![worker.clone()], message) {
                    self.output_for_generation(told);
                }
            }
            Some(current) if current.stamp == stamp => {
                self.round.note_untold(worker.clone(), stamp)
            }
            _ => self.drop_message(),
        }
    }
}

/// The given order, or a planted one that differs from run to run.
fn planted_order(workers: Vec<WorkerId>) -> Vec<WorkerId> {
    if !is_planted(Bug::RandomOrder) {
        return workers;
    }
    #[expect(clippy::disallowed_types, reason = "the bug that the fence is there to prevent")]
    let walk: std::collections::HashSet<WorkerId> = workers.into_iter().collect();
    walk.into_iter().collect()
}
