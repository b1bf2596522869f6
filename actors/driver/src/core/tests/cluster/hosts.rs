//! Hosts and agents of the cluster, and the driver's next life.

use super::*;

impl Cluster {
    /// Kills the driver and starts it again from the journal. No agent or worker has found it yet.
    pub(in crate::core::tests) fn restart_driver(&mut self) {
        self.disk_hangs = false;
        let tenure = begin(&mut self.journal).beginning_at(wall_clock(self.now));
        let rng = ChaCha8Rng::seed_from_u64(tenure.image.term.0);
        self.core = DriverCore::with_journal(self.config.clone(), tenure, rng, self.now);
        self.registry = RegistryCore::new();
        self.verdicts.clear();
        self.list_hosts();
        self.settle();
    }

    /// Has the agents of these hosts find the driver, and then their workers.
    pub(in crate::core::tests) fn come_back(&mut self, hosts: &[&str]) {
        for name in hosts {
            let node = self.agents[&host(name)].clone();
            let of_host = self.workers.keys().filter(|worker| worker.host == host(name));
            let live = of_host.map(|worker| LiveWorker {
                worker: worker.clone(),
                pid: 1,
                is_being_stopped: false,
            });
            let live = live.collect();
            self.rejoin(&node, 2, live);
            if !self.attaches {
                continue;
            }
            let workers: Vec<WorkerId> = self.workers.keys().cloned().collect();
            for worker in workers.into_iter().filter(|worker| worker.host == host(name)) {
                self.attach(&worker);
                self.settle();
            }
        }
        self.settle();
    }

    /// A host is out of reach, with its workers, whose collectives fail.
    pub(in crate::core::tests) fn lose_host(&mut self, name: &str) {
        let agent = self.agent(name);
        for LiveWorker { worker, .. } in self.live_on(name) {
            self.worker_link(&worker, lost());
            self.workers.get_mut(&worker).expect("it lives").active = false;
        }
        self.core.handle_link(self.now, &agent, &lost());
        self.settle();
    }

    /// Ends a worker's process while no driver is there.
    pub(in crate::core::tests) fn end_unseen(&mut self, worker: &WorkerId) {
        self.workers.remove(worker);
    }

    /// Number of workers that are active in a generation.
    pub(in crate::core::tests) fn active(&self) -> usize {
        self.workers.values().filter(|worker| worker.active).count()
    }

    /// Lists a host.
    pub(in crate::core::tests) fn list_host(&mut self, name: &str, slots: u32) {
        let name = host(name);
        self.hosts.retain(|entry| entry.name != name);
        self.hosts.push(HostEntry { name, slots, state: HostState::Listed });
        self.list_hosts();
        self.settle();
    }

    /// Lists a host and has its agent join.
    pub(in crate::core::tests) fn add_host(&mut self, name: &str, slots: u32) {
        self.list_host(name, slots);
        let name = host(name);
        if !self.agents.contains_key(&name) {
            self.join(&name, slots, Vec::new());
        }
        self.settle();
    }

    pub(in crate::core::tests) fn join(
        &mut self,
        name: &HostName,
        slots: u32,
        live: Vec<LiveWorker>,
    ) -> NodeId {
        let node = NodeId {
            name: NodeName::Agent(name.clone()),
            incarnation: Incarnation(self.next_agent),
        };
        self.next_agent += 1;
        self.agents.insert(name.clone(), node.clone());
        self.rejoin(&node, slots, live);
        node
    }

    pub(in crate::core::tests) fn rejoin(
        &mut self,
        node: &NodeId,
        slots: u32,
        live: Vec<LiveWorker>,
    ) {
        self.join_job(node, slots, live, (None, None));
    }

    /// Joins the agent of a host that was told this name of the job, and has this command.
    pub(in crate::core::tests) fn join_job(
        &mut self,
        node: &NodeId,
        slots: u32,
        live: Vec<LiveWorker>,
        (run_id, nodes): (Option<&str>, Option<JobCommand>),
    ) {
        let NodeName::Agent(name) = &node.name else { return };
        self.core.handle_link(self.now, node, &LinkEvent::Up);
        let join = AgentToDriver::Join {
            host: name.clone(),
            slots,
            role: "default".to_owned(),
            meeting: None,
            run_id: run_id.map(ToOwned::to_owned),
            nodes,
            live,
        };
        self.core.handle_agent(self.now, node, join);
        self.settle();
    }

    pub(in crate::core::tests) fn remove_host(&mut self, name: &str) {
        self.hosts.retain(|entry| entry.name != host(name));
        self.list_hosts();
        self.settle();
    }

    /// Takes a host of one slot off the list, and puts it back before the job has stopped for it: the worker of slot 0 of host "a" hears of
    /// nothing meanwhile, and pauses once all is undone.
    pub(in crate::core::tests) fn remove_host_for_a_moment(
        &mut self,
        name: &str,
        meanwhile: impl FnOnce(&mut Self),
    ) {
        let slow = self.worker("a", 0);
        self.deaf.insert(slow.clone());
        self.remove_host(name);
        meanwhile(self);
        self.add_host(name, 1);
        self.deaf.clear();
        let stamp = self.stamp();
        self.say(&slow, WorkerToDriver::Paused { stamp, boundary: 10 });
        self.settle();
    }

    pub(in crate::core::tests) fn list_hosts(&mut self) {
        let snapshot = HostsSnapshot { hosts: self.hosts.clone(), ..HostsSnapshot::default() };
        self.core.handle_hosts(self.now, snapshot);
    }

    /// The operator takes a host out, or lets it in again.
    pub(in crate::core::tests) fn drain(&mut self, name: &str, is_out: bool) {
        for entry in &mut self.hosts {
            if entry.name == host(name) {
                entry.state = if is_out { HostState::Drained } else { HostState::Listed };
            }
        }
        self.list_hosts();
    }

    pub(in crate::core::tests) fn blacklist(&mut self, name: &str) {
        for entry in &mut self.hosts {
            if entry.name == host(name) {
                entry.state = HostState::Blacklisted { until: None };
            }
        }
        self.list_hosts();
        self.settle();
    }

    pub(in crate::core::tests) fn agent(&self, name: &str) -> NodeId {
        self.agents[&host(name)].clone()
    }

    /// The processes that run.
    pub(in crate::core::tests) fn live(&self) -> impl Iterator<Item = &WorkerId> {
        self.workers.keys()
    }

    /// The running processes of one host, as its agent reports them.
    pub(in crate::core::tests) fn live_on(&self, name: &str) -> Vec<LiveWorker> {
        let on_host = self.live().filter(|worker| worker.host == host(name));
        on_host
            .map(|worker| LiveWorker { worker: worker.clone(), pid: 1, is_being_stopped: false })
            .collect()
    }

    /// Ends all held processes that were told to end.
    pub(in crate::core::tests) fn release_stops(&mut self) {
        self.hold_stops = false;
        for (worker, _) in self.stops.clone() {
            if self.workers.contains_key(&worker) {
                self.report_exit(&worker, ExitStatus::Signal(15));
            }
        }
        for agent in std::mem::take(&mut self.leaving) {
            self.leave(&agent);
        }
        self.settle();
    }

    /// Has an agent stop its processes and leave.
    pub(super) fn leave(&mut self, agent: &NodeId) {
        let of_agent = |worker: &&WorkerId| agent.name == NodeName::Agent(worker.host.clone());
        let live: Vec<WorkerId> = self.live().filter(of_agent).cloned().collect();
        for worker in live {
            self.report_exit(&worker, ExitStatus::Signal(15));
        }
        self.core.handle_link(self.now, agent, &lost());
    }

    /// The live worker on a slot.
    pub(in crate::core::tests) fn worker(&self, name: &str, slot: u32) -> WorkerId {
        let of_slot = |worker: &&WorkerId| worker.host == host(name) && worker.slot == slot;
        self.workers.keys().rfind(of_slot).cloned().expect("a worker on this slot")
    }

    /// Number of orders to stop a worker.
    pub(in crate::core::tests) fn stops_of(&self, worker: &WorkerId) -> usize {
        self.stops.iter().filter(|(it, _)| it == worker).count()
    }

    pub(in crate::core::tests) fn has_worker(&self, name: &str, slot: u32) -> bool {
        self.workers.keys().any(|worker| worker.host == host(name) && worker.slot == slot)
    }

    pub(in crate::core::tests) fn members(&self) -> Vec<WorkerId> {
        let active = self.workers.values().filter(|worker| worker.active);
        let newest = active.filter_map(|worker| worker.placement.as_ref()).max_by_key(|p| p.stamp);
        newest.map_or_else(Vec::new, |placement| {
            placement.assignment.members().map(|member| member.worker).collect()
        })
    }
}
