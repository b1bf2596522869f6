//! Tests of sub-groups, fused reductions, reductions by shard, and launched operations.

use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use super::{LONG, Path, launchable, world};
use crate::{
    AsyncCommunicator, CollectiveError, Communicator, CommunicatorExt, DataType, LAUNCHED_MAX,
    Operation, OwnedOperation, ProgressThread, ReduceOp, ShardDeal, SoloCommunicator, attentive,
};

#[test]
fn a_split_orders_ranks_by_key_and_leaves_out_who_has_no_colour() {
    for path in Path::ALL {
        world(path, 5, LONG, |communicator, _| {
            let rank = communicator.rank();
            // Ranks 0, 2 and 4 in reverse order, rank 1 alone, and rank 3 in no sub-group.
            let colour = [Some(7), Some(0), Some(7), None, Some(7)][rank as usize];
            let group = communicator.split(colour, -(rank as i32)).unwrap();
            assert_eq!(group.is_some(), rank != 3);
            let Some(mut group) = group else {
                communicator.barrier().unwrap();
                return;
            };
            let size = if rank == 1 { 1 } else { 3 };
            assert_eq!((group.world_size(), group.generation()), (size, 1));
            let mut ranks = vec![9; size as usize];
            group.all_gather(&[rank], &mut ranks).unwrap();
            assert_eq!(ranks, if rank == 1 { vec![1] } else { vec![4, 2, 0] });
            // The group that was split goes on beside it, and a sub-group can be split again.
            communicator.barrier().unwrap();
            let mut halves = group.split(Some(group.rank() / 2), 0).unwrap().unwrap();
            let mut sum = [rank];
            halves.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [[0, 1, 6, 0, 6][rank as usize]]);
        });
    }
}

#[test]
fn an_abort_of_the_generation_ends_its_sub_groups() {
    for path in Path::ALL {
        world(path, 2, LONG, |communicator, abort| {
            let mut group = communicator.split(Some(0), 0).unwrap().unwrap();
            let mut alone = communicator.split(Some(communicator.rank()), 0).unwrap().unwrap();
            abort.abort(1, 1, "told");
            for group in [&mut group, &mut alone] {
                let error = group.barrier().unwrap_err();
                assert!(matches!(error, CollectiveError::Aborted { generation: 1, .. }), "{error}");
            }
        });
    }
}

#[test]
fn x15_a_split_that_the_others_do_not_make_is_named() {
    for path in Path::ALL {
        let errors = world(path, 2, LONG, |communicator, _| {
            if communicator.rank() == 0 {
                communicator.barrier().unwrap_err()
            } else {
                communicator.split(None, 0).map(|_| ()).unwrap_err()
            }
        });
        for error in errors {
            assert!(matches!(error, CollectiveError::Mismatch { .. }), "{error}");
        }
    }
}

#[test]
fn a_fused_reduction_has_the_bits_of_each_alone() {
    for path in Path::ALL {
        world(path, 3, LONG, |communicator, _| {
            let own = communicator.rank() as f32 + 0.1;
            let lengths = [3, 0, 1000, 70_000, 17, 40_000];
            let mut alone: Vec<Vec<f32>> =
                lengths.iter().map(|length| vec![own; *length]).collect();
            let mut together = alone.clone();
            for buffer in &mut alone {
                communicator.all_reduce(buffer, ReduceOp::Mean).unwrap();
            }
            let mut buffers: Vec<&mut [f32]> = together.iter_mut().map(Vec::as_mut_slice).collect();
            communicator.all_reduce_many(&mut buffers, ReduceOp::Mean).unwrap();
            assert!(together == alone);
        });
    }
}

/// The reduction of the shards by the tree, one element at a time.
fn by_the_tree(start: u32, end: u32, leaf: &dyn Fn(u32) -> f32) -> f32 {
    if end - start == 1 {
        return leaf(start);
    }
    let left = (end - start).next_power_of_two() / 2;
    by_the_tree(start, start + left, leaf) + by_the_tree(start + left, end, leaf)
}

#[test]
fn c_2_a_reduction_by_shard_has_the_same_bits_on_every_path_in_worlds_of_1_to_7() {
    const SHARDS: u32 = 8;
    let element = |shard: u32, index: usize| 0.1 + shard as f32 * 1e-3 + index as f32 * 1e-5;
    let gradient = move |shard: u32, elements: usize| -> Vec<f32> {
        (0..elements).map(|index| element(shard, index)).collect()
    };
    let dealt = |path: Path, size: u32, counts: &'static [u32], op: ReduceOp, elements: usize| {
        let results = world(path, size, LONG, move |communicator, _| {
            let deal = ShardDeal::of_job(SHARDS, size, counts);
            let shards: Vec<Vec<f32>> =
                deal.of(communicator.rank()).map(|shard| gradient(shard, elements)).collect();
            let shards: Vec<&[f32]> = shards.iter().map(Vec::as_slice).collect();
            let mut output = vec![0.0; elements];
            communicator.all_reduce_shards(&shards, &deal, &mut output, op).unwrap();
            output
        });
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
        results.into_iter().next().unwrap()
    };
    let reduced = |path, size, op, elements| dealt(path, size, &[], op, elements);
    let due = |elements: usize, divisor: f32| -> Vec<f32> {
        let of = |index| by_the_tree(0, SHARDS, &|shard| element(shard, index)) / divisor;
        (0..elements).map(of).collect()
    };
    for path in Path::EVERY {
        for size in 1..=7 {
            let reduced = reduced(path, size, ReduceOp::Mean, 2_001);
            assert!(reduced == due(2_001, SHARDS as f32), "{path:?}, a world of {size}");
        }
        for counts in [&[1, 7][..], &[3, 1, 4], &[5, 1, 1, 1]] {
            let dealt = dealt(path, counts.len() as u32, counts, ReduceOp::Mean, 2_001);
            assert!(dealt == due(2_001, SHARDS as f32), "{path:?}, dealt as {counts:?}");
        }
    }
    // More than one piece.
    for (path, size) in [(Path::SharedMemory, 3), (Path::Tcp, 2)] {
        assert!(reduced(path, size, ReduceOp::Sum, 400_001) == due(400_001, 1.0), "{path:?}");
    }
}

#[test]
fn c_2_sixteen_bit_floats_and_a_world_above_the_shards_reduce_alike_on_every_rank() {
    const SHARDS: u32 = 5;
    let mut due: Option<Vec<half::bf16>> = None;
    for size in [1, 2, 3, 5, 7] {
        let results = world(Path::Tcp, size, LONG, move |communicator, _| {
            let deal = ShardDeal::even(SHARDS, size);
            let own = deal.of(communicator.rank());
            let of = |shard: u32| half::bf16::from_f32(0.1 + shard as f32 / 3.0);
            let shards: Vec<Vec<half::bf16>> = own.map(|shard| vec![of(shard); 999]).collect();
            let shards: Vec<&[half::bf16]> = shards.iter().map(Vec::as_slice).collect();
            let mut output = vec![half::bf16::ZERO; 999];
            communicator.all_reduce_shards(&shards, &deal, &mut output, ReduceOp::Mean).unwrap();
            output
        });
        for result in results {
            assert_eq!(due.get_or_insert_with(|| result.clone()), &result, "a world of {size}");
        }
    }
}

#[test]
fn c_2_grouped_and_launched_reductions_by_shard_have_the_same_bits_on_every_path() {
    const SHARDS: u32 = 8;
    const LENGTHS: [usize; 3] = [3, 2_001, 0];
    let element = |shard: u32, buffer: usize, index: usize| {
        0.1 + shard as f32 * 1e-3 + buffer as f32 / 7.0 + index as f32 * 1e-5
    };
    let of_shard = move |shard: u32| -> Vec<Vec<f32>> {
        let buffers = LENGTHS.iter().enumerate();
        let buffer = |(buffer, length): (usize, &usize)| {
            (0..*length).map(|index| element(shard, buffer, index)).collect()
        };
        buffers.map(buffer).collect()
    };
    let due: Vec<Vec<f32>> = LENGTHS
        .iter()
        .enumerate()
        .map(|(buffer, length)| {
            let of = |index| by_the_tree(0, SHARDS, &|shard| element(shard, buffer, index));
            (0..*length).map(|index| of(index) / SHARDS as f32).collect()
        })
        .collect();
    for path in Path::EVERY {
        for size in 1..=7 {
            let results = world(path, size, LONG, move |communicator, abort| {
                let deal = ShardDeal::even(SHARDS, size);
                let own: Vec<Vec<Vec<f32>>> = deal.of(communicator.rank()).map(of_shard).collect();
                let grouped = grouped_on(communicator, &deal, &own);
                // Two at once, beside the caller.
                let group = launchable(communicator, abort);
                let launched: Vec<_> = (0..2)
                    .map(|_| {
                        let (deal, own) = (deal.clone(), own.clone());
                        group.launch(move |group| Ok(grouped_on(group, &deal, &own)))
                    })
                    .collect();
                let alone = (0..LENGTHS.len()).map(|buffer| {
                    let (deal, own) = (deal.clone(), own.clone());
                    group.launch(move |group| {
                        let shards: Vec<&[f32]> = own.iter().map(|it| &*it[buffer]).collect();
                        let mut output = vec![0.0; LENGTHS[buffer]];
                        group.all_reduce_shards(&shards, &deal, &mut output, ReduceOp::Mean)?;
                        Ok(output)
                    })
                });
                let alone: Vec<_> = alone.collect();
                let mut all = vec![grouped];
                all.extend(launched.into_iter().map(|it| it.wait().unwrap()));
                all.push(alone.into_iter().map(|it| it.wait().unwrap()).collect());
                all
            });
            for of_rank in results {
                assert!(of_rank.iter().all(|it| *it == due), "{path:?}, a world of {size}");
            }
        }
    }
}

/// The reduction of several buffers at once: of each shard one list of them.
fn grouped_on(
    communicator: &mut dyn Communicator,
    deal: &ShardDeal,
    own: &[Vec<Vec<f32>>],
) -> Vec<Vec<f32>> {
    let mut outputs: Vec<Vec<f32>> = own[0].iter().map(|buffer| vec![0.0; buffer.len()]).collect();
    let shards: Vec<Vec<&[f32]>> =
        own.iter().map(|shard| shard.iter().map(Vec::as_slice).collect()).collect();
    let shards: Vec<&[&[f32]]> = shards.iter().map(Vec::as_slice).collect();
    let mut into: Vec<&mut [f32]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    communicator.all_reduce_shards_many(&shards, deal, &mut into, ReduceOp::Mean).unwrap();
    outputs
}

#[test]
fn a_group_of_buffers_that_is_not_that_of_the_outputs_is_refused() {
    world(Path::Tcp, 1, LONG, |communicator, _| {
        let (one, two) = ([1.0_f32], [1.0_f32, 2.0]);
        let deal = ShardDeal::even(1, 1);
        let mut output = [0.0];
        for (shard, reason) in
            [(&[&one[..], &one[..]][..], "2 buffers are given, 1 are due"), (&[&two[..]], "shard")]
        {
            let shards = [shard];
            let error = communicator.all_reduce_shards_many(
                &shards,
                &deal,
                &mut [&mut output[..]],
                ReduceOp::Sum,
            );
            let error = error.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    });
}

#[test]
fn a_wrong_number_of_shards_is_refused() {
    world(Path::Tcp, 1, LONG, |communicator, _| {
        let (one, mut output) = ([1.0_f32], [0.0]);
        for (shards, due) in [(&[&one[..]][..], "1 shards are given, 2 are due"), (&[], "0 shards")]
        {
            let deal = ShardDeal::even(2, 1);
            let error = communicator.all_reduce_shards(shards, &deal, &mut output, ReduceOp::Sum);
            assert!(error.unwrap_err().to_string().contains(due));
        }
    });
}

fn largest(data: Vec<u8>) -> OwnedOperation<Vec<u8>> {
    Operation::AllReduce { data, data_type: DataType::U8, op: ReduceOp::Max }
}

#[test]
fn launched_operations_run_in_order_beside_the_caller() {
    for path in Path::ALL {
        world(path, 3, LONG, |communicator, abort| {
            let group = launchable(communicator, abort);
            let launched: Vec<_> = (0..2 * LAUNCHED_MAX)
                .map(|number| group.launch_operation(largest(vec![number as u8])))
                .collect();
            let sum = group.call(|group| {
                let mut sum = [1u32];
                group.all_reduce(&mut sum, ReduceOp::Sum).map(|()| sum)
            });
            // Earlier launches are done when a call returns.
            assert!(launched.iter().all(crate::Launched::test));
            assert_eq!(sum.unwrap(), [3]);
            for (number, operation) in launched.into_iter().enumerate() {
                assert_eq!(operation.wait().unwrap(), largest(vec![number as u8]));
            }
        });
    }
}

#[test]
fn g12_aborting_one_launched_operation_ends_all_of_them() {
    for path in Path::ALL {
        world(path, 2, LONG, |communicator, abort| {
            let group = launchable(communicator, abort);
            if communicator.rank() == 1 {
                // This rank never enters; it leaves when the other has given up.
                let error = communicator.barrier().unwrap_err();
                assert!(matches!(error, CollectiveError::PeerLost { rank: 0, .. }), "{error}");
                return;
            }
            let large = vec![0; 4 << 20];
            let first = group.launch_operation(largest(large));
            let second = group.launch_operation(largest(vec![0; 4]));
            assert!(!second.test());
            second.abort("enough");
            for operation in [first, second] {
                let error = operation.wait().unwrap_err();
                let CollectiveError::Aborted { reason, .. } = error else { panic!("{error}") };
                assert_eq!(&*reason, "enough");
            }
        });
    }
}

#[test]
fn an_operation_that_panics_fails_and_does_not_hang() {
    world(Path::Tcp, 2, LONG, |communicator, abort| {
        let group = launchable(communicator, abort);
        let operation = group.launch(|_| -> Result<(), CollectiveError> { panic!("on purpose") });
        let error = operation.wait().unwrap_err();
        assert!(matches!(error, CollectiveError::System(_)), "{error}");
    });
}

#[test]
fn a_call_runs_on_its_own_thread_where_nothing_is_in_flight() {
    let progress = ProgressThread::new();
    let group = || AsyncCommunicator::new(Box::new(SoloCommunicator::new()), None, &progress);
    let (one, other) = (group(), group());
    let own = thread::current().id();
    let id = |_: &mut dyn Communicator| Ok(thread::current().id());
    for _ in 0..100 {
        assert_eq!(one.launch_or_run(id).wait().unwrap(), own);
        // A launched operation that was waited for is no longer in flight.
        assert_ne!(one.launch(id).wait().unwrap(), own);
        let (go_on, blocked) = mpsc::channel::<()>();
        let launched = one.launch(move |_| blocked.recv().map_err(|_| CollectiveError::Closed));
        let behind = other.launch_or_run(id);
        assert!(!behind.test(), "it runs behind what was launched before");
        go_on.send(()).unwrap();
        assert_ne!(behind.wait().unwrap(), own);
        launched.wait().unwrap();
    }
}

#[test]
fn a_blocked_call_looks_up_and_ends_for_a_reason() {
    for path in Path::EVERY {
        let ended = Arc::new(Barrier::new(2));
        world(path, 2, LONG, move |communicator, _| {
            if communicator.rank() == 0 {
                let mut looks = 0;
                let look = move || {
                    looks += 1;
                    (looks == 3).then(|| "Ctrl-C".to_owned())
                };
                let error = attentive(Duration::from_millis(1), look, || {
                    communicator.barrier().unwrap_err()
                });
                let CollectiveError::Aborted { reason, .. } = error else { panic!("{error}") };
                assert_eq!(&*reason, "Ctrl-C", "{path:?}");
            }
            ended.wait();
        });
    }
}
