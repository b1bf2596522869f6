//! Tests of sub-groups, fused reductions, reductions by shard, and launched operations.

use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use super::{LONG, Path, world};
use crate::{
    AsyncCommunicator, CollectiveError, Communicator, CommunicatorExt, DataType, LAUNCHED_MAX,
    Operation, OwnedOperation, ProgressThread, ReduceOp, SoloCommunicator, attentive, shards_of,
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

#[test]
fn a_world_of_three_gives_the_bits_of_a_world_of_four() {
    const SHARDS: u32 = 7;
    const ELEMENTS: usize = 300_001;
    let gradient = |shard: u32| -> Vec<f32> {
        (0..ELEMENTS).map(|index| 0.1 + shard as f32 * 1e-3 + index as f32 * 1e-5).collect()
    };
    let reduced = |path: Path, size: u32, op: ReduceOp| -> Vec<f32> {
        let results = world(path, size, LONG, move |communicator, _| {
            let own = shards_of(SHARDS, communicator.rank(), size);
            let shards: Vec<Vec<f32>> = own.map(gradient).collect();
            let shards: Vec<&[f32]> = shards.iter().map(Vec::as_slice).collect();
            let mut output = vec![0.0; ELEMENTS];
            communicator.all_reduce_shards(&shards, SHARDS, &mut output, op).unwrap();
            output
        });
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
        results.into_iter().next().unwrap()
    };
    for op in [ReduceOp::Sum, ReduceOp::Mean] {
        let due = reduced(Path::Tcp, 1, op);
        let mut plain = gradient(0);
        for shard in 1..SHARDS {
            plain.iter_mut().zip(gradient(shard)).for_each(|(sum, value)| *sum += value);
        }
        if op == ReduceOp::Mean {
            plain.iter_mut().for_each(|sum| *sum /= SHARDS as f32);
        }
        assert!(due == plain);
        for path in Path::ALL {
            for size in [3, 4, 8] {
                assert!(reduced(path, size, op) == due, "{path:?}, a world of {size}, {op}");
            }
        }
    }
}

/// A launchable communicator for a test's rank: a sub-group, since the rank's own communicator is only borrowed.
fn launchable(
    communicator: &mut dyn Communicator,
    abort: &crate::AbortHandle,
) -> AsyncCommunicator {
    let group = communicator.split(Some(0), 0).unwrap().unwrap();
    AsyncCommunicator::new(group, Some(abort.clone()), &ProgressThread::new())
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
