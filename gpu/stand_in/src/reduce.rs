//! Reductions of NCCL's data types, in rank order. Called by `collective`.

use half::{bf16, f16};

/// `ncclDataType_t`'s sizes, in bytes, by its codes.
pub fn size(data_type: u32) -> Option<usize> {
    [1, 1, 4, 4, 8, 8, 2, 4, 8, 2].get(data_type as usize).copied()
}

/// Folds `from` into `into` by `ncclRedOp_t`'s code; a mean is a sum that [`finish`] divides.
pub fn fold(data_type: u32, op: u32, into: &mut [u8], from: &[u8]) {
    match data_type {
        0 | 1 => integers::<u8, 1>(
            op,
            into,
            from,
            u8::from_ne_bytes,
            u8::to_ne_bytes,
            u8::wrapping_add,
            u8::wrapping_mul,
        ),
        2 => integers::<i32, 4>(
            op,
            into,
            from,
            i32::from_ne_bytes,
            i32::to_ne_bytes,
            i32::wrapping_add,
            i32::wrapping_mul,
        ),
        3 => integers::<u32, 4>(
            op,
            into,
            from,
            u32::from_ne_bytes,
            u32::to_ne_bytes,
            u32::wrapping_add,
            u32::wrapping_mul,
        ),
        4 => integers::<i64, 8>(
            op,
            into,
            from,
            i64::from_ne_bytes,
            i64::to_ne_bytes,
            i64::wrapping_add,
            i64::wrapping_mul,
        ),
        5 => integers::<u64, 8>(
            op,
            into,
            from,
            u64::from_ne_bytes,
            u64::to_ne_bytes,
            u64::wrapping_add,
            u64::wrapping_mul,
        ),
        6 => floats(
            op,
            into,
            from,
            |b| f16::from_ne_bytes(b).to_f64(),
            |v| f16::from_f64(v).to_ne_bytes(),
        ),
        7 => floats(op, into, from, |b| f32::from_ne_bytes(b).into(), |v| (v as f32).to_ne_bytes()),
        8 => floats(op, into, from, f64::from_ne_bytes, f64::to_ne_bytes),
        _ => floats(
            op,
            into,
            from,
            |b| bf16::from_ne_bytes(b).to_f64(),
            |v| bf16::from_f64(v).to_ne_bytes(),
        ),
    }
}

/// Divides a sum for a mean, once it is folded.
pub fn finish(data_type: u32, op: u32, values: &mut [u8], ranks: u32) {
    const MEAN: u32 = 4;
    if op != MEAN {
        return;
    }
    let ranks = f64::from(ranks);
    match data_type {
        6 => {
            scale(values, |b| (f16::from_f64(f16::from_ne_bytes(b).to_f64() / ranks)).to_ne_bytes())
        }
        7 => scale(values, |b| ((f64::from(f32::from_ne_bytes(b)) / ranks) as f32).to_ne_bytes()),
        8 => scale(values, |b| (f64::from_ne_bytes(b) / ranks).to_ne_bytes()),
        9 => scale(values, |b| {
            (bf16::from_f64(bf16::from_ne_bytes(b).to_f64() / ranks)).to_ne_bytes()
        }),
        _ => {}
    }
}

fn scale<const N: usize>(values: &mut [u8], divide: impl Fn([u8; N]) -> [u8; N]) {
    for value in values.as_chunks_mut::<N>().0 {
        *value = divide(*value);
    }
}

fn floats<const N: usize>(
    op: u32,
    into: &mut [u8],
    from: &[u8],
    read: impl Fn([u8; N]) -> f64,
    write: impl Fn(f64) -> [u8; N],
) {
    for (into, from) in into.as_chunks_mut::<N>().0.iter_mut().zip(from.as_chunks::<N>().0) {
        let (left, right) = (read(*into), read(*from));
        *into = write(match op {
            1 => left * right,
            2 => left.max(right),
            3 => left.min(right),
            _ => left + right,
        });
    }
}

fn integers<I: Copy + Ord, const N: usize>(
    op: u32,
    into: &mut [u8],
    from: &[u8],
    read: impl Fn([u8; N]) -> I,
    write: impl Fn(I) -> [u8; N],
    add: impl Fn(I, I) -> I,
    multiply: impl Fn(I, I) -> I,
) {
    for (into, from) in into.as_chunks_mut::<N>().0.iter_mut().zip(from.as_chunks::<N>().0) {
        let (left, right) = (read(*into), read(*from));
        *into = write(match op {
            1 => multiply(left, right),
            2 => left.max(right),
            3 => left.min(right),
            _ => add(left, right),
        });
    }
}
