//! `Group`: ranks that call collectives together, as training code sees them. A [`Worker`](super::Worker) is the
//! group of all ranks of its generation; [`Group::split`] makes smaller ones.

use std::rc::Rc;

use elastic_collectives::{
    AsyncCommunicator, CollectiveError, Communicator, CommunicatorExt, Element, Launched, Progress,
    ReduceOp, shards_of,
};

use super::error::{Error, Result};
use super::life::{End, Life};

/// Ranks that call collectives together. All of them make the same calls in the same order; a call blocks, and
/// ends within milliseconds when the generation does.
pub struct Group {
    life: Rc<Life>,
    communicator: AsyncCommunicator,
    progress: Progress,
}

impl Group {
    pub(super) fn new(
        life: Rc<Life>,
        communicator: Box<dyn Communicator>,
        progress: &Progress,
    ) -> Self {
        let communicator = AsyncCommunicator::new(communicator, life.abort(), progress);
        Self { life, communicator, progress: progress.clone() }
    }

    /// This worker's number in the group, from 0.
    pub fn rank(&self) -> u32 {
        self.communicator.rank()
    }

    /// How many workers the group has.
    pub fn size(&self) -> u32 {
        self.communicator.world_size()
    }

    /// Makes sub-groups (process sets): one for each `colour`, whose ranks go by `key`, and where keys are
    /// equal by the rank here. Every rank of this group calls it; who gives no colour is in none of them.
    ///
    /// A sub-group ends with the generation. Make it anew in each.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn split(&self, colour: Option<u32>, key: i32) -> Result<Option<Self>> {
        let group = self.call(|group| group.split(colour, key))?;
        Ok(group.map(|group| Self::new(Rc::clone(&self.life), group, &self.progress)))
    }

    /// The logical shards, of `total`, that are this rank's in
    /// [`all_reduce_shards`](Self::all_reduce_shards).
    pub fn shards(&self, total: u32) -> std::ops::Range<u32> {
        shards_of(total, self.rank(), self.size())
    }

    /// Replaces `data` by the reduction of all ranks' `data`. The mean is over ranks, each with equal
    /// weight; see [`Batch::weight`](super::Batch::weight) for batches of unequal size.
    ///
    /// # Errors
    /// [`Error::Aborted`] when the generation ends: return it with `?`. [`Error::Collective`] for arguments
    /// that make no sense.
    pub fn all_reduce<E: Element>(&self, data: &mut [E], op: ReduceOp) -> Result<()> {
        self.call(|group| group.all_reduce(data, op))
    }

    /// Puts the `input` of every rank into `output`, by rank; `output` is [`size`](Self::size) times as long.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather<E: Element>(&self, input: &[E], output: &mut [E]) -> Result<()> {
        self.call(|group| group.all_gather(input, output))
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
        self.call(|group| group.all_gather_v(input, output, counts))
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
        self.call(|group| group.reduce_scatter(input, output, op))
    }

    /// Replaces `data` by that of `root`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn broadcast<E: Element>(&self, data: &mut [E], root: u32) -> Result<()> {
        self.call(|group| group.broadcast(data, root))
    }

    /// Replaces `data` by that of `root`, whose length the other ranks need not know. More than
    /// `maximum_bytes` is refused before anything is allocated for it.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn broadcast_vec(&self, data: &mut Vec<u8>, root: u32, maximum_bytes: usize) -> Result<()> {
        self.call(|group| group.broadcast_vec(data, root, maximum_bytes))
    }

    /// Sends part r of `input` to rank r, and puts what it sends into part r of `output`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_to_all<E: Element>(&self, input: &[E], output: &mut [E]) -> Result<()> {
        self.call(|group| group.all_to_all(input, output))
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
        self.call(|group| group.all_to_all_v(input, input_counts, output, output_counts))
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn barrier(&self) -> Result<()> {
        self.call(|group| group.barrier())
    }

    /// Sends to one rank, which receives with [`receive`](Self::receive).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn send<E: Element>(&self, data: &[E], to: u32) -> Result<()> {
        self.call(|group| group.send(data, to))
    }

    /// Receives what `from` sends, in the order of sending.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn receive<E: Element>(&self, data: &mut [E], from: u32) -> Result<()> {
        self.call(|group| group.receive(data, from))
    }

    /// Replaces each of `buffers` by its reduction over all ranks, with the bits of
    /// [`all_reduce`](Self::all_reduce); small ones go together, which many small gradients need.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_many<E: Element>(
        &self,
        buffers: &mut [&mut [E]],
        op: ReduceOp,
    ) -> Result<()> {
        self.call(|group| group.all_reduce_many(buffers, op))
    }

    /// Replaces `output` by the reduction of `total` logical shards, in the order of their numbers: the same
    /// bits in a world of any size. `shards` are those of [`shards`](Self::shards), each as long as `output`.
    ///
    /// ```text
    /// let gradients: Vec<Vec<f32>> = worker.shards(8).map(|shard| gradient(&batch, shard)).collect();
    /// let gradients: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
    /// worker.all_reduce_shards(&gradients, 8, &mut gradient, ReduceOp::Mean)?;
    /// ```
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_shards<E: Element>(
        &self,
        shards: &[&[E]],
        total: u32,
        output: &mut [E],
        op: ReduceOp,
    ) -> Result<()> {
        self.call(|group| group.all_reduce_shards(shards, total, output, op))
    }

    /// Launches [`all_reduce`](Self::all_reduce) beside this thread; [`Pending::wait`] gives the vector back.
    ///
    /// # Errors
    /// [`Error::Aborted`] when the generation has ended.
    pub fn all_reduce_async<E: Element>(
        &self,
        data: Vec<E>,
        op: ReduceOp,
    ) -> Result<Pending<Vec<E>>> {
        self.launch(move |group| {
            let mut data = data;
            group.all_reduce(&mut data, op)?;
            Ok(data)
        })
    }

    /// Makes any calls on the communicator, as bytes or typed, after all that was launched before.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn call<T>(
        &self,
        operation: impl FnOnce(&mut dyn Communicator) -> Result<T, CollectiveError>,
    ) -> Result<T> {
        self.life.alive()?;
        self.life.outcome(self.communicator.call(operation))
    }

    /// Launches calls on the communicator beside this thread, after all that was launched before, on this group
    /// or another. The order of launches must be the same on every rank.
    ///
    /// # Errors
    /// [`Error::Aborted`] when the generation has ended.
    pub fn launch<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut dyn Communicator) -> Result<T, CollectiveError> + Send + 'static,
    ) -> Result<Pending<T>> {
        self.life.alive()?;
        let launched = self.communicator.launch(operation);
        Ok(Pending { life: Rc::clone(&self.life), launched })
    }

    /// The communicator itself. What fails there must be told with [`failed`](Self::failed).
    pub const fn communicator(&self) -> &AsyncCommunicator {
        &self.communicator
    }

    /// An operation on [`communicator`](Self::communicator) failed: what that means for the generation.
    pub fn failed(&self, error: CollectiveError) -> Error {
        self.life.failed(error)
    }

    /// Leaves the group in good order, after all that was launched.
    pub(super) fn close(&self) {
        self.communicator.call(|group| group.close());
    }
}

/// An operation that was launched. Dropping it lets the operation go on.
#[must_use = "its result, and its buffer, come from `wait`"]
pub struct Pending<T> {
    life: Rc<Life>,
    launched: Launched<T>,
}

impl<T> Pending<T> {
    /// Whether it is done, well or not: [`wait`](Self::wait) returns at once then.
    pub fn test(&self) -> bool {
        self.launched.test()
    }

    /// Waits until it is done.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn wait(self) -> Result<T> {
        let result = self.launched.wait();
        self.life.outcome(result)
    }

    /// Gives the generation up, and with it this operation and all others: the world goes back to the last
    /// commit and forms again. A single operation cannot be taken back, since others may be in it already.
    pub fn abort(&self, reason: &str) {
        self.life.ended(End::Failed { peer: None, error: reason.to_owned() });
        self.launched.abort(reason);
    }
}
