//! The words of an operation, published beside the step, so that a reader of the step has them too. All ranks of a group
//! have done the same operations before, so they need neither number nor generation. Used by the session.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::RankLine;
use crate::element::DataType;
use crate::reduce::ReduceOp;
use crate::wire::{Composition, OperationKind, OperationSignature};

const BYTES_BITS: u32 = 42;
const ROOT_BITS: u32 = 10;
const OP_BITS: u32 = 3;
const TYPE_BITS: u32 = 4;

const ROOT_AT: u32 = BYTES_BITS;
const OP_AT: u32 = ROOT_AT + ROOT_BITS;
const TYPE_AT: u32 = OP_AT + OP_BITS;
const KIND_AT: u32 = TYPE_AT + TYPE_BITS;

/// The code in place of a root of an operation that has a composition. Ranks of the largest world have lower codes.
const COMPOSED: u64 = (1 << ROOT_BITS) - 1;

/// An operation as words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BriefWords {
    /// Kind and arguments; never zero.
    pub(super) brief: u64,
    /// The composition; zero where there is none.
    composition: [u64; 2],
}

impl BriefWords {
    /// Publishes the words with the rank's next step.
    pub(super) fn store(self, line: &RankLine) {
        line.brief.store(self.brief, Ordering::Relaxed);
        if is_composed(self.brief) {
            store(&line.composition, self.composition);
        }
    }

    /// The words that a rank has published with a step at which it has arrived.
    pub(super) fn load(line: &RankLine) -> BriefWords {
        let brief = line.brief.load(Ordering::Relaxed);
        let of = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let composition =
            if is_composed(brief) { line.composition.each_ref().map(of) } else { [0; 2] };
        BriefWords { brief, composition }
    }
}

fn store(words: &[AtomicU64; 2], values: [u64; 2]) {
    for (word, value) in words.iter().zip(values) {
        word.store(value, Ordering::Relaxed);
    }
}

fn field(word: u64, at: u32, bits: u32) -> u64 {
    word >> at & ((1 << bits) - 1)
}

fn is_composed(brief: u64) -> bool {
    field(brief, ROOT_AT, ROOT_BITS) == COMPOSED
}

/// Encodes an operation, of which a root or a composition is there, not both. All lengths from 4 TiB on have the same code.
pub(super) fn encode(operation: OperationSignature) -> BriefWords {
    let OperationSignature { kind, data_type, reduce_op, root, bytes, composition } = operation;
    let data_type = data_type.map_or(0, |data_type| u64::from(data_type.code()));
    let op = reduce_op.map_or(0, |op| u64::from(op.code()));
    // Code 0 means no root, so rank 0 has code 1.
    let root = root.map_or(0, |root| u64::from(root) + 1);
    let root = if composition.is_some() { COMPOSED } else { root };
    let bytes = bytes.min((1 << BYTES_BITS) - 1);
    let brief =
        (kind as u64) << KIND_AT | data_type << TYPE_AT | op << OP_AT | root << ROOT_AT | bytes;
    let composition = composition.map_or([0; 2], |Composition { buffers, shards, digest }| {
        [u64::from(buffers) << 32 | u64::from(shards), u64::from(digest)]
    });
    BriefWords { brief, composition }
}

/// Decodes the words; `None` for words that are no operation.
pub(super) fn decode(words: BriefWords) -> Option<OperationSignature> {
    let BriefWords { brief: word, composition: [parts, digest] } = words;
    let kind = word >> KIND_AT;
    let kind = OperationKind::ALL.into_iter().find(|known| *known as u64 == kind)?;
    let data_type = match field(word, TYPE_AT, TYPE_BITS) as u8 {
        0 => None,
        code => Some(DataType::from_code(code)?),
    };
    let reduce_op = match field(word, OP_AT, OP_BITS) as u8 {
        0 => None,
        code => Some(ReduceOp::from_code(code)?),
    };
    let composition = is_composed(word).then_some(Composition {
        buffers: (parts >> 32) as u32,
        shards: parts as u32,
        digest: digest as u32,
    });
    let root = field(word, ROOT_AT, ROOT_BITS) as u32;
    let root = if composition.is_some() { None } else { root.checked_sub(1) };
    let bytes = field(word, 0, BYTES_BITS);
    Some(OperationSignature { kind, data_type, reduce_op, root, bytes, composition })
}

#[cfg(test)]
mod tests {
    use super::super::layout::WORLD_MAX;
    use super::*;

    fn options<T: Copy>(all: &[T]) -> Vec<Option<T>> {
        all.iter().copied().map(Some).chain([None]).collect()
    }

    #[test]
    fn operations_survive_and_differ() {
        let composed = [[0, 5, 7], [u32::MAX; 3]].map(|[buffers, shards, digest]| Composition {
            buffers,
            shards,
            digest,
        });
        let roots = options(&[0, 1, WORLD_MAX - 1]).into_iter().map(|root| (root, None));
        let places: Vec<_> = roots
            .chain(composed.into_iter().map(|composition| (None, Some(composition))))
            .collect();
        let mut words = Vec::new();
        for kind in OperationKind::ALL {
            for data_type in options(&DataType::ALL) {
                for reduce_op in options(&ReduceOp::ALL) {
                    for (root, composition) in places.clone() {
                        for bytes in [0, 1, (1 << BYTES_BITS) - 1] {
                            let operation = OperationSignature {
                                kind,
                                data_type,
                                reduce_op,
                                root,
                                bytes,
                                composition,
                            };
                            let word = encode(operation);
                            assert_eq!(decode(word), Some(operation));
                            words.push(word);
                        }
                    }
                }
            }
        }
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count);
        for brief in [0, u64::MAX] {
            assert_eq!(decode(BriefWords { brief, composition: [0; 2] }), None);
        }
    }
}
