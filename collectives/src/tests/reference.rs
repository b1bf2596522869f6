//! The reference results of reductions, element by element, written independently of the code under test.

use half::{bf16, f16};

use crate::{DataType, ReduceOp};

/// The reduction of `elements` elements of each rank's words, folded in rank order.
pub(super) fn reference(
    data_type: DataType,
    op: ReduceOp,
    inputs: &[Vec<u64>],
    elements: usize,
) -> Vec<u8> {
    let size = data_type.size_bytes();
    let element = |rank: &Vec<u64>, index: usize| {
        bytemuck::cast_slice::<u64, u8>(rank)[index * size..(index + 1) * size].to_vec()
    };
    let column = |index: usize| inputs.iter().map(move |rank| element(rank, index));
    (0..elements).flat_map(|index| reduce(data_type, op, column(index).collect())).collect()
}

fn reduce(data_type: DataType, op: ReduceOp, column: Vec<Vec<u8>>) -> Vec<u8> {
    macro_rules! float {
        ($rust:ty, $accumulator:ty, $widen:expr, $narrow:expr) => {{
            let values = column
                .iter()
                .map(|bytes| ($widen)(<$rust>::from_ne_bytes(bytes.as_slice().try_into().unwrap())))
                .collect::<Vec<$accumulator>>();
            let world = values.len() as $accumulator;
            let result = values.into_iter().reduce(|left, right| match op {
                ReduceOp::Sum | ReduceOp::Mean => left + right,
                ReduceOp::Prod => left * right,
                ReduceOp::Min => left.min(right),
                ReduceOp::Max => left.max(right),
            });
            let result = result.unwrap() / if op == ReduceOp::Mean { world } else { 1.0 };
            let result: $rust = ($narrow)(result);
            result.to_ne_bytes().to_vec()
        }};
    }
    macro_rules! integer {
        ($rust:ty) => {{
            let values = column
                .iter()
                .map(|bytes| <$rust>::from_ne_bytes(bytes.as_slice().try_into().unwrap()));
            let result = values.reduce(|left, right| match op {
                ReduceOp::Sum | ReduceOp::Mean => left.wrapping_add(right),
                ReduceOp::Prod => left.wrapping_mul(right),
                ReduceOp::Min => left.min(right),
                ReduceOp::Max => left.max(right),
            });
            result.unwrap().to_ne_bytes().to_vec()
        }};
    }
    match data_type {
        DataType::F32 => float!(f32, f32, |value| value, |value| value),
        DataType::F64 => float!(f64, f64, |value| value, |value| value),
        DataType::F16 => float!(f16, f32, f16::to_f32, f16::from_f32),
        DataType::Bf16 => float!(bf16, f32, bf16::to_f32, bf16::from_f32),
        DataType::U8 => integer!(u8),
        DataType::I32 => integer!(i32),
        DataType::I64 => integer!(i64),
        DataType::U32 => integer!(u32),
        DataType::U64 => integer!(u64),
    }
}
