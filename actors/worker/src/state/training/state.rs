//! `State`: the user's training state with its last commit. Made by `elastic_node::state`, owned by the run
//! loop while training goes on.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use elastic_protocol::{CommitId, GenerationId, Step};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{Error, Result};
use super::snapshot::Snapshot;
use super::worker::Worker;
use crate::state::sampler::Ledger;

type ResetCallback<T> = Box<dyn FnMut(&Worker, &mut T)>;

/// Training state that survives the death of any worker.
///
/// It dereferences to the user's `T`: model, optimiser, counters, whatever must move together. A commit
/// takes all of it at once, with the sampler's ledger, so neither weights nor counters nor the place in the
/// data can run ahead of the others (H-22).
///
/// Memory: the live `T`, and up to two encoded copies. `T` is encoded with postcard; a type that skips
/// fields, or needs a self-describing format (`#[serde(untagged)]`, `flatten`), does not survive that.
pub struct State<T> {
    /// Absent only while a commit is decoded in its place.
    live: Option<T>,
    /// Whether `live` may differ from the last commit.
    changed: bool,
    /// Whether `live` is to be thrown away for the last commit (after an abort). Put off until the next
    /// generation's sync is known, which may bring another commit: large states are decoded once.
    stale: bool,
    snapshot: Snapshot,
    generation: GenerationId,
    ledger: Rc<RefCell<Ledger>>,
    callbacks: Vec<ResetCallback<T>>,
}

impl<T: Serialize + DeserializeOwned> State<T> {
    /// Wraps the initial state.
    pub fn new(initial: T) -> Self {
        Self {
            live: Some(initial),
            changed: true,
            stale: false,
            snapshot: Snapshot::default(),
            generation: GenerationId::default(),
            ledger: Rc::default(),
            callbacks: Vec::new(),
        }
    }

    /// Adds a function that is called whenever training goes on in a new generation: when the state and
    /// the new ranks are there, before the training function is entered (H-24). In the order in which they
    /// were added, on every member, newcomers too; not when training begins for the first time.
    pub fn on_reset(&mut self, callback: impl FnMut(&Worker, &mut T) + 'static) -> &mut Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Saves the state: what is aborted later goes back to here. Every rank commits at the same step.
    ///
    /// Costs one encoding of the state and, unless the world is about to change, no message.
    ///
    /// # Errors
    /// [`Error::Interrupted`] when the world changes here: the commit is kept. [`Error::Aborted`] when the
    /// generation has ended: nothing was committed. Return both with `?`. [`Error::State`] if the state cannot
    /// be encoded.
    pub fn commit(&mut self, worker: &Worker) -> Result<()> {
        worker.alive()?;
        self.save()?;
        worker.committed(self.step())
    }

    /// How many commits the state has seen since the job began.
    pub fn step(&self) -> Step {
        self.snapshot.step()
    }

    /// Saves the state, as [`commit`](Self::commit) does, without looking whether the world changes.
    ///
    /// # Errors
    /// [`Error::State`] if the state cannot be encoded.
    pub fn save(&mut self) -> Result<()> {
        let step = Step(self.snapshot.step().0 + 1);
        self.save_as(step)
    }

    /// Saves the initial state, if there is no commit yet: step 0.
    pub(super) fn save_initial(&mut self) -> Result<()> {
        if self.snapshot.bytes().is_none() { self.save_as(Step(0)) } else { Ok(()) }
    }

    fn save_as(&mut self, step: Step) -> Result<()> {
        let live = self.live.as_ref().expect(LIVE);
        self.snapshot.save(&(&*self.ledger.borrow(), live), self.generation, step)?;
        self.changed = false;
        Ok(())
    }

    /// Live state is not to be used any more: the last commit takes its place before training goes on.
    pub(super) const fn discard_live(&mut self) {
        self.stale = true;
    }

    /// The generation ended at a boundary where live state was saved. What the training function changed
    /// afterwards, on its way out, does not count.
    pub(super) const fn keep_live(&mut self) {
        self.stale |= self.changed;
    }

    /// Brings live state to the last commit, if it is not there.
    pub(super) fn refresh(&mut self) -> Result<()> {
        if std::mem::take(&mut self.stale) {
            self.restore()?;
        }
        Ok(())
    }

    /// Replaces live state by the last commit. Without a commit there is nothing to go back to.
    ///
    /// # Errors
    /// [`Error::State`] if the commit cannot be decoded.
    pub fn restore(&mut self) -> Result<()> {
        let Some(bytes) = self.snapshot.bytes() else { return Ok(()) };
        self.live = None;
        let (ledger, live): (Ledger, T) = postcard::from_bytes(bytes)
            .map_err(|source| Error::State { action: "decoded", source })?;
        *self.ledger.borrow_mut() = ledger;
        self.live = Some(live);
        (self.changed, self.stale) = (false, false);
        Ok(())
    }

    pub(super) fn commit_id(&mut self) -> Option<CommitId> {
        self.snapshot.id()
    }

    pub(super) const fn snapshot(&mut self) -> &mut Snapshot {
        &mut self.snapshot
    }

    pub(super) const fn enter_generation(&mut self, generation: GenerationId) {
        self.generation = generation;
        self.snapshot.relabel(generation);
    }

    pub(super) const fn ledger(&self) -> &Rc<RefCell<Ledger>> {
        &self.ledger
    }

    pub(super) fn call_back(&mut self, worker: &Worker) {
        let live = self.live.as_mut().expect(LIVE);
        self.changed |= !self.callbacks.is_empty();
        for callback in &mut self.callbacks {
            callback(worker, live);
        }
    }
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
