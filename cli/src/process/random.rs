//! Randomness of the operating system, for seeds: the only source of differences between two runs of a process.

use rand::{RngCore as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// A generator with an unpredictable seed.
pub(crate) fn system_rng() -> ChaCha8Rng {
    ChaCha8Rng::from_os_rng()
}

/// A seed for a node's named streams.
pub(crate) fn system_seed() -> u64 {
    system_rng().next_u64()
}
