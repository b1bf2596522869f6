//! Simulated collectives: they block until all ranks have come, break when a peer's process dies, return at once
//! on the abort word, and may deliver late, which the generation's tag must catch (G-4).

use std::collections::VecDeque;

use elastic_protocol::Stamp;
use elastic_protocol::messages::{Placement, SyncPlan};
use elastic_runtime::planted::{Bug, is_planted};
use rand::Rng;

use super::program::{Model, Stage};
use super::{Happening, MS, NONE, World};
use crate::trace::Kind;

/// Groups that are remembered; members of older ones block until they are told otherwise.
const GROUPS_KEPT: usize = 16;

/// One collective of a group.
#[derive(Debug)]
struct Operation {
    number: u32,
    entered: u32,
    sum: u64,
    waiters: Vec<u32>,
}

/// The communicator of a generation.
#[derive(Debug)]
pub(super) struct Group {
    /// Processes by rank; [`NONE`] for one that never was.
    members: Vec<u32>,
    root: Option<u32>,
    shared: Option<Model>,
    operations: VecDeque<Operation>,
    /// The rank whose link broke.
    broken: Option<u32>,
}

impl Group {
    fn operation(&mut self, number: u32) -> &mut Operation {
        let index = self.operations.iter().position(|operation| operation.number == number);
        let index = index.unwrap_or_else(|| {
            let waiters = Vec::with_capacity(self.members.len());
            self.operations.push_back(Operation { number, entered: 0, sum: 0, waiters });
            self.operations.len() - 1
        });
        &mut self.operations[index]
    }
}

impl World {
    pub(super) fn join_group(&mut self, process: u32, placement: &Placement) {
        let generation = placement.stamp;
        let job = self.processes[process as usize].job;
        if self.groups.contains_key(&generation) {
            return;
        }
        let members: Vec<u32> = placement
            .assignment
            .members()
            .map(|member| self.process_of(job, &member.worker).unwrap_or(NONE))
            .collect();
        // A dead process on a host that lives refuses connections; a host without power says nothing.
        let broken = members
            .iter()
            .position(|member| *member != NONE && self.is_known_dead(*member))
            .map(|rank| rank as u32);
        let root = match placement.sync {
            SyncPlan::Skip => None,
            SyncPlan::FromRoot { root } => Some(root),
        };
        let group = Group { members, root, shared: None, operations: VecDeque::new(), broken };
        self.groups.insert(generation, group);
        if self.groups.len() > GROUPS_KEPT {
            self.groups.pop_first();
        }
        let place = self.processes[process as usize].place;
        self.record(Kind::Enter, place, (generation.generation.0, 0), String::new);
    }

    fn is_known_dead(&self, process: u32) -> bool {
        let entry = &self.processes[process as usize];
        !entry.is_alive && self.hosts[entry.host as usize].down == 0
    }

    pub(super) fn enter_collective(&mut self, process: u32, value: u64) {
        let program = &self.processes[process as usize].program;
        let (generation, operation) = (program.generation, program.operation);
        self.watch_deadline(process);
        self.handle_entered(process, generation, operation, value, false);
    }

    /// Sees to it that the collective that a thread enters does not wait without end (G-9). One timer a
    /// process: it moves on to the newest collective when it fires.
    fn watch_deadline(&mut self, process: u32) {
        let now = self.now;
        let program = &mut self.processes[process as usize].program;
        program.waits_since = now;
        if !std::mem::replace(&mut program.is_watched, true) {
            let at = now + self.scenario.collective_ns;
            self.agenda.push(at, Happening::Overdue { process });
        }
    }

    pub(super) fn handle_overdue(&mut self, process: u32) {
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
        let (generation, operation, place) = (program.generation, program.operation, entry.place);
        let waited_for = self.who_is_missing(generation, operation);
        let number = generation.generation.0;
        self.record(Kind::Overdue, place, (number, u64::from(operation)), String::new);
        self.collective_failed(process, waited_for, "its deadline has passed");
    }

    /// The first rank that has not entered a collective.
    fn who_is_missing(&self, generation: Stamp, operation: u32) -> Option<u32> {
        let group = self.groups.get(&generation)?;
        let entered = group.operations.iter().find(|entry| entry.number == operation);
        let is_there = |member: &u32| entered.is_some_and(|entry| entry.waiters.contains(member));
        group.members.iter().position(|member| !is_there(member)).map(|rank| rank as u32)
    }

    /// A rank's part reaches the others.
    pub(super) fn handle_entered(
        &mut self,
        process: u32,
        generation: Stamp,
        operation: u32,
        value: u64,
        was_delayed: bool,
    ) {
        let happening = Happening::Entered { process, generation, operation, value };
        if self.freeze(process, happening) {
            return;
        }
        let entry = &self.processes[process as usize];
        let program = &entry.program;
        let is_current = program.generation == generation
            && program.operation == operation
            && program.waits_in_collective();
        if !is_current {
            return;
        }
        if program.aborted >= program.stamp {
            let stamp = program.stamp;
            return self.abort(process, stamp);
        }
        let host = &mut self.hosts[entry.host as usize];
        if host.cut_data > 0 {
            host.held.push(happening);
            return;
        }
        let (rank, model, place) = (program.rank, program.model_to_share(), entry.place);
        let is_sync = program.stage == Stage::Syncing;
        self.trace.record(
            self.now,
            Kind::Enter,
            place,
            (generation.generation.0, u64::from(operation)),
            String::new,
        );
        let latency = 200_000 + 1_500 * self.driver.members.len() as u64;
        let spread = self.machine.random_range(0..300_000);
        let Some(group) = self.groups.get_mut(&generation) else { return };
        if let Some(broken) = group.broken {
            let happening = Happening::PeerBroken { process, generation, rank: broken };
            return self.agenda.push(self.now + 50_000 + spread, happening);
        }
        let at = self.now + latency + spread;
        let (processes, hosts) = (&self.processes, &self.hosts);
        let late = |process: u32| hosts[processes[process as usize].host as usize].data_delay;
        if is_sync {
            if group.root == Some(rank) {
                group.shared = Some(model);
                let waiters = std::mem::take(&mut group.operation(operation).waiters);
                for (index, waiter) in waiters.into_iter().chain([process]).enumerate() {
                    let at = at + 7_000 * index as u64 + late(waiter);
                    let result =
                        Happening::Result { process: waiter, generation, operation, value: 0 };
                    self.agenda.push(at, result);
                }
            } else if group.shared.is_some() {
                let result = Happening::Result { process, generation, operation, value: 0 };
                self.agenda.push(at + late(process), result);
            } else {
                group.operation(operation).waiters.push(process);
            }
            return;
        }
        let world_size = group.members.len() as u32;
        let entry = group.operation(operation);
        entry.entered += 1;
        entry.sum = entry.sum.wrapping_add(value);
        if was_delayed && is_planted(Bug::ContributionTwice) {
            entry.sum = entry.sum.wrapping_add(value);
        }
        entry.waiters.push(process);
        if entry.entered < world_size {
            return;
        }
        let (sum, waiters) = (entry.sum, std::mem::take(&mut entry.waiters));
        group.operations.retain(|entry| entry.number != operation);
        for (index, waiter) in waiters.into_iter().enumerate() {
            let at = at + 1_000 * index as u64 + late(waiter);
            let result = Happening::Result { process: waiter, generation, operation, value: sum };
            self.agenda.push(at, result);
        }
    }

    /// A collective's data reaches a rank.
    pub(super) fn handle_result(
        &mut self,
        process: u32,
        generation: Stamp,
        operation: u32,
        value: u64,
    ) {
        let happening = Happening::Result { process, generation, operation, value };
        if self.freeze(process, happening) {
            return;
        }
        let entry = &self.processes[process as usize];
        let host = &mut self.hosts[entry.host as usize];
        if host.cut_data > 0 {
            host.held.push(happening);
            return;
        }
        let program = &entry.program;
        let (place, stamp) = (entry.place, program.stamp);
        let is_ours = program.generation == generation && program.aborted < stamp;
        let is_awaited = program.waits_in_collective() && program.operation == operation;
        let is_taken = is_ours && is_awaited
            || program.waits_in_collective() && is_planted(Bug::LateDataDelivered);
        if !is_taken {
            return self.record(
                Kind::Late,
                place,
                (generation.generation.0, u64::from(operation)),
                String::new,
            );
        }
        self.record(Kind::Result, place, (generation.generation.0, value), String::new);
        let entry = &self.processes[process as usize];
        let state_stamp = entry.state.stamp(&entry.program);
        if state_stamp != stamp || entry.program.generation != generation {
            let id = entry.id.clone();
            return self.fail_safety(format!(
                "G-4: a collective of generation {} delivered at {id}, which is in {}",
                generation.generation, state_stamp.generation
            ));
        }
        if entry.program.aborted >= stamp {
            let id = entry.id.clone();
            return self.fail_safety(format!(
                "G-4: a collective of generation {} delivered at {id}, where it was aborted",
                generation.generation
            ));
        }
        let shared = self.groups.get(&generation).and_then(|group| group.shared);
        self.collective_returned(process, value, shared);
    }

    pub(super) fn handle_peer_broken(&mut self, process: u32, generation: Stamp, rank: u32) {
        if self.freeze(process, Happening::PeerBroken { process, generation, rank }) {
            return;
        }
        let entry = &self.processes[process as usize];
        if entry.program.generation == generation && entry.program.waits_in_collective() {
            let place = entry.place;
            self.record(
                Kind::Break,
                place,
                (generation.generation.0, u64::from(rank)),
                String::new,
            );
            self.collective_failed(process, Some(rank), "connection reset by peer");
        }
    }

    /// A rank leaves its group; `breaks`: its peers' links to it break.
    pub(super) fn leave_group(&mut self, process: u32, breaks: bool) {
        let program = &mut self.processes[process as usize].program;
        let (generation, rank) = (std::mem::take(&mut program.generation), program.rank);
        if breaks && generation != Stamp::default() {
            self.break_group(generation, rank);
        }
    }

    /// A process has died: its peers' links to it break.
    pub(super) fn break_groups_of(&mut self, process: u32) {
        let program = &self.processes[process as usize].program;
        if program.generation != Stamp::default() && !program.has_returned() {
            let (generation, rank) = (program.generation, program.rank);
            self.break_group(generation, rank);
        }
        let waits_for_it: Vec<(Stamp, u32)> = self
            .groups
            .iter()
            .rev()
            .take(2)
            .filter(|(_, group)| group.broken.is_none())
            .filter_map(|(generation, group)| {
                let rank = group.members.iter().position(|member| *member == process)?;
                let is_forming = group.operations.iter().any(|operation| operation.number == 0);
                is_forming.then_some((*generation, rank as u32))
            })
            .collect();
        for (generation, rank) in waits_for_it {
            self.break_group(generation, rank);
        }
    }

    fn break_group(&mut self, generation: Stamp, rank: u32) {
        let Some(group) = self.groups.get_mut(&generation) else { return };
        if group.broken.is_some() {
            return;
        }
        group.broken = Some(rank);
        let waiters: Vec<u32> = group
            .operations
            .iter_mut()
            .flat_map(|operation| std::mem::take(&mut operation.waiters))
            .collect();
        for process in waiters {
            let wait = self.machine.random_range(100_000..3 * MS);
            let happening = Happening::PeerBroken { process, generation, rank };
            self.agenda.push(self.now + wait, happening);
        }
    }

    /// The data network of a host is whole again: what waited goes on, late.
    pub(super) fn release_held(&mut self, host: u32) {
        for happening in std::mem::take(&mut self.hosts[host as usize].held) {
            self.agenda.push(self.now, happening);
        }
    }
}
