//! No collective waits without end (G-9): whom it has waited for is told as its failure.

use elastic_protocol::Stamp;

use super::super::{Happening, World};
use crate::trace::Kind;

impl World {
    /// Sees to it that the collective that a thread enters does not wait without end (G-9). One timer a
    /// process: it moves on to the newest collective when it fires.
    pub(super) fn watch_deadline(&mut self, process: u32) {
        let now = self.now;
        let program = &mut self.processes[process as usize].program;
        program.waits_since = now;
        if !std::mem::replace(&mut program.is_watched, true) {
            let at = now + self.scenario.collective_ns;
            self.agenda.push(at, Happening::Overdue { process });
        }
    }

    pub(in crate::cores) fn handle_overdue(&mut self, process: u32) {
        if self.freeze(process, Happening::Overdue { process }) {
            return;
        }
        let limit = self.scenario.collective_ns;
        let entry = &mut self.processes[process as usize];
        let program = &mut entry.program;
        if !program.waits_in_collective() {
            program.is_watched = false;
            return;
        }
        let due = program.waits_since + limit;
        if due > self.now {
            return self.agenda.push(due, Happening::Overdue { process });
        }
        program.is_watched = false;
        let (generation, operation) = (program.generation, program.operation);
        let (job, place) = (entry.job, entry.place);
        let waited_for = self.who_is_missing(job, generation, operation);
        let number = generation.generation.0;
        self.record(Kind::Overdue, place, (number, u64::from(operation)), String::new);
        self.collective_failed(process, waited_for, "its deadline has passed");
    }

    /// The first rank that has not entered a collective.
    fn who_is_missing(&self, job: u32, generation: Stamp, operation: u32) -> Option<u32> {
        let group = self.groups.get(&(job, generation))?;
        let entered = group.operations.iter().find(|entry| entry.number == operation);
        let is_there = |member: &u32| entered.is_some_and(|entry| entry.waiters.contains(member));
        group.members.iter().position(|member| !is_there(member)).map(|rank| rank as u32)
    }
}
