//! Ranks whose buffers, shards or reductions differ, where the lengths of the whole agree.

use super::*;
use crate::{CollectiveError, CommunicatorExt, DataType, HostOperation, ReduceOp, ShardDeal};

/// Each rank makes `call`, rank 1 as the odd one; it fails on every rank with a mismatch that has `said`.
fn differs(
    said: &'static str,
    call: impl Fn(&mut dyn Communicator, bool) -> Result<(), CollectiveError> + Clone + Send + 'static,
) {
    for path in Path::EVERY {
        for size in [2, 3] {
            let call = call.clone();
            let errors = world(path, size, LONG, move |communicator, _| {
                // Every rank has seen the memory that it shares, before the first one leaves it.
                communicator.barrier().unwrap();
                let is_odd = communicator.rank() == 1;
                call(communicator, is_odd)
            });
            for error in errors {
                let error = error.expect_err("the ranks differ");
                assert!(matches!(error, CollectiveError::Mismatch { .. }), "{path:?}: {error}");
                assert!(error.to_string().contains(said), "{path:?}: {error}");
            }
        }
    }
}

/// The sum of zeros in buffers of these lengths, by a grouped call.
fn sum_of(communicator: &mut dyn Communicator, lengths: &[usize]) -> Result<(), CollectiveError> {
    let mut zeros: Vec<Vec<f32>> = lengths.iter().map(|length| vec![0.0; *length]).collect();
    let mut buffers: Vec<&mut [f32]> = zeros.iter_mut().map(Vec::as_mut_slice).collect();
    communicator.all_reduce_many(&mut buffers, ReduceOp::Sum)
}

/// A reduction of zeros over the shards of an even deal of `total`, in buffers of these lengths.
fn sum_of_shards(
    communicator: &mut dyn Communicator,
    total: u32,
    lengths: &[usize],
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    let deal = ShardDeal::even(total, communicator.world_size());
    sum_of_deal(communicator, &deal, lengths, op)
}

fn sum_of_deal(
    communicator: &mut dyn Communicator,
    deal: &ShardDeal,
    lengths: &[usize],
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    let zeros: Vec<Vec<f32>> = lengths.iter().map(|length| vec![0.0; *length]).collect();
    let mut outputs = zeros.clone();
    let shard: Vec<&[f32]> = zeros.iter().map(Vec::as_slice).collect();
    let shards = vec![shard.as_slice(); deal.of(communicator.rank()).len()];
    let mut into: Vec<&mut [f32]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    communicator.all_reduce_shards_many(&shards, deal, &mut into, op)
}

#[test]
fn x_15_ranks_whose_buffers_have_other_boundaries_are_refused() {
    differs("the lengths of the buffers, in their order, differ", |communicator, is_odd| {
        sum_of(communicator, if is_odd { &[3, 5] } else { &[5, 3] })
    });
    differs("the numbers of buffers differ", |communicator, is_odd| {
        sum_of(communicator, if is_odd { &[4, 2, 2] } else { &[5, 3] })
    });
    differs("2 buffers", |communicator, is_odd| {
        sum_of(communicator, if is_odd { &[8] } else { &[5, 3] })
    });
    // A list without buffers: a rank that has no gradient. Its next call would be summed with the others' present one.
    for none in [&[][..], &[0]] {
        differs("all_reduce", move |communicator, is_odd| {
            sum_of(communicator, if is_odd { none } else { &[5, 3] })
        });
        differs("all_reduce", move |communicator, is_odd| {
            sum_of(communicator, if is_odd { none } else { &[8] })
        });
        differs("all_reduce", move |communicator, is_odd| {
            sum_of(communicator, if is_odd { none } else { &[40_000, 7, 40_000] })
        });
        differs("the numbers of buffers differ", move |communicator, is_odd| {
            sum_of_shards(communicator, 5, if is_odd { none } else { &[3, 5] }, ReduceOp::Sum)
        });
    }
    // Buffers that are reduced alone, each of another place.
    differs("the lengths of the buffers, in their order, differ", |communicator, is_odd| {
        let (long, short) = (40_000, 7);
        let lengths = [[long, short, long], [long, long, short]];
        sum_of(communicator, &lengths[usize::from(is_odd)])
    });
}

#[test]
fn x_15_ranks_whose_shards_differ_in_number_deal_boundaries_or_reduction_are_refused() {
    differs("the numbers of shards differ", |communicator, is_odd| {
        let total = if is_odd { 4 } else { 5 };
        sum_of_shards(communicator, total, &[3], ReduceOp::Sum)
    });
    differs(
        "the deals of the shards, or the lengths of the buffers, differ",
        |communicator, is_odd| {
            let lengths = if is_odd { [4, 2] } else { [3, 3] };
            sum_of_shards(communicator, 5, &lengths, ReduceOp::Sum)
        },
    );
    differs(
        "the deals of the shards, or the lengths of the buffers, differ",
        |communicator, is_odd| {
            let world = communicator.world_size();
            let mut counts = vec![2; world as usize];
            counts[usize::from(is_odd)] = 4;
            let deal = ShardDeal::of_job(counts.iter().sum(), world, &counts);
            sum_of_deal(communicator, &deal, &[3], ReduceOp::Sum)
        },
    );
    differs("max", |communicator, is_odd| {
        let op = if is_odd { ReduceOp::Max } else { ReduceOp::Sum };
        sum_of_shards(communicator, 5, &[3], op)
    });
}

/// Ranks compare the things that decide where an element goes, and nothing else.
#[test]
fn ranks_may_give_one_buffer_either_way_leave_out_empty_ones_and_mix_types() {
    for path in Path::EVERY {
        world(path, 3, LONG, |communicator, _| {
            let odd = communicator.rank() == 1;
            let mut sum = [1.0_f32; 5];
            if odd {
                communicator.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            } else {
                communicator.all_reduce_many(&mut [&mut sum], ReduceOp::Sum).unwrap();
            }
            assert_eq!(sum, [3.0; 5]);
            sum_of(communicator, if odd { &[5, 0, 3, 0] } else { &[0, 5, 3] }).unwrap();
            // Also where buffers are reduced alone, and where nothing is left.
            sum_of(communicator, if odd { &[0, 40_000, 0] } else { &[40_000] }).unwrap();
            for none in [&[][..], &[0], &[0, 0]] {
                sum_of(communicator, if odd { none } else { &[] }).unwrap();
                let none = if odd { none } else { &[] };
                sum_of_shards(communicator, 5, none, ReduceOp::Mean).unwrap();
            }
            communicator.all_reduce_many::<f32>(&mut [], ReduceOp::Mean).unwrap();
            // The buffers of each type are in one order.
            let (mut one, mut two, mut other) = ([1_u64; 2], [2_u64; 3], [4_u8; 9]);
            let buffers = if odd {
                vec![&mut other[..], of(&mut one), of(&mut two)]
            } else {
                vec![of(&mut one), &mut other[..], of(&mut two)]
            };
            let types = |length: usize| if length == 9 { DataType::U8 } else { DataType::U64 };
            let buffers = buffers.into_iter().map(|data| (types(data.len()), data));
            let buffers = buffers.map(|(of, data)| (data, of)).collect();
            communicator
                .run(HostOperation::GroupedAllReduce { buffers, op: ReduceOp::Sum })
                .unwrap();
            assert_eq!((one, two, other), ([3; 2], [6; 3], [12; 9]));
        });
    }
}

fn of(words: &mut [u64]) -> &mut [u8] {
    bytemuck::cast_slice_mut(words)
}
