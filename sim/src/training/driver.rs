//! [`ScriptedDriver`]: acts as the driver of the simulated training threads, at moments that the scheduler draws. It forms
//! generations of the workers that have arrived, interrupts and aborts them, and orders checkpoints. It is a script, not the
//! product's driver, which the other modes simulate. Part of `world`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use elastic_protocol::messages::{
    Ballot, CheckpointOrder, CheckpointReport, CheckpointSource, DriverToWorker, Formation,
    FormationTable, GroupKey, JobShards, SyncPlan, WorkerToDriver,
};
use elastic_protocol::{
    Assignment, CommitId, DataPlane, Deadlines, GenerationId, JobOutcome, JobResult, ResetCause,
    Stamp, Step,
};
use rand::Rng;

use super::exchange::NodeNumber;
use super::job::DataAccess;
use super::nodes::{JOB, NodeWord, TERM, worker_id};
use super::witness::GenerationBegin;
use super::world::TrainingWorld;

/// The directory of checkpoints.
pub(super) const DIRECTORY: &str = "checkpoints";

/// Phase of the scripted driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ScriptPhase {
    Gather,
    Form,
    Sync,
    Train,
    Pause,
    Finished,
}

/// A save that is under way.
#[derive(Clone, Debug)]
pub(super) struct ScriptedSave {
    pub(super) step: u64,
    pub(super) saved: BTreeSet<NodeNumber>,
    is_sealing: bool,
    is_last: bool,
}

/// The driver's facts.
#[derive(Debug)]
pub(super) struct ScriptedDriver {
    pub(super) stamp: Stamp,
    pub(super) phase: ScriptPhase,
    /// The members by rank.
    pub(super) members: Vec<NodeNumber>,
    arrived: BTreeMap<NodeNumber, Option<CommitId>>,
    /// Listening address of each process that ever attached.
    addresses: BTreeMap<NodeNumber, SocketAddr>,
    voted: BTreeSet<NodeNumber>,
    succeeded: BTreeSet<NodeNumber>,
    paused: BTreeMap<NodeNumber, u64>,
    source: Option<CheckpointSource>,
    pub(super) save: Option<ScriptedSave>,
    /// The steps that were ordered to be saved in this generation: only the last one is ordered twice.
    ordered: BTreeSet<u64>,
    has_saved_last: bool,
    pub(super) leaving: BTreeSet<NodeNumber>,
    pub(super) resets: u64,
    pub(super) generations: u64,
}

impl ScriptedDriver {
    pub(super) fn new() -> Self {
        Self {
            stamp: Stamp { term: TERM, generation: GenerationId(0) },
            phase: ScriptPhase::Gather,
            members: Vec::new(),
            arrived: BTreeMap::new(),
            addresses: BTreeMap::new(),
            voted: BTreeSet::new(),
            succeeded: BTreeSet::new(),
            paused: BTreeMap::new(),
            source: None,
            save: None,
            ordered: BTreeSet::new(),
            has_saved_last: false,
            leaving: BTreeSet::new(),
            resets: 0,
            generations: 0,
        }
    }

    /// A process is gone for good.
    pub(super) fn forget(&mut self, node: NodeNumber) {
        self.arrived.remove(&node);
        self.leaving.remove(&node);
    }
}

impl TrainingWorld {
    fn tell(&mut self, node: NodeNumber, message: DriverToWorker) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.from_driver.push_back(message);
        }
    }

    fn tell_members(&mut self, message: &DriverToWorker) {
        for node in self.driver.members.clone() {
            self.tell(node, message.clone());
        }
    }

    /// The driver hears a word of a process.
    pub(super) fn driver_hears(&mut self, node: NodeNumber, word: NodeWord) {
        let stamp = self.driver.stamp;
        match word {
            NodeWord::Vote(vote) if vote.stamp == stamp => self.voted(node, vote.ballot),
            NodeWord::Vote(_) => {}
            NodeWord::Driver(WorkerToDriver::Attach { data_address, .. }) => {
                self.driver.addresses.insert(node, data_address);
                let deadlines = Deadlines::default();
                self.tell(node, DriverToWorker::Welcome { job: JOB, term: TERM, deadlines });
            }
            NodeWord::Driver(WorkerToDriver::Arrived { commit, .. }) => {
                let is_member = self.driver.members.contains(&node);
                if is_member
                    && !matches!(self.driver.phase, ScriptPhase::Gather | ScriptPhase::Finished)
                {
                    self.abort("a member has arrived");
                }
                self.driver.arrived.insert(node, commit);
            }
            NodeWord::Driver(WorkerToDriver::CollectiveFailed { stamp: of, peer, .. }) => {
                if of == stamp {
                    self.check_blame(node, peer);
                    self.abort("a collective failed");
                }
            }
            NodeWord::Driver(WorkerToDriver::Paused { stamp: of, boundary }) => {
                if of == stamp {
                    self.driver.paused.insert(node, boundary);
                }
            }
            NodeWord::Driver(WorkerToDriver::Checkpoint { stamp: of, step, report }) => {
                if of == stamp {
                    self.saved(node, step.0, &report);
                }
            }
            NodeWord::Driver(WorkerToDriver::Progress {
                stamp: of,
                step,
                note,
                reported,
                digests,
                steps,
                ..
            }) => {
                self.check_progress(node, (of, step.0), &note, &reported);
                self.check_shards(node, of, steps.map_or(0, |steps| steps.shards));
                if let Some(digests) = digests {
                    self.compare_digests(node, of, &digests);
                }
            }
            NodeWord::Driver(WorkerToDriver::Resumed { stamp: of, step, .. }) => {
                if of == stamp {
                    self.resumed(step.map(|step| step.0));
                }
            }
            NodeWord::Driver(WorkerToDriver::Leaving { .. }) => {
                self.driver.leaving.insert(node);
            }
            NodeWord::Driver(_) => {}
        }
    }

    fn voted(&mut self, node: NodeNumber, ballot: Ballot) {
        match ballot {
            Ballot::Ready | Ballot::Synced => drop(self.driver.voted.insert(node)),
            Ballot::Success => drop(self.driver.succeeded.insert(node)),
            Ballot::Failure { .. } => self.abort("a member has failed"),
        }
    }

    /// Ends the generation at once.
    pub(super) fn abort(&mut self, why: &str) {
        if matches!(self.driver.phase, ScriptPhase::Gather | ScriptPhase::Finished) {
            return;
        }
        let worker = worker_id(0, 1);
        let cause = ResetCause::WorkerFailed { worker, error: why.to_owned() };
        let stamp = self.driver.stamp;
        self.driver.phase = ScriptPhase::Gather;
        self.driver.save = None;
        self.driver.resets += 1;
        self.tell_members(&DriverToWorker::Abort { stamp, cause });
    }

    /// Asks the members to pause, for a change of the world.
    pub(super) fn interrupt(&mut self) {
        if self.driver.phase == ScriptPhase::Train && self.driver.save.is_none() {
            self.driver.phase = ScriptPhase::Pause;
            self.driver.paused.clear();
            let stamp = self.driver.stamp;
            self.tell_members(&DriverToWorker::Pause { stamp });
        }
    }

    /// Orders a step to be saved that was not ordered before.
    pub(super) fn order_save(&mut self, step: u64) {
        let can_save = self.job.keep.is_some() && self.driver.phase == ScriptPhase::Train;
        if can_save && self.driver.ordered.insert(step) {
            let saved = BTreeSet::new();
            self.driver.save =
                Some(ScriptedSave { step, saved, is_sealing: false, is_last: false });
            self.tell_save(step);
        }
    }

    fn tell_save(&mut self, step: u64) {
        let order = CheckpointOrder {
            stamp: self.driver.stamp,
            step: Step(step),
            directory: DIRECTORY.to_owned(),
            name: Some("job".to_owned()),
            bytes_per_s: None,
            is_by_rank_0: false,
        };
        self.tell_members(&DriverToWorker::SaveCheckpoint(order));
    }

    fn saved(&mut self, node: NodeNumber, step: u64, report: &CheckpointReport) {
        let (stamp, keep) = (self.driver.stamp, self.job.keep.unwrap_or(1));
        let members = self.driver.members.len();
        match report {
            CheckpointReport::Sealed { .. } => self.sealed(stamp, step, keep),
            CheckpointReport::Failed { reason } => self.check_not_busy(node, step, reason),
            _ => {}
        }
        let Some(save) = self.driver.save.as_mut().filter(|save| save.step == step) else { return };
        match report {
            CheckpointReport::PartSaved { .. } => {
                save.saved.insert(node);
                if save.saved.len() == members && !save.is_sealing {
                    save.is_sealing = true;
                    let root = self.driver.members[0];
                    self.tell(
                        root,
                        DriverToWorker::SealCheckpoint {
                            stamp,
                            step: Step(step),
                            keep,
                            spared: None,
                        },
                    );
                }
            }
            CheckpointReport::Sealed { .. }
            | CheckpointReport::Missed { .. }
            | CheckpointReport::Differ { .. }
            | CheckpointReport::Failed { .. } => self.driver.save = None,
        }
    }

    /// Whether the driver would do something if it had the turn.
    pub(super) fn driver_can_act(&self) -> bool {
        let driver = &self.driver;
        let all = |of: &BTreeSet<NodeNumber>| driver.members.iter().all(|node| of.contains(node));
        match driver.phase {
            ScriptPhase::Gather => {
                let is_there = |node: &NodeNumber| {
                    driver.arrived.contains_key(node) || driver.succeeded.contains(node)
                };
                !self.nodes.is_empty() && self.nodes.keys().all(is_there)
            }
            ScriptPhase::Form | ScriptPhase::Sync => all(&driver.voted),
            ScriptPhase::Train => {
                let saves_last = driver.save.as_ref().is_some_and(|save| save.is_last);
                (all(&driver.succeeded) && !saves_last)
                    || (driver.save.is_none() && self.wants_change())
            }
            ScriptPhase::Pause => {
                driver.members.iter().all(|node| driver.paused.contains_key(node))
            }
            ScriptPhase::Finished => false,
        }
    }

    /// Whether a process waits to take part, or to leave.
    fn wants_change(&self) -> bool {
        let driver = &self.driver;
        let is_spare =
            |node: &NodeNumber| !driver.members.contains(node) && driver.arrived.contains_key(node);
        let has_room = driver.members.len() < self.job.world_max as usize;
        !driver.leaving.is_empty() || (has_room && self.nodes.keys().any(is_spare))
    }

    /// The driver takes the actions that are due.
    pub(super) fn driver_acts(&mut self) {
        let stamp = self.driver.stamp;
        match self.driver.phase {
            ScriptPhase::Gather => self.form_or_free(),
            ScriptPhase::Form => {
                self.driver.voted.clear();
                self.driver.phase = ScriptPhase::Sync;
                let source = self.driver.source.clone();
                self.tell_members(&DriverToWorker::Go { stamp, source });
            }
            ScriptPhase::Sync => {
                self.driver.voted.clear();
                self.driver.phase = ScriptPhase::Train;
            }
            ScriptPhase::Train => {
                let driver = &self.driver;
                if !driver.members.iter().all(|node| driver.succeeded.contains(node)) {
                    return self.interrupt();
                }
                if let Some(save) = &driver.save {
                    self.check_answers(save);
                }
                if self.job.saves_last && self.job.keep.is_some() && !driver.has_saved_last {
                    self.driver.has_saved_last = true;
                    let root = self.driver.members[0];
                    let step = self.witness().facts(root).held.map_or(0, |held| held.step);
                    let saved = BTreeSet::new();
                    self.driver.save =
                        Some(ScriptedSave { step, saved, is_sealing: false, is_last: true });
                    self.tell_save(step);
                } else {
                    self.finish();
                }
            }
            ScriptPhase::Pause => {
                if self.order.random_bool(0.2) && self.driver.leaving.is_empty() {
                    self.driver.phase = ScriptPhase::Train;
                    return self.tell_members(&DriverToWorker::Resume { stamp });
                }
                let boundary = self.driver.paused.values().max().copied().unwrap_or_default() + 1;
                self.driver.phase = ScriptPhase::Gather;
                self.driver.resets += 1;
                self.tell_members(&DriverToWorker::StopAt { stamp, boundary });
            }
            ScriptPhase::Finished => {}
        }
    }

    fn finish(&mut self) {
        self.driver.phase = ScriptPhase::Finished;
        let result = JobResult {
            outcome: JobOutcome::Succeeded,
            code: 0,
            reason: "all have returned".to_owned(),
            hint: None,
            generation: self.driver.stamp.generation,
            first_failure: None,
        };
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.tell(node, DriverToWorker::Finished { result: result.clone() });
        }
    }

    /// Forms a generation. Members that had returned when the stop came have not arrived: if all have, the job is done, else they
    /// are told that their generation is over.
    fn form_or_free(&mut self) {
        let driver = &mut self.driver;
        let (stamp, succeeded) = (driver.stamp, std::mem::take(&mut driver.succeeded));
        let is_done = driver.members.iter().all(|node| succeeded.contains(node));
        if is_done && !driver.members.is_empty() {
            return self.finish();
        }
        let waits = |node: &&NodeNumber| !driver.arrived.contains_key(node);
        let returned: Vec<NodeNumber> = succeeded.iter().filter(waits).copied().collect();
        let is_waiting = returned.iter().any(|node| self.nodes.contains_key(node));
        for node in returned {
            let cause = ResetCause::WorkerFailed {
                worker: worker_id(0, 1),
                error: "others have not returned".to_owned(),
            };
            self.tell(node, DriverToWorker::Abort { stamp, cause });
        }
        if !is_waiting {
            self.form();
        }
    }

    /// Forms a generation of the workers that have arrived. Workers that are to leave do so first.
    fn form(&mut self) {
        for node in std::mem::take(&mut self.driver.leaving) {
            self.driver.arrived.remove(&node);
            self.tell(node, DriverToWorker::Leave { reason: "it wants to".to_owned() });
            self.departing.insert(node);
        }
        let is_there = |node: &NodeNumber| self.driver.arrived.contains_key(node);
        let mut chosen: Vec<NodeNumber> =
            self.driver.members.iter().copied().filter(is_there).collect();
        let is_new = |node: &NodeNumber| !chosen.contains(node);
        let others: Vec<NodeNumber> = self.driver.arrived.keys().copied().filter(is_new).collect();
        chosen.extend(others);
        chosen.truncate(self.job.world_max as usize);
        if chosen.is_empty() {
            return;
        }
        let slots = self.job.slots;
        let seat = |node: &NodeNumber| {
            Some((worker_id(*node, slots), self.driver.addresses.get(node).copied()?))
        };
        let seats = chosen.iter().filter_map(seat);
        let assignment = Assignment::new(seats);
        let members: Vec<NodeNumber> =
            assignment.members().map(|member| member.worker.incarnation.0 as NodeNumber).collect();
        self.check_addresses(&assignment);
        let held = |node: &NodeNumber| self.driver.arrived.get(node).copied().flatten();
        let identity = |node: &NodeNumber| held(node).map(|commit| (commit.step, commit.digest));
        let root = members
            .iter()
            .max_by_key(|node| held(node).map(|commit| (commit.step, commit.generation)));
        let root = root.copied().unwrap_or(members[0]);
        let commit = held(&root);
        let are_alike =
            commit.is_some() && members.iter().all(|node| identity(node) == identity(&root));
        let rank = members.iter().position(|node| *node == root).unwrap_or_default() as u32;
        let skips = are_alike && self.order.random_bool(0.7);
        let sync = if skips { SyncPlan::Skip } else { SyncPlan::FromRoot { root: rank } };
        self.driver.stamp.generation = self.driver.stamp.generation.next();
        let stamp = self.driver.stamp;
        self.driver.source =
            (commit.is_none() && self.job.keep.is_some()).then(|| CheckpointSource {
                directory: DIRECTORY.to_owned(),
                exactly: None,
                begins_anew: false,
                last: None,
                name: Some("job".to_owned()),
            });
        let shards = self.deal(members.len() as u32);
        self.dealt = shards.counts().to_vec();
        let begin = self.begin_from(root, commit.is_some());
        self.witness().begin(stamp, GenerationBegin { root, ..begin });
        let step = commit.map_or(Step(0), |commit| commit.step);
        let formation = Formation {
            stamp,
            table: FormationTable::Full(Arc::new(assignment)),
            sync,
            step,
            key: GroupKey([0; 32]),
            encrypts: false,
            data_plane: DataPlane::Auto,
            shards,
        };
        for node in &members {
            self.driver.arrived.remove(node);
            self.tell(*node, DriverToWorker::Assign(formation.clone()));
        }
        self.driver.members = members;
        self.driver.voted.clear();
        self.driver.succeeded.clear();
        self.driver.save = None;
        self.driver.ordered.clear();
        self.driver.has_saved_last = false;
        self.driver.generations += 1;
        self.driver.phase = ScriptPhase::Form;
        self.lock_exchange().forget_before(Stamp {
            generation: GenerationId(stamp.generation.0.saturating_sub(GENERATIONS_KEPT)),
            ..stamp
        });
    }

    /// Deals the shards, evenly or not.
    fn deal(&mut self, world: u32) -> JobShards {
        let DataAccess::Shards { shards, by_driver: true, .. } = self.job.access else {
            return JobShards::Unsaid;
        };
        if self.order.random_bool(0.5) {
            return JobShards::Even(shards);
        }
        let mut counts = vec![1; world as usize];
        for _ in world..shards {
            let rank = self.order.random_range(0..counts.len());
            counts[rank] += 1;
        }
        JobShards::Counted(counts)
    }
}

/// Generations whose data are kept for those that have not left them.
const GENERATIONS_KEPT: u64 = 3;
