//! Digests of a commit's arrays, from its encoded bytes: a rotating part of the state each commit. The driver compares those
//! of all ranks and finds replicas that differ. Made by `state` at each commit; `control` keeps them until the actor's thread
//! reads them.
//!
//! The step, the array's name and the size of the state determine the part that is due. It is thus the same on all
//! ranks that hold the same arrays, and further arrays of one rank do not disturb the others. Only arrays of fractions
//! are compared: weights, moments, averages. Arrays of integers are counters, keys and states of random generators,
//! which may differ between ranks. The same holds for values that are no arrays. The passes of samplers are compared with them.

use std::ops::Range;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use elastic_checkpoint::{CheckpointTensor, Dtype};
use elastic_protocol::Step;
use elastic_protocol::messages::{StateDigests, TensorDigest, TensorName};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::checkpoint::tensors::NotedArrays;
use super::drawn::DrawnPass;
use crate::state::core::prefix;

/// Most commits until every part has been due.
const ROTATION_MAX: usize = 64;

/// Bytes and arrays that are digested in each commit before the state is divided: hashing them takes about two microseconds.
const BYTES_A_COMMIT: usize = 16 << 10;
const ARRAYS_A_COMMIT: usize = 16;

/// Bytes of a part that are compared with the commit before, to see whether it changed.
const CHANGED_BYTES: usize = 64 << 10;

/// Bytes from which on another thread digests them: below, waking it takes longer than hashing.
const ASIDE_BYTES: usize = 512 << 10;

/// Whether replicas of an array of this type are expected to be equal.
const fn is_compared(dtype: Dtype) -> bool {
    matches!(
        dtype,
        Dtype::F16
            | Dtype::BF16
            | Dtype::F32
            | Dtype::F64
            | Dtype::C64
            | Dtype::F8_E4M3
            | Dtype::F8_E5M2
    )
}

/// Most arrays that are named in [`left_out`].
const LEFT_OUT_NAMED_MAX: usize = 8;

/// Names the parts of a state that are not compared between ranks because of their type; `None` if all of it is
/// compared. `devices` is the number of blocks of memory on a GPU beside it.
pub(super) fn left_out(arrays: &NotedArrays, devices: usize) -> Option<String> {
    let is_left_out = |tensor: &&CheckpointTensor| !is_compared(tensor.dtype) && tensor.bytes() > 0;
    let numbers = arrays.tensors.iter().filter(is_left_out).map(|tensor| tensor.name.clone());
    let kinds = [
        ("memory on a GPU", (0..devices).map(|number| format!("device.{number}")).collect()),
        ("whole numbers", numbers.collect::<Vec<String>>()),
    ];
    let words = kinds.into_iter().filter(|(_, names)| !names.is_empty()).map(|(kind, names)| {
        let more = names.len().saturating_sub(LEFT_OUT_NAMED_MAX);
        let named = names[..names.len() - more].join(", ");
        if more > 0 {
            format!("{kind} ({named} and {more} more)")
        } else {
            format!("{kind} ({named})")
        }
    });
    let words: Vec<String> = words.collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// A part of an array that is due.
#[derive(Clone, Debug, Eq, PartialEq)]
struct DuePart {
    tensor: u64,
    /// Place in the commit's bytes.
    at: Range<usize>,
    /// Seed of the part's hash, made of its offset in the array and the array's length. Parts of another offset, or of
    /// an array of another length, thus have other digests.
    seed: u64,
    changed: bool,
}

/// The parts of a commit that are due, with the names of their arrays if they are asked for.
#[derive(Debug, Default)]
pub(super) struct DueParts {
    parts: Vec<DuePart>,
    names: Vec<TensorName>,
    passes: Vec<DrawnPass>,
}

/// A commit's bytes and the arrays in them.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArraysOf<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) arrays: &'a NotedArrays,
}

impl DueParts {
    /// The parts that are due at this step. `before` is the commit before it, as far as it is known.
    pub(super) fn of(
        step: Step,
        commit: ArraysOf<'_>,
        before: ArraysOf<'_>,
        is_named: bool,
    ) -> Self {
        let NotedArrays { tensors, per_rank } = commit.arrays;
        let is_due = |tensor: &CheckpointTensor| {
            is_compared(tensor.dtype) && tensor.bytes() > 0 && !per_rank.contains(&tensor.name)
        };
        let compared = || tensors.iter().enumerate().filter(|(_, it)| is_due(it));
        let bytes: usize = compared().map(|(_, tensor)| tensor.bytes()).sum();
        let rotation = rotation(bytes, compared().count());
        let whole = bytes.next_power_of_two();
        let mut due = Self::default();
        for (index, tensor) in compared() {
            let id = xxh3_64(tensor.name.as_bytes());
            let length = tensor.bytes();
            // Enough parts that none of them is larger than the bytes that are due in one commit.
            let parts = (length * rotation).div_ceil(whole).next_power_of_two().min(rotation);
            let every = rotation / parts;
            let turn = (step.0.wrapping_add(id) % rotation as u64) as usize;
            if !turn.is_multiple_of(every) {
                continue;
            }
            let part = turn / every;
            let range = length * part / parts..length * (part + 1) / parts;
            let at = tensor.offset + range.start..tensor.offset + range.end;
            let seed = xxh3_64_with_seed(&(length as u64).to_le_bytes(), range.start as u64);
            let changed = has_changed(commit, before, index, range);
            due.parts.push(DuePart { tensor: id, at, seed, changed });
            if is_named && due.names.len() < StateDigests::NAMES_MAX {
                let name = prefix(&tensor.name, StateDigests::NAME_BYTES_MAX).to_owned();
                due.names.push(TensorName { id, tensor: name });
            }
        }
        due
    }

    /// With the passes that the commit's steps were drawn from.
    pub(super) fn with_passes(self, passes: Vec<DrawnPass>) -> Self {
        Self { passes, ..self }
    }

    /// Number of bytes that are due.
    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.at.len()).sum()
    }

    /// Digests them.
    fn digest(self, step: Step, bytes: &[u8]) -> StateDigests {
        let digest = |part: DuePart| {
            let DuePart { tensor, at, seed, changed } = part;
            let digest = xxh3_64_with_seed(bytes.get(at).unwrap_or_default(), seed);
            TensorDigest { step: step.0, tensor, digest, changed }
        };
        let since = step.0.saturating_sub(1);
        let mut digests = StateDigests { since, through: step.0, ..StateDigests::default() };
        for pass in &self.passes {
            pass.digest_into(step.0, &mut digests);
        }
        digests.digests.extend(self.parts.into_iter().map(digest));
        digests.names.extend(self.names);
        digests.names.truncate(StateDigests::NAMES_MAX);
        digests
    }
}

/// Commits until every part has been due: one where the state is small.
fn rotation(bytes: usize, arrays: usize) -> usize {
    let enough = |all: usize, a_commit: usize| all.div_ceil(a_commit).max(1).next_power_of_two();
    enough(bytes, BYTES_A_COMMIT).max(enough(arrays, ARRAYS_A_COMMIT)).min(ROTATION_MAX)
}

/// Whether a part of an array is another one than in the commit before. Of large parts the beginning is compared.
fn has_changed(
    commit: ArraysOf<'_>,
    before: ArraysOf<'_>,
    index: usize,
    range: Range<usize>,
) -> bool {
    let tensor = &commit.arrays.tensors[index];
    let is_same = |other: &&CheckpointTensor| other.name == tensor.name;
    let known = before.arrays.tensors.get(index).filter(is_same);
    let known = known.or_else(|| before.arrays.tensors.iter().find(is_same));
    let Some(known) = known.filter(|known| known.bytes() == tensor.bytes()) else { return false };
    let end = range.end.min(range.start + CHANGED_BYTES);
    let part = |offset: usize| offset + range.start..offset + end;
    let now = commit.bytes.get(part(tensor.offset));
    now.is_some() && now != before.bytes.get(part(known.offset))
}

/// Work for the thread that digests.
#[derive(Debug)]
struct AsideJob {
    generation: u64,
    step: Step,
    due: DueParts,
    bytes: Arc<Vec<u8>>,
}

#[derive(Debug, Default)]
struct DigestLog {
    digests: StateDigests,
    /// Number of generations begun here. Digests that another thread made of an earlier generation are dropped.
    generation: u64,
    aside: Option<SyncSender<AsideJob>>,
}

/// Digests that the driver has not been told of, shared by the training thread, the actor's thread and the one that digests.
#[derive(Clone, Debug, Default)]
pub(super) struct DigestDesk {
    /// The lock is held for a few assignments only.
    log: Arc<Mutex<DigestLog>>,
}

impl DigestDesk {
    fn lock(&self) -> MutexGuard<'_, DigestLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Training thread: the generation begins from this commit.
    pub(super) fn begin_from(&self, step: Step) {
        let mut log = self.lock();
        log.digests = StateDigests::after(step.0);
        log.generation += 1;
    }

    /// Training thread: digests the parts of a commit that are due, at once or beside the next step. `share` gives the
    /// commit's bytes to another thread. If that thread is still busy with the commit before, this commit has no
    /// digests.
    pub(super) fn note(
        &self,
        step: Step,
        due: DueParts,
        bytes: &[u8],
        share: impl FnOnce() -> Arc<Vec<u8>>,
    ) {
        if due.bytes() < ASIDE_BYTES {
            let digests = due.digest(step, bytes);
            return self.lock().digests.extend(digests);
        }
        let mut log = self.lock();
        if log.aside.is_none() {
            log.aside = self.start();
        }
        if let Some(aside) = &log.aside {
            // A commit that is left out is a gap, and no error.
            let generation = log.generation;
            let _is_busy = aside.try_send(AsideJob { generation, step, due, bytes: share() });
        }
    }

    /// Starts the thread that digests. It ends with the desk. Without it, large commits have no digests.
    fn start(&self) -> Option<SyncSender<AsideJob>> {
        let (sender, jobs) = sync_channel::<AsideJob>(1);
        let log = Arc::downgrade(&self.log);
        let run = move || {
            for AsideJob { generation, step, due, bytes } in jobs {
                let digests = due.digest(step, &bytes);
                // The next commit may need the memory.
                drop(bytes);
                let Some(log) = log.upgrade() else { return };
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                if log.generation == generation {
                    log.digests.extend(digests);
                }
            }
        };
        let thread = std::thread::Builder::new().name("digests".to_owned()).spawn(run);
        thread.is_ok().then_some(sender)
    }

    /// Actor: takes the digests since the last call.
    pub(super) fn take(&self) -> Option<StateDigests> {
        self.lock().digests.take()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A state of arrays of `f32`, one after the other.
    fn arrays(lengths: &[usize]) -> (Vec<u8>, NotedArrays) {
        let mut noted = NotedArrays::default();
        let mut offset = 3;
        for (number, length) in lengths.iter().enumerate() {
            let (name, shape) = (format!("layer.{number}"), vec![*length]);
            noted.tensors.push(CheckpointTensor { name, dtype: Dtype::F32, shape, offset });
            offset += length * 4;
        }
        ((0..offset).map(|place| (place % 251) as u8).collect(), noted)
    }

    fn due(step: u64, bytes: &[u8], arrays: &NotedArrays) -> DueParts {
        let commit = ArraysOf { bytes, arrays };
        DueParts::of(Step(step), commit, commit, true)
    }

    #[test]
    fn c_6_every_byte_is_digested_once_in_64_commits_and_in_equal_parts() {
        let (bytes, noted) = arrays(&[1 << 20, 7, 300_000, 1, 12_345, 1 << 16]);
        let mut seen = vec![0_u8; bytes.len()];
        let whole: usize = noted.tensors.iter().map(CheckpointTensor::bytes).sum();
        for step in 1_000..1_064 {
            let due = due(step, &bytes, &noted);
            assert!(due.bytes() * 16 < whole, "{} bytes at step {step}", due.bytes());
            due.parts.iter().flat_map(|part| part.at.clone()).for_each(|place| seen[place] += 1);
        }
        assert!(seen[..3].iter().all(|times| *times == 0));
        assert!(seen[3..].iter().all(|times| *times == 1));
    }

    #[test]
    fn a_small_state_is_digested_whole_in_each_commit() {
        let (bytes, noted) = arrays(&[900, 30]);
        let due = due(5, &bytes, &noted);
        assert_eq!(due.bytes(), 930 * 4);
        assert_eq!(due.names.len(), 2);
    }

    #[test]
    fn c_6_a_flipped_bit_changes_the_digest_of_its_array_within_64_commits_and_no_other() {
        let (bytes, noted) = arrays(&[200_000, 1_000, 50_000]);
        let mut other = bytes.clone();
        other[noted.tensors[2].offset + 77_777] ^= 4;
        let mut differing = BTreeSet::new();
        for step in 0..64 {
            let one = due(step, &bytes, &noted).digest(Step(step), &bytes);
            let two = due(step, &other, &noted).digest(Step(step), &other);
            let pairs = one.digests.iter().zip(&two.digests);
            differing.extend(pairs.filter(|(a, b)| a != b).map(|(a, _)| a.tensor));
        }
        assert_eq!(differing, BTreeSet::from([xxh3_64(b"layer.2")]));
    }

    #[test]
    fn another_ranks_further_arrays_do_not_move_the_parts_of_the_common_ones() {
        let (bytes, noted) = arrays(&[100_000, 60_000]);
        let (longer, more) = arrays(&[100_000, 60_000, 700]);
        for step in 0..64 {
            let one = due(step, &bytes, &noted).digest(Step(step), &bytes);
            let two = due(step, &longer, &more).digest(Step(step), &longer);
            let known = xxh3_64(b"layer.2");
            let common: Vec<_> = two.digests.iter().filter(|it| it.tensor != known).collect();
            assert_eq!(one.digests.iter().collect::<Vec<_>>(), common);
        }
    }

    #[test]
    fn whole_numbers_and_what_each_rank_has_of_its_own_are_not_digested() {
        let (bytes, mut noted) = arrays(&[10, 10, 10]);
        noted.tensors[0].dtype = Dtype::U32;
        noted.per_rank.insert("layer.1".to_owned());
        let due = due(0, &bytes, &noted);
        let names: Vec<&str> = due.names.iter().map(|name| name.tensor.as_str()).collect();
        assert_eq!(names, ["layer.2"]);
    }

    #[test]
    fn what_is_never_compared_is_named() {
        let (_, mut noted) = arrays(&[10, 10, 10]);
        assert_eq!(left_out(&noted, 0), None);
        noted.tensors[1].dtype = Dtype::I64;
        assert_eq!(left_out(&noted, 0).as_deref(), Some("whole numbers (layer.1)"));
        let both = "memory on a GPU (device.0, device.1); whole numbers (layer.1)";
        assert_eq!(left_out(&noted, 2).as_deref(), Some(both));
        let (_, mut noted) = arrays(&[1; 10]);
        noted.tensors.iter_mut().for_each(|tensor| tensor.dtype = Dtype::U8);
        assert!(left_out(&noted, 0).is_some_and(|words| words.ends_with("layer.7 and 2 more)")));
    }

    #[test]
    fn whether_an_array_changed_is_known_by_the_commit_before() {
        let (bytes, noted) = arrays(&[10, 10]);
        let mut before = bytes.clone();
        before[noted.tensors[1].offset] += 1;
        let changed = |before: ArraysOf<'_>| -> Vec<bool> {
            let commit = ArraysOf { bytes: &bytes, arrays: &noted };
            let due = DueParts::of(Step(1), commit, before, false);
            due.parts.iter().map(|part| part.changed).collect()
        };
        assert_eq!(changed(ArraysOf { bytes: &before, arrays: &noted }), [false, true]);
        let unknown = NotedArrays::default();
        assert_eq!(changed(ArraysOf { bytes: &[], arrays: &unknown }), [false, false]);
    }

    #[test]
    fn large_commits_are_digested_aside() {
        let (bytes, noted) = arrays(&[16 << 20]);
        let bytes = Arc::new(bytes);
        let desk = DigestDesk::default();
        desk.begin_from(Step(4));
        let part = due(5, &bytes, &noted);
        assert!(part.bytes() >= ASIDE_BYTES);
        desk.note(Step(5), part, &bytes, || Arc::clone(&bytes));
        let deadline = 100_000_000;
        let taken = (0..deadline).find_map(|_| {
            std::thread::yield_now();
            desk.take()
        });
        let expected = due(5, &bytes, &noted).digest(Step(5), &bytes);
        assert_eq!(taken, Some(expected));
        desk.begin_from(Step(2));
        assert_eq!(desk.take(), None);
    }
}
