//! Rule: members on notice, without which too few workers would be left to train on, leave only once a commit is saved (C-1), unless
//! the driver says why it could not be. Called for notices, for other faults, and for the driver's events.

use elastic_protocol::Stamp;

use super::super::driver::ObservedPhase;
use super::super::{MS, World};

/// Time by which the wait for a save may end earlier for the driver than for the oracle: its clock, and the notice's way.
const EARLIER_NS: u64 = 1_000 * MS;

/// The commit that is to be safe before members on notice leave.
#[derive(Clone, Copy, Debug)]
pub(in crate::cores) struct SaveBeforeLeaving {
    stamp: Stamp,
    /// The step that all members had committed at the first notice; none if nothing is due.
    committed: Option<u64>,
    /// World time of the first notice.
    at: u64,
}

impl World {
    /// A worker or a host is given notice.
    pub(in crate::cores) fn note_leave_asked(&mut self) {
        let stamp = self.driver.stamp;
        if self.driver.before_leaving.is_some_and(|asked| asked.stamp == stamp) {
            return;
        }
        let (committed, at) = (self.commit_to_save(), self.now);
        self.driver.before_leaving = Some(SaveBeforeLeaving { stamp, committed, at });
    }

    /// Another fault strikes, or the generation breaks, or the driver has said why a step could not be saved: nothing is due.
    pub(in crate::cores) const fn no_save_is_due_before_leaving(&mut self) {
        if let Some(asked) = &mut self.driver.before_leaving {
            asked.committed = None;
        }
    }

    /// Checks the storage when the driver lets a member on notice go.
    pub(in crate::cores) fn check_saved_before_leaving(&self, process: u32) -> Result<(), String> {
        let Some(asked) = self.driver.before_leaving else { return Ok(()) };
        let Some(committed) = asked.committed else { return Ok(()) };
        let wait = self.scenario.driver.deadlines.grace.as_nanos() as u64 / 2;
        let is_over = self.now + EARLIER_NS > asked.at + wait;
        let gathers = self.driver.phase == ObservedPhase::Gather;
        if is_over || !gathers || self.storage.hangs_in(asked.stamp) {
            return Ok(());
        }
        let is_noticed = |process: u32| {
            let entry = &self.processes[process as usize];
            let agent = self.hosts[entry.host as usize].agent.as_ref();
            entry.stopping.noticed_at.is_some() || agent.is_some_and(|it| it.drained_at.is_some())
        };
        let is_member = |process: u32| self.driver.members.contains(&process);
        if !is_member(process) || !is_noticed(process) {
            return Ok(());
        }
        let there = (0..).zip(&self.processes);
        let there = there.filter(|(_, entry)| entry.job == self.driver.job && entry.is_alive);
        let (members, others): (Vec<_>, Vec<_>) = there.partition(|(it, _)| is_member(*it));
        let staying = members.iter().filter(|(it, _)| !is_noticed(*it)).count();
        let needed = self.scenario.driver.min_np.unwrap_or(1) as usize;
        if staying >= needed || !others.is_empty() {
            return Ok(());
        }
        let (newest, behind) = (self.storage.newest(self.driver.job), self.steps_behind());
        if newest.unwrap_or(0) + behind >= committed {
            return Ok(());
        }
        Err(format!(
            "C-1: a worker on notice is let go, {staying} of {needed} are left, all members had committed step {committed} at \
             the first notice, and the newest checkpoint is of {newest:?}; nobody has said why"
        ))
    }
}
