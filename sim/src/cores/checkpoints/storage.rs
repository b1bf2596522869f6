//! The storage that all simulated hosts share: the shipped format (`elastic-checkpoint`) on a file system in memory, which is
//! full now and then, and loses power in the middle of an operation. A record of the actual writes stands beside it, and each
//! answer is compared with this record (C-1). Used by `checkpoints`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use elastic_checkpoint::{
    CheckpointTensor, Dtype, FileSystem as _, MemoryFiles, Retention, SaveAttempt, SaveError,
    Snapshot, clear_partial, list, newest, seal, set_aside_after, verify, write_part,
};
use elastic_protocol::Stamp;
use elastic_runtime::random::stream;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::super::MS;
use super::super::program::TrainedModel;
use crate::oracle::JobNumber;

/// Most checkpoints of a job that are remembered for a look.
const SEALED_KEPT: usize = 8;

/// Most changes of an operation before the power fails; later than most operations end.
const CUT_AFTER_MAX: u64 = 60;

/// The set of draws from which on the storage loses power.
const POWER_FAILS_FROM: u32 = 10;

/// The set of draws from which on a folder is found empty now and then.
const EMPTIED_FROM: u32 = 15;

/// The longest time of a write that does not hang.
pub(super) const WRITE_MS_MAX: u64 = 2_000;

/// Bytes of a model.
const MODEL_BYTES: usize = 48;

/// A save of a job: of this generation, at this step.
pub(in crate::cores) type SaveKey = (JobNumber, Stamp, u64);

/// Result of a storage operation.
pub(super) enum StorageResult {
    /// It is done, and safe.
    Done,
    /// The replicas' contents differ.
    Differ(String),
    /// It has failed as operations may: the disk is full, or the power is gone.
    Failed(String),
}

/// Shared storage.
#[derive(Debug)]
pub(in crate::cores) struct SharedStorage {
    random: ChaCha8Rng,
    power: ChaCha8Rng,
    loses_power: bool,
    emptying: ChaCha8Rng,
    is_emptied: bool,
    /// Jobs whose folder was found empty, though it had had a checkpoint.
    found_empty: BTreeSet<JobNumber>,
    files: MemoryFiles,
    /// Parts that are safe, by rank.
    parts: BTreeMap<SaveKey, BTreeMap<u32, TrainedModel>>,
    /// Saves whose parts were removed, or may be: of a step before one that was made whole, before training began again, or
    /// given up for a later save.
    withdrawn: BTreeSet<SaveKey>,
    /// Commits that were to be made whole, whether or not somebody heard that they are.
    offered: BTreeMap<(JobNumber, u64), Vec<TrainedModel>>,
    /// Of each job, the step that a driver has said last to be saved.
    told: BTreeMap<JobNumber, u64>,
    /// Checkpoints that are whole, and were said to be.
    sealed: BTreeMap<JobNumber, BTreeMap<u64, TrainedModel>>,
    /// World time of the last failure, or of the last word that a checkpoint is whole.
    settled_at: u64,
    /// The last generation in which a write hung.
    hung_in: Option<Stamp>,
}

impl SharedStorage {
    pub(in crate::cores) fn new(seed: u64, draws: u32) -> Self {
        Self {
            random: stream(seed, "shared storage", 0),
            power: stream(seed, "power of the shared storage", 0),
            loses_power: draws >= POWER_FAILS_FROM,
            emptying: stream(seed, "emptied folder of the shared storage", 0),
            is_emptied: draws >= EMPTIED_FROM,
            found_empty: BTreeSet::new(),
            files: MemoryFiles::new(seed),
            parts: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            offered: BTreeMap::new(),
            sealed: BTreeMap::new(),
            told: BTreeMap::new(),
            settled_at: 0,
            hung_in: None,
        }
    }

    /// A driver says that this step of a job is saved.
    pub(super) fn note_told(&mut self, job: JobNumber, step: u64) {
        self.told.insert(job, step);
    }

    /// The step of a job that a driver has said last to be saved.
    pub(in crate::cores) fn told(&self, job: JobNumber) -> Option<u64> {
        self.told.get(&job).copied()
    }

    /// A save has failed, or is said to have made a checkpoint whole.
    pub(super) const fn note_settled(&mut self, now: u64) {
        self.settled_at = now;
    }

    /// A write of this generation hangs.
    pub(super) const fn note_hang(&mut self, stamp: Stamp) {
        self.hung_in = Some(stamp);
    }

    /// World time since which a checkpoint is awaited.
    pub(super) const fn settled_at(&self) -> u64 {
        self.settled_at
    }

    /// Whether a write of this generation hangs: it saves no more.
    pub(super) fn hangs_in(&self, stamp: Stamp) -> bool {
        self.hung_in == Some(stamp)
    }

    /// The step of a job's newest checkpoint.
    pub(in crate::cores) fn newest(&self, job: JobNumber) -> Option<u64> {
        self.sealed.get(&job)?.keys().next_back().copied()
    }

    /// Whether a step of a job was made whole.
    pub(super) fn is_sealed(&self, job: JobNumber, step: u64) -> bool {
        self.sealed.get(&job).is_some_and(|sealed| sealed.contains_key(&step))
    }

    /// The time that a write takes; none if it hangs for ever.
    pub(super) fn draw_time(&mut self) -> Option<u64> {
        let takes = self.random.random_range(MS..WRITE_MS_MAX * MS);
        (!self.random.random_bool(0.02)).then_some(takes)
    }

    /// Whether the disk is full when a write ends.
    pub(super) fn draw_full(&mut self) -> bool {
        self.random.random_bool(0.05)
    }

    /// Writes a rank's part. The error is a broken rule.
    pub(super) fn write(
        &mut self,
        key: SaveKey,
        (rank, ranks): (u32, u32),
        model: TrainedModel,
        is_full: bool,
    ) -> Result<StorageResult, String> {
        let (bytes, tensors) = encode(&model);
        let position = json!({ "consumed": model.consumed, "epoch": model.epoch });
        let snapshot = Snapshot { bytes: &bytes, tensors: &tensors, position: &position };
        let (directory, attempt) = (directory(key.0), attempt(key, ranks));
        // The writer removes what earlier attempts have left, even if a seal of one is on its way.
        let is_earlier = |other: &SaveKey| other.0 == key.0 && (other.1, other.2) < (key.1, key.2);
        self.withdrawn.extend(self.parts.keys().copied().filter(is_earlier));
        let written = self.disturbed(key.0, is_full, |files| {
            write_part(files, &directory, &attempt, rank, &snapshot, &mut |_| Ok(()))
        })?;
        Ok(match written {
            Ok(_) => {
                self.parts.entry(key).or_default().insert(rank, model);
                StorageResult::Done
            }
            Err(error) => StorageResult::Failed(error.to_string()),
        })
    }

    /// Makes a checkpoint of so many ranks whole. The error is a broken rule.
    pub(super) fn seal(
        &mut self,
        key: SaveKey,
        (ranks, keep): (u32, u32),
        is_full: bool,
    ) -> Result<StorageResult, String> {
        let (job, _, step) = key;
        let mut parts = self.parts.get(&key).cloned().unwrap_or_default();
        // Others are of an attempt in which each rank wrote a part.
        parts.retain(|rank, _| *rank < ranks);
        let is_withdrawn = self.withdrawn.contains(&key);
        if let Some(rank) = (0..ranks).find(|rank| !parts.contains_key(rank) && !is_withdrawn) {
            return Err(format!(
                "C-1: the checkpoint of step {step} is made whole, and the part of rank {rank} is not safe"
            ));
        }
        let offered = self.offered.entry((job, step)).or_default();
        offered.extend(parts.values().copied());
        offered.dedup();
        let (directory, attempt) = (directory(job), attempt(key, ranks));
        let retention = Retention::newest(keep as usize);
        let sealed =
            self.disturbed(job, is_full, |files| seal(files, &directory, &attempt, 0, retention))?;
        let models: Vec<TrainedModel> = parts.into_values().collect();
        let differ = models.windows(2).any(|pair| pair[0] != pair[1]);
        match sealed {
            Ok(_) if differ => {
                Err(format!("C-1: the checkpoint of step {step} has parts of several commits"))
            }
            Ok(_) => {
                self.note_sealed(job, step, models.first().copied());
                Ok(StorageResult::Done)
            }
            Err(SaveError::PartMissing { rank, .. }) if !is_withdrawn => Err(format!(
                "C-1: rank {rank} was told that its part of step {step} is safe, and it is gone"
            )),
            // Bits have flipped in some of the replicas.
            Err(SaveError::PartsDiffer { what, .. }) if !differ_in_damage(&models) => Err(format!(
                "C-1: the checkpoint of step {step} has parts of several commits: {what}"
            )),
            Err(error @ SaveError::PartsDiffer { .. }) => {
                Ok(StorageResult::Differ(error.to_string()))
            }
            Err(error) => Ok(StorageResult::Failed(error.to_string())),
        }
    }

    fn note_sealed(&mut self, job: JobNumber, step: u64, model: Option<TrainedModel>) {
        let sealed = self.sealed.entry(job).or_default();
        sealed.extend(model.map(|model| (step, model)));
        if sealed.len() > SEALED_KEPT {
            sealed.pop_first();
        }
        // Parts that earlier saves have left behind are removed with the old checkpoints.
        self.withdraw(job, |other| other <= step);
    }

    fn withdraw(&mut self, job: JobNumber, is_gone: impl Fn(u64) -> bool) {
        let gone = |key: &SaveKey| key.0 == job && is_gone(key.2);
        let keys: Vec<SaveKey> = self.parts.keys().copied().filter(gone).collect();
        for key in keys {
            self.parts.remove(&key);
            self.withdrawn.insert(key);
        }
    }

    /// The commit that training goes on from where nobody holds one; none if there is no checkpoint. Clears what that makes
    /// invalid. The error is a broken rule.
    pub(super) fn resume(&mut self, job: JobNumber) -> Result<Option<TrainedModel>, String> {
        let directory = directory(job);
        let (found, _) = newest(&self.files, &directory, None)
            .map_err(|error| format!("C-1: whole checkpoints cannot be taken: {error}"))?;
        let found = found.map(|found| (found.manifest.step, found.bytes));
        let said = self.newest(job);
        let step = found.as_ref().map(|(step, _)| *step);
        if step < said {
            return Err(format!(
                "C-1: step {said:?} was said to be saved, and {step:?} is the newest that is found"
            ));
        }
        let model = match found {
            Some((step, bytes)) => Some(self.recognize(job, step, &bytes)?),
            None => None,
        };
        clear_partial(&self.files, &directory);
        set_aside_after(&self.files, &directory, step);
        self.withdraw(job, |_| true);
        self.offered.retain(|(of, other), _| *of != job || Some(*other) <= step);
        // It may be whole without anybody having heard of it.
        self.sealed.entry(job).or_default().extend(step.zip(model));
        Ok(model)
    }

    /// Empties a job's folder, in a quarter of the calls: its disk was not mounted when the job's processes began. Gives the step
    /// that was said to be saved last.
    pub(super) fn empty(&mut self, job: JobNumber) -> Option<u64> {
        if !self.is_emptied || !self.emptying.random_bool(0.25) {
            return None;
        }
        if self.newest(job).is_some() {
            self.found_empty.insert(job);
        }
        let of_job = |path: &PathBuf| path.starts_with(directory(job));
        for path in self.files.files().into_iter().filter(of_job) {
            self.files.remove_file(&path).expect("it is there");
            let folder = path.parent().expect("it is in the job's folder");
            self.files.sync_directory(folder).expect("it is there");
        }
        self.withdraw(job, |_| true);
        self.offered.retain(|(of, _), _| *of != job);
        self.sealed.remove(&job);
        self.told.remove(&job)
    }

    /// Whether a checkpoint of this job was found to be gone.
    pub(in crate::cores) fn was_found_empty(&self, job: JobNumber) -> bool {
        self.found_empty.contains(&job)
    }

    /// Checks that a checkpoint's bytes are a commit that was to be made whole, and not a mixture of several.
    fn recognize(&self, job: JobNumber, step: u64, bytes: &[u8]) -> Result<TrainedModel, String> {
        let offered = self.offered.get(&(job, step)).into_iter().flatten();
        let same = offered.copied().find(|model| encode(model).0 == bytes);
        same.ok_or_else(|| {
            format!("C-1: the checkpoint of step {step} is no commit that was to be saved")
        })
    }

    /// Carries an operation out; with a full disk, or with a loss of power on the way.
    fn disturbed<T>(
        &mut self,
        job: JobNumber,
        is_full: bool,
        operation: impl FnOnce(&MemoryFiles) -> T,
    ) -> Result<T, String> {
        let loses_power = self.loses_power && self.power.random_bool(0.05);
        if loses_power {
            self.files.cut_after(self.power.random_range(0..CUT_AFTER_MAX));
        }
        self.files.fill(is_full);
        let result = operation(&self.files);
        self.files.fill(false);
        if loses_power {
            self.files.lose_power();
            self.check_whole(job)?;
        }
        Ok(result)
    }

    /// Checks that each checkpoint with a manifest is as it was written, and that none is gone that was said to be safe.
    fn check_whole(&self, job: JobNumber) -> Result<(), String> {
        let candidates = list(&self.files, &directory(job))
            .map_err(|error| format!("C-1: after a loss of power: {error}"))?;
        let mut whole = None;
        for candidate in candidates {
            let Ok(manifest) = candidate.manifest else { continue };
            verify(&self.files, &candidate.path, &manifest).map_err(|damage| {
                format!(
                    "C-1: after a loss of power step {} is whole and damaged: {damage}",
                    candidate.step
                )
            })?;
            whole = whole.max(Some(candidate.step));
        }
        let said = self.newest(job);
        if whole < said {
            return Err(format!(
                "C-1: after a loss of power step {said:?} is gone, which was said to be saved"
            ));
        }
        Ok(())
    }
}

fn differ_in_damage(models: &[TrainedModel]) -> bool {
    models.windows(2).any(|pair| pair[0].damage != pair[1].damage)
}

fn directory(job: JobNumber) -> PathBuf {
    Path::new("checkpoints").join(format!("job-{job}"))
}

fn attempt((job, stamp, step): SaveKey, world_size: u32) -> SaveAttempt {
    SaveAttempt {
        job: format!("job-{job}"),
        name: None,
        term: stamp.term.0,
        generation: stamp.generation.0,
        step,
        world_size,
        fields: None,
    }
}

/// A model as the bytes of a commit: two arrays, and bytes between and beside them.
fn encode(model: &TrainedModel) -> (Vec<u8>, Vec<CheckpointTensor>) {
    let TrainedModel { epoch, consumed, weights, step, samples, damage } = *model;
    let bytes: Vec<u8> =
        [epoch, weights, consumed, damage, step, samples].map(u64::to_le_bytes).concat();
    debug_assert_eq!(bytes.len(), MODEL_BYTES, "as long as it is said");
    let tensor = |name: &str, offset, length| CheckpointTensor {
        name: name.to_owned(),
        dtype: Dtype::U8,
        shape: vec![length],
        offset,
    };
    (bytes, vec![tensor("weights", 8, 8), tensor("optimizer", 24, 20)])
}
