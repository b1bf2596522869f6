//! The simulated data set: each sample's contribution to the weights, and the expected weights after any number of
//! samples. The oracle compares with it, so that no run without faults is needed.

use std::collections::BTreeMap;

use elastic_worker::state::sampler::permutation;

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
}

impl SampleSet {
    pub(crate) fn new(length: u64, seed: u64) -> Self {
        Self { length, seed, sums: BTreeMap::new(), bases: vec![0] }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The contribution to the weights of the samples at these places of an epoch's order.
    pub(crate) fn contribution(&mut self, epoch: u64, from: u64, to: u64) -> u64 {
        let sums = self.sums(epoch);
        sums[to as usize].wrapping_sub(sums[from as usize])
    }

    /// The weights after all epochs before `epoch` and its first `consumed` samples.
    pub(crate) fn weights(&mut self, epoch: u64, consumed: u64) -> u64 {
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
        let mut data = SampleSet::new(100, 7);
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
