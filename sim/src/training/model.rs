//! [`TrainedState`]: the state that simulated training functions train, and its required content at each place in the data.
//! Only the weights, and the counts of samples, follow from training itself. All else is a function of them, so that a part
//! from another moment than the rest shows. Used by `program` and `witness`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use elastic_collectives::DataType;
use elastic_worker::state::sampler::{permutation, shard_seed};
use elastic_worker::state::training::shaped::ShapedArray;
use serde::{Deserialize, Serialize};

use super::job::{DataAccess, TrainingJob};
use crate::dataset::{mix, sum_of_tree};

/// An array with two dimensions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TrainedTable {
    columns: usize,
    numbers: Vec<f32>,
}

impl ShapedArray for TrainedTable {
    fn data_type(&self) -> DataType {
        DataType::F32
    }

    fn shape(&self) -> Vec<usize> {
        vec![self.numbers.len() / self.columns.max(1), self.columns]
    }

    fn bytes(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.numbers.iter().flat_map(|number| number.to_ne_bytes()).collect())
    }

    fn from_bytes(data_type: DataType, shape: &[usize], bytes: &[u8]) -> Result<Self, String> {
        let (DataType::F32, [_, columns]) = (data_type, shape) else {
            return Err(format!("{data_type} of shape {shape:?}"));
        };
        let number = |bytes: &[u8]| bytes.try_into().map_or(f32::NAN, f32::from_ne_bytes);
        Ok(Self { columns: *columns, numbers: bytes.chunks_exact(4).map(number).collect() })
    }
}

/// A part of the model that is of one kind or another.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) enum TrainedLayer {
    #[default]
    Empty,
    Dense(Vec<f64>),
    Named {
        scale: Vec<f32>,
        count: u64,
    },
}

/// The state.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct TrainedState {
    label: String,
    pub(super) epoch: u64,
    pub(super) consumed: u64,
    pub(super) steps: u64,
    /// Number of callbacks that said that training goes on in another generation.
    pub(super) resets: u64,
    /// The sum of the samples' contributions (sampler).
    pub(super) sum: u64,
    /// The weights (shards).
    pub(super) weights: Vec<f64>,
    pub(super) counts: Vec<u32>,
    #[serde(with = "elastic_worker::state::training::bulk")]
    moments: Vec<f32>,
    #[serde(with = "elastic_worker::state::training::bulk")]
    counters: Vec<i64>,
    #[serde(with = "elastic_worker::state::training::bulk")]
    bulk: Vec<u8>,
    #[serde(with = "elastic_worker::state::training::shaped")]
    table: TrainedTable,
    layers: BTreeMap<String, TrainedLayer>,
    growing: Vec<f32>,
    last: Option<(u32, Vec<f64>)>,
    /// Follows from nothing: a planned fault flips a bit of it.
    pub(super) scratch: Vec<f32>,
    #[serde(with = "elastic_worker::state::training::per_rank")]
    pub(super) own: Vec<f32>,
}

/// Number of elements of `scratch`.
const SCRATCH: usize = 5;

/// A fraction between 0 and 1.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// Contribution of one sample in an epoch.
pub(super) fn contribution(job: &TrainingJob, epoch: u64, sample: u64) -> u64 {
    mix(mix(job.seed, epoch), sample)
}

/// The gradient of a shard: the result depends on its samples, its random stream, the weights, and on the order of additions.
pub(super) fn gradient(
    job: &TrainingJob,
    epoch: u64,
    samples: impl Iterator<Item = u64>,
    (weights, stream): (f64, u64),
) -> Vec<f64> {
    let mut sum = unit(stream) * 1e-3 + weights * 0.125;
    for sample in samples {
        let bits = contribution(job, epoch, sample);
        sum += unit(bits) * [1e-4, 1.0, 1e4][(bits % 3) as usize];
    }
    vec![sum, sum * 0.5]
}

impl TrainedState {
    pub(super) fn initial(job: &TrainingJob) -> Self {
        let (counts, weights) = (vec![0; job.samples], vec![0.0; 2]);
        let scratch = vec![0.5; SCRATCH];
        let own = if job.has_own_values { vec![0.0; 3] } else { Vec::new() };
        let mut state = Self { counts, weights, scratch, own, ..Self::default() };
        state.dress(job);
        state
    }

    /// Takes a step of gradients, as they were reduced.
    pub(super) fn descend(&mut self, gradient: &[f64]) {
        for (weight, gradient) in self.weights.iter_mut().zip(gradient) {
            *weight = *weight * 0.75 - gradient;
        }
    }

    /// Sets all that follows from the rest.
    pub(super) fn dress(&mut self, job: &TrainingJob) {
        let bits = mix(self.sum ^ self.weights.first().map_or(0, |it| it.to_bits()), self.steps);
        let number = |place: usize| unit(mix(bits, place as u64)) as f32;
        let many = |count: usize| (0..count).map(number).collect::<Vec<f32>>();
        let wide = |count: usize| (0..count).map(|place| f64::from(number(place))).collect();
        self.label = "x".repeat((bits % 9) as usize);
        self.moments = many(11);
        self.counters = (0..3).map(|place| mix(bits, place) as i64).collect();
        self.bulk = (0..job.bulk_bytes).map(|place| (bits >> (place % 57)) as u8).collect();
        self.table = TrainedTable { columns: 3, numbers: many(6) };
        self.growing = many((self.steps % 7) as usize);
        self.last = (self.steps % 2 == 1).then(|| (self.steps as u32, wide(2)));
        let dense = TrainedLayer::Dense(wide(1 + (self.steps % 3) as usize));
        let named = TrainedLayer::Named { scale: many(2), count: self.steps };
        self.layers = [("a.b".to_owned(), dense), ("a".to_owned(), named)].into_iter().collect();
        if self.steps % 5 == 4 {
            self.layers.insert(format!("l{}", self.steps % 11), TrainedLayer::Empty);
        }
    }

    /// Flips a bit that nothing else follows from.
    pub(super) fn corrupt(&mut self) {
        for number in self.scratch.iter_mut().take(1) {
            *number = f32::from_bits(number.to_bits() ^ 1);
        }
    }

    /// Its bytes, encoded without the product's code.
    pub(super) fn encoded(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }
}

/// Required state: the undisturbed run of one worker, computed without the product's sharing, folding and commits.
#[derive(Debug)]
pub(super) struct UndisturbedRun {
    job: TrainingJob,
    orders: Vec<Vec<u64>>,
    /// The weights after each step (shards).
    weights: Vec<Vec<f64>>,
}

impl UndisturbedRun {
    pub(super) fn new(job: &TrainingJob) -> Self {
        let samples = job.samples as u64;
        let order = |epoch| match job.order {
            Some(seed) => permutation(samples, seed, epoch),
            None => (0..samples).collect(),
        };
        let orders = (0..=job.epochs).map(order).collect();
        Self { job: job.clone(), orders, weights: vec![vec![0.0; 2]] }
    }

    /// The sample at a place of an epoch's order.
    fn sample(&self, epoch: u64, place: u64) -> Option<u64> {
        self.orders.get(epoch as usize)?.get(place as usize).copied()
    }

    fn samples(&self, epoch: u64, places: std::ops::Range<u64>) -> impl Iterator<Item = u64> + '_ {
        places.filter_map(move |place| self.sample(epoch, place))
    }

    /// The seed of the shards' random streams.
    fn plan_seed(&self) -> u64 {
        self.job.order.unwrap_or_default()
    }

    /// The weights after so many steps of the batch plan.
    fn weights_after(&mut self, steps: u64) -> Vec<f64> {
        let DataAccess::Shards { global_batch, shards, .. } = self.job.access else {
            return vec![0.0; 2];
        };
        let (length, shards) = (self.job.samples as u64, u64::from(shards));
        let of_epoch = length.div_ceil(global_batch);
        while self.weights.len() <= steps as usize {
            let step = self.weights.len() as u64 - 1;
            let (epoch, from) = (step / of_epoch, step % of_epoch * global_batch);
            let count = global_batch.min(length - from);
            let start = |shard: u64| {
                let (each, rest) = (count / shards, count % shards);
                from + shard * each + shard.min(rest)
            };
            let mut weights = self.weights.last().cloned().unwrap_or_default();
            let of = weights.first().copied().unwrap_or_default();
            let gradients: Vec<Vec<f64>> = (0..shards)
                .map(|shard| {
                    let stream = shard_seed(self.plan_seed(), epoch, from, shard as u32);
                    let samples = self.samples(epoch, start(shard)..start(shard + 1));
                    gradient(&self.job, epoch, samples, (of, stream))
                })
                .collect();
            for (place, weight) in weights.iter_mut().enumerate() {
                let leaves: Vec<f64> = gradients.iter().map(|gradient| gradient[place]).collect();
                *weight = *weight * 0.75 - sum_of_tree(&leaves);
            }
            self.weights.push(weights);
        }
        self.weights[steps as usize].clone()
    }

    /// The mistake in a state; none if it is right.
    pub(super) fn wrong_with(&mut self, state: &TrainedState) -> Option<String> {
        let job = self.job.clone();
        let (epoch, consumed) = (state.epoch, state.consumed);
        if epoch > job.epochs || consumed > job.samples as u64 {
            return Some(format!("it is at sample {consumed} of epoch {epoch}"));
        }
        let mut due = vec![epoch as u32; job.samples];
        self.samples(epoch, 0..consumed).for_each(|sample| due[sample as usize] += 1);
        if due != state.counts {
            let differ =
                (0..due.len()).find(|sample| state.counts.get(*sample) != Some(&due[*sample]));
            return Some(format!(
                "exactly once: sample {differ:?} counts {:?} at sample {consumed} of epoch {epoch}",
                differ.and_then(|sample| state.counts.get(sample))
            ));
        }
        match job.access {
            DataAccess::Sampler { .. } => {
                let mut sum = 0_u64;
                for of in 0..=epoch {
                    let end = if of < epoch { job.samples as u64 } else { consumed };
                    for sample in self.samples(of, 0..end) {
                        sum = sum.wrapping_add(contribution(&job, of, sample));
                    }
                }
                if sum != state.sum {
                    return Some(format!("weights: {} instead of {sum}", state.sum));
                }
            }
            DataAccess::Shards { global_batch, .. } => {
                let of_epoch = (job.samples as u64).div_ceil(global_batch);
                let steps = epoch * of_epoch + consumed.div_ceil(global_batch);
                let due = self.weights_after(steps);
                if steps != state.steps || due != state.weights {
                    return Some(format!(
                        "weights: {:?} after {} steps instead of {due:?} after {steps}",
                        state.weights, state.steps
                    ));
                }
            }
        }
        let mut dressed = state.clone();
        dressed.dress(&job);
        (dressed != *state).then(|| "its parts are not of one moment".to_owned())
    }
}
