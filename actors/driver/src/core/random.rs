//! [`DriverRandom`]: the core's random numbers. Numbers on which decisions depend are drawn one at a time, and a recording
//! keeps them. No decision depends on the keys of generations: they are never recorded, and a replay has none. A part of
//! the core.

use std::collections::VecDeque;

use elastic_protocol::messages::GroupKey;
use rand::RngCore;
use rand_chacha::ChaCha8Rng;

/// The core's randomness.
#[derive(Clone, Debug)]
pub(crate) struct DriverRandom {
    source: RandomSource,
    /// Numbers drawn since they were last taken; none if they are not recorded.
    drawn: Option<Vec<u64>>,
}

#[derive(Clone, Debug)]
enum RandomSource {
    Generator(Box<ChaCha8Rng>),
    /// Numbers that a recorded core has drawn.
    Recorded(VecDeque<u64>),
}

impl Default for DriverRandom {
    /// Randomness of a core that is replayed.
    fn default() -> Self {
        Self { source: RandomSource::Recorded(VecDeque::new()), drawn: None }
    }
}

impl DriverRandom {
    pub(crate) fn new(generator: ChaCha8Rng) -> Self {
        Self { source: RandomSource::Generator(Box::new(generator)), drawn: None }
    }

    /// The key of a new generation. A replayed core has a key of zeros.
    pub(crate) fn key(&mut self) -> GroupKey {
        let mut key = [0; 32];
        if let RandomSource::Generator(generator) = &mut self.source {
            generator.fill_bytes(&mut key);
        }
        GroupKey(key)
    }

    /// Keeps the drawn numbers from now on.
    pub(crate) fn keep_drawn(&mut self) {
        self.drawn.get_or_insert_default();
    }

    /// The numbers drawn since the last call.
    pub(crate) fn take_drawn(&mut self) -> Vec<u64> {
        self.drawn.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Gives a replayed core the numbers that it is about to draw.
    pub(crate) fn give(&mut self, drawn: Vec<u64>) {
        self.source = RandomSource::Recorded(drawn.into());
    }
}

impl RngCore for DriverRandom {
    fn next_u32(&mut self) -> u32 {
        self.next_u64() as u32
    }

    fn next_u64(&mut self) -> u64 {
        let number = match &mut self.source {
            RandomSource::Generator(generator) => generator.next_u64(),
            // A core that draws more often than the recorded one has decided differently already.
            RandomSource::Recorded(numbers) => numbers.pop_front().unwrap_or_default(),
        };
        if let Some(drawn) = &mut self.drawn {
            drawn.push(number);
        }
        number
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_recording_keeps_what_decides_and_no_key() {
        let mut random = DriverRandom::new(ChaCha8Rng::seed_from_u64(7));
        random.next_u64();
        assert!(random.take_drawn().is_empty(), "nobody has asked for them");
        random.keep_drawn();
        let (key, drawn) = (random.key(), [random.next_u64(), random.next_u64()]);
        assert_ne!(key.0, [0; 32]);
        assert_eq!(random.take_drawn(), drawn);
        let mut replayed = DriverRandom::default();
        replayed.give(drawn.to_vec());
        assert_eq!([replayed.next_u64(), replayed.next_u64()], drawn);
        assert_eq!(replayed.key().0, [0; 32], "a recording has none");
    }
}
