//! Deadlines of collectives (G-9): a collective that waits too long fails, and its failure names the missing rank. Part
//! of the simulated world.

use elastic_protocol::Stamp;

use super::super::{Happening, World};
use crate::trace::TraceKind;

impl World {
    /// Watches the deadline of the collective that a thread enters (G-9). Each process has one timer; when it fires,
    /// it moves on to the newest collective.
    pub(super) fn watch_deadline(&mut self, process: u32) {
        let now = self.now;
        let program = &mut self.processes[process as usize].program;
        program.waits_since = now;
        if !std::mem::replace(&mut program.is_watched, true) {
            let at = now + self.limit_ns(process);
            self.agenda.push(at, Happening::Overdue { process });
        }
    }

    /// Deadline of the collective that a thread has entered. A group must be formed before the driver's deadline, so
    /// that members name the missing peer before the driver puts them out.
    fn limit_ns(&self, process: u32) -> u64 {
        let is_forming = self.processes[process as usize].program.operation == 0;
        let form = (self.scenario.driver.deadlines.form * 3 / 4).as_nanos() as u64;
        let collective = self.scenario.collective_ns;
        if is_forming && self.options.draws >= 2 { form.min(collective) } else { collective }
    }

    pub(in crate::cores) fn handle_overdue(&mut self, process: u32) {
        if self.freeze(process, Happening::Overdue { process }) {
            return;
        }
        let limit = self.limit_ns(process);
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
        let own = program.rank;
        let waited_for = self.who_is_missing(job, generation, operation, own);
        let number = generation.generation.0;
        self.record(TraceKind::Overdue, place, (number, u64::from(operation)), String::new);
        self.collective_failed(process, (waited_for, None), "its deadline has passed");
    }

    /// Whether another member of the group that a process forms is on its host.
    pub(super) fn has_neighbour(&self, process: u32) -> bool {
        let entry = &self.processes[process as usize];
        let Some(group) = self.groups.get(&(entry.job, entry.program.generation)) else {
            return false;
        };
        let is_there = |member: &u32| {
            self.processes.get(*member as usize).is_some_and(|it| it.host == entry.host)
        };
        group.members.iter().filter(|member| **member != process).any(is_there)
    }

    /// The first rank whose part of a collective has not come. The own part may be held by a cut: then it is another
    /// host's rank that does not answer.
    fn who_is_missing(&self, job: u32, generation: Stamp, operation: u32, own: u32) -> Option<u32> {
        let group = self.groups.get(&(job, generation))?;
        let entered = group.operations.iter().find(|entry| entry.number == operation);
        let is_there = |member: &u32| entered.is_some_and(|entry| entry.waiters.contains(member));
        let missing = group.members.iter().position(|member| !is_there(member))? as u32;
        if missing != own || self.options.draws < 2 {
            return Some(missing);
        }
        let host_of = |rank: u32| {
            let process = *group.members.get(rank as usize)?;
            self.processes.get(process as usize).map(|process| process.host)
        };
        let own_host = host_of(own)? as usize;
        let mut neighbours = (0..group.members.len() as u32).filter(|rank| *rank != own);
        if operation == 0
            && self.hosts[own_host].no_loopback > 0
            && let Some(neighbour) = neighbours.find(|rank| host_of(*rank) == host_of(own))
        {
            return Some(neighbour);
        }
        (0..group.members.len() as u32).find(|rank| host_of(*rank) != host_of(own))
    }
}
