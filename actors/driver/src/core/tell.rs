//! What the driver tells workers: one of them, or many the same. Called wherever it decides something about
//! them.

use std::sync::Arc;

use elastic_protocol::messages::{DriverToWorker, Formation, Table};
use elastic_protocol::{Assignment, AssignmentDelta, ResetCause, Stamp, WorkerId};
use elastic_runtime::planted::{Bug, is_planted};

use super::DriverCore;
use super::output::DriverOutput;
use super::phase::Phase;
use crate::journal::Ledger;

impl DriverCore {
    /// A process that lives for one generation has nobody inside who listens: its agent is told what
    /// concerns it.
    fn listens(&self, worker: &WorkerId) -> bool {
        self.workers.get(worker).is_none_or(|record| record.stage.is_none())
    }

    pub(crate) fn tell(&mut self, worker: &WorkerId, message: DriverToWorker) {
        if !self.listens(worker) {
            return;
        }
        self.output(DriverOutput::ToWorker { to: worker.clone(), message });
    }

    /// Tells the same to all of these: it is encoded once.
    pub(crate) fn tell_all(&mut self, mut to: Vec<WorkerId>, message: DriverToWorker) {
        to.retain(|worker| self.listens(worker));
        if !to.is_empty() {
            self.output(DriverOutput::ToWorkers { to: planted_order(to), message });
        }
    }

    /// Tells members that their generation ends. Where it is broken, that depends on no record but the one that gave
    /// the generation out: whoever is blocked in it does not wait for what a slow or full disk keeps unstored (G-12).
    pub(crate) fn tell_broken(&mut self, mut to: Vec<WorkerId>, stamp: Stamp, cause: &ResetCause) {
        let message = DriverToWorker::Abort { stamp, cause: cause.clone() };
        let is_told = |ledger: &Ledger| {
            let record = self.current.as_ref().map(|current| current.record);
            record.is_some_and(|record| ledger.is_stored(record))
        };
        let waits = |ledger: &Ledger| !ledger.is_stored(ledger.waited_for());
        let may_overtake = !cause.is_planned() && !self.is_retired;
        if may_overtake && self.ledger.as_ref().is_some_and(|it| is_told(it) && waits(it)) {
            to.retain(|worker| self.listens(worker));
            if !to.is_empty() {
                self.outputs.push_front((0, DriverOutput::ToWorkers { to, message }));
            }
            return;
        }
        self.tell_all(to, message);
    }

    pub(crate) fn tell_leave(&mut self, worker: &WorkerId, reason: &str) {
        self.tell(worker, DriverToWorker::Leave { reason: reason.to_owned() });
    }

    /// Tells the members of a new generation of it: those of the one before what has changed since, the
    /// others the full table.
    ///
    /// Whoever was a member has been told that generation's table. If it has not come there, or has been
    /// replaced by another, the delta's digests show it, and the member asks.
    pub(crate) fn tell_formation(
        &mut self,
        members: &[WorkerId],
        next: &Arc<Assignment>,
        formation: &Formation,
    ) {
        let base = self.current.as_ref().map(|current| Arc::clone(&current.assignment));
        let base = base.unwrap_or_default();
        let delta = AssignmentDelta::between(&base, next);
        let pays = u64::from(delta.members_named()) * 2 <= u64::from(next.world_size());
        let had_base: std::collections::BTreeSet<WorkerId> = match pays {
            true => base.members().map(|member| member.worker).collect(),
            false => Default::default(),
        };
        let (old, new): (Vec<WorkerId>, Vec<WorkerId>) =
            members.iter().cloned().partition(|worker| {
                had_base.contains(worker) || (pays && is_planted(Bug::DeltaToNewcomer))
            });
        let table = Table::Delta(Arc::new(delta));
        self.tell_all(old, DriverToWorker::Assign(Formation { table, ..formation.clone() }));
        self.tell_all(new, DriverToWorker::Assign(formation.clone()));
    }

    /// A member holds another table than the driver took it to hold.
    pub(crate) fn handle_table_wanted(&mut self, worker: &WorkerId, stamp: Stamp) {
        match &self.current {
            Some(current)
                if current.stamp == stamp
                    && current.alive.contains(worker)
                    && matches!(self.phase, Phase::Form { .. }) =>
            {
                let formation = current.formation.clone();
                self.tell(worker, DriverToWorker::Assign(formation));
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
