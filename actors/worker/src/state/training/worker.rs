//! `Worker`: a rank's place in the current generation, as the training function sees it. Made by the run
//! loop for each generation.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use elastic_collectives::{
    AbortHandle, CollectiveError, Communicator, CommunicatorExt, Element, ReduceOp,
};
use elastic_protocol::messages::Placement;
use elastic_protocol::{Stamp, Step};

use super::batches::{Dataset, Sampler};
use super::control::{Control, ThreadMessage};
use super::error::{Error, Result, causes_from};
use crate::state::core::TrainingCommand;
use crate::state::sampler::Ledger;

/// Why the generation is over at this worker.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum End {
    /// Told by the abort word, or at a boundary.
    Aborted { reason: String },
    /// A collective failed here first.
    Failed { peer: Option<u32>, error: String },
    /// Stopped at a boundary, where a commit was made, or not.
    Interrupted { committed: bool },
    /// The actor thread is gone.
    ActorsGone,
}

/// Ranks and sizes of one worker in one generation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Place {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) local_rank: u32,
    pub(super) local_size: u32,
    pub(super) cross_rank: u32,
    pub(super) cross_size: u32,
}

impl Place {
    pub(super) const ALONE: Self =
        Self { rank: 0, size: 1, local_rank: 0, local_size: 1, cross_rank: 0, cross_size: 1 };

    pub(super) fn new(placement: &Placement) -> Option<Self> {
        let table = &placement.assignment;
        let own = table.member(placement.rank)?;
        Some(Self {
            rank: placement.rank,
            size: table.world_size(),
            local_rank: own.local_rank,
            local_size: table.local_size(&own.worker.host),
            cross_rank: own.cross_rank,
            cross_size: table.cross_size(own.local_rank),
        })
    }
}

/// A rank's place in the current generation: its numbers, its collectives, its share of the data.
///
/// A new one is made for each generation; the training function gets it as an argument. Collectives block,
/// and end within milliseconds when the generation does. All ranks call the same ones in the same order.
pub struct Worker {
    pub(super) place: Place,
    pub(super) stamp: Stamp,
    communicator: RefCell<Box<dyn Communicator>>,
    /// `None` in a world of one without a driver.
    control: Option<Rc<Control>>,
    abort: Option<AbortHandle>,
    ledger: Rc<RefCell<Ledger>>,
    end: RefCell<Option<End>>,
    boundary: Cell<u64>,
    committed: Cell<bool>,
    /// Steps begun and checks made since the last commit.
    drawn: Cell<u64>,
    checked: Cell<u64>,
}

impl Worker {
    pub(super) fn new(
        place: Place,
        stamp: Stamp,
        communicator: Box<dyn Communicator>,
        control: Option<(Rc<Control>, AbortHandle)>,
        ledger: Rc<RefCell<Ledger>>,
    ) -> Self {
        let (control, abort) = control.unzip();
        Self {
            place,
            stamp,
            communicator: RefCell::new(communicator),
            control,
            abort,
            ledger,
            end: RefCell::new(None),
            boundary: Cell::new(0),
            committed: Cell::new(false),
            drawn: Cell::new(0),
            checked: Cell::new(0),
        }
    }

    /// This worker's number in the generation, from 0.
    pub const fn rank(&self) -> u32 {
        self.place.rank
    }

    /// How many workers take part.
    pub const fn size(&self) -> u32 {
        self.place.size
    }

    /// Its number among the workers of its host.
    pub const fn local_rank(&self) -> u32 {
        self.place.local_rank
    }

    /// How many workers its host has.
    pub const fn local_size(&self) -> u32 {
        self.place.local_size
    }

    /// The number of its host among those that have a worker with this local rank.
    pub const fn cross_rank(&self) -> u32 {
        self.place.cross_rank
    }

    /// How many hosts have a worker with this local rank.
    pub const fn cross_size(&self) -> u32 {
        self.place.cross_size
    }

    /// Which generation this is; 0 without a driver. It only grows, and may skip numbers.
    pub const fn generation(&self) -> u64 {
        self.stamp.generation.0
    }

    /// Shows a short text (loss, accuracy) beside this worker in `elastic-node status` and `demo`; the first
    /// 256 bytes of it. The last one wins; it costs no message.
    pub fn note(&self, text: impl AsRef<str>) {
        if let Some(control) = &self.control {
            control.shared().set_note(text.as_ref());
        }
    }

    /// Gives this rank's share of a data set, batch by batch, each sample to one rank once an epoch, over
    /// any changes of the world. `batch_size` is per worker. How far it is travels with the commit.
    ///
    /// ```text
    /// for batch in worker.sampler(&DATA, 32, state.epoch) { … }
    /// ```
    pub fn sampler<'a, D: Dataset + ?Sized>(
        &'a self,
        data: &'a D,
        batch_size: usize,
        epoch: u64,
    ) -> Sampler<'a, D> {
        Sampler::new(self, data, batch_size, epoch)
    }

    /// A place where a planned change of the world may take effect, without a commit: live state is kept
    /// there. Every rank calls it at the same step. Call it, as `commit`, when a batch is done: the batch
    /// that the sampler gave last counts as done from here on.
    ///
    /// # Errors
    /// [`Error::Interrupted`] and [`Error::Aborted`]: return them with `?`.
    pub fn check_host_updates(&self) -> Result<()> {
        self.alive()?;
        self.checked.set(self.checked.get() + 1);
        self.pass_boundary(false)
    }

    /// Replaces `data` by the reduction of all ranks' `data`. The mean is over ranks, each with equal
    /// weight; see [`Batch::weight`](super::Batch::weight) for batches of unequal size.
    ///
    /// # Errors
    /// [`Error::Aborted`] when the generation ends: return it with `?`. [`Error::Collective`] for arguments
    /// that make no sense.
    pub fn all_reduce<E: Element>(&self, data: &mut [E], op: ReduceOp) -> Result<()> {
        self.collective(|group| group.all_reduce(data, op))
    }

    /// Puts the `input` of every rank into `output`, by rank; `output` is [`size`](Self::size) times as long.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather<E: Element>(&self, input: &[E], output: &mut [E]) -> Result<()> {
        self.collective(|group| group.all_gather(input, output))
    }

    /// As [`all_gather`](Self::all_gather), where rank r contributes `counts[r]` elements.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather_v<E: Element>(
        &self,
        input: &[E],
        output: &mut [E],
        counts: &[usize],
    ) -> Result<()> {
        self.collective(|group| group.all_gather_v(input, output, counts))
    }

    /// Reduces all ranks' `input`; part number [`rank`](Self::rank) of the result goes to `output`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter<E: Element>(
        &self,
        input: &[E],
        output: &mut [E],
        op: ReduceOp,
    ) -> Result<()> {
        self.collective(|group| group.reduce_scatter(input, output, op))
    }

    /// Replaces `data` by that of `root`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn broadcast<E: Element>(&self, data: &mut [E], root: u32) -> Result<()> {
        self.collective(|group| group.broadcast(data, root))
    }

    /// Replaces `data` by that of `root`, whose length the other ranks need not know. More than
    /// `maximum_bytes` is refused before anything is allocated for it.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn broadcast_vec(&self, data: &mut Vec<u8>, root: u32, maximum_bytes: usize) -> Result<()> {
        self.collective(|group| group.broadcast_vec(data, root, maximum_bytes))
    }

    /// Sends part r of `input` to rank r, and puts what it sends into part r of `output`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_to_all<E: Element>(&self, input: &[E], output: &mut [E]) -> Result<()> {
        self.collective(|group| group.all_to_all(input, output))
    }

    /// As [`all_to_all`](Self::all_to_all), with as many elements for and from each rank as the counts say.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_to_all_v<E: Element>(
        &self,
        input: &[E],
        input_counts: &[usize],
        output: &mut [E],
        output_counts: &[usize],
    ) -> Result<()> {
        self.collective(|group| group.all_to_all_v(input, input_counts, output, output_counts))
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn barrier(&self) -> Result<()> {
        self.collective(|group| group.barrier())
    }

    /// Sends to one rank, which receives with [`receive`](Self::receive).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn send<E: Element>(&self, data: &[E], to: u32) -> Result<()> {
        self.collective(|group| group.send(data, to))
    }

    /// Receives what `from` sends, in the order of sending.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn receive<E: Element>(&self, data: &mut [E], from: u32) -> Result<()> {
        self.collective(|group| group.receive(data, from))
    }

    fn collective(
        &self,
        call: impl FnOnce(&mut dyn Communicator) -> Result<(), CollectiveError>,
    ) -> Result<()> {
        self.alive()?;
        call(&mut **self.communicator.borrow_mut()).map_err(|error| match error {
            CollectiveError::InvalidArgument { .. } => Error::Collective(error),
            CollectiveError::Aborted { reason, .. } => {
                self.ended(End::Aborted { reason: reason.to_string() })
            }
            error => self.ended(failure(&error)),
        })
    }

    /// Whether the generation goes on here; asks the abort word too (G-4).
    pub(super) fn alive(&self) -> Result<()> {
        if let Some(end) = self.end.borrow().as_ref() {
            return Err(self.error(end));
        }
        match self.abort_reason() {
            Some(reason) => Err(self.ended(End::Aborted { reason })),
            None => Ok(()),
        }
    }

    fn abort_reason(&self) -> Option<String> {
        let abort = self.abort.as_ref()?;
        let abort = abort.aborted(self.stamp.term.0, self.stamp.generation.0)?;
        Some(abort.reason.to_string())
    }

    /// A commit was made, as this step.
    pub(super) fn committed(&self, step: Step) -> Result<()> {
        self.drawn.set(0);
        self.checked.set(0);
        if let Some(control) = &self.control {
            control.shared().set_step(step);
            if !self.committed.replace(true) {
                control.tell(ThreadMessage::FirstCommit);
            }
        }
        self.pass_boundary(true)
    }

    fn pass_boundary(&self, committed: bool) -> Result<()> {
        let Some(control) = &self.control else { return Ok(()) };
        let boundary = self.boundary.get() + 1;
        self.boundary.set(boundary);
        if !control.shared().reach(boundary) {
            return Ok(());
        }
        control.tell(ThreadMessage::Boundary { stamp: self.stamp, boundary });
        Err(match control.wait() {
            Ok(TrainingCommand::Pass) => return Ok(()),
            Ok(TrainingCommand::Stop) => self.ended(End::Interrupted { committed }),
            Ok(TrainingCommand::End) => {
                let reason = self.abort_reason();
                let reason = reason.unwrap_or_else(|| "the generation has ended".to_owned());
                self.ended(End::Aborted { reason })
            }
            Ok(command) => {
                self.ended(End::ActorsGone);
                control.unexpected(&command)
            }
            Err(error) => {
                self.ended(End::ActorsGone);
                error
            }
        })
    }

    /// The sampler gave a batch out.
    pub(super) fn draw(&self) {
        self.drawn.set(self.drawn.get() + 1);
    }

    pub(super) const fn ledger(&self) -> &Rc<RefCell<Ledger>> {
        &self.ledger
    }

    /// Steps that were completed since the last commit: a batch that was given out and not followed by
    /// another was still being worked on.
    pub(super) fn steps_beyond_commit(&self) -> u64 {
        self.drawn.get().saturating_sub(1).max(self.checked.get())
    }

    /// How the generation ended here, if it did: decided once, by what was seen first. `None`: the training
    /// function's own result stands.
    pub(super) fn end(&self) -> Option<End> {
        let _ = self.alive();
        self.end.borrow().clone()
    }

    /// Leaves the group, in good order if nothing went wrong.
    pub(super) fn close(&self) {
        self.communicator.borrow_mut().close();
    }

    fn ended(&self, end: End) -> Error {
        let mut slot = self.end.borrow_mut();
        let end = slot.get_or_insert(end);
        self.error(end)
    }

    fn error(&self, end: &End) -> Error {
        let generation = self.generation();
        match end {
            End::Aborted { reason } | End::Failed { error: reason, .. } => {
                Error::Aborted { generation, reason: reason.clone() }
            }
            End::Interrupted { .. } => Error::Interrupted { generation },
            End::ActorsGone => match &self.control {
                Some(control) => control.gone(),
                None => Error::ActorsGone { reason: String::new() },
            },
        }
    }
}

/// What a failed collective means for the generation.
pub(super) fn failure(error: &CollectiveError) -> End {
    let peer = match error {
        CollectiveError::PeerLost { rank, .. }
        | CollectiveError::Protocol { rank, .. }
        | CollectiveError::Mismatch { rank, .. } => Some(*rank),
        CollectiveError::DeadlinePassed { waiting_for, .. } => waiting_for.first().copied(),
        _ => None,
    };
    End::Failed { peer, error: chain(error) }
}

/// An error with its causes, on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    causes_from(error.source()).fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
