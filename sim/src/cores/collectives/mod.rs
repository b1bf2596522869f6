//! Simulated collectives. They block until all ranks have entered, break when a peer's process dies, and return at once
//! on the abort word. They may deliver late, which the generation's tag must catch (G-4). Called by the simulated
//! training programs.

mod breaking;
mod deadlines;

use std::collections::VecDeque;

use elastic_protocol::messages::{Placement, SyncPlan};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Stamp, WorkerId};
use rand::Rng;

use super::driver::REFUSAL;
use super::processes::data_address;
use super::program::{ProgramStage, TrainedModel};
use super::{Happening, NONE, World};
use crate::trace::TraceKind;

/// Number of groups remembered. Members of older groups block until they get other orders.
const GROUPS_KEPT: usize = 16;

/// One collective of a group.
#[derive(Debug)]
struct CollectiveOperation {
    number: u32,
    entered: u32,
    sum: u64,
    /// Partial results by rank, in the order in which the ranks have entered; with shards.
    partial: Vec<(u32, Vec<f64>)>,
    waiters: Vec<u32>,
}

/// The communicator of a generation.
#[derive(Debug)]
pub(super) struct CollectiveGroup {
    /// Processes by rank; [`NONE`] for a member that was never started.
    members: Vec<u32>,
    root: Option<u32>,
    shared: Option<TrainedModel>,
    operations: VecDeque<CollectiveOperation>,
    /// The rank whose link broke.
    broken: Option<u32>,
    /// The first rank that has seen it break; others pass its report on.
    witness: Option<u32>,
}

impl CollectiveGroup {
    fn operation(&mut self, number: u32) -> &mut CollectiveOperation {
        let index = self.operations.iter().position(|operation| operation.number == number);
        let index = index.unwrap_or_else(|| {
            let waiters = Vec::with_capacity(self.members.len());
            let (entered, sum, partial) = (0, 0, Vec::new());
            let operation = CollectiveOperation { number, entered, sum, partial, waiters };
            self.operations.push_back(operation);
            self.operations.len() - 1
        });
        &mut self.operations[index]
    }
}

impl World {
    pub(super) fn join_group(&mut self, process: u32, placement: &Placement) {
        let generation = placement.stamp;
        let job = self.processes[process as usize].job;
        if self.has_group(job, generation) {
            return;
        }
        let members: Vec<WorkerId> =
            placement.assignment.members().map(|member| member.worker).collect();
        let root = match placement.sync {
            SyncPlan::Skip => None,
            SyncPlan::FromRoot { root } => Some(root),
        };
        self.open_group(process, generation, &members, root);
        // A member with an outdated address of a peer cannot reach that peer.
        let moved = placement.assignment.members().position(|member| {
            let listens_at = self.process_of(job, &member.worker).and_then(|process| {
                let entry = self.processes.get(process as usize)?;
                Some(data_address(entry.host, self.hosts[entry.host as usize].address, process))
            });
            listens_at.is_some_and(|address| address != member.data_address)
        });
        if let Some(group) = self.groups.get_mut(&(job, generation)) {
            group.broken = group.broken.or(moved.map(|rank| rank as u32));
        }
    }

    /// Opens the group of a generation when its first member arrives.
    pub(super) fn open_group(
        &mut self,
        process: u32,
        generation: Stamp,
        members: &[WorkerId],
        root: Option<u32>,
    ) {
        let job = self.processes[process as usize].job;
        let members: Vec<u32> =
            members.iter().map(|member| self.process_of(job, member).unwrap_or(NONE)).collect();
        // A dead process on a live host refuses connections. A host without power does not answer.
        let broken = members
            .iter()
            .position(|member| *member != NONE && self.is_known_dead(*member))
            .map(|rank| rank as u32);
        let (shared, operations, witness) = (None, VecDeque::new(), None);
        let group = CollectiveGroup { members, root, shared, operations, broken, witness };
        self.groups.insert((job, generation), group);
        if self.groups.len() > GROUPS_KEPT {
            self.groups.pop_first();
        }
        let place = self.processes[process as usize].place;
        self.record(TraceKind::Enter, place, (generation.generation.0, 0), String::new);
    }

    fn is_known_dead(&self, process: u32) -> bool {
        let entry = &self.processes[process as usize];
        !entry.is_alive && self.hosts[entry.host as usize].down == 0
    }

    /// The model that the members of a generation begin from: the one that the first of them found.
    pub(super) fn shared_or(
        &mut self,
        job: u32,
        generation: Stamp,
        found: TrainedModel,
    ) -> TrainedModel {
        let group = self.groups.get_mut(&(job, generation));
        group.map_or(found, |group| *group.shared.get_or_insert(found))
    }

    /// Whether a generation's group exists.
    pub(super) fn has_group(&self, job: u32, generation: Stamp) -> bool {
        self.groups.contains_key(&(job, generation))
    }

    /// Whether a link of a generation's group is broken, or the group is unknown.
    pub(super) fn is_broken(&self, job: u32, generation: Stamp) -> bool {
        self.groups.get(&(job, generation)).is_none_or(|group| group.broken.is_some())
    }

    pub(super) fn enter_collective(&mut self, process: u32, value: u64) {
        let program = &self.processes[process as usize].program;
        let (generation, operation) = (program.generation, program.operation);
        self.watch_deadline(process);
        self.handle_entered(process, generation, operation, value, false);
    }

    /// Delivers a rank's contribution to its group.
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
        if operation == 0 && host.no_forming != [0; 2] {
            let rank = Some(program.rank).filter(|_| host.no_forming[1] > 0);
            return self.collective_failed(process, (rank, None), REFUSAL);
        }
        let is_apart = operation == 0 && host.no_loopback > 0 && self.has_neighbour(process);
        let host = &mut self.hosts[entry.host as usize];
        if host.cut_data > 0 || is_apart {
            host.held.push(happening);
            return;
        }
        let (rank, model, place) = (program.rank, program.model_to_share(), entry.place);
        let reduces = program.stage == ProgramStage::Reducing;
        let shards = self.scenario.driver.shards.filter(|_| reduces);
        let partial = shards.map(|_| program.shards.partial.clone());
        let is_sync = program.stage == ProgramStage::Syncing;
        self.trace.record(
            self.now,
            TraceKind::Enter,
            place,
            (generation.generation.0, u64::from(operation)),
            String::new,
        );
        let latency = 200_000 + 1_500 * self.driver.members.len() as u64;
        let spread = self.machine.random_range(0..300_000);
        let Some(group) = self.groups.get_mut(&(entry.job, generation)) else { return };
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
        entry.partial.extend(partial.map(|partial| (rank, partial)));
        entry.waiters.push(process);
        if entry.entered < world_size {
            return;
        }
        let (mut sum, waiters) = (entry.sum, std::mem::take(&mut entry.waiters));
        let partial = std::mem::take(&mut entry.partial);
        group.operations.retain(|entry| entry.number != operation);
        if let Some(shards) = shards {
            sum = self.fold_shards(process, shards, partial);
        }
        for (index, waiter) in waiters.into_iter().enumerate() {
            let at = at + 1_000 * index as u64 + self.late_data(waiter);
            let result = Happening::Result { process: waiter, generation, operation, value: sum };
            self.agenda.push(at, result);
        }
    }

    /// Delivers a collective's result to a rank.
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
                TraceKind::Late,
                place,
                (generation.generation.0, u64::from(operation)),
                String::new,
            );
        }
        self.record(TraceKind::Result, place, (generation.generation.0, value), String::new);
        let entry = &self.processes[process as usize];
        let job = entry.job;
        let state_stamp = entry.state.stamp(&entry.program);
        let is_elsewhere = !entry.is_script && state_stamp != stamp;
        if is_elsewhere || entry.program.generation != generation {
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
        let shared = self.groups.get(&(job, generation)).and_then(|group| group.shared);
        self.collective_returned(process, value, shared);
    }
}
