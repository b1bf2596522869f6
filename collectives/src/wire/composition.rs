//! [`Composition`]: the parts of an operation's data, where its length alone does not say them. Ranks compare it with the
//! rest of the operation's signature, so that boundaries on which they disagree do not mix their data.

use std::fmt;

use crate::element::DataType;

/// The length of a [`Composition`] in a frame header, in bytes.
pub(super) const COMPOSITION_LENGTH: usize = 12;

/// The parts of one operation: several buffers that are reduced together, or the partial results of logical shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Composition {
    /// The number of buffers that are not empty.
    pub buffers: u32,
    /// The number of logical shards; zero where the contributions are those of ranks.
    pub shards: u32,
    /// Digest of the lengths and types of the buffers, in their order, and of the deal of the shards.
    pub digest: u32,
}

impl Composition {
    /// The composition of buffers that are reduced together, by their types and lengths in bytes. Buffers of each type are
    /// compared in their order, since that order decides what is summed; an empty buffer has nothing to be mixed up. None for
    /// a single buffer, which the signature describes.
    pub(crate) fn of_buffers(
        buffers: impl Iterator<Item = (DataType, usize)> + Clone,
    ) -> Option<Self> {
        let mut digest = PartsDigest::default();
        for data_type in DataType::ALL {
            digest.add(u64::from(data_type.code()));
            let of_type = buffers.clone().filter(|(of, _)| *of == data_type);
            of_type.for_each(|(_, length)| digest.add_buffer(length));
        }
        (digest.buffers > 1).then(|| digest.composition(0))
    }

    /// The composition of a reduction by logical shard: the first shard of each rank, with the number of shards at the end, and
    /// the lengths in bytes of the buffers of each shard.
    pub(crate) fn of_shards(starts: &[u32], buffers: impl Iterator<Item = usize>) -> Self {
        let mut digest = PartsDigest::default();
        starts.iter().for_each(|start| digest.add(u64::from(*start)));
        buffers.for_each(|length| digest.add_buffer(length));
        digest.composition(starts.last().copied().unwrap_or_default())
    }

    /// The way in which two compositions differ, for people; empty where they are equal.
    pub(crate) fn difference(self, other: Self) -> &'static str {
        let shards = self.shards > 0;
        if self == other {
            ""
        } else if self.shards != other.shards {
            "; the numbers of shards differ"
        } else if self.buffers != other.buffers {
            "; the numbers of buffers differ"
        } else if shards {
            "; the deals of the shards, or the lengths of the buffers, differ"
        } else {
            "; the lengths of the buffers, in their order, differ"
        }
    }

    pub(super) fn encode(self) -> [u8; COMPOSITION_LENGTH] {
        let mut bytes = [0; COMPOSITION_LENGTH];
        for (word, at) in [self.buffers, self.shards, self.digest].into_iter().zip((0..).step_by(4))
        {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Self {
        let word = |at| super::u32_at(bytes, at);
        Self { buffers: word(0), shards: word(4), digest: word(8) }
    }
}

impl fmt::Display for Composition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { buffers, shards, digest } = self;
        if *shards > 0 {
            write!(formatter, "{shards} shards, ")?;
        }
        write!(formatter, "{buffers} buffers, layout {digest:08x}")
    }
}

/// The digest of a sequence of numbers. It is the same on every machine, and protects against mistakes, not against malice: all
/// ranks have the key of their generation.
#[derive(Default)]
struct PartsDigest {
    buffers: u32,
    state: u64,
}

impl PartsDigest {
    fn add(&mut self, number: u64) {
        /// An odd number with as many ones as zeros: the golden ratio.
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (self.state.rotate_left(5) ^ number).wrapping_add(1).wrapping_mul(MULTIPLIER);
        self.state = mixed ^ mixed >> 32;
    }

    fn add_buffer(&mut self, length: usize) {
        if length > 0 {
            self.buffers = self.buffers.saturating_add(1);
            self.add(length as u64);
        }
    }

    fn composition(&self, shards: u32) -> Composition {
        let digest = (self.state ^ self.state >> 32) as u32;
        Composition { buffers: self.buffers, shards, digest }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn of(lengths: &[usize]) -> Option<Composition> {
        Composition::of_buffers(lengths.iter().map(|length| (DataType::F32, *length)))
    }

    #[test]
    fn other_boundaries_of_one_sum_have_other_digests() {
        let mut digests = BTreeSet::new();
        let mut count = 0;
        for first in 1..40 {
            for second in 1..40 {
                digests.insert(of(&[first, second, 200 - first - second]).map(|of| of.digest));
                count += 1;
            }
        }
        assert_eq!(digests.len(), count);
    }

    #[test]
    fn one_buffer_is_no_composition_and_an_empty_one_does_not_count() {
        assert_eq!(of(&[12]), None);
        assert_eq!(of(&[0, 12]), None);
        assert_eq!(of(&[4, 0, 8]), of(&[4, 8]));
        let [wide, narrow] = [(DataType::F64, 8), (DataType::U8, 3)];
        let mixed = |buffers: [_; 3]| Composition::of_buffers(buffers.into_iter());
        assert_eq!(mixed([wide, narrow, wide]), mixed([narrow, wide, wide]));
        assert_ne!(mixed([wide, narrow, wide]), mixed([(DataType::F64, 3), narrow, wide]));
    }
}
