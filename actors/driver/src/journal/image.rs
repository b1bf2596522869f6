//! [`Image`]: the state that all records of a journal give together. A snapshot is the encoded image. Used by
//! `RecordLedger` and `Tenure`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use elastic_host_manager::{HostEntry, HostSlots, HostState, KnownHost};
use elastic_journal::{JournalError, JournalIdentity, JournalSnapshot, LoadedJournal};
use elastic_protocol::messages::{Formation, FormationTable, JobPhase};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{
    CommitId, GenerationId, HostName, Incarnation, JobId, JobResult, ProgramSpec, ResetCause,
    Stamp, Step, Term, WorkerId,
};
use serde::{Deserialize, Serialize};

use super::record::{JobSecretsBytes, JournalRecord, whole};
use crate::core::ReplacedFor;

/// Number of fields that images of the first version lack.
pub(super) const FIELDS_ADDED: usize = 15;

/// State that the records of a journal give.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Image {
    /// Id of the job; none before the first record.
    pub job: Option<JobId>,
    /// The program that the job runs.
    #[serde(with = "crate::recording::readable::program")]
    pub program: ProgramSpec,
    /// The job's secrets.
    #[serde(with = "crate::recording::readable::secrets")]
    pub secrets: JobSecretsBytes,
    /// Number of the driver's last incarnation.
    pub term: Term,
    /// Highest generation number that members may have been told. Once the last generation trains or has ended, it is the
    /// number of the next one: its members are told the number before its record is stored.
    pub generation: GenerationId,
    /// Last incarnation number given to a worker.
    pub incarnation: Incarnation,
    /// Workers' processes that are not known to be gone.
    #[serde(with = "crate::recording::readable::pairs")]
    pub workers: BTreeMap<WorkerId, WorkerImage>,
    /// State of slots: failures, and whether they are closed.
    #[serde(with = "crate::recording::readable::pairs")]
    pub slots: BTreeMap<(HostName, u32), SlotImage>,
    /// The listed hosts, the oldest first.
    pub hosts: Vec<HostImage>,
    /// The generation that was formed last.
    pub current: Option<GenerationImage>,
    /// Number of generations that ended.
    pub resets: u64,
    /// World size of the first generation.
    pub started_with: Option<u32>,
    /// Result of the job; none while it goes on.
    pub result: Option<JobResult>,
    /// Whether a worker has ever attached, that is, whether the program uses the library.
    pub program_attaches: bool,
    /// Number of generations ended by a failure while processes lived for one generation each.
    pub restarts: u64,
    /// Highest step that all members of a generation are known to hold; none before training.
    pub committed: Option<Step>,
    /// Training time behind the state, in milliseconds.
    pub trained_ms: u64,
    /// Lost steps in the whole job.
    pub steps_lost: u64,
    /// The last loss of committed steps.
    pub loss: Option<StateLossImage>,
    /// The last durable checkpoint; none if there is none.
    pub checkpoint: Option<CheckpointImage>,
    /// Slots whose workers were replaced, and why, until their cool-down is over.
    #[serde(with = "crate::recording::readable::pairs")]
    pub resting: BTreeMap<(HostName, u32), ReplacedFor>,
    /// Members of the present generation that a majority disagrees with, by array; until the next generation trains. At most
    /// [`Image::DISTRUSTED_MAX`].
    pub distrusted: Vec<DistrustedImage>,
    /// Members that are slower than their peers, with their time for a shard in thousandths of the peers'.
    #[serde(with = "crate::recording::readable::pairs", default)]
    pub shard_paces: BTreeMap<WorkerId, u32>,
    /// Number of deals of shards within an hour.
    #[serde(default)]
    pub deals: u32,
    /// The directory of checkpoints that the last one is in; none: that of `--checkpoint`, as in journals of versions that did
    /// not record it.
    #[serde(default)]
    pub checkpoint_directory: Option<String>,
    /// Hosts off the list that are drained or blacklisted, by name; none in journals of versions that did not record them.
    #[serde(default)]
    pub unlisted: Vec<HostImage>,
    /// Whether rank 0 writes each checkpoint alone, since the members' states differ.
    #[serde(default)]
    pub is_saved_by_rank_0: bool,
    /// The operator's request to end the job; none if there was none, or the job ended at once.
    #[serde(default)]
    pub stop_asked: Option<StopImage>,
    /// Wall clock of the last record of the progress, in milliseconds since 1970; none where that was not recorded.
    #[serde(default)]
    pub trained_until_ms: Option<u64>,
    /// Whether the state has come from a checkpoint of an earlier job: its training is behind it, and its time is not known.
    #[serde(default)]
    pub is_inherited: bool,
}

/// A request of the operator to end the job.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StopImage {
    /// Number of the signal that gives the exit code.
    pub signal: i32,
    /// The request, in words.
    pub reason: String,
}

/// An array of which some members of a generation hold other content than the majority.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DistrustedImage {
    /// Number of the array.
    pub id: u64,
    /// Name of the array.
    pub tensor: String,
    /// The members that a majority disagrees with, and their ranks.
    pub members: Vec<(WorkerId, u32)>,
    /// First step in which this was seen.
    pub step: u64,
    /// Number of members that agree with each other.
    pub agreeing: u32,
    /// Number of members of the generation.
    pub world_size: u32,
}

/// A durable checkpoint that is whole. It has its place in the order of commits.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct CheckpointImage {
    /// The generation whose members committed the step.
    pub generation: GenerationId,
    /// The step.
    pub step: Step,
}

/// A loss of committed steps.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StateLossImage {
    /// The generation that began without them.
    pub generation: GenerationId,
    /// Highest step that all members of a generation were known to hold.
    pub committed: Step,
    /// Step at which training went on.
    pub begins_at: Step,
}

/// A listed host, or one off the list that may have no workers.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostImage {
    /// Name of the host.
    pub name: HostName,
    /// Number of slots of the host; 0 off the list.
    pub slots: u32,
    /// Whether the host is blacklisted.
    pub is_blacklisted: bool,
    /// Whether its stay on the blacklist has an end.
    pub comes_back: bool,
    /// Whether the operator has taken the host out.
    pub is_drained: bool,
}

impl HostImage {
    /// The record of a host in the list.
    pub(crate) fn of(entry: &HostEntry) -> Self {
        let until = match entry.state {
            HostState::Blacklisted { until } => Some(until),
            HostState::Listed | HostState::Drained => None,
        };
        Self {
            name: entry.name.clone(),
            slots: entry.slots,
            is_blacklisted: until.is_some(),
            comes_back: until.flatten().is_some(),
            is_drained: entry.state == HostState::Drained,
        }
    }
}

/// A worker's process.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct WorkerImage {
    /// Address of the worker's collectives; none before it attached.
    pub data_address: Option<SocketAddr>,
    /// Last commit that the worker is known to hold.
    pub commit: Option<CommitId>,
    /// State of a process that lives for one generation; none for other workers.
    pub process: Option<ProcessImage>,
}

/// State of a process that lives for one generation.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum ProcessImage {
    /// The process is not known to have ended.
    Running,
    /// The process ended with exit code 0.
    Done,
}

/// State of a slot.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SlotImage {
    /// Number of failures counted against the slot.
    pub failures: u32,
    /// Incarnation of the host's agent under which the slot's worker left of its own accord, if it did.
    pub closed_under: Option<Incarnation>,
}

/// The generation that was formed last.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct GenerationImage {
    /// The formation that its members were told, with the full table.
    #[serde(with = "crate::recording::readable::formation")]
    pub formation: Formation,
    /// Members whose processes are not known to be gone.
    pub alive: BTreeSet<WorkerId>,
    /// Progress of the generation.
    pub progress: GenerationProgress,
}

/// Progress of a generation.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum GenerationProgress {
    /// The members form their communicator, or take over the root's commit.
    Forming,
    /// The members train.
    Running,
    /// The members are told to stop at a boundary.
    Stopping {
        /// The boundary to stop at.
        boundary: u64,
        /// The cause of the reset.
        cause: ResetCause,
    },
    /// The generation has ended.
    Ended {
        /// The cause of the reset.
        cause: ResetCause,
    },
}

impl GenerationImage {
    /// The members, by rank.
    pub(crate) fn members(&self) -> Vec<WorkerId> {
        match &self.formation.table {
            FormationTable::Full(assignment) => {
                assignment.members().map(|member| member.worker).collect()
            }
            FormationTable::Delta(_) => Vec::new(),
        }
    }

    /// The job's phase under the former driver.
    pub(crate) const fn phase(&self) -> JobPhase {
        match self.progress {
            GenerationProgress::Forming => JobPhase::Form,
            GenerationProgress::Running | GenerationProgress::Stopping { .. } => JobPhase::Run,
            GenerationProgress::Ended { .. } => JobPhase::Gather,
        }
    }
}

impl Image {
    /// Most arrays that are remembered as different on some member.
    pub const DISTRUSTED_MAX: usize = 256;

    /// The hosts of the former driver, for the next one's host manager.
    pub fn known_hosts(&self) -> Vec<KnownHost> {
        let known = |host: &HostImage, is_listed| KnownHost {
            host: HostSlots { name: host.name.clone(), slots: host.slots },
            is_listed,
            is_blacklisted: host.is_blacklisted,
            comes_back: host.comes_back,
            is_drained: host.is_drained,
        };
        let listed = self.hosts.iter().map(|host| known(host, true));
        listed.chain(self.unlisted.iter().map(|host| known(host, false))).collect()
    }

    /// The image that a journal gives.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`].
    pub fn of(loaded: &LoadedJournal) -> Result<Self, JournalError> {
        let damaged = |what: String| JournalError::Corrupt(what);
        let mut image = match &loaded.snapshot {
            Some(JournalSnapshot { upto, bytes }) => Self::decode(bytes)
                .map_err(|error| damaged(format!("snapshot {upto} is no image: {error}")))?,
            None => Self::default(),
        };
        let first = loaded.snapshot.as_ref().map_or(1, |snapshot| snapshot.upto + 1);
        for (number, bytes) in (first..).zip(&loaded.records) {
            let record = JournalRecord::decode(bytes)
                .map_err(|error| damaged(format!("record {number} is none: {error}")))?;
            image.apply(&record);
        }
        if loaded.last() > 0 && image.job.is_none() {
            return Err(damaged("its first record is missing".to_owned()));
        }
        Ok(image)
    }

    /// The job and the term of a journal; none if no job was begun in it.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`].
    pub fn identity_of(loaded: &LoadedJournal) -> Result<Option<JournalIdentity>, JournalError> {
        let image = Self::of(loaded)?;
        let identity = |job: JobId| JournalIdentity { job: job.to_string(), term: image.term.0 };
        Ok(image.job.map(identity))
    }

    /// Applies one more record.
    pub fn apply(&mut self, record: &JournalRecord) {
        match record {
            JournalRecord::Job { job, program, secrets } => {
                self.job = Some(*job);
                self.program = program.clone();
                self.secrets = secrets.clone();
            }
            JournalRecord::Term { term } => self.term = *term,
            JournalRecord::WorkerStarted { worker } => {
                self.incarnation = self.incarnation.max(worker.incarnation);
                self.workers.insert(worker.clone(), WorkerImage::default());
            }
            JournalRecord::WorkerAttached { worker, data_address } => {
                if !std::mem::replace(&mut self.program_attaches, true) {
                    self.keep_processes();
                }
                if let Some(image) = self.workers.get_mut(worker) {
                    image.data_address = Some(*data_address);
                }
            }
            JournalRecord::WorkerGone { worker } => {
                self.workers.remove(worker);
                if let Some(current) = &mut self.current {
                    current.alive.remove(worker);
                }
            }
            JournalRecord::CommitHeld { worker, commit } => {
                if let Some(image) = self.workers.get_mut(worker) {
                    image.commit = Some(*commit);
                }
            }
            JournalRecord::GenerationOpened { formation } => self.open(formation),
            JournalRecord::GenerationRunning { stamp } => self.run(*stamp),
            JournalRecord::StopDecided { stamp, boundary, cause } => {
                let progress =
                    GenerationProgress::Stopping { boundary: *boundary, cause: cause.clone() };
                if self.progress(*stamp, progress) {
                    self.resets += 1;
                }
            }
            JournalRecord::GenerationEnded { stamp, cause } => self.end(*stamp, cause),
            JournalRecord::Slot { host, slot, failures, closed_under } => {
                let (failures, closed_under) = (*failures, *closed_under);
                let image = SlotImage { failures, closed_under };
                self.slots.insert((host.clone(), *slot), image);
            }
            JournalRecord::Hosts { hosts } => {
                self.hosts.clone_from(hosts);
                self.unlisted.clear();
            }
            JournalRecord::HostsAndUnlisted { hosts, unlisted } => {
                self.hosts.clone_from(hosts);
                self.unlisted.clone_from(unlisted);
            }
            JournalRecord::Ended { result } => self.result = Some(result.clone()),
            JournalRecord::ProcessStarted { worker } => {
                self.incarnation = self.incarnation.max(worker.incarnation);
                let process = Some(ProcessImage::Running);
                self.workers.insert(worker.clone(), WorkerImage { process, ..Default::default() });
            }
            JournalRecord::Trained { committed, trained_ms, steps_lost } => {
                (self.committed, self.trained_ms) = (*committed, *trained_ms);
                self.steps_lost = *steps_lost;
            }
            JournalRecord::TrainedUntil {
                committed,
                trained_ms,
                steps_lost,
                at_ms,
                is_inherited,
            } => {
                (self.committed, self.trained_ms) = (*committed, *trained_ms);
                (self.steps_lost, self.trained_until_ms) = (*steps_lost, *at_ms);
                self.is_inherited = *is_inherited;
            }
            JournalRecord::SlotRests { host, slot, why } => {
                let slot = (host.clone(), *slot);
                match why {
                    Some(why) => self.resting.insert(slot, *why),
                    None => self.resting.remove(&slot),
                };
            }
            JournalRecord::ReplicasDistrusted { stamp, distrusted } => {
                let is_current = |it: &GenerationImage| it.formation.stamp == *stamp;
                if self.current.as_ref().is_some_and(is_current)
                    && self.distrusted.len() < Self::DISTRUSTED_MAX
                {
                    self.distrusted.push(distrusted.clone());
                }
            }
            JournalRecord::ShardsRebalanced { paces, recent } => {
                self.shard_paces = paces.iter().cloned().collect();
                self.deals = *recent;
            }
            JournalRecord::CheckpointSaved { checkpoint } => self.checkpoint = Some(*checkpoint),
            JournalRecord::CheckpointKept { checkpoint, directory } => {
                self.checkpoint = Some(*checkpoint);
                self.checkpoint_directory = Some(directory.clone());
                // The progress is recorded now and then only.
                self.committed = self.committed.max(Some(checkpoint.step));
            }
            JournalRecord::CheckpointGone => {
                (self.checkpoint, self.checkpoint_directory) = (None, None);
            }
            JournalRecord::SavedByRank0 => self.is_saved_by_rank_0 = true,
            JournalRecord::StopAsked { stop } => self.stop_asked = Some(stop.clone()),
            JournalRecord::StateLost { loss } => self.loss = Some(loss.clone()),
            JournalRecord::ProcessDone { worker } => {
                if let Some(image) = self.workers.get_mut(worker) {
                    image.process = Some(ProcessImage::Done);
                }
            }
        }
    }

    /// Switches to kept processes, since the program turned out to be elastic in process (`--mode auto`). Every
    /// process is kept from now on, and the generation that they were started for is taken back.
    fn keep_processes(&mut self) {
        if self.workers.values().all(|worker| worker.process.is_none()) {
            return;
        }
        self.current = None;
        self.started_with = None;
        self.workers.retain(|_, worker| worker.process != Some(ProcessImage::Done));
        self.workers.values_mut().for_each(|worker| worker.process = None);
    }

    fn open(&mut self, formation: &Formation) {
        self.generation = self.generation.max(formation.stamp.generation);
        let alive: BTreeSet<WorkerId> = match &formation.table {
            FormationTable::Full(table) => table.members().map(|member| member.worker).collect(),
            FormationTable::Delta(_) => BTreeSet::new(),
        };
        self.started_with.get_or_insert(u32::try_from(alive.len()).unwrap_or(u32::MAX));
        let formation = formation.clone();
        self.current =
            Some(GenerationImage { formation, alive, progress: GenerationProgress::Forming });
    }

    /// Marks the generation as training: every member holds its first commit.
    fn run(&mut self, stamp: Stamp) {
        if !self.progress(stamp, GenerationProgress::Running) {
            return;
        }
        self.reserve_after(stamp);
        // All members hold the root's content.
        self.distrusted.clear();
        let Some(current) = &self.current else { return };
        let (generation, step) = (stamp.generation, current.formation.step);
        for worker in &current.alive {
            // A member may have come to rest before the driver hears that all have begun: it holds a later commit then.
            if let Some(image) = self.workers.get_mut(worker)
                && image.commit.is_none_or(|held| (held.generation, held.step) < (generation, step))
            {
                image.commit = Some(CommitId { generation, step, digest: 0 });
            }
        }
    }

    fn end(&mut self, stamp: Stamp, cause: &ResetCause) {
        let was_planned = self.current.as_ref().is_some_and(|current| {
            current.formation.stamp == stamp
                && matches!(current.progress, GenerationProgress::Stopping { .. })
        });
        let ended = self.progress(stamp, GenerationProgress::Ended { cause: cause.clone() });
        self.reserve_after(stamp);
        self.resets += u64::from(ended && !was_planned);
        self.restarts += u64::from(ended && cause.is_failure() && !self.program_attaches);
    }

    /// Reserves the number after that of a generation.
    fn reserve_after(&mut self, stamp: Stamp) {
        if !is_planted(Bug::NextNumberNotReserved) {
            self.generation = self.generation.max(stamp.generation.next());
        }
    }

    fn progress(&mut self, stamp: Stamp, progress: GenerationProgress) -> bool {
        match &mut self.current {
            Some(current) if current.formation.stamp == stamp => {
                current.progress = progress;
                true
            }
            _ => false,
        }
    }

    /// Encodes the image.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("an image has no part that can fail")
    }

    /// Decodes an image; any input is safe. An image of an older version lacks the last fields, whose defaults are
    /// encoded as zeros.
    ///
    /// # Errors
    /// The bytes are not an image, or bytes follow it.
    pub fn decode(bytes: &[u8]) -> Result<Self, postcard::Error> {
        let mut older = bytes.to_vec();
        loop {
            match whole(&older) {
                Err(postcard::Error::DeserializeUnexpectedEnd)
                    if older.len() < bytes.len() + FIELDS_ADDED =>
                {
                    older.push(0);
                }
                read => return read,
            }
        }
    }
}
