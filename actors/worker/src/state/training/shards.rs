//! `ShardedSteps`: a data set by a batch plan. A step's global batch is fixed, its logical shards are dealt to the
//! ranks, and their gradients are folded over the shards. The result of training therefore does not depend on the world
//! size. Made by [`Worker::shards`].

use std::ops::Range;
use std::rc::Rc;

use elastic_collectives::{Element, ReduceOp, ShardDeal, ShardFold};

use super::batches::{Dataset, EpochOrder};
use super::error::Result;
use super::walked::PassUnderWay;
use super::worker::Worker;
use crate::state::sampler::{DataPass, LedgerPlan, shard_seed, share_of_global};

/// A batch plan: the samples of a step and their logical shards, which stay for the life of a job.
///
/// ```
/// # use elastic_worker::state::training as elastic_node;
/// use elastic_node::BatchPlan;
///
/// let plan = BatchPlan::new(256).shards(8).seed(7);
/// ```
#[derive(Clone, Debug)]
pub struct BatchPlan {
    global_batch: u64,
    shards: Option<u32>,
    seed: u64,
    is_in_order: bool,
    name: String,
}

impl BatchPlan {
    /// A plan whose steps have `global_batch` samples, on all ranks together. The last step of an epoch has the samples
    /// that are left.
    pub const fn new(global_batch: u64) -> Self {
        Self { global_batch, shards: None, seed: 0, is_in_order: false, name: String::new() }
    }

    /// Sets the number of logical shards, at least as large as any world. Default: the driver's `--shards`.
    pub const fn shards(mut self, shards: u32) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Sets the seed of the order, which differs in each epoch, and of the shards' random streams. Default: 0.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Keeps the data set's own order, in every epoch. A second pass under the same epoch number and name has no steps.
    pub const fn in_order(mut self) -> Self {
        self.is_in_order = true;
        self
    }

    /// Names the pass. Needed if there is another pass under the same epoch number through a data set of the same length: they would
    /// be one pass, whose samples are given once.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

/// The remaining steps of an epoch. Every rank makes equally many.
///
/// Every sample is in one shard of one step once an epoch, even if the world changes meanwhile. Samples that a commit
/// or an interrupt has kept are not given again; samples that an abort undid are, in the same steps and shards. A step that was
/// drawn counts as done at the next commit, so one that is drawn ahead is lost if a worker is lost before it is trained.
#[must_use = "steps do nothing until they are walked through"]
pub struct ShardedSteps<'a, D: ?Sized> {
    worker: &'a Worker,
    data: &'a D,
    pass: Rc<PassUnderWay>,
    plan: LedgerPlan,
    seed: u64,
    deal: Rc<ShardDeal>,
    order: EpochOrder,
    /// Whether the epoch's last step was given. The ledger may have forgotten the pass since.
    gave_last: bool,
}

impl<'a, D: Dataset + ?Sized> ShardedSteps<'a, D> {
    pub(super) fn new(
        worker: &'a Worker,
        data: &'a D,
        plan: &BatchPlan,
        epoch: u64,
    ) -> Result<Self> {
        let BatchPlan { global_batch, shards, seed, is_in_order, name } = plan.clone();
        let plan = LedgerPlan::new(global_batch, shards, worker.job_shards(), worker.size())?;
        let length = data.len() as u64;
        let of_order = (!is_in_order).then_some(seed);
        let course = DataPass { name, length, seed: of_order, plan: Some(plan) };
        worker.ledger().borrow().check_plan(&course)?;
        let pass = worker.begin_pass(course, epoch)?;
        let order = EpochOrder::new(length, of_order, epoch);
        let deal = Rc::new(worker.shard_deal(plan.shards));
        Ok(Self { worker, data, pass, plan, seed, deal, order, gave_last: false })
    }

    fn consumed(&self) -> u64 {
        self.worker.place_of(&self.pass, self.gave_last)
    }
}

impl<'a, D: Dataset + ?Sized> Iterator for ShardedSteps<'a, D> {
    type Item = ShardedStep<'a, D>;

    fn next(&mut self) -> Option<ShardedStep<'a, D>> {
        let LedgerPlan { shards, global_batch } = self.plan;
        let (consumed, length) = (self.consumed(), self.pass.course.length);
        let Some(share) = share_of_global(consumed, length, global_batch, shards, 0) else {
            self.worker.end_pass(&self.pass);
            return None;
        };
        let global = share.global;
        self.worker.draw(&self.pass, None, global.end);
        self.gave_last = global.end >= length;
        Some(ShardedStep {
            worker: self.worker,
            data: self.data,
            plan: self.plan,
            epoch: self.pass.epoch,
            seed: self.seed,
            length,
            deal: Rc::clone(&self.deal),
            order: self.order.clone(),
            global,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.pass.course.length.saturating_sub(self.consumed());
        let steps = left.div_ceil(self.plan.global_batch) as usize;
        (steps, Some(steps))
    }
}

/// One step of a batch plan, as this rank sees it.
pub struct ShardedStep<'a, D: ?Sized> {
    worker: &'a Worker,
    data: &'a D,
    plan: LedgerPlan,
    epoch: u64,
    seed: u64,
    length: u64,
    deal: Rc<ShardDeal>,
    order: EpochOrder,
    /// The step's places in the epoch's order.
    global: Range<u64>,
}

impl<'a, D: Dataset + ?Sized> ShardedStep<'a, D> {
    /// The number of samples of all shards together.
    pub const fn global_len(&self) -> usize {
        (self.global.end - self.global.start) as usize
    }

    /// This rank's shards of the step, in order. At least one.
    pub fn shards(&self) -> impl Iterator<Item = DataShard<'a, D>> + '_ {
        self.deal.of(self.worker.rank()).map(|number| self.shard(number))
    }

    /// Reduces the results of `compute` for all shards, over a fixed tree of the shards. Every rank receives the same
    /// result, with the same bits in a world of any size. All results are of one length.
    ///
    /// `compute` is called for this rank's shards in order. Its result must depend on its shard alone: not on the rank,
    /// the world, or the shards before. A mean over the shard's samples times [`DataShard::weight`], reduced with
    /// [`ReduceOp::Mean`], is the mean over all samples of the step.
    ///
    /// ```text
    /// let gradient = step.all_reduce(ReduceOp::Mean, |shard| Ok(model.gradient(shard.iter(), shard.weight())))?;
    /// ```
    ///
    /// # Errors
    /// Those of `compute`, and those of [`Group::all_reduce`](super::Group::all_reduce).
    pub fn all_reduce<E: Element>(
        &self,
        op: ReduceOp,
        mut compute: impl FnMut(&DataShard<'a, D>) -> Result<Vec<E>>,
    ) -> Result<Vec<E>> {
        let mut fold = ShardFold::new(&self.deal, self.worker.rank(), op);
        let mut output = Vec::new();
        for shard in self.shards() {
            let part = compute(&shard)?;
            output.resize(part.len(), E::zeroed());
            self.worker.call(|_| fold.add(part))?;
        }
        self.worker.call(|group| fold.all_reduce(group, &self.deal, &mut output))?;
        Ok(output)
    }

    fn shard(&self, number: u32) -> DataShard<'a, D> {
        let LedgerPlan { shards, global_batch } = self.plan;
        let place = self.global.start;
        let share = share_of_global(place, self.length, global_batch, shards, number);
        let (indices, weight) = share.map_or((Vec::new(), 0.0), |share| {
            (self.order.indices(share.local.clone()), share.weight(shards))
        });
        let seed = shard_seed(self.seed, self.epoch, place, number);
        DataShard { data: self.data, number, indices, weight, seed }
    }
}

/// One logical shard of a step: its samples, and the seed of its random stream.
pub struct DataShard<'a, D: ?Sized> {
    data: &'a D,
    number: u32,
    indices: Vec<usize>,
    weight: f32,
    seed: u64,
}

impl<'a, D: Dataset + ?Sized> DataShard<'a, D> {
    /// Its number, from 0.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// The number of its samples; 0 is possible in the last step of an epoch.
    pub const fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether it has no samples. It still takes part in the step's reductions.
    pub const fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// The indices of its samples in the data set.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// The factor for a mean over this shard, such that the mean over shards is the mean over all samples of the step:
    /// `len × shards ÷ global_len`. It is 1 where the shards divide the batch.
    pub const fn weight(&self) -> f32 {
        self.weight
    }

    /// The samples.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = D::Item<'a>> + '_ {
        self.indices.iter().map(|index| self.data.get(*index))
    }

    /// The seed of this shard's random stream in this step, for dropout and the like: a function of the plan's seed, the
    /// epoch, the step and the shard, and of nothing else.
    pub const fn seed(&self) -> u64 {
        self.seed
    }
}
