//! `Group`: ranks that call collectives together, as training code sees them. A [`Worker`](super::Worker) is the
//! group of all ranks of its generation; [`Group::split`] makes smaller ones.

use std::rc::Rc;

use elastic_collectives::{
    AsyncCommunicator, CollectiveError, Communicator, CommunicatorExt, Element, Launched,
    ProgressThread, ReduceOp, ShardDeal, WatchedGroup,
};

use super::error::{Error, Result};
use super::life::{Blame, GenerationEnd, GenerationLife};

/// Ranks that call collectives together. All of them make the same calls in the same order; a call blocks, and
/// ends within milliseconds when the generation does.
pub struct Group {
    life: Rc<GenerationLife>,
    communicator: AsyncCommunicator,
    progress: ProgressThread,
    watch: Option<WatchedGroup>,
    /// The driver's number of shards for each rank, empty if even; none in a part of the world, where shards are dealt evenly.
    shard_counts: Option<Vec<u32>>,
}

impl Group {
    /// The group of all ranks, over their communicator.
    pub(super) fn new(
        life: Rc<GenerationLife>,
        communicator: AsyncCommunicator,
        progress: &ProgressThread,
        shard_counts: Vec<u32>,
    ) -> Self {
        let watch = life.control().map(|control| control.shared().operations().over_all());
        let (shard_counts, progress) = (Some(shard_counts), progress.clone());
        Self { watch, life, communicator, progress, shard_counts }
    }

    /// This worker's number in the group, from 0.
    pub fn rank(&self) -> u32 {
        self.communicator.rank()
    }

    /// The number of workers in the group.
    pub fn size(&self) -> u32 {
        self.communicator.world_size()
    }

    /// Makes sub-groups (process sets): one for each `colour`. Their ranks are ordered by `key`, and for equal
    /// keys by the rank in this group. Every rank of this group calls it. A rank that gives no colour is in no
    /// sub-group.
    ///
    /// A sub-group ends with the generation. Make it anew in each generation. Its errors name the ranks of the whole generation.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn split(&self, colour: Option<u32>, key: i32) -> Result<Option<Self>> {
        let group = self.call(|group| group.split(colour, key))?;
        let part = |(group, colour): (Box<dyn Communicator>, u32)| {
            let ranks = group.world_size();
            let watch = self.watch.as_ref().map(|watch| watch.over_part(colour, ranks));
            let (life, progress) = (Rc::clone(&self.life), self.progress.clone());
            let communicator =
                AsyncCommunicator::watched(group, life.abort(), &progress, watch.clone());
            Self { watch, life, communicator, progress, shard_counts: None }
        };
        Ok(group.zip(colour).map(part))
    }

    /// The logical shards, out of `total`, that this rank has in
    /// [`all_reduce_shards`](Self::all_reduce_shards).
    pub fn own_shards(&self, total: u32) -> std::ops::Range<u32> {
        self.shard_deal(total).of(self.rank())
    }

    /// Deal of `total` logical shards to the ranks: the driver's, or an even one if the driver gave none. It stays the
    /// same for the life of the group.
    pub fn shard_deal(&self, total: u32) -> ShardDeal {
        let deal = ShardDeal::of_job(total, self.size(), self.shard_counts());
        if self.shard_counts.is_some() {
            self.carry_shards(deal.of(self.rank()).len() as u32);
        }
        deal
    }

    /// The driver's number of shards for each rank; empty if even.
    pub(super) fn shard_counts(&self) -> &[u32] {
        self.shard_counts.as_deref().unwrap_or_default()
    }

    /// Notes that this rank carries so many logical shards in each step: the driver compares ranks by it.
    pub(super) fn carry_shards(&self, shards: u32) {
        if let Some(control) = self.life.control() {
            control.shared().carry_shards(shards);
        }
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

    /// Puts the `input` of every rank into `output`, in the order of ranks; `output` is [`size`](Self::size)
    /// times as long.
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

    /// Replaces `root`'s `data` by the reduction of all ranks' `data`. The other ranks' stays as it is.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce<E: Element>(&self, data: &mut [E], op: ReduceOp, root: u32) -> Result<()> {
        self.call(|group| group.reduce(data, op, root))
    }

    /// Puts the `input` of every rank into `root`'s `output`, in the order of ranks. The other ranks give no output.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn gather<E: Element>(
        &self,
        input: &[E],
        output: Option<&mut [E]>,
        root: u32,
    ) -> Result<()> {
        self.call(|group| group.gather(input, output, root))
    }

    /// Puts part r of `root`'s `input` into rank r's `output`. The other ranks give no input.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn scatter<E: Element>(
        &self,
        input: Option<&[E]>,
        output: &mut [E],
        root: u32,
    ) -> Result<()> {
        self.call(|group| group.scatter(input, output, root))
    }

    /// Replaces `data` by that of `root`. The other ranks need not know its length. A length above `maximum_bytes` is
    /// refused before memory is allocated for it.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn broadcast_vec(&self, data: &mut Vec<u8>, root: u32, maximum_bytes: usize) -> Result<()> {
        self.call(|group| group.broadcast_vec(data, root, maximum_bytes))
    }

    /// Sends part r of `input` to rank r, and puts the part that comes from rank r into part r of `output`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_to_all<E: Element>(&self, input: &[E], output: &mut [E]) -> Result<()> {
        self.call(|group| group.all_to_all(input, output))
    }

    /// As [`all_to_all`](Self::all_to_all), where `input_counts[r]` elements go to rank r and
    /// `output_counts[r]` come from it.
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

    /// Sends to one rank, which receives with [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn send<E: Element>(&self, data: &[E], to: u32) -> Result<()> {
        self.call(|group| group.send(data, to))
    }

    /// Receives the data that `from` sends, in the order of sending.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn recv<E: Element>(&self, data: &mut [E], from: u32) -> Result<()> {
        self.call(|group| group.recv(data, from))
    }

    /// Replaces each of `buffers` by its reduction over all ranks, with the bits of
    /// [`all_reduce`](Self::all_reduce); small buffers are reduced together, which is faster for many small
    /// gradients.
    ///
    /// All ranks give the buffers in one order. Their lengths are compared, so that ranks whose buffers have other boundaries get an
    /// error, and no sum. Buffers of one length that have changed places cannot be told from each other: take them from a
    /// `BTreeMap`, whose order is that of its keys, and not from a `HashMap`, whose order is another one in each process. A rank
    /// without buffers, or with empty ones alone, takes part as well, and gets the error where others have some.
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

    /// Replaces `output` by the reduction of `total` logical shards, over a fixed tree of their numbers. The result
    /// has the same bits in a world of any size. `shards` are those of [`own_shards`](Self::own_shards), each as
    /// long as `output`. [`Worker::shards`](super::Worker::shards) deals the data out as well. Ranks that differ in `total` get an
    /// error, and no sum.
    ///
    /// ```text
    /// let gradients: Vec<Vec<f32>> = worker.own_shards(8).map(|shard| gradient(&batch, shard)).collect();
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
        let deal = self.shard_deal(total);
        self.call(|group| group.all_reduce_shards(shards, &deal, output, op))
    }

    /// As [`all_reduce_shards`](Self::all_reduce_shards), of several buffers at once, each with the bits that it has alone: of each
    /// of this rank's shards, one contribution to each of `outputs`, in their order. For many small gradients that is faster than
    /// one by one. All ranks give the buffers in one order, as in [`all_reduce_many`](Self::all_reduce_many).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_shards_many<E: Element>(
        &self,
        shards: &[&[&[E]]],
        total: u32,
        outputs: &mut [&mut [E]],
        op: ReduceOp,
    ) -> Result<()> {
        let deal = self.shard_deal(total);
        self.call(|group| group.all_reduce_shards_many(shards, &deal, outputs, op))
    }

    /// Makes any calls on the communicator, as bytes or typed, after all operations that were launched before.
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

    /// Launches calls on the communicator beside this thread. They run after all operations that were launched
    /// before, on this group or another. The order of launches must be the same on every rank.
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

    /// The communicator itself. Its failures must be reported with [`failed`](Self::failed).
    pub const fn communicator(&self) -> &AsyncCommunicator {
        &self.communicator
    }

    /// Takes the failure of an operation on [`communicator`](Self::communicator), which may end the generation.
    /// Returns the error for the training function.
    pub fn failed(&self, error: CollectiveError) -> Error {
        self.life.failed(error)
    }

    /// Leaves the group in good order, after all launched operations.
    pub(super) fn close(&self) {
        self.communicator.call(|group| group.close());
    }
}

/// An operation that was launched. Dropping it lets the operation go on.
#[must_use = "its result, and its buffer, come from `wait`"]
pub struct Pending<T> {
    life: Rc<GenerationLife>,
    launched: Launched<T>,
}

impl<T> Pending<T> {
    /// Whether the operation is done, with success or not: [`wait`](Self::wait) then returns at once.
    pub fn test(&self) -> bool {
        self.launched.test()
    }

    /// Waits until the operation is done.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn wait(self) -> Result<T> {
        let result = self.launched.wait();
        self.life.outcome(result)
    }

    /// Aborts the generation, and with it this operation and all others: all ranks roll back to the last commit
    /// and form again. A single operation cannot be cancelled, since other ranks may be in it already.
    pub fn abort(&self, reason: &str) {
        self.life.ended(GenerationEnd::Failed { blame: Blame::Unknown, error: reason.to_owned() });
        self.launched.abort(reason);
    }
}
