//! Named random streams: one seed per node, as many independent streams as it needs. A stream is named,
//! so a draw that is added in one place does not shift the numbers that another place sees.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The stream `name`, `index` of a seed. The key of ChaCha8 is the seed, the index and the
/// name (its FNV-1a hash and length).
pub fn stream(seed: u64, name: &str, index: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&index.to_le_bytes());
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    key[16..24].copy_from_slice(&hash.to_le_bytes());
    key[24..].copy_from_slice(&(name.len() as u64).to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

#[cfg(test)]
mod tests {
    use rand::RngCore;

    use super::*;

    #[test]
    fn streams_repeat_and_differ() {
        let first = |seed, name, index| stream(seed, name, index).next_u64();
        assert_eq!(first(1, "net", 0), first(1, "net", 0));
        let all = [first(1, "net", 0), first(2, "net", 0), first(1, "disk", 0), first(1, "net", 1)];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "two streams begin alike");
        }
    }
}
