//! [`Image`]: what all records of a journal together say; a snapshot is its bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use elastic_protocol::messages::{Formation, Table};
use elastic_protocol::{
    CommitId, GenerationId, HostName, Incarnation, JobId, JobResult, ProgramSpec, ResetCause,
    Stamp, Term, WorkerId,
};
use serde::{Deserialize, Serialize};

use super::record::{JobSecretsBytes, Record, whole};

/// What the records of a journal say.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Image {
    /// The job; none before the first record.
    pub job: Option<JobId>,
    /// What it runs.
    pub program: ProgramSpec,
    /// Its secrets.
    pub secrets: JobSecretsBytes,
    /// The last incarnation of the driver.
    pub term: Term,
    /// The last generation that was given out.
    pub generation: GenerationId,
    /// The last incarnation that a worker was given.
    pub incarnation: Incarnation,
    /// Workers' processes that are not known to be gone.
    pub workers: BTreeMap<WorkerId, WorkerImage>,
    /// What is held against slots.
    pub slots: BTreeMap<(HostName, u32), SlotImage>,
    /// The hosts, the oldest first.
    pub hosts: Vec<HostImage>,
    /// The generation that was formed last.
    pub current: Option<GenerationImage>,
    /// Generations that ended.
    pub resets: u64,
    /// World size of the first generation.
    pub started_with: Option<u32>,
    /// How the job ended, if it has.
    pub result: Option<JobResult>,
    /// Whether a worker has ever attached: the program uses the library.
    pub program_attaches: bool,
    /// Generations that a failure ended while processes lived for one each.
    pub restarts: u64,
}

/// A host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostImage {
    /// Its name.
    pub name: HostName,
    /// Its slots.
    pub slots: u32,
    /// Whether it is blacklisted.
    pub is_blacklisted: bool,
}

/// A worker's process.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct WorkerImage {
    /// Where its collectives are reached, once it has attached.
    pub data_address: Option<SocketAddr>,
    /// The last commit that it is known to hold.
    pub commit: Option<CommitId>,
    /// How far it is, if it lives for one generation.
    pub process: Option<ProcessImage>,
}

/// A process that lives for one generation.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum ProcessImage {
    /// Not known to have ended.
    Running,
    /// It ended well.
    Done,
}

/// What is held against a slot.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SlotImage {
    /// Failures that are held against it.
    pub failures: u32,
    /// Its worker left of its own accord under this agent of the host.
    pub closed_under: Option<Incarnation>,
}

/// The generation that was formed last.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct GenerationImage {
    /// What its members were told, with the full table.
    pub formation: Formation,
    /// Members whose processes are not known to be gone.
    pub alive: BTreeSet<WorkerId>,
    /// How far it is.
    pub progress: Progress,
}

/// How far a generation is.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Progress {
    /// Its members form their communicator, or take over the root's commit.
    Forming,
    /// It trains.
    Running,
    /// It is to stop at a boundary.
    Stopping {
        /// Where.
        boundary: u64,
        /// Why.
        cause: ResetCause,
    },
    /// It has ended.
    Ended {
        /// Why.
        cause: ResetCause,
    },
}

impl Image {
    /// What it says once this has happened too.
    pub fn apply(&mut self, record: &Record) {
        match record {
            Record::Job { job, program, secrets } => {
                self.job = Some(*job);
                self.program = program.clone();
                self.secrets = secrets.clone();
            }
            Record::Term { term } => self.term = *term,
            Record::WorkerStarted { worker } => {
                self.incarnation = self.incarnation.max(worker.incarnation);
                self.workers.insert(worker.clone(), WorkerImage::default());
            }
            Record::WorkerAttached { worker, data_address } => {
                if !std::mem::replace(&mut self.program_attaches, true) {
                    self.keep_processes();
                }
                if let Some(image) = self.workers.get_mut(worker) {
                    image.data_address = Some(*data_address);
                }
            }
            Record::WorkerGone { worker } => {
                self.workers.remove(worker);
                if let Some(current) = &mut self.current {
                    current.alive.remove(worker);
                }
            }
            Record::CommitHeld { worker, commit } => {
                if let Some(image) = self.workers.get_mut(worker) {
                    image.commit = Some(*commit);
                }
            }
            Record::GenerationOpened { formation } => self.open(formation),
            Record::GenerationRunning { stamp } => self.run(*stamp),
            Record::StopDecided { stamp, boundary, cause } => {
                let progress = Progress::Stopping { boundary: *boundary, cause: cause.clone() };
                if self.progress(*stamp, progress) {
                    self.resets += 1;
                }
            }
            Record::GenerationEnded { stamp, cause } => self.end(*stamp, cause),
            Record::Slot { host, slot, failures, closed_under } => {
                let (failures, closed_under) = (*failures, *closed_under);
                let image = SlotImage { failures, closed_under };
                self.slots.insert((host.clone(), *slot), image);
            }
            Record::Hosts { hosts } => self.hosts.clone_from(hosts),
            Record::Ended { result } => self.result = Some(result.clone()),
            Record::ProcessStarted { worker } => {
                self.incarnation = self.incarnation.max(worker.incarnation);
                let process = Some(ProcessImage::Running);
                self.workers.insert(worker.clone(), WorkerImage { process, ..Default::default() });
            }
            Record::ProcessDone { worker } => {
                if let Some(image) = self.workers.get_mut(worker) {
                    image.process = Some(ProcessImage::Done);
                }
            }
        }
    }

    /// The program turned out to be elastic in process (`--mode auto`): from now on everybody's process is kept, and the
    /// generation that they were started for is taken back.
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
            Table::Full(table) => table.members().map(|member| member.worker).collect(),
            Table::Delta(_) => BTreeSet::new(),
        };
        self.started_with.get_or_insert(u32::try_from(alive.len()).unwrap_or(u32::MAX));
        let formation = formation.clone();
        self.current = Some(GenerationImage { formation, alive, progress: Progress::Forming });
    }

    /// Every member holds the generation's first commit.
    fn run(&mut self, stamp: Stamp) {
        if !self.progress(stamp, Progress::Running) {
            return;
        }
        let Some(current) = &self.current else { return };
        let (generation, step) = (stamp.generation, current.formation.step);
        for worker in &current.alive {
            if let Some(image) = self.workers.get_mut(worker) {
                image.commit = Some(CommitId { generation, step, digest: 0 });
            }
        }
    }

    fn end(&mut self, stamp: Stamp, cause: &ResetCause) {
        let was_planned = self.current.as_ref().is_some_and(|current| {
            current.formation.stamp == stamp
                && matches!(current.progress, Progress::Stopping { .. })
        });
        let ended = self.progress(stamp, Progress::Ended { cause: cause.clone() });
        self.resets += u64::from(ended && !was_planned);
        self.restarts += u64::from(ended && cause.is_failure() && !self.program_attaches);
    }

    fn progress(&mut self, stamp: Stamp, progress: Progress) -> bool {
        match &mut self.current {
            Some(current) if current.formation.stamp == stamp => {
                current.progress = progress;
                true
            }
            _ => false,
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("an image has no part that can fail")
    }

    /// From its bytes; any input is safe.
    ///
    /// # Errors
    /// Not an image, or something follows it.
    pub fn decode(bytes: &[u8]) -> Result<Self, postcard::Error> {
        whole(bytes)
    }
}
