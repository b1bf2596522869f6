//! The word of an operation, published beside the step, so that a reader of the step has it too. All ranks of a group
//! have done the same operations before, so the word needs neither number nor generation. Used by the session.

use crate::element::DataType;
use crate::reduce::ReduceOp;
use crate::wire::{OperationKind, OperationSignature};

const BYTES_BITS: u32 = 42;
const ROOT_BITS: u32 = 10;
const OP_BITS: u32 = 3;
const TYPE_BITS: u32 = 4;

const ROOT_AT: u32 = BYTES_BITS;
const OP_AT: u32 = ROOT_AT + ROOT_BITS;
const TYPE_AT: u32 = OP_AT + OP_BITS;
const KIND_AT: u32 = TYPE_AT + TYPE_BITS;

/// Encodes an operation as a word, never zero. All lengths from 4 TiB on have the same code.
pub(super) fn encode(operation: OperationSignature) -> u64 {
    let OperationSignature { kind, data_type, reduce_op, root, bytes } = operation;
    let data_type = data_type.map_or(0, |data_type| u64::from(data_type.code()));
    let op = reduce_op.map_or(0, |op| u64::from(op.code()));
    // Code 0 means no root, so rank 0 has code 1.
    let root = root.map_or(0, |root| u64::from(root) + 1);
    let bytes = bytes.min((1 << BYTES_BITS) - 1);
    (kind as u64) << KIND_AT | data_type << TYPE_AT | op << OP_AT | root << ROOT_AT | bytes
}

/// Decodes a word; `None` for a word that is no operation.
pub(super) fn decode(word: u64) -> Option<OperationSignature> {
    let field = |at: u32, bits: u32| word >> at & ((1 << bits) - 1);
    let kind = word >> KIND_AT;
    let kind = OperationKind::ALL.into_iter().find(|known| *known as u64 == kind)?;
    let data_type = match field(TYPE_AT, TYPE_BITS) as u8 {
        0 => None,
        code => Some(DataType::from_code(code)?),
    };
    let reduce_op = match field(OP_AT, OP_BITS) as u8 {
        0 => None,
        code => Some(ReduceOp::from_code(code)?),
    };
    let root = (field(ROOT_AT, ROOT_BITS) as u32).checked_sub(1);
    Some(OperationSignature { kind, data_type, reduce_op, root, bytes: field(0, BYTES_BITS) })
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
        let mut words = Vec::new();
        for kind in OperationKind::ALL {
            for data_type in options(&DataType::ALL) {
                for reduce_op in options(&ReduceOp::ALL) {
                    for root in options(&[0, 1, WORLD_MAX - 1]) {
                        for bytes in [0, 1, (1 << BYTES_BITS) - 1] {
                            let operation =
                                OperationSignature { kind, data_type, reduce_op, root, bytes };
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
        assert_eq!(decode(0), None);
        assert_eq!(decode(u64::MAX), None);
    }
}
