//! Batches for the training function: a data set, walked through as the sampler's ledger says.

use crate::state::sampler::{Course, Share, permutation, share};

use super::worker::Worker;

/// Samples that are found by their number.
pub trait Dataset {
    /// A sample.
    type Item<'a>
    where
        Self: 'a;

    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sample number `index`, which is below `len`.
    fn get(&self, index: usize) -> Self::Item<'_>;
}

impl<T> Dataset for [T] {
    type Item<'a>
        = &'a T
    where
        T: 'a;

    fn len(&self) -> usize {
        self.len()
    }

    fn get(&self, index: usize) -> &T {
        &self[index]
    }
}

impl<T, const LENGTH: usize> Dataset for [T; LENGTH] {
    type Item<'a>
        = &'a T
    where
        T: 'a;

    fn len(&self) -> usize {
        LENGTH
    }

    fn get(&self, index: usize) -> &T {
        &self[index]
    }
}

impl<T> Dataset for Vec<T> {
    type Item<'a>
        = &'a T
    where
        T: 'a;

    fn len(&self) -> usize {
        self.len()
    }

    fn get(&self, index: usize) -> &T {
        &self[index]
    }
}

impl<D: Dataset + ?Sized> Dataset for &D {
    type Item<'a>
        = D::Item<'a>
    where
        Self: 'a;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, index: usize) -> Self::Item<'_> {
        (**self).get(index)
    }
}

/// A number of samples whose content lies elsewhere: gives their indices.
impl Dataset for usize {
    type Item<'a> = Self;

    fn len(&self) -> usize {
        *self
    }

    fn get(&self, index: usize) -> Self {
        index
    }
}

/// Gives this rank's batches of one epoch; made by [`Worker::sampler`], walked through by `for`.
///
/// Every sample is given to one rank once an epoch, whatever happens to the world meanwhile (H-23): what a
/// commit, or an interrupt, has taken in is not given again, and what an abort undid is. Every rank gets
/// equally many batches. The last one of an epoch deals out evenly what is left, so it may be smaller, or
/// empty where fewer samples are left than there are ranks; see [`Batch::weight`].
#[must_use = "a sampler does nothing until it is walked through"]
pub struct Sampler<'a, D: ?Sized> {
    worker: &'a Worker,
    data: &'a D,
    batch_size: usize,
    epoch: u64,
    name: String,
    seed: Option<u64>,
}

impl<'a, D: Dataset + ?Sized> Sampler<'a, D> {
    pub(super) const fn new(
        worker: &'a Worker,
        data: &'a D,
        batch_size: usize,
        epoch: u64,
    ) -> Self {
        Self { worker, data, batch_size, epoch, name: String::new(), seed: Some(0) }
    }

    /// Seed of the order, which differs in each epoch. 0 if nothing is said.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Keeps the data set's own order, in every epoch.
    pub const fn in_order(mut self) -> Self {
        self.seed = None;
        self
    }

    /// Tells this walk from another one through a data set of the same length and seed, whose place would
    /// be taken for this one's.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

impl<'a, D: Dataset + ?Sized> IntoIterator for Sampler<'a, D> {
    type Item = Batch<'a, D>;
    type IntoIter = Batches<'a, D>;

    fn into_iter(self) -> Batches<'a, D> {
        let length = self.data.len() as u64;
        let order = self.seed.map(|seed| permutation(length, seed, self.epoch));
        Batches {
            course: Course { name: self.name, length, seed: self.seed },
            worker: self.worker,
            data: self.data,
            batch_size: self.batch_size as u64,
            epoch: self.epoch,
            order,
        }
    }
}

/// The batches of one epoch that are left.
pub struct Batches<'a, D: ?Sized> {
    worker: &'a Worker,
    data: &'a D,
    batch_size: u64,
    epoch: u64,
    course: Course,
    order: Option<Vec<u64>>,
}

impl<D: ?Sized> Batches<'_, D> {
    fn next_share(&self) -> Option<Share> {
        let consumed = self.worker.ledger().borrow().consumed(&self.course, self.epoch);
        let (size, rank) = (self.worker.size(), self.worker.rank());
        share(consumed, self.course.length, self.batch_size, size, rank)
    }
}

impl<'a, D: Dataset + ?Sized> Iterator for Batches<'a, D> {
    type Item = Batch<'a, D>;

    fn next(&mut self) -> Option<Batch<'a, D>> {
        let share = self.next_share()?;
        self.worker.draw();
        self.worker.ledger().borrow_mut().advance(&self.course, self.epoch, share.global.end);
        let at = |place: u64| match &self.order {
            Some(order) => order[place as usize] as usize,
            None => place as usize,
        };
        Some(Batch {
            data: self.data,
            indices: share.local.clone().map(at).collect(),
            global_len: (share.global.end - share.global.start) as usize,
            weight: share.weight(self.worker.size()),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.next_share().map_or(0, |share| self.course.length - share.global.start);
        let step = self.batch_size.max(1).saturating_mul(u64::from(self.worker.size()));
        let steps = left.div_ceil(step) as usize;
        (steps, Some(steps))
    }
}

/// This rank's part of one step.
pub struct Batch<'a, D: ?Sized> {
    data: &'a D,
    indices: Vec<usize>,
    global_len: usize,
    weight: f32,
}

impl<'a, D: Dataset + ?Sized> Batch<'a, D> {
    /// How many samples this rank has; 0 is possible in the last step of an epoch.
    pub const fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether this rank has none. It still takes part in the step's collectives.
    pub const fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// How many samples all ranks have together.
    pub const fn global_len(&self) -> usize {
        self.global_len
    }

    /// The numbers of this rank's samples in the data set.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// By how much a mean over this batch must be multiplied so that `all_reduce` with `Mean` gives the mean
    /// over all samples of the step: `len × world size ÷ global_len`. It is 1 but in the last step of an
    /// epoch, where some ranks may have fewer samples than others; 0 for an empty batch.
    pub const fn weight(&self) -> f32 {
        self.weight
    }

    /// The samples.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = D::Item<'a>> + '_ {
        self.indices.iter().map(|index| self.data.get(*index))
    }
}
