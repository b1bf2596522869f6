//! The simulated data set: each sample's contribution to the weights, and the expected weights after any number of
//! samples. The oracle compares with it, so that no run without faults is needed.

use std::collections::BTreeMap;

use elastic_worker::state::sampler::{LedgerPlan, permutation, shard_seeds};

/// Number of epochs whose sums are kept. Older sums are computed again when a rollback needs them.
const EPOCHS_KEPT: usize = 8;

/// A data set, traversed epoch by epoch in the product sampler's order.
#[derive(Debug)]
pub(crate) struct SampleSet {
    length: u64,
    seed: u64,
    /// Sum of the contributions of the first n samples of an epoch's order, by n.
    sums: BTreeMap<u64, Vec<u64>>,
    /// Sum of all epochs before the one of this index.
    bases: Vec<u64>,
    /// The batch plan, if the job has shards; and then the weights of the undisturbed run after each step.
    plan: Option<LedgerPlan>,
    undisturbed: Vec<f64>,
    /// The seeds of the shards of the step that was asked for last, by epoch and place.
    streams: ((u64, u64), Vec<u64>),
}

impl SampleSet {
    pub(crate) fn new(length: u64, seed: u64, plan: Option<LedgerPlan>) -> Self {
        let (sums, bases, undisturbed) = (BTreeMap::new(), vec![0], vec![0.0]);
        Self { length, seed, sums, bases, plan, undisturbed, streams: ((0, 0), Vec::new()) }
    }

    /// The product's seed of a shard's random stream. Kept for the step that was asked for last: all ranks ask for it, and the
    /// oracle.
    pub(crate) fn stream(&mut self, epoch: u64, place: u64, shard: u32) -> u64 {
        let (of, known) = &mut self.streams;
        if *of != (epoch, place) {
            *of = (epoch, place);
            known.clear();
        }
        if known.len() <= shard as usize {
            let shards = self.plan.map_or(0, |plan| plan.shards).max(shard + 1) as usize;
            let missing = shards - known.len();
            known.extend(shard_seeds(self.seed, epoch, place, known.len() as u32).take(missing));
        }
        known[shard as usize]
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The contribution to the weights of the samples at these places of an epoch's order.
    pub(crate) fn contribution(&mut self, epoch: u64, from: u64, to: u64) -> u64 {
        let sums = self.sums(epoch);
        sums[to as usize].wrapping_sub(sums[from as usize])
    }

    /// A shard's gradient: of the samples from `from` to `to` of an epoch's order, at these weights, with noise of the shard's
    /// random stream. Its bits depend on all of them, and sums of such gradients on the order of addition.
    pub(crate) fn gradient(
        &mut self,
        epoch: u64,
        samples: (u64, u64),
        weights: f64,
        stream: u64,
    ) -> f64 {
        let unit = |bits: u64| (bits >> 11) as f64 / (1_u64 << 53) as f64;
        let (from, to) = samples;
        let mut sum = unit(stream) * 1e-3 + weights * 0.125;
        let sums = self.sums(epoch);
        for place in from..to {
            let sample = sums[place as usize + 1].wrapping_sub(sums[place as usize]);
            sum += unit(sample) * [1e-4, 1.0, 1e4][(sample % 3) as usize];
        }
        sum
    }

    /// The weights after a step with this gradient.
    pub(crate) fn stepped(weights: f64, gradient: f64) -> f64 {
        weights * 0.75 - gradient
    }

    /// The weights of the undisturbed run with one worker, whose shards are dealt and added up here without the product's
    /// code.
    fn undisturbed(&mut self, plan: LedgerPlan, epoch: u64, consumed: u64) -> u64 {
        let LedgerPlan { shards, global_batch } = plan;
        let steps = self.length.div_ceil(global_batch);
        let wanted = (epoch * steps + consumed.div_ceil(global_batch)) as usize;
        while self.undisturbed.len() <= wanted {
            let (step, before) = (self.undisturbed.len() as u64 - 1, self.undisturbed.len() - 1);
            let (epoch, from) = (step / steps, step % steps * global_batch);
            let count = global_batch.min(self.length - from);
            let weights = self.undisturbed[before];
            let gradients: Vec<f64> = (0..u64::from(shards))
                .map(|shard| {
                    let start = |shard: u64| {
                        let (each, rest) = (count / u64::from(shards), count % u64::from(shards));
                        from + shard * each + shard.min(rest)
                    };
                    let stream = self.stream(epoch, from, shard as u32);
                    self.gradient(epoch, (start(shard), start(shard + 1)), weights, stream)
                })
                .collect();
            self.undisturbed.push(Self::stepped(weights, sum_of_tree(&gradients)));
        }
        self.undisturbed[wanted].to_bits()
    }

    /// The weights after all epochs before `epoch` and its first `consumed` samples.
    pub(crate) fn weights(&mut self, epoch: u64, consumed: u64) -> u64 {
        if let Some(plan) = self.plan {
            return self.undisturbed(plan, epoch, consumed);
        }
        while self.bases.len() <= epoch as usize {
            let done = self.bases.len() - 1;
            let total = self.contribution(done as u64, 0, self.length);
            self.bases.push(self.bases[done].wrapping_add(total));
        }
        self.bases[epoch as usize].wrapping_add(self.contribution(epoch, 0, consumed))
    }

    fn sums(&mut self, epoch: u64) -> &[u64] {
        if !self.sums.contains_key(&epoch) {
            let mut sum = 0_u64;
            let mut sums = Vec::with_capacity(self.length as usize + 1);
            sums.push(0);
            for sample in permutation(self.length, self.seed, epoch) {
                sum = sum.wrapping_add(mix(mix(self.seed, epoch), sample));
                sums.push(sum);
            }
            if self.sums.len() >= EPOCHS_KEPT {
                self.sums.pop_first();
            }
            self.sums.insert(epoch, sums);
        }
        &self.sums[&epoch]
    }
}

/// The sum over the tree whose left part has the largest power of two below the whole.
pub(crate) fn sum_of_tree(leaves: &[f64]) -> f64 {
    match leaves {
        [leaf] => *leaf,
        _ => {
            let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
            sum_of_tree(left) + sum_of_tree(right)
        }
    }
}

/// Mixes two numbers into one (the finaliser of SplitMix64).
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(32) ^ b.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole() {
        let mut data = SampleSet::new(100, 7, None);
        let whole = data.weights(2, 30);
        let parts = data
            .weights(1, 0)
            .wrapping_add(data.contribution(1, 0, 60))
            .wrapping_add(data.contribution(1, 60, 100))
            .wrapping_add(data.contribution(2, 0, 30));
        assert_eq!(whole, parts);
        assert_ne!(data.contribution(0, 0, 30), data.contribution(1, 0, 30));
    }
}
