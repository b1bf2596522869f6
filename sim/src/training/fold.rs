//! Reductions over ranks, element by element in the order of ranks, written without the product's code. Called by `communicator`.

use elastic_collectives::{DataType, ReduceOp};

/// An element of a reduction.
trait Reduced: Copy + PartialOrd {
    const BYTES: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut Vec<u8>);
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, ranks: usize) -> Self;
}

macro_rules! reduced {
    ($($number:ty: $plus:expr, $times:expr, $over:expr;)*) => {
        $(impl Reduced for $number {
            const BYTES: usize = size_of::<$number>();

            fn read(bytes: &[u8]) -> Self {
                bytes.try_into().map_or_else(|_| Self::default(), Self::from_ne_bytes)
            }

            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_ne_bytes());
            }

            fn plus(self, other: Self) -> Self {
                $plus(self, other)
            }

            fn times(self, other: Self) -> Self {
                $times(self, other)
            }

            fn over(self, ranks: usize) -> Self {
                $over(self, ranks)
            }
        })*
    };
}

reduced! {
    f32: |a, b| a + b, |a, b| a * b, |a, ranks| a / ranks as f32;
    f64: |a, b| a + b, |a, b| a * b, |a, ranks| a / ranks as f64;
    u8: u8::wrapping_add, u8::wrapping_mul, |a, _| a;
    i32: i32::wrapping_add, i32::wrapping_mul, |a, _| a;
    i64: i64::wrapping_add, i64::wrapping_mul, |a, _| a;
    u32: u32::wrapping_add, u32::wrapping_mul, |a, _| a;
    u64: u64::wrapping_add, u64::wrapping_mul, |a, _| a;
}

fn fold_of<N: Reduced>(op: ReduceOp, parts: &[&[u8]]) -> Vec<u8> {
    let Some((first, others)) = parts.split_first() else { return Vec::new() };
    let mut folded = Vec::with_capacity(first.len());
    for (place, element) in first.chunks_exact(N::BYTES).enumerate() {
        let at = place * N::BYTES..(place + 1) * N::BYTES;
        let mut value = N::read(element);
        for other in others {
            let other = other.get(at.clone()).map_or(value, N::read);
            value = match op {
                ReduceOp::Sum | ReduceOp::Mean => value.plus(other),
                ReduceOp::Prod => value.times(other),
                ReduceOp::Min => {
                    if other < value {
                        other
                    } else {
                        value
                    }
                }
                ReduceOp::Max => {
                    if other > value {
                        other
                    } else {
                        value
                    }
                }
            };
        }
        if op == ReduceOp::Mean {
            value = value.over(parts.len());
        }
        value.write(&mut folded);
    }
    folded
}

/// The reduction of the ranks' contributions. Sixteen-bit floats are not simulated.
pub(super) fn fold(data_type: DataType, op: ReduceOp, parts: &[&[u8]]) -> Vec<u8> {
    match data_type {
        DataType::F32 => fold_of::<f32>(op, parts),
        DataType::F64 => fold_of::<f64>(op, parts),
        DataType::I32 => fold_of::<i32>(op, parts),
        DataType::I64 => fold_of::<i64>(op, parts),
        DataType::U32 => fold_of::<u32>(op, parts),
        DataType::U64 => fold_of::<u64>(op, parts),
        DataType::U8 | DataType::F16 | DataType::Bf16 => fold_of::<u8>(op, parts),
    }
}
