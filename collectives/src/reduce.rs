//! Reductions: [`ReduceOp`], and the fold over the ranks' contributions that every backend uses.
//!
//! The fold goes in rank order, 0 first, element by element, whatever the size of the message and
//! whichever rank computes it. So every algorithm and every backend gives the same bits.

use std::fmt;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use multiversion::multiversion;

use crate::element::{DataType, Element};

/// The way in which the contributions of the ranks become one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum. Integers wrap on overflow.
    Sum = 1,
    /// The sum over the world size. Refused for integers.
    Mean = 2,
    /// The least value; a NaN of any rank makes the result NaN.
    Min = 3,
    /// The greatest value; a NaN of any rank makes the result NaN.
    Max = 4,
    /// The product. Integers wrap on overflow.
    Prod = 5,
}

impl ReduceOp {
    /// Every operation, in the order of the codes.
    pub const ALL: [ReduceOp; 5] =
        [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod];

    /// The code in a frame header.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The operation of a code; `None` for an unknown code.
    pub fn from_code(code: u8) -> Option<ReduceOp> {
        ReduceOp::ALL.into_iter().find(|op| op.code() == code)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Mean => "mean",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Prod => "prod",
        })
    }
}

/// Elements folded at a time: so few that their accumulators stay in the first-level cache.
const BLOCK: usize = 512;

/// The arithmetic of a fold. The accumulator of the 16-bit floats is `f32`, so a result is rounded once and not
/// once a rank.
trait Arithmetic: Element {
    type Accumulator: Copy + Default;
    /// Whether conversion is fast only for whole blocks. The processor's instructions for `f16` are used where it has
    /// them; the check for them costs more than they save when done for each element.
    const CONVERTS_BLOCKS: bool = false;
    fn widen_block(source: &[Self], into: &mut [Self::Accumulator]) {
        for (wide, value) in into.iter_mut().zip(source) {
            *wide = value.widen();
        }
    }
    fn narrow_block(source: &[Self::Accumulator], into: &mut [Self]) {
        for (value, wide) in into.iter_mut().zip(source) {
            *value = Self::narrow(*wide);
        }
    }
    fn widen(self) -> Self::Accumulator;
    fn narrow(value: Self::Accumulator) -> Self;
    fn add(left: Self::Accumulator, right: Self::Accumulator) -> Self::Accumulator;
    fn multiply(left: Self::Accumulator, right: Self::Accumulator) -> Self::Accumulator;
    fn least(left: Self::Accumulator, right: Self::Accumulator) -> Self::Accumulator;
    fn greatest(left: Self::Accumulator, right: Self::Accumulator) -> Self::Accumulator;
    fn divide(value: Self::Accumulator, divisor: u32) -> Self::Accumulator;
}

macro_rules! float_arithmetic {
    ($rust:ty, $accumulator:ty, $widen:expr, $narrow:expr $(, $blocks:item)*) => {
        impl Arithmetic for $rust {
            type Accumulator = $accumulator;
            $($blocks)*
            fn widen(self) -> $accumulator {
                ($widen)(self)
            }
            fn narrow(value: $accumulator) -> Self {
                ($narrow)(value)
            }
            fn add(left: $accumulator, right: $accumulator) -> $accumulator {
                left + right
            }
            fn multiply(left: $accumulator, right: $accumulator) -> $accumulator {
                left * right
            }
            fn least(left: $accumulator, right: $accumulator) -> $accumulator {
                if left.is_nan() || left <= right { left } else { right }
            }
            fn greatest(left: $accumulator, right: $accumulator) -> $accumulator {
                if left.is_nan() || left >= right { left } else { right }
            }
            fn divide(value: $accumulator, divisor: u32) -> $accumulator {
                value / divisor as $accumulator
            }
        }
    };
}

float_arithmetic!(f32, f32, |value| value, |value| value);
float_arithmetic!(f64, f64, |value| value, |value| value);
float_arithmetic!(
    f16,
    f32,
    f16::to_f32,
    f16::from_f32,
    const CONVERTS_BLOCKS: bool = true;,
    fn widen_block(source: &[f16], into: &mut [f32]) {
        source.convert_to_f32_slice(into);
    },
    fn narrow_block(source: &[f32], into: &mut [f16]) {
        into.convert_from_f32_slice(source);
    }
);
float_arithmetic!(bf16, f32, bf16::to_f32, bf16::from_f32);

macro_rules! integer_arithmetic {
    ($($rust:ty),*) => {
        $(
            impl Arithmetic for $rust {
                type Accumulator = $rust;
                fn widen(self) -> $rust {
                    self
                }
                fn narrow(value: $rust) -> Self {
                    value
                }
                fn add(left: $rust, right: $rust) -> $rust {
                    left.wrapping_add(right)
                }
                fn multiply(left: $rust, right: $rust) -> $rust {
                    left.wrapping_mul(right)
                }
                fn least(left: $rust, right: $rust) -> $rust {
                    left.min(right)
                }
                fn greatest(left: $rust, right: $rust) -> $rust {
                    left.max(right)
                }
                // Mean of integers is refused before any fold, so the divisor is 1.
                fn divide(value: $rust, _divisor: u32) -> $rust {
                    value
                }
            }
        )*
    };
}

integer_arithmetic!(u8, i32, i64, u32, u64);

/// A rank's contribution, as bytes. It is called once a rank and block. It is no type parameter: the folds, which are
/// compiled for each element and each operation, would be compiled again for each caller.
type Contribution<'f, 'a> = &'f dyn Fn(u32) -> &'a [u8];

/// Folds the contributions of `world` ranks, in rank order, into `destination`, which holds the
/// contribution of rank `own` beforehand. `contribution(rank)` gives the others' bytes; every slice
/// has the length of `destination` and the alignment of the type.
pub(crate) fn fold_ranks(
    data_type: DataType,
    op: ReduceOp,
    destination: &mut [u8],
    own: u32,
    world: u32,
    contribution: Contribution<'_, '_>,
) {
    match data_type {
        DataType::F32 => fold_floats::<f32>(op, destination, own, world, contribution),
        DataType::F64 => fold_floats::<f64>(op, destination, own, world, contribution),
        DataType::F16 => fold_floats::<f16>(op, destination, own, world, contribution),
        DataType::Bf16 => fold_floats::<bf16>(op, destination, own, world, contribution),
        DataType::U8 => fold_typed::<u8>(op, destination, own, world, contribution),
        DataType::I32 => fold_typed::<i32>(op, destination, own, world, contribution),
        DataType::I64 => fold_typed::<i64>(op, destination, own, world, contribution),
        DataType::U32 => fold_typed::<u32>(op, destination, own, world, contribution),
        DataType::U64 => fold_typed::<u64>(op, destination, own, world, contribution),
    }
}

/// Divides each element by `divisor`, as [`ReduceOp::Mean`] does with a sum. Integers, whose mean is not defined,
/// stay as they are.
pub(crate) fn divide(data_type: DataType, data: &mut [u8], divisor: u32) {
    fn typed<E: Arithmetic>(data: &mut [u8], divisor: u32) {
        for value in bytemuck::cast_slice_mut::<u8, E>(data) {
            *value = E::narrow(E::divide(value.widen(), divisor));
        }
    }
    match data_type {
        DataType::F32 => typed::<f32>(data, divisor),
        DataType::F64 => typed::<f64>(data, divisor),
        DataType::F16 => typed::<f16>(data, divisor),
        DataType::Bf16 => typed::<bf16>(data, divisor),
        // Integers are refused before any fold.
        DataType::U8 | DataType::I32 | DataType::I64 | DataType::U32 | DataType::U64 => {}
    }
}

/// Whether reductions of the type accumulate in `f32`, and round once at the end.
pub(crate) fn accumulates_wide(data_type: DataType) -> bool {
    matches!(data_type, DataType::F16 | DataType::Bf16)
}

/// Converts 16-bit floats to the `f32` in which they accumulate.
pub(crate) fn widen(data_type: DataType, narrow: &[u8], wide: &mut [f32]) {
    match data_type {
        DataType::F16 => f16::widen_block(bytemuck::cast_slice(narrow), wide),
        _ => bf16::widen_block(bytemuck::cast_slice(narrow), wide),
    }
}

/// Rounds the accumulated values to 16-bit floats.
pub(crate) fn narrow(data_type: DataType, wide: &[f32], narrow: &mut [u8]) {
    match data_type {
        DataType::F16 => f16::narrow_block(wide, bytemuck::cast_slice_mut(narrow)),
        _ => bf16::narrow_block(wide, bytemuck::cast_slice_mut(narrow)),
    }
}

/// The fold for float types: also compiled for AVX2, which is used where the processor has it. The bits are the
/// same, as nothing is contracted or reordered.
#[multiversion(targets("x86_64+avx2"))]
fn fold_floats<E: Arithmetic>(
    op: ReduceOp,
    destination: &mut [u8],
    own: u32,
    world: u32,
    contribution: Contribution<'_, '_>,
) {
    fold_typed::<E>(op, destination, own, world, contribution);
}

#[inline(always)]
fn fold_typed<E: Arithmetic>(
    op: ReduceOp,
    destination: &mut [u8],
    own: u32,
    world: u32,
    contribution: Contribution<'_, '_>,
) {
    let destination: &mut [E] = bytemuck::cast_slice_mut(destination);
    let other = |rank: u32| bytemuck::cast_slice::<u8, E>(contribution(rank));
    let keep = |sum| sum;
    let divide = |sum| E::divide(sum, world);
    match op {
        ReduceOp::Sum => fold_with(destination, own, world, other, E::add, keep),
        ReduceOp::Mean => fold_with(destination, own, world, other, E::add, divide),
        ReduceOp::Min => fold_with(destination, own, world, other, E::least, keep),
        ReduceOp::Max => fold_with(destination, own, world, other, E::greatest, keep),
        ReduceOp::Prod => fold_with(destination, own, world, other, E::multiply, keep),
    }
}

#[inline(always)]
fn fold_with<'a, E: Arithmetic>(
    destination: &mut [E],
    own: u32,
    world: u32,
    other: impl Fn(u32) -> &'a [E],
    combine: impl Fn(E::Accumulator, E::Accumulator) -> E::Accumulator,
    finish: impl Fn(E::Accumulator) -> E::Accumulator,
) {
    let result = |left: E::Accumulator, right: E| E::narrow(finish(combine(left, right.widen())));
    match (world, own) {
        (1, _) => {}
        (2, 0) if !E::CONVERTS_BLOCKS => {
            for (value, other) in destination.iter_mut().zip(other(1)) {
                *value = result(value.widen(), *other);
            }
        }
        (2, _) if !E::CONVERTS_BLOCKS => {
            for (value, other) in destination.iter_mut().zip(other(0)) {
                *value = result(other.widen(), *value);
            }
        }
        _ => fold_blocks(destination, own, world, other, combine, finish),
    }
}

#[inline(always)]
fn fold_blocks<'a, E: Arithmetic>(
    destination: &mut [E],
    own: u32,
    world: u32,
    other: impl Fn(u32) -> &'a [E],
    combine: impl Fn(E::Accumulator, E::Accumulator) -> E::Accumulator,
    finish: impl Fn(E::Accumulator) -> E::Accumulator,
) {
    let last = world - 1;
    let mut accumulators = [E::Accumulator::default(); BLOCK];
    for (index, block) in destination.chunks_mut(BLOCK).enumerate() {
        let within = index * BLOCK..index * BLOCK + block.len();
        let accumulators = &mut accumulators[..block.len()];
        // The own rank has no other source: its contribution is the block itself.
        let source = |rank: u32| (rank != own).then(|| &other(rank)[within.clone()]);
        if E::CONVERTS_BLOCKS {
            fold_converted(block, world, source, accumulators, &combine, &finish);
            E::narrow_block(accumulators, block);
            continue;
        }
        // The first pass combines two or three sources, and the last source goes straight into the result: this saves
        // a pass at each end.
        let first = source(0).unwrap_or(block);
        let pairs = first.iter().zip(source(1).unwrap_or(block));
        let is_odd = world % 2 == 1;
        if is_odd {
            for (accumulator, (first, second)) in accumulators.iter_mut().zip(pairs) {
                *accumulator = combine(first.widen(), second.widen());
            }
        } else {
            let triples = pairs.zip(source(2).unwrap_or(block));
            for (accumulator, ((first, second), third)) in accumulators.iter_mut().zip(triples) {
                *accumulator = combine(combine(first.widen(), second.widen()), third.widen());
            }
        }
        for rank in (if is_odd { 2 } else { 3 }..last).step_by(2) {
            let pairs = source(rank).unwrap_or(block).iter().zip(source(rank + 1).unwrap_or(block));
            for (accumulator, (left, right)) in accumulators.iter_mut().zip(pairs) {
                *accumulator = combine(combine(*accumulator, left.widen()), right.widen());
            }
        }
        if let Some(other) = source(last) {
            let others = accumulators.iter().zip(other);
            for (value, (accumulator, other)) in block.iter_mut().zip(others) {
                *value = E::narrow(finish(combine(*accumulator, other.widen())));
            }
        } else {
            for (value, accumulator) in block.iter_mut().zip(&*accumulators) {
                *value = E::narrow(finish(combine(*accumulator, value.widen())));
            }
        }
    }
}

/// Folds one block by way of converted copies, into the accumulators.
#[inline(always)]
fn fold_converted<'a, E: Arithmetic>(
    block: &[E],
    world: u32,
    source: impl Fn(u32) -> Option<&'a [E]>,
    accumulators: &mut [E::Accumulator],
    combine: impl Fn(E::Accumulator, E::Accumulator) -> E::Accumulator,
    finish: impl Fn(E::Accumulator) -> E::Accumulator,
) {
    let mut converted = [E::Accumulator::default(); BLOCK];
    let converted = &mut converted[..block.len()];
    E::widen_block(source(0).unwrap_or(block), accumulators);
    for rank in 1..world {
        E::widen_block(source(rank).unwrap_or(block), converted);
        for (accumulator, value) in accumulators.iter_mut().zip(&*converted) {
            *accumulator = combine(*accumulator, *value);
        }
    }
    accumulators.iter_mut().for_each(|accumulator| *accumulator = finish(*accumulator));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold<E: Element>(op: ReduceOp, own: usize, ranks: &[Vec<E>]) -> Vec<E> {
        let mut result = ranks[own].clone();
        fold_ranks(
            E::DATA_TYPE,
            op,
            bytemuck::cast_slice_mut(&mut result),
            own as u32,
            ranks.len() as u32,
            &|rank| bytemuck::cast_slice(&ranks[rank as usize]),
        );
        result
    }

    #[test]
    fn the_rank_that_folds_does_not_change_the_bits() {
        let ranks: Vec<Vec<f32>> = (0..5)
            .map(|rank| (0..1500).map(|i| 0.1 + (rank * 7919 + i) as f32 * 1e-3).collect())
            .collect();
        let reference = fold(ReduceOp::Sum, 0, &ranks);
        for own in 1..5 {
            assert_eq!(fold(ReduceOp::Sum, own, &ranks), reference);
        }
    }

    #[test]
    fn half_precision_accumulates_in_single() {
        // 2048 + 1 + 1 is 2048 when every step rounds to f16, and 2050 when only the result does.
        let ranks = [2048.0, 1.0, 1.0].map(|value| vec![f16::from_f32(value)]);
        assert_eq!(fold(ReduceOp::Sum, 1, &ranks), vec![f16::from_f32(2050.0)]);
    }

    #[test]
    fn a_nan_of_any_rank_shows_in_min_and_max() {
        for position in 0..3 {
            let mut ranks = vec![vec![1.0f64], vec![2.0], vec![3.0]];
            ranks[position][0] = f64::NAN;
            assert!(fold(ReduceOp::Min, 0, &ranks)[0].is_nan());
            assert!(fold(ReduceOp::Max, 0, &ranks)[0].is_nan());
        }
    }

    #[test]
    fn integers_wrap() {
        assert_eq!(fold(ReduceOp::Sum, 0, &[vec![255u8], vec![2]]), vec![1]);
        assert_eq!(fold(ReduceOp::Prod, 1, &[vec![i32::MAX], vec![2]]), vec![-2]);
    }
}
