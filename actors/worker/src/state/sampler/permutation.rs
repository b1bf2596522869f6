//! The order of an epoch's samples. Used by `training`'s sampler.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;

/// The order of `length` samples in an epoch: Fisher and Yates's shuffle (Knuth, TAOCP 2, 3.4.2, algorithm
/// P) on ChaCha8, keyed by `seed`, with the epoch as its stream. The same on every machine.
pub fn permutation(length: u64, seed: u64, epoch: u64) -> Vec<u64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(epoch);
    let mut order: Vec<u64> = (0..length).collect();
    for last in (1..order.len()).rev() {
        // Lemire's multiply-shift; its bias is below length / 2^64.
        let wide = u128::from(random.next_u64()) * (last as u128 + 1);
        order.swap(last, (wide >> 64) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_has_one_place() {
        let mut order = permutation(1_000, 3, 4);
        order.sort_unstable();
        assert!(order.iter().copied().eq(0..1_000));
    }

    #[test]
    fn seed_and_epoch_decide_it_alone() {
        assert_eq!(permutation(50, 1, 2), permutation(50, 1, 2));
        assert_ne!(permutation(50, 1, 2), permutation(50, 1, 3));
        assert_ne!(permutation(50, 1, 2), permutation(50, 2, 2));
        assert_eq!(permutation(6, 0, 0), [3, 1, 0, 5, 2, 4], "an order once given stays");
    }
}
