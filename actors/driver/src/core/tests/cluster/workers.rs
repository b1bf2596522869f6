//! The cluster's workers: their messages, votes and ends.

use super::*;

impl Cluster {
    /// Makes a worker lose its table.
    pub(in crate::core::tests) fn forget_table(&mut self, worker: &WorkerId) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.table = Arc::default();
        }
    }

    /// Has every active member commit `steps` times.
    pub(in crate::core::tests) fn train(&mut self, steps: u64) {
        for (id, worker) in self.workers.iter_mut().filter(|(_, worker)| worker.active) {
            worker.boundary += steps;
            let Some(commit) = &mut worker.commit else { continue };
            commit.step = Step(commit.step.0 + steps);
            let damage = u64::from(self.damaged.contains(id)) << 32;
            commit.digest = commit.step.0 | damage;
        }
    }

    /// Removes a process that could not be started; its agent has yet to say so.
    pub(in crate::core::tests) fn fail_to_start(&mut self, worker: &WorkerId) {
        self.workers.remove(worker);
    }

    /// Gives the driver a message of a host's agent.
    pub(in crate::core::tests) fn hear_agent(&mut self, host: &str, message: AgentToDriver) {
        let agent = self.agent(host);
        self.core.handle_agent(self.now, &agent, message);
        self.settle();
    }

    pub(in crate::core::tests) fn kill(&mut self, worker: &WorkerId) {
        self.exit(worker, ExitStatus::Signal(9));
    }

    pub(in crate::core::tests) fn exit(&mut self, worker: &WorkerId, status: ExitStatus) {
        self.report_exit(worker, status);
        self.settle();
    }

    pub(in crate::core::tests) fn report_exit(&mut self, worker: &WorkerId, status: ExitStatus) {
        self.report_end(worker, status, None, None);
    }

    pub(in crate::core::tests) fn report_end(
        &mut self,
        worker: &WorkerId,
        status: ExitStatus,
        stopped_by: Option<StoppedBy>,
        error: Option<ProgramError>,
    ) {
        self.workers.remove(worker);
        let message = AgentToDriver::Exited {
            worker: worker.clone(),
            status,
            stopped_by,
            killed_after_grace: false,
            library: self.library.clone(),
        };
        let agent = self.agents[&worker.host].clone();
        self.core.handle_agent(self.now, &agent, message);
        if !self.is_silent_at_end {
            let (worker, tail, out_of_memory) = (worker.clone(), String::new(), None);
            let words = AgentToDriver::LastWords { worker, tail, error, out_of_memory };
            self.core.handle_agent(self.now, &agent, words);
        }
        self.worker_link(worker, lost());
    }

    pub(in crate::core::tests) fn worker_link(&mut self, worker: &WorkerId, event: LinkEvent) {
        self.core.handle_link(self.now, &NodeId::worker(worker), &event);
    }

    /// A worker reports that it cannot reach another one.
    pub(in crate::core::tests) fn accuse(&mut self, reporter: &WorkerId, peer: &WorkerId) {
        let (stamp, error) = (self.stamp(), "no route to it".to_owned());
        let (peer, told_by) = (Some(self.rank_of(peer)), None);
        self.say(reporter, WorkerToDriver::CollectiveFailed { stamp, peer, told_by, error });
    }

    /// A worker passes on that `told_by` has reported another one as lost.
    pub(in crate::core::tests) fn pass_on(
        &mut self,
        reporter: &WorkerId,
        told_by: &WorkerId,
        peer: &WorkerId,
    ) {
        let (stamp, error) = (self.stamp(), "it was reported lost".to_owned());
        let (peer, told_by) = (Some(self.rank_of(peer)), Some(self.rank_of(told_by)));
        self.say(reporter, WorkerToDriver::CollectiveFailed { stamp, peer, told_by, error });
    }

    pub(super) fn rank_of(&self, worker: &WorkerId) -> u32 {
        let rank = self.members().iter().position(|member| member == worker);
        u32::try_from(rank.expect("it is a member")).expect("a small world")
    }

    pub(in crate::core::tests) fn say(&mut self, worker: &WorkerId, message: WorkerToDriver) {
        self.core.handle_worker(self.now, &NodeId::worker(worker), message);
    }

    /// A worker says that it has committed this step.
    pub(in crate::core::tests) fn say_step(&mut self, worker: &WorkerId, step: u64) {
        self.say(worker, progress(self.stamp(), step, String::new(), ReportedValues::default()));
    }

    pub(in crate::core::tests) fn vote(&mut self, worker: &WorkerId, ballot: Ballot) {
        let Some(placement) = self.workers.get(worker).and_then(|w| w.placement.clone()) else {
            return;
        };
        let vote = Vote { stamp: placement.stamp, worker: worker.clone(), ballot };
        self.registry.handle_vote(self.now, &vote);
        self.settle();
    }

    /// Has every member's training function return.
    pub(in crate::core::tests) fn finish_all(&mut self) {
        for worker in self.members() {
            self.vote(&worker, Ballot::Success);
        }
    }

    /// The last stamp that a worker was given.
    pub(in crate::core::tests) fn stamp(&self) -> Stamp {
        let placements = self.workers.values().filter_map(|worker| worker.placement.as_ref());
        placements.map(|placement| placement.stamp).max().unwrap_or_default()
    }

    /// Transport of each placed worker's data, and whether it was told to encrypt.
    pub(in crate::core::tests) fn data_paths(&self) -> Vec<(DataPlane, bool)> {
        let placements = self.workers.values().filter_map(|worker| worker.placement.as_ref());
        placements.map(|placement| (placement.data_plane, placement.encrypts)).collect()
    }
}
