//! `State`: the user's training state with its last commit. Made by `elastic_node::state`, owned by the run
//! loop while training goes on.

use std::any::Any;
use std::cell::{OnceCell, RefCell};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use elastic_checkpoint::{CheckpointLoadError, CheckpointTensor, Damage, Dtype, StateFields};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{CommitId, GenerationId, Step};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tracing::{info, warn};

use super::checkpoint::tensors::NotedArrays;
use super::checkpoint::{LoadedCommit, SaveOrder, SavedCommit};
use super::control::TrainingControl;
use super::device::DeviceMemory;
use super::digests::{ArraysOf, DueParts, left_out};
use super::drawn::ComparedCommit;
use super::error::{Error, Result};
use super::fields::fields_of;
use super::late::{self, FilledCommit, GapFiller};
use super::restored::decode;
use super::snapshot::{ContentId, EncodedCommit, StateSnapshot};
use super::worker::Worker;
use crate::state::sampler::SampleLedger;

/// Longest first commit, in bytes, that is decoded to find out whether it can be.
const CHECKED_BYTES_MAX: usize = 64 << 20;

type ResetCallback<T> = Box<dyn FnMut(&Worker, &mut T)>;

/// Training state that survives the death of any worker.
///
/// The state dereferences to the user's `T`: model, optimiser, counters, and everything else that must stay
/// consistent. A commit takes all of it at once, with the sampler's ledger, so neither weights nor counters nor
/// the place in the data can run ahead of the others (H-22).
///
/// Memory use: the live `T`, and up to two encoded copies. `T` is encoded with postcard, which stores fields by their position. A
/// commit that leaves a field out (`#[serde(skip_serializing_if)]`) is refused. Types that need a self-describing format
/// (`#[serde(untagged)]`, `tag`, `flatten`, `serde_json::Value`) are not supported.
///
/// A field that is left out of every commit (`#[serde(skip)]`) has its default again wherever a commit is taken up: after a rollback, on
/// a newcomer, in a job that resumes. A rank that keeps its live state keeps the field, too, so ranks may differ in it. Leave out
/// only what is made anew from the rest, such as a cache; counters and momentum belong to the commit.
///
/// Memory on a GPU that was added with [`add_device_memory`](Self::add_device_memory) is part of the state. It
/// is copied beside the next step. It is committed, restored and given to newcomers together with the rest, or
/// not at all.
pub struct State<T> {
    /// The user's state. Absent only while a commit is decoded into its place.
    live: Option<T>,
    /// Whether `live` may differ from the last commit.
    changed: bool,
    /// Whether `live` is to be replaced by the last commit (after an abort). This is put off until the next
    /// generation's sync, which may bring another commit, so that large states are decoded once.
    stale: bool,
    snapshot: StateSnapshot,
    /// The arrays in the last commit, where they were noted.
    arrays: NotedArrays,
    device: Vec<Box<dyn DeviceMemory>>,
    /// The commit whose device memory or late blocks are being copied: its encoded part waits here.
    pending: Option<PendingCommit>,
    filler: GapFiller,
    generation: GenerationId,
    ledger: Rc<RefCell<SampleLedger>>,
    /// Whether `T` takes the arrays of a commit as [`RestoredBlock`](super::RestoredBlock)s.
    takes_blocks: bool,
    /// Whether the user was told which arrays of the state are not compared with other ranks.
    has_told_left_out: bool,
    callbacks: Vec<ResetCallback<T>>,
    /// The fields of `T`, once they were asked for: every generation needs them.
    fields: OnceCell<Option<Rc<StateFields>>>,
}

struct PendingCommit {
    bytes: PendingBytes,
    generation: GenerationId,
    step: Step,
    save: Option<PendingSave>,
    arrays: NotedArrays,
    /// Of a commit that is compared between the ranks.
    compared: Option<ComparedCommit>,
}

/// The encoded part of a pending commit.
enum PendingBytes {
    Whole(Vec<u8>),
    /// Its late blocks are being filled in.
    Filling(Receiver<FilledCommit>),
}

/// Uses of a commit, beside keeping it.
#[derive(Default)]
struct CommitUses {
    save: Option<(Rc<TrainingControl>, SaveOrder)>,
    /// If it is compared between the ranks.
    compared: Option<ComparedCommit>,
}

/// A commit that is to be saved as a checkpoint, once it is complete.
struct PendingSave {
    control: Rc<TrainingControl>,
    order: SaveOrder,
    tensors: Vec<CheckpointTensor>,
    position: Value,
}

impl<T: Serialize + DeserializeOwned> State<T> {
    /// Wraps the initial state.
    pub fn new(initial: T) -> Self {
        Self {
            live: Some(initial),
            changed: true,
            stale: false,
            snapshot: StateSnapshot::default(),
            arrays: NotedArrays::default(),
            device: Vec::new(),
            pending: None,
            filler: GapFiller::default(),
            generation: GenerationId::default(),
            ledger: Rc::default(),
            takes_blocks: false,
            has_told_left_out: false,
            callbacks: Vec::new(),
            fields: OnceCell::new(),
        }
    }

    /// Adds a function that is called whenever training goes on in a new generation (H-24). It is called when
    /// the state and the new ranks are known, before the training function is entered. Functions are called in
    /// the order in which they were added, on every member, newcomers too. They are not called when training
    /// begins for the first time.
    pub fn on_reset(&mut self, callback: impl FnMut(&Worker, &mut T) + 'static) -> &mut Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Adds memory beside `T`, such as a GPU's, which becomes part of the state. Every rank adds the same
    /// memory, in the same order, before training begins.
    pub fn add_device_memory(&mut self, memory: impl DeviceMemory + 'static) -> &mut Self {
        self.device.push(Box::new(memory));
        self
    }

    /// Saves the state: a later abort rolls back to it. Every rank commits at the same step.
    ///
    /// A commit costs one encoding of the state and, unless the world is about to change, no message. For
    /// memory on a GPU it waits until the step's work there is done. The copy itself goes on beside the next
    /// step.
    ///
    /// # Errors
    /// [`Error::Interrupted`] when the world changes here: the commit is kept. [`Error::Aborted`] when the
    /// generation has ended: nothing was committed. Return both with `?`: what is drawn after them does not count, and is given
    /// again. [`Error::State`] if the state cannot be encoded.
    pub fn commit(&mut self, worker: &Worker) -> Result<()> {
        worker.alive()?;
        self.enter_generation(worker.stamp().generation);
        let next = Step(self.step().0 + 1);
        let stop = || worker.alive().err().map(|error| error.to_string());
        let uses = CommitUses { save: worker.checkpoint_due(next), compared: worker.compared() };
        let began = worker.step_clock();
        self.save_as(next, &stop, uses).map_err(|error| worker.alive().err().unwrap_or(error))?;
        worker.note_commit_since(began);
        worker.committed(next)
    }

    /// The number of commits of the state since the job began.
    pub fn step(&self) -> Step {
        self.pending.as_ref().map_or(self.snapshot.step(), |pending| pending.step)
    }

    /// Puts a place in the data that a binding follows by itself in the place of the one that the library's samplers follow: it is
    /// part of the commits from here on, and the `position` of checkpoints.
    pub fn set_ledger(&mut self, ledger: SampleLedger) {
        *self.ledger.borrow_mut() = ledger;
    }

    /// Says that every array of `T` that has a name is decoded as a [`RestoredBlock`](super::RestoredBlock), for a binding that
    /// copies it into memory of the program's. The arrays of a checkpoint then stay in its files until they are copied, and until
    /// the first commit after it.
    pub const fn take_blocks(&mut self) {
        self.takes_blocks = true;
    }

    /// Whether arrays of a checkpoint may stay in its files. Memory beside `T` has no block.
    pub(super) const fn leaves_arrays_in_files(&self) -> bool {
        self.takes_blocks && self.device.is_empty()
    }

    /// Saves the state, as [`commit`](Self::commit) does, without a check whether the world changes.
    ///
    /// # Errors
    /// [`Error::State`] if the state cannot be encoded; [`Error::Device`] if memory on a GPU cannot be copied.
    pub fn save(&mut self) -> Result<()> {
        self.save_as(Step(self.step().0 + 1), &|| None, CommitUses::default())
    }

    /// Saves the initial state, if there is no commit yet: step 0.
    pub(super) fn save_initial(&mut self) -> Result<()> {
        if self.holds_commit() {
            return Ok(());
        }
        self.save_as(Step(0), &|| None, CommitUses::default())
    }

    /// Decodes the last commit and drops the result. A state that checkpoints have and that cannot be read back is so refused as
    /// training begins. A commit of more than [`CHECKED_BYTES_MAX`] is not decoded, since memory holds the live state too.
    ///
    /// # Errors
    /// Those of [`restore`](Self::restore).
    pub(super) fn check_decodes(&mut self) -> Result<()> {
        self.settle();
        let length = self.snapshot.bytes().map_or(0, <[u8]>::len);
        if length == 0 || length > CHECKED_BYTES_MAX {
            return Ok(());
        }
        self.decoded().map(drop)
    }

    /// Encodes the last commit once more, since only this encoding notes its arrays, and gives it away to be saved.
    /// After the end of training the live state equals the last commit, or is restored from it here. If the copy of
    /// that commit from the GPU failed, the one before it is the last.
    pub(super) fn save_last(
        &mut self,
        control: &Rc<TrainingControl>,
        order: SaveOrder,
    ) -> Result<()> {
        let uses = CommitUses { save: Some((Rc::clone(control), order)), compared: None };
        self.settle();
        self.refresh()?;
        self.save_as(self.step(), &|| None, uses)?;
        self.settle();
        Ok(())
    }

    /// Encodes the state, and begins to copy the device memory. Without device memory and late blocks the result is the last
    /// commit at once.
    fn save_as(
        &mut self,
        step: Step,
        stop: &dyn Fn() -> Option<String>,
        uses: CommitUses,
    ) -> Result<()> {
        self.settle();
        let live = self.live.as_ref().expect(LIVE);
        let lengths = lengths_of(&self.device);
        let ledger = self.ledger.borrow();
        let CommitUses { save, compared } = uses;
        let (encoded, arrays) = match (&save, &compared) {
            (None, None) => {
                let encoded = self.snapshot.encode(&(&lengths, &*ledger, live))?;
                (encoded, NotedArrays::default())
            }
            _ => self.snapshot.encode_with_arrays(&(&lengths, &*ledger), live)?,
        };
        let save = save.map(|(control, order)| {
            let position = serde_json::to_value(&*ledger).unwrap_or_default();
            PendingSave { control, order, tensors: arrays.tensors.clone(), position }
        });
        drop(ledger);
        if compared.as_ref().is_some_and(|compared| compared.is_named) {
            self.tell_left_out(&arrays);
        }
        let begun = self.device.iter_mut().try_for_each(|memory| memory.begin_commit(stop));
        let EncodedCommit { bytes, gaps } = encoded;
        let bytes = match begun {
            Ok(()) if gaps.is_empty() => Ok(PendingBytes::Whole(bytes)),
            Ok(()) => self.filler.begin(bytes, gaps).map(PendingBytes::Filling),
            Err(source) => Err((bytes, source)),
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err((bytes, source)) => {
                self.give_up(bytes);
                return Err(Error::Device { action: "committed", source });
            }
        };
        let is_whole = matches!(bytes, PendingBytes::Whole(_)) && self.device.is_empty();
        let generation = self.generation;
        self.pending = Some(PendingCommit { bytes, generation, step, save, arrays, compared });
        (self.changed, self.stale) = (false, false);
        if is_whole {
            self.settle();
        }
        Ok(())
    }

    /// Makes the pending commit the last commit, all of it or nothing (H-22). Waits for copies that are under
    /// way.
    pub(super) fn settle(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        let PendingCommit { bytes, generation, step, save, arrays, compared } = pending;
        let (bytes, filled) = match bytes {
            PendingBytes::Whole(bytes) => (bytes, Ok(())),
            PendingBytes::Filling(filled) => late::wait(&filled),
        };
        let mut devices = self.device.iter_mut();
        let finished = filled.and_then(|()| devices.try_for_each(|memory| memory.finish_commit()));
        if let Err(error) = finished {
            // The next use of the device fails and reports the error. The previous commit may still serve other
            // ranks.
            warn!(%error, step = step.0, "a commit is lost: it cannot be copied from the GPU");
            if !is_planted(Bug::HalfACommit) {
                // Live state is ahead of the commit that is told: a later generation goes on from the commit.
                self.stale = true;
                if let Some(PendingSave { control, order, .. }) = save {
                    let reason =
                        format!("the commit is lost: it cannot be copied from the GPU: {error}");
                    control.shared().checkpoints().fail(&order, reason);
                }
                return self.give_up(bytes);
            }
        }
        self.device.iter_mut().for_each(|memory| memory.keep_commit());
        let due = compared.map(|ComparedCommit { control, is_named, passes }| {
            let commit = ArraysOf { bytes: &bytes, arrays: &arrays };
            let before = self.snapshot.bytes().unwrap_or_default();
            let before = ArraysOf { bytes: before, arrays: &self.arrays };
            (control, DueParts::of(step, commit, before, is_named).with_passes(passes))
        });
        self.snapshot.replace(bytes, generation, step, None);
        self.arrays = arrays;
        if let Some((control, due)) = due {
            let bytes = self.snapshot.bytes().unwrap_or_default();
            control.shared().digests().note(step, due, bytes, || self.snapshot.share());
        }
        if let Some(save) = save {
            self.give_away(save);
        }
    }

    /// Logs once which parts of the state are not compared with other ranks, at the rank whose arrays are named.
    fn tell_left_out(&mut self, arrays: &NotedArrays) {
        let Some(what) = self.left_out_untold(arrays) else { return };
        if self.device.is_empty() {
            info!(what, "not compared with other ranks");
        } else {
            warn!(what, "not compared with other ranks: a bit that flips there is not found");
        }
    }

    /// Names the parts of the state that are not compared with other ranks; none from the second call on.
    pub(super) fn left_out_untold(&mut self, arrays: &NotedArrays) -> Option<String> {
        if std::mem::replace(&mut self.has_told_left_out, true) {
            return None;
        }
        left_out(arrays, self.device.len())
    }

    /// Gives the last commit to the thread that writes checkpoints. Memory beside the state is copied, the rest is not.
    fn give_away(&self, save: PendingSave) {
        let PendingSave { control, order, mut tensors, position } = save;
        let mut bytes = self.snapshot.share();
        if !self.device.is_empty() {
            let mut whole = bytes.to_vec();
            for (number, memory) in self.device.iter().enumerate() {
                let (offset, shape) = (whole.len(), vec![memory.length_bytes()]);
                memory.read_commit(&mut |part| whole.extend_from_slice(part));
                let name = format!("device.{number}");
                tensors.push(CheckpointTensor { name, dtype: Dtype::U8, shape, offset });
            }
            bytes = Arc::new(whole);
        }
        let commit = SavedCommit { bytes, tensors, position };
        control.shared().checkpoints().give(order, commit);
    }

    fn give_up(&mut self, bytes: Vec<u8>) {
        self.device.iter_mut().for_each(|memory| memory.give_up_commit());
        self.snapshot.give_back(bytes, None);
    }

    /// Marks live state as invalid: the last commit replaces it before training goes on.
    pub(super) const fn discard_live(&mut self) {
        self.stale = true;
    }

    /// Keeps live state, after the generation ended at a boundary where it was saved. Changes that the training
    /// function made afterwards, on its way out, are discarded.
    pub(super) fn keep_live(&mut self) {
        if is_planted(Bug::ScribblesKept) {
            return;
        }
        self.stale |= self.changed || self.device.iter().any(|memory| memory.is_changed());
    }

    /// Replaces live state by the last commit, if live state was marked as invalid.
    pub(super) fn refresh(&mut self) -> Result<()> {
        if std::mem::take(&mut self.stale) {
            self.restore()?;
        }
        Ok(())
    }

    /// Replaces live state by the last commit. Without a commit it does nothing.
    ///
    /// # Errors
    /// [`Error::State`] if the commit cannot be decoded; [`Error::Unread`] if bytes of it are left over; [`Error::Device`] if
    /// memory on a GPU cannot be written.
    pub fn restore(&mut self) -> Result<()> {
        self.settle();
        if !self.snapshot.is_held() {
            return Ok(());
        }
        self.live = None;
        let (ledger, live) = self.decoded()?;
        for memory in &mut self.device {
            memory.restore().map_err(|source| Error::Device { action: "restored", source })?;
        }
        if !is_planted(Bug::LedgerNotRestored) {
            *self.ledger.borrow_mut() = ledger;
        }
        self.live = Some(live);
        (self.changed, self.stale) = (false, false);
        Ok(())
    }

    /// The ledger and the state in the last commit.
    fn decoded(&self) -> Result<(SampleLedger, T)> {
        let content = self.snapshot.content();
        let ((theirs, ledger, live), unread): ((Vec<u64>, SampleLedger, T), usize) =
            decode(&content).map_err(|source| Error::State { action: "decoded", source })?;
        let ours = lengths_of(&self.device);
        if ours != theirs {
            return Err(Error::OtherDeviceMemory { ours, theirs });
        }
        if unread > 0 {
            return Err(Error::Unread { unread, length: content.bytes.len() });
        }
        Ok((ledger, live))
    }

    /// Whether there is a commit to go back to.
    pub(super) const fn holds_commit(&self) -> bool {
        self.pending.is_some() || self.snapshot.is_held()
    }

    pub(super) fn commit_id(&mut self) -> Option<CommitId> {
        self.settle();
        self.snapshot.id(&self.device)
    }

    pub(super) fn content_id(&mut self) -> Option<ContentId> {
        self.settle();
        self.snapshot.content_id(&self.device)
    }

    /// Lends the last commit to a transfer.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]: a part of it is in the files of a checkpoint only, and cannot be read any more.
    pub(super) fn whole_commit(&mut self) -> Result<&[u8]> {
        self.snapshot.whole(&self.device)
    }

    /// Takes over the commit of a checkpoint. It replaces this rank's commit and live state.
    ///
    /// # Errors
    /// Those of [`restore`](Self::restore); [`Error::Checkpoint`] in place of those that tell of another type.
    pub(super) fn take_loaded(&mut self, loaded: LoadedCommit) -> Result<()> {
        let LoadedCommit { path, bytes, commit, stored } = loaded;
        let restored = match stored {
            None => self.take_over(bytes, commit),
            Some(stored) => {
                let generation = GenerationId::default();
                self.snapshot.replace(bytes, generation, commit.step, Some(commit.digest));
                self.snapshot.leave_in(stored);
                self.arrays = NotedArrays::default();
                self.restore()
            }
        };
        restored.map_err(|error| match error {
            Error::State { .. } | Error::Unread { .. } => {
                let damage = Damage::Undecodable { reason: error.chain() };
                Error::Checkpoint(CheckpointLoadError::Damaged { path, damage })
            }
            error => error,
        })
    }

    /// Takes over the commit of another rank, as [`whole_commit`](Self::whole_commit) gave it there, or of a checkpoint. It
    /// replaces this rank's commit and live state.
    pub(super) fn take_over(&mut self, mut bytes: Vec<u8>, commit: ContentId) -> Result<()> {
        let beside: u64 = lengths_of(&self.device).iter().sum();
        let mut at = bytes.len().saturating_sub(beside as usize);
        let encoded = at;
        for memory in &mut self.device {
            let end = at + memory.length_bytes();
            let part = bytes.get(at..end).ok_or_else(|| "the commit is shorter than it".into());
            let replaced = part.and_then(|part| memory.replace_commit(part));
            replaced.map_err(|source| Error::Device { action: "replaced", source })?;
            at = end;
        }
        bytes.truncate(encoded);
        // `enter_generation` sets the label, once the whole sync has succeeded.
        let generation = GenerationId::default();
        self.snapshot.replace(bytes, generation, commit.step, Some(commit.digest));
        self.arrays = NotedArrays::default();
        self.restore()
    }

    pub(super) const fn snapshot(&mut self) -> &mut StateSnapshot {
        &mut self.snapshot
    }

    pub(super) const fn enter_generation(&mut self, generation: GenerationId) {
        self.generation = generation;
        self.snapshot.relabel(generation);
    }

    /// The fields of `T`; none if it is no struct, or has too many.
    pub(super) fn fields(&self) -> Option<Rc<StateFields>> {
        self.fields.get_or_init(|| fields_of::<T>().map(Rc::new)).clone()
    }

    pub(super) const fn ledger(&self) -> &Rc<RefCell<SampleLedger>> {
        &self.ledger
    }

    /// Calls the callbacks of a reset.
    ///
    /// # Errors
    /// One of them panicked, with this.
    pub(super) fn call_back(&mut self, worker: &Worker) -> Result<(), Box<dyn Any + Send>> {
        let live = self.live.as_mut().expect(LIVE);
        self.changed |= !self.callbacks.is_empty();
        // Unwind safety: as of the training function, a panic ends this worker.
        catch_unwind(AssertUnwindSafe(|| {
            for callback in &mut self.callbacks {
                callback(worker, live);
            }
        }))
    }
}

fn lengths_of(device: &[Box<dyn DeviceMemory>]) -> Vec<u64> {
    device.iter().map(|memory| memory.length_bytes() as u64).collect()
}

const LIVE: &str = "a state that could not be decoded has ended the run loop";

impl<T> Deref for State<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.live.as_ref().expect(LIVE)
    }
}

impl<T> DerefMut for State<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.changed = true;
        self.live.as_mut().expect(LIVE)
    }
}
