//! Broken links between ranks: a peer has died, or has left its group too early. Part of the simulated world.

use elastic_protocol::Stamp;
use rand::Rng;

use super::super::{Happening, MS, World};
use crate::trace::TraceKind;

impl World {
    pub(in crate::cores) fn handle_peer_broken(
        &mut self,
        process: u32,
        generation: Stamp,
        rank: u32,
    ) {
        if self.freeze(process, Happening::PeerBroken { process, generation, rank }) {
            return;
        }
        let entry = &self.processes[process as usize];
        if entry.program.generation == generation && entry.program.waits_in_collective() {
            let place = entry.place;
            self.record(
                TraceKind::Break,
                place,
                (generation.generation.0, u64::from(rank)),
                String::new,
            );
            let peers = (self.peer_of_broken_link(process, rank), self.witness_of(process, rank));
            self.collective_failed(process, peers, "connection reset by peer");
        }
    }

    /// The rank from which a process has it that the links to this rank have broken: every second one hears it from the
    /// first that has seen it.
    fn witness_of(&mut self, process: u32, broken: u32) -> Option<u32> {
        let entry = &self.processes[process as usize];
        let (own, generation) = (entry.program.rank, entry.program.generation);
        let group = self.groups.get_mut(&(entry.job, generation))?;
        if own == broken {
            return None;
        }
        let witness = *group.witness.get_or_insert(own);
        (witness != own && own % 2 == 1).then_some(witness)
    }

    /// Notes that a process itself has failed to reach a rank.
    pub(in crate::cores) fn note_witness(&mut self, process: u32, peer: Option<u32>) {
        let entry = &self.processes[process as usize];
        let group = self.groups.get(&(entry.job, entry.program.generation));
        let peer = group.zip(peer).and_then(|(group, rank)| group.members.get(rank as usize));
        if let Some(peer) = peer.and_then(|peer| self.processes.get(*peer as usize)) {
            self.witnessed.insert((entry.id.host.clone(), peer.id.host.clone()));
        }
    }

    /// The rank that a process names after the links to the rank `broken` have broken. If that is its own rank, it
    /// names a peer: it would name itself only for a resource that its own system has refused it.
    fn peer_of_broken_link(&self, process: u32, broken: u32) -> Option<u32> {
        let entry = &self.processes[process as usize];
        let (own, generation) = (entry.program.rank, entry.program.generation);
        if broken != own {
            return Some(broken);
        }
        let world_size = self.groups.get(&(entry.job, generation))?.members.len() as u32;
        (world_size > 1).then(|| (own + 1) % world_size)
    }

    /// Takes a rank out of its group. With `breaks`, its peers' links to it break.
    pub(in crate::cores) fn leave_group(&mut self, process: u32, breaks: bool) {
        let entry = &mut self.processes[process as usize];
        let (job, program) = (entry.job, &mut entry.program);
        let (generation, rank) = (std::mem::take(&mut program.generation), program.rank);
        if breaks && generation != Stamp::default() {
            self.break_group(job, generation, rank);
        }
    }

    /// Breaks the peers' links to a process that has died.
    pub(in crate::cores) fn break_groups_of(&mut self, process: u32) {
        let entry = &self.processes[process as usize];
        let (job, program) = (entry.job, &entry.program);
        if program.generation != Stamp::default() && !program.has_returned() {
            let (generation, rank) = (program.generation, program.rank);
            self.break_group(job, generation, rank);
        }
        let waits_for_it: Vec<(Stamp, u32)> = self
            .groups
            .iter()
            .rev()
            .take(2)
            .filter(|(_, group)| group.broken.is_none())
            .filter_map(|((_, generation), group)| {
                let rank = group.members.iter().position(|member| *member == process)?;
                let is_forming = group.operations.iter().any(|operation| operation.number == 0);
                is_forming.then_some((*generation, rank as u32))
            })
            .collect();
        for (generation, rank) in waits_for_it {
            self.break_group(job, generation, rank);
        }
    }

    fn break_group(&mut self, job: u32, generation: Stamp, rank: u32) {
        let Some(group) = self.groups.get_mut(&(job, generation)) else { return };
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

    /// The data network of a host is restored: held events happen now, late.
    pub(in crate::cores) fn release_held(&mut self, host: u32) {
        for happening in std::mem::take(&mut self.hosts[host as usize].held) {
            self.agenda.push(self.now, happening);
        }
    }
}
