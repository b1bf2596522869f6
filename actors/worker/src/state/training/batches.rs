//! Batches for the training function: `Sampler` goes through a data set from the place that the ledger holds.

use std::ops::Range;
use std::rc::Rc;

use crate::state::sampler::{DataPass, StepShare, permutation, share};

use super::walked::PassUnderWay;
use super::worker::Worker;

/// Samples, addressed by index.
pub trait Dataset {
    /// A sample.
    type Item<'a>
    where
        Self: 'a;

    /// The number of samples.
    fn len(&self) -> usize;

    /// Whether the data set is empty.
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

/// A data set of so many samples whose content lies elsewhere: its items are the indices.
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
/// Every sample is given to one rank once an epoch, even if the world changes meanwhile (H-23). Samples that a commit
/// or an interrupt has kept are not given again; samples that an abort undid are. Every rank gets equally many batches.
/// The last batch of an epoch holds an even share of the remaining samples, so it may be smaller, or empty if fewer
/// samples are left than there are ranks; see [`Batch::weight`].
///
/// A batch that was drawn counts as done at the next commit, so one that is drawn ahead (`peekable()`, `collect()`) is lost if a
/// worker is lost before it is trained; see [`Worker::sampler`].
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

    /// Sets the seed of the order, which differs in each epoch. Default: 0.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Keeps the data set's own order, in every epoch. A validation that is repeated needs another epoch number each time, or a
    /// name by its count: a second pass under the same ones has no samples.
    pub const fn in_order(mut self) -> Self {
        self.seed = None;
        self
    }

    /// Names this pass. Needed if there is another pass under the same epoch number through a data set of the same length and seed:
    /// they would be one pass, whose samples are given once.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

impl<'a, D: Dataset + ?Sized> IntoIterator for Sampler<'a, D> {
    type Item = Batch<'a, D>;
    type IntoIter = Batches<'a, D>;

    /// Begins the pass, or goes on with it.
    ///
    /// # Panics
    /// 1024 other passes are unfinished, and none of them can give way: the ledger, and so each commit, holds no more. The
    /// message names the limit and the way out.
    fn into_iter(self) -> Batches<'a, D> {
        let length = self.data.len() as u64;
        let order = EpochOrder::new(length, self.seed, self.epoch);
        let course = DataPass { name: self.name, length, seed: self.seed, plan: None };
        let pass = match self.worker.begin_pass(course, self.epoch) {
            Ok(pass) => pass,
            Err(error) => panic!("{error}"),
        };
        Batches {
            pass,
            worker: self.worker,
            data: self.data,
            batch_size: self.batch_size as u64,
            order,
            gave_last: false,
        }
    }
}

/// The order of an epoch's samples: drawn, or the data set's own. Copies share it.
#[derive(Clone, Debug)]
pub(super) struct EpochOrder(Option<Rc<[u64]>>);

impl EpochOrder {
    /// Without a seed, the data set's own order.
    pub(super) fn new(length: u64, seed: Option<u64>, epoch: u64) -> Self {
        Self(seed.map(|seed| permutation(length, seed, epoch).into()))
    }

    /// The samples at these places.
    pub(super) fn indices(&self, places: Range<u64>) -> Vec<usize> {
        let at = |place: u64| match &self.0 {
            Some(order) => order[place as usize] as usize,
            None => place as usize,
        };
        places.map(at).collect()
    }
}

/// The remaining batches of an epoch.
pub struct Batches<'a, D: ?Sized> {
    worker: &'a Worker,
    data: &'a D,
    batch_size: u64,
    pass: Rc<PassUnderWay>,
    order: EpochOrder,
    /// Whether the epoch's last batch was given. The ledger may have forgotten the pass since.
    gave_last: bool,
}

impl<D: ?Sized> Batches<'_, D> {
    fn next_share(&self) -> Option<StepShare> {
        let consumed = self.worker.place_of(&self.pass, self.gave_last);
        let (size, rank) = (self.worker.size(), self.worker.rank());
        share(consumed, self.pass.course.length, self.batch_size, size, rank)
    }
}

impl<'a, D: Dataset + ?Sized> Iterator for Batches<'a, D> {
    type Item = Batch<'a, D>;

    fn next(&mut self) -> Option<Batch<'a, D>> {
        let Some(share) = self.next_share() else {
            self.worker.end_pass(&self.pass);
            return None;
        };
        self.worker.draw(&self.pass, Some(self.batch_size), share.global.end);
        self.gave_last = share.global.end >= self.pass.course.length;
        Some(Batch {
            data: self.data,
            indices: self.order.indices(share.local.clone()),
            global_len: (share.global.end - share.global.start) as usize,
            weight: share.weight(self.worker.size()),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left =
            self.next_share().map_or(0, |share| self.pass.course.length - share.global.start);
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
    /// The number of this rank's samples; 0 is possible in the last step of an epoch.
    pub const fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether this rank has no samples. It still takes part in the step's collectives.
    pub const fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// The number of samples of all ranks together.
    pub const fn global_len(&self) -> usize {
        self.global_len
    }

    /// The indices of this rank's samples in the data set.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// The factor for a mean over this batch, such that `all_reduce` with `Mean` gives the mean over all
    /// samples of the step: `len × world size ÷ global_len`. It is 1 except in the last step of an epoch, where
    /// some ranks may have fewer samples than others; 0 for an empty batch.
    pub const fn weight(&self) -> f32 {
        self.weight
    }

    /// The samples.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = D::Item<'a>> + '_ {
        self.indices.iter().map(|index| self.data.get(*index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_set_has_the_length_and_the_samples_of_what_it_is_made_of() {
        let (array, list) = ([1_u8, 2, 3], vec![4_u8, 5]);
        let (slice, borrowed) = (&array[1..], &list);
        assert_eq!((Dataset::len(&array), Dataset::get(&array, 2)), (3, &3));
        assert_eq!((Dataset::len(&list), Dataset::get(&list, 1)), (2, &5));
        assert_eq!((Dataset::len(slice), Dataset::get(slice, 1)), (2, &3));
        assert_eq!((Dataset::len(&borrowed), Dataset::get(&borrowed, 0)), (2, &4));
        assert_eq!((Dataset::len(&5_usize), Dataset::get(&5_usize, 3)), (5, 3));
    }
}
