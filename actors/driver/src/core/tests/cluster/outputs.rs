//! Carries out the core's outputs, and lets time pass.

use elastic_protocol::messages::UndoneTraining;

use super::*;

impl Cluster {
    /// Lets time pass, and fires all timers that fall due.
    pub(in crate::core::tests) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        while let Some(next) = self.core.poll_timeout().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.core.handle_timeout(self.now);
            self.settle_now();
        }
        self.now = end;
    }

    /// Carries out all outputs that are due now or within the review's delay.
    pub(in crate::core::tests) fn settle(&mut self) {
        self.settle_now();
        let soon = self.now + Duration::from_millis(5);
        while let Some(next) = self.core.poll_timeout().filter(|next| *next <= soon) {
            self.now = self.now.max(next);
            self.core.handle_timeout(self.now);
            self.settle_now();
        }
        self.core.roster.refresh_seating(self.now, &self.core.round);
    }

    fn settle_now(&mut self) {
        for _ in 0..10_000 {
            if let Some(output) = self.core.poll_output() {
                self.carry_out(output);
            } else if let Some(verdict) = self.next_verdict() {
                self.core.handle_verdict(self.now, verdict);
            } else if !self.store() {
                return;
            }
        }
        panic!("the driver does not come to rest");
    }

    fn next_verdict(&mut self) -> Option<GenerationVerdict> {
        if self.hold_verdicts {
            return None;
        }
        self.verdicts.pop_front().or_else(|| self.registry.poll_output())
    }

    /// Stores the core's new records. Returns whether there were any.
    pub(in crate::core::tests) fn store(&mut self) -> bool {
        if self.disk_hangs {
            return false;
        }
        let Some(batch) = self.core.poll_batch() else { return false };
        self.journal.append(&batch).expect("memory");
        self.core.handle_journaled(self.now, batch.last());
        true
    }

    fn carry_out(&mut self, output: DriverOutput) {
        match output {
            DriverOutput::StartWorker { agent, worker, environment, place } => {
                self.workers.insert(worker.clone(), FakeWorker::default());
                self.environments.insert(worker.clone(), environment.into_iter().collect());
                if place.is_some() && !self.slow_start {
                    let started = AgentToDriver::Started { worker: worker.clone(), pid: 1 };
                    self.core.handle_agent(self.now, &agent, started);
                }
                if place.is_none() && !self.slow_start {
                    self.attach(&worker);
                }
            }
            DriverOutput::ToWorker { to, message } if self.deaf.contains(&to) => drop(message),
            DriverOutput::ToWorker { to, message } => self.tell_worker(&to, message),
            DriverOutput::ToWorkers { to, message } => {
                for worker in to {
                    self.carry_out(DriverOutput::ToWorker { to: worker, message: message.clone() });
                }
            }
            DriverOutput::ToAgent { to, message } => self.tell_agent(&to, message),
            DriverOutput::OpenGeneration { stamp, members, budget } => {
                self.registry.open(self.now, stamp, members, budget).expect("a newer generation");
            }
            DriverOutput::Incident(incident) => {
                self.registry.handle_incident(self.now, incident);
                self.verdicts.extend(std::iter::from_fn(|| self.registry.poll_output()));
            }
            DriverOutput::Vote(vote) => {
                self.registry.handle_vote(self.now, &vote);
            }
            DriverOutput::NameMissing { stamp } => {
                let missing = self.registry.missing();
                self.core.handle_missing(self.now, stamp, missing);
            }
            DriverOutput::HostFailed { host, .. } => {
                self.failed_hosts.push(host.clone());
                if !self.host_manager_is_slow {
                    self.blacklist(host.as_str());
                }
            }
            DriverOutput::HostLeft { host } => self.hosts_left.push(host),
            DriverOutput::HostJoined { .. } => {}
            DriverOutput::Event(event) => match event.kind {
                EventKind::GenerationRunning { world_size } => self.sizes.push(world_size),
                EventKind::HostJoined { host, slots } => self.joined.push((host, slots)),
                EventKind::ResetDecided { cause, .. } => self.resets.push(cause),
                EventKind::ResetDone { steps_lost, lost_ms, cause, .. } => {
                    self.steps_lost.push(steps_lost);
                    self.lost_ms.push(lost_ms);
                    self.reported.push(cause);
                }
                EventKind::StateLost { committed, begins_at, steps_lost, .. } => {
                    self.losses.push((committed, begins_at, steps_lost));
                }
                EventKind::FirstSteps { hosts, .. } => {
                    self.first_steps.push((self.reported.len(), hosts));
                }
                EventKind::GenerationFormed { root, .. } => {
                    self.roots.push(root);
                    self.formed.push(event.generation.0);
                }
                EventKind::WorkerFailed { worker, error } => {
                    self.late_failures.push((worker, error))
                }
                EventKind::WorkerOutOfMemory { worker, .. } => self.out_of_memory.push(worker),
                EventKind::Warning { message } => self.warnings.push(message),
                EventKind::HostLost { host, .. } => self.lost_hosts.push(host),
                EventKind::TakeoverDone { lost, .. } => self.lost_in_takeovers.push(lost),
                EventKind::HostUnreachable(report) => self.unreachable.push(report),
                kind @ (EventKind::WorkerStalled { .. } | EventKind::StallEnded { .. }) => {
                    self.stalls.push(kind);
                }
                kind @ EventKind::StepsMeasured { .. } => self.measured.push(kind),
                kind @ (EventKind::StragglerFound { .. }
                | EventKind::StragglerRecovered { .. }
                | EventKind::SlowLinkFound { .. }
                | EventKind::HealthCheckPassed { .. }
                | EventKind::HealthCheckFailed { .. }
                | EventKind::SlowLinkRecovered { .. }
                | EventKind::WorkerReplaced { .. }
                | EventKind::WorkerNotReplaced { .. }
                | EventKind::ReplacementTook { .. }
                | EventKind::SlotRested { .. }
                | EventKind::ShardsRebalanced { .. }
                | EventKind::NotRebalanced { .. }
                | EventKind::RebalanceTook { .. }) => {
                    self.stragglers.push(kind);
                }
                kind @ (EventKind::ReplicasDiffer { .. } | EventKind::NotCompared { .. }) => {
                    self.divergence.push(kind);
                }
                EventKind::GenerationTakenBack { .. } => self.taken_back += 1,
                EventKind::TakeoverBegun { phase, .. } => self.taken_over.push(phase),
                _ => {}
            },
            DriverOutput::Ended(result) => self.result = Some(result),
            DriverOutput::Abandoned { reason, is_outdated } => {
                self.abandoned.push((reason, is_outdated));
            }
            DriverOutput::KnownDrivers { to, message } => self.told_of_drivers.push((to, message)),
            DriverOutput::HandedOver => self.handed_over = true,
        }
    }

    /// The worker's program calls `init()`. Returns what the worker has told of its generation: its stamp, whether it takes part,
    /// and its commit.
    pub(in crate::core::tests) fn init(
        &mut self,
        worker: &WorkerId,
    ) -> Option<(Stamp, bool, Option<CommitId>)> {
        self.worker_link(worker, LinkEvent::Up);
        let fake = self.workers.get(worker)?;
        let stamp = fake.placement.as_ref().map(|placement| placement.stamp).unwrap_or_default();
        let (active, commit) = (fake.active, fake.commit);
        let data_address = SocketAddr::from(([127, 0, 0, 1], 1));
        let attach = WorkerToDriver::Attach { pid: 1, data_address, stamp, active, commit };
        self.say(worker, attach);
        Some((stamp, active, commit))
    }

    /// As [`init`](Self::init), and the program waits for a generation, or is in one.
    pub(in crate::core::tests) fn attach(&mut self, worker: &WorkerId) {
        let Some((stamp, active, commit)) = self.init(worker) else { return };
        if !active {
            self.say(
                worker,
                WorkerToDriver::Arrived { stamp, commit, undone: UndoneTraining::default() },
            );
        } else {
            // The worker is at least READY; its commit says whether it has synced.
            self.vote_quietly(worker, Ballot::Ready);
            if commit.is_some_and(|commit| commit.generation == stamp.generation) {
                self.vote_quietly(worker, Ballot::Synced);
            }
        }
    }

    fn tell_worker(&mut self, to: &WorkerId, message: DriverToWorker) {
        let Some(worker) = self.workers.get_mut(to) else { return };
        let stamp = worker.placement.as_ref().map(|placement| placement.stamp);
        match message {
            DriverToWorker::Assign(formation) => {
                let (of, table, sync) = (formation.stamp, formation.table, formation.sync);
                assert!(Some(of) > stamp, "G-2: stamps only grow");
                let assignment = match table {
                    FormationTable::Full(assignment) => assignment,
                    FormationTable::Delta(delta) => {
                        self.deltas += 1;
                        match delta.apply(&worker.table) {
                            Ok(assignment) => Arc::new(assignment),
                            Err(BaseMismatch) => {
                                return self.say(to, WorkerToDriver::TableWanted { stamp: of });
                            }
                        }
                    }
                };
                let rank = assignment.rank_of(to).expect("a member has a rank (G-3)");
                if sync == SyncPlan::Skip && rank == 0 {
                    self.skipped_syncs += 1;
                }
                worker.table = Arc::clone(&assignment);
                let stamp = of;
                worker.placement = Some(Placement {
                    stamp,
                    assignment,
                    rank,
                    sync,
                    step: formation.step,
                    key: formation.key,
                    encrypts: formation.encrypts,
                    data_plane: formation.data_plane,
                    shards: formation.shards,
                });
                worker.active = true;
                worker.boundary = 0;
                if !self.unconnected.contains(to) {
                    self.vote_quietly(to, Ballot::Ready);
                }
            }
            DriverToWorker::SaveCheckpoint(order) => self.saves.push((to.clone(), order)),
            DriverToWorker::SealCheckpoint { step, spared, .. } => {
                self.seals.push((to.clone(), step.0));
                self.spared = spared;
            }
            DriverToWorker::Go { stamp: of, source } if stamp == Some(of) => {
                self.source = source;
                if self.storage_hangs && self.source.is_some() {
                    return;
                }
                let step = worker.placement.as_ref().map(|p| p.step).unwrap_or_default();
                let digest = step.0;
                worker.commit = Some(CommitId { generation: of.generation, step, digest });
                self.vote_quietly(to, Ballot::Synced);
            }
            DriverToWorker::Pause { stamp: of } if stamp == Some(of) => {
                let boundary = worker.boundary;
                self.say(to, WorkerToDriver::Paused { stamp: of, boundary });
            }
            DriverToWorker::StopAt { stamp: of, boundary } if stamp == Some(of) => {
                assert!(boundary > worker.boundary, "a boundary that was not passed");
                if self.slow_steps {
                    return;
                }
                if let Some(commit) = &mut worker.commit {
                    commit.step = Step(commit.step.0 + boundary - worker.boundary);
                    let damage = u64::from(self.damaged.contains(to)) << 32;
                    commit.digest = commit.step.0 | damage;
                }
                self.arrive(to, 0);
            }
            DriverToWorker::Abort { stamp: of, .. } if stamp == Some(of) && worker.active => {
                self.arrive(to, 1);
            }
            DriverToWorker::Welcome { .. } => self.welcomed.push(NodeId::worker(to)),
            DriverToWorker::Leave { .. } => {
                self.left.push(to.clone());
                self.report_exit(to, ExitStatus::Code(0));
            }
            DriverToWorker::Finished { .. } => {
                self.finished.push(to.clone());
                self.report_exit(to, ExitStatus::Code(0));
            }
            _ => {}
        }
    }

    pub(in crate::core::tests) fn vote_quietly(&mut self, worker: &WorkerId, ballot: Ballot) {
        if matches!(ballot, Ballot::Failure { .. }) {
            // The process is about to end: it answers nothing more.
            self.deaf.insert(worker.clone());
        }
        let stamp = self.workers[worker].placement.as_ref().map(|p| p.stamp).unwrap_or_default();
        let vote = Vote { stamp, worker: worker.clone(), ballot };
        self.registry.handle_vote(self.now, &vote);
    }

    pub(in crate::core::tests) fn arrive(&mut self, worker: &WorkerId, steps_lost: u64) {
        let Some(fake) = self.workers.get_mut(worker) else { return };
        fake.active = false;
        let stamp = fake.placement.as_ref().map(|p| p.stamp).unwrap_or_default();
        let commit = fake.commit;
        let undone = UndoneTraining { steps: steps_lost, ms: 10 * steps_lost };
        self.say(worker, WorkerToDriver::Arrived { stamp, commit, undone });
    }

    fn tell_agent(&mut self, to: &NodeId, message: DriverToAgent) {
        match message {
            DriverToAgent::Stop { worker, grace_ms, .. } => {
                self.stops.push((worker.clone(), grace_ms));
                self.deaf.remove(&worker);
                if self.workers.contains_key(&worker) && !self.hold_stops {
                    let signal = if grace_ms == 0 { 9 } else { 15 };
                    self.report_exit(&worker, ExitStatus::Signal(signal));
                }
            }
            DriverToAgent::Inspect { worker, with_stack } => {
                self.looks.push((worker.clone(), with_stack));
                let Some(sight) = self.sights.get_mut(&worker) else { return };
                if sight.activity == ProcessActivity::Working {
                    sight.counters.cpu_ms += 1_000;
                }
                let mut sight = sight.clone();
                if !with_stack {
                    sight.drop_stacks();
                }
                let sight = Box::new(sight);
                self.core.handle_agent(self.now, to, AgentToDriver::Inspected { worker, sight });
            }
            DriverToAgent::CheckHealth { number, .. } => self.checks.push((to.clone(), number)),
            DriverToAgent::Leave { .. } if self.hold_stops => self.leaving.push(to.clone()),
            DriverToAgent::Leave { .. } => self.leave(to),
            DriverToAgent::Refused { reason } => self.refused.push(reason),
            DriverToAgent::Welcome { .. } => self.welcomed.push(to.clone()),
            DriverToAgent::Start { .. } => {}
        }
    }
}
