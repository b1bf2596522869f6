//! Aborts, losses, mismatches and deadlines in operations.

use std::time::Duration;

use super::{LONG, Path, spawn, world};
use crate::wire::OperationKind;
use crate::{AbortHandle, CollectiveError, CommunicatorExt, PeerLoss, ReduceOp};

/// A number of elements that exceeds every socket buffer.
const LARGE: usize = 8 << 20;

/// Asserts that a survivor names the lost rank, and not another survivor that gave up before it.
fn assert_lost(error: &CollectiveError, lost: u32) {
    let CollectiveError::PeerLost { rank, .. } = error else { panic!("{error:?}") };
    assert_eq!(*rank, lost, "{error:?}");
}

#[test]
fn g12_an_abort_from_another_thread_ends_a_blocked_collective() {
    for path in Path::ALL {
        world(path, 3, LONG, |communicator, abort| {
            communicator.barrier().unwrap();
            // Rank 0 never enters; the others block in it until their own actor aborts them.
            if communicator.rank() == 0 {
                abort.abort(1, 1, "told");
                assert!(matches!(communicator.barrier(), Err(CollectiveError::Aborted { .. })));
                return;
            }
            let aborter: AbortHandle = abort.clone();
            let other = spawn(move || aborter.abort(1, 1, "told"));
            let error =
                communicator.all_reduce(&mut vec![1.0f32; LARGE], ReduceOp::Sum).unwrap_err();
            assert!(other.join().unwrap());
            // The farewell of a rank that was aborted before may come first.
            assert!(
                matches!(
                    error,
                    CollectiveError::Aborted { .. }
                        | CollectiveError::PeerLost { source: PeerLoss::Aborted, .. }
                ),
                "{error:?}"
            );
        });
    }
}

#[test]
fn an_abort_alone_ends_a_wait_and_an_older_one_does_not() {
    for path in Path::ALL {
        let errors = world(path, 2, LONG, |communicator, abort| {
            if communicator.rank() == 0 {
                // This rank waits for rank 1, which enters only to see this rank's abort.
                abort.abort(1, 0, "an older generation");
                communicator.barrier().unwrap();
                let aborter = abort.clone();
                let other =
                    spawn(move || aborter.abort(1, 1, "first") && !aborter.abort(1, 1, "second"));
                let error = communicator.recv(&mut [0u8], 1).unwrap_err();
                assert!(other.join().unwrap());
                assert_eq!(error.to_string(), communicator.barrier().unwrap_err().to_string());
                Some(error)
            } else {
                communicator.barrier().unwrap();
                let error = communicator.recv(&mut [0u8], 0).unwrap_err();
                assert!(matches!(
                    error,
                    CollectiveError::PeerLost { rank: 0, source: PeerLoss::Aborted }
                ));
                None
            }
        });
        let Some(CollectiveError::Aborted { term: 1, generation: 1, reason }) = &errors[0] else {
            panic!("{errors:?}")
        };
        assert_eq!(&**reason, "first");
    }
}

#[test]
fn a_peer_that_is_dropped_is_lost_for_all_ranks() {
    for path in Path::ALL {
        for elements in [1, LARGE] {
            let errors = world(path, 4, LONG, move |communicator, _| {
                communicator.barrier().unwrap();
                if communicator.rank() == 2 {
                    return None;
                }
                Some(
                    communicator
                        .all_reduce(&mut vec![1.0f32; elements], ReduceOp::Sum)
                        .unwrap_err(),
                )
            });
            for error in errors.into_iter().flatten() {
                assert_lost(&error, 2);
            }
        }
    }
}

#[test]
fn a_failure_in_a_sub_group_names_the_rank_of_the_whole_group() {
    for path in Path::ALL {
        let errors = world(path, 4, LONG, |communicator, _| {
            let rank = communicator.rank();
            // Each part has two ranks, the higher one first, and is split once more as a whole.
            let mut half = communicator.split(Some(rank % 2), -(rank as i32)).unwrap().unwrap();
            let mut again = half.split(Some(0), 0).unwrap().unwrap();
            again.barrier().unwrap();
            // Of each part one member ends.
            (rank == 1 || rank == 2).then(|| again.barrier().unwrap_err())
        });
        for (rank, lost) in [(1, 3), (2, 0)] {
            assert_lost(errors[rank].as_ref().unwrap(), lost);
        }
    }
}

#[test]
fn a_deadline_in_a_sub_group_names_the_ranks_of_the_whole_group() {
    for path in Path::ALL {
        let errors = world(path, 4, LONG, |communicator, _| {
            let rank = communicator.rank();
            let mut half = communicator.split(Some(rank % 2), -(rank as i32)).unwrap().unwrap();
            half.set_operation_deadline(Duration::from_millis(200));
            // The ranks below 2 do not enter.
            let missed = (rank >= 2).then(|| half.barrier().unwrap_err());
            communicator.barrier().unwrap();
            missed
        });
        for rank in [2, 3] {
            let error = errors[rank].as_ref().unwrap();
            let CollectiveError::DeadlinePassed { waiting_for, .. } = error else {
                panic!("{path:?}: {error:?}")
            };
            assert_eq!(waiting_for, &[rank as u32 - 2], "{path:?}");
        }
    }
}

#[test]
fn ranks_without_a_part_in_the_broken_link_notice_too() {
    for path in Path::ALL {
        // In a chain 0, 1, 2, 3 only rank 0 sends to rank 1, and rank 3 receives only from rank 2.
        let errors = world(path, 4, LONG, |communicator, _| {
            communicator.barrier().unwrap();
            if communicator.rank() == 1 {
                return None;
            }
            Some(communicator.broadcast(&mut vec![1u8; 4 * LARGE], 0).unwrap_err())
        });
        for error in errors.into_iter().flatten() {
            assert_lost(&error, 1);
        }
    }
}

#[test]
fn who_leaves_after_its_last_operation_hurts_nobody() {
    for path in Path::ALL {
        for _ in 0..50 {
            world(path, 4, LONG, |communicator, _| {
                let mut data = vec![communicator.rank(); 5000];
                communicator.all_reduce(&mut data, ReduceOp::Max).unwrap();
                assert_eq!(data, vec![3; 5000]);
                communicator.broadcast(&mut data[..3], 0).unwrap();
                communicator.close();
                assert!(matches!(communicator.barrier(), Err(CollectiveError::Closed)));
            });
        }
    }
}

#[test]
fn who_left_is_named_by_the_next_operation() {
    for path in Path::ALL {
        let errors = world(path, 2, LONG, |communicator, _| {
            if communicator.rank() == 1 {
                return None;
            }
            Some(communicator.recv(&mut [0u8], 1).unwrap_err())
        });
        let error = errors[0].as_ref().unwrap();
        assert!(
            matches!(error, CollectiveError::PeerLost { rank: 1, source: PeerLoss::Left }),
            "{error:?}"
        );
    }
}

#[test]
fn x15_a_mismatch_is_named_on_every_rank() {
    for path in Path::ALL {
        let errors = world(path, 3, LONG, |communicator, _| {
            communicator.barrier().unwrap();
            let elements = if communicator.rank() == 1 { 3 } else { 4 };
            communicator.all_reduce(&mut vec![1.0f32; elements], ReduceOp::Sum).unwrap_err()
        });
        for (rank, error) in errors.iter().enumerate() {
            let CollectiveError::Mismatch { operation, sequence, rank: other, ours, theirs } =
                error
            else {
                panic!("rank {rank}: {error:?}")
            };
            assert_eq!((*operation, *sequence), (OperationKind::AllReduce, 1));
            assert!(rank == 1 || *other == 1);
            assert_ne!(ours.operation.bytes, theirs.operation.bytes);
        }
    }
}

#[test]
fn x15_a_mismatch_is_named_by_ranks_that_are_no_neighbours_of_it() {
    for path in Path::ALL {
        // In a chain 0, 1, 2, 3 rank 1 sees what rank 0 sends, and rank 3 receives only from rank 2.
        let errors = world(path, 4, LONG, |communicator, _| {
            let length = if communicator.rank() == 0 { 100_000 } else { 100_001 };
            let sent = communicator.broadcast(&mut vec![1u8; length], 0);
            // The root's sends may succeed before the mismatch; it learns of it in the next operation.
            sent.and_then(|()| communicator.barrier()).unwrap_err()
        });
        for (rank, error) in errors.iter().enumerate() {
            let CollectiveError::Mismatch { rank: other, theirs, .. } = error else {
                panic!("{path:?}, rank {rank}: {error:?}")
            };
            let due = if rank == 0 { 100_001 } else { 100_000 };
            assert_eq!((rank == 0, theirs.operation.bytes), (*other != 0, due), "{path:?}");
        }
    }
}

/// The world is large enough that small messages go by doubling, where each rank receives from few others.
#[test]
fn x15_and_g9_a_rank_of_many_is_named_by_all() {
    const WORLD: u32 = 17;
    let errors = world(Path::Tcp, WORLD, LONG, |communicator, _| {
        communicator.barrier().unwrap();
        let elements = if communicator.rank() == 5 { 3 } else { 4 };
        communicator.all_reduce(&mut vec![1.0f32; elements], ReduceOp::Sum).unwrap_err()
    });
    for (rank, error) in errors.iter().enumerate() {
        let CollectiveError::Mismatch { rank: other, .. } = error else {
            panic!("rank {rank}: {error:?}")
        };
        assert_eq!(rank == 5, *other != 5, "rank {rank}: {error:?}");
    }
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    let errors = world(Path::Tcp, WORLD, LONG, move |communicator, _| {
        communicator.barrier().unwrap();
        communicator.set_operation_deadline(Duration::from_secs(2));
        if communicator.rank() == 3 {
            // The rank is alive, but does not enter until all others have given up.
            let wait = wait.lock().unwrap();
            (1..WORLD).for_each(|_| wait.recv_timeout(LONG).unwrap());
            return None;
        }
        let error = communicator.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap_err();
        done.send(()).unwrap();
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        let CollectiveError::DeadlinePassed { waiting_for, .. } = &error else {
            panic!("{error:?}")
        };
        assert!(waiting_for.contains(&3), "{error:?}");
    }
}

#[test]
fn x15_another_operation_is_named() {
    for path in Path::ALL {
        let errors = world(path, 2, LONG, |communicator, _| {
            if communicator.rank() == 0 {
                communicator.barrier().unwrap_err()
            } else {
                communicator.all_reduce(&mut [1u8], ReduceOp::Max).unwrap_err()
            }
        });
        for error in errors {
            assert!(matches!(error, CollectiveError::Mismatch { .. }), "{path:?}: {error:?}");
        }
    }
}

#[test]
fn x15_lengths_that_differ_within_a_pair_are_named() {
    for path in Path::ALL {
        let errors = world(path, 2, LONG, |communicator, _| {
            // Rank 0 sends three elements to rank 1, which expects two.
            let (sent, due) =
                if communicator.rank() == 0 { ([1, 3], [1, 1]) } else { ([1, 1], [2, 1]) };
            let (input, mut output) = (vec![1u32; sent[0] + sent[1]], vec![0u32; due[0] + due[1]]);
            communicator.all_to_all_v(&input, &sent, &mut output, &due).err()
        });
        let Some(CollectiveError::Mismatch { rank: 0, ours, theirs, .. }) = &errors[1] else {
            panic!("{path:?}: {errors:?}")
        };
        assert_eq!((ours.operation.bytes, theirs.operation.bytes), (8, 12), "{path:?}");
    }
}

#[test]
fn g9_the_deadline_names_the_missing_rank() {
    for path in Path::ALL {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
        let errors = world(path, 3, Duration::from_millis(200), move |communicator, _| {
            communicator.barrier().unwrap();
            if communicator.rank() == 2 {
                // The rank is alive, but does not enter until both others have given up.
                let wait = wait.lock().unwrap();
                for _ in 0..2 {
                    wait.recv_timeout(LONG).unwrap();
                }
                return None;
            }
            let error = communicator.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap_err();
            done.send(()).unwrap();
            Some(error)
        });
        for error in errors.into_iter().flatten() {
            let CollectiveError::DeadlinePassed { waiting_for, sequence: 1, .. } = &error else {
                panic!("{error:?}")
            };
            assert_eq!(waiting_for, &[2]);
        }
    }
}

#[test]
fn g9_who_did_not_come_on_another_host_is_named_and_not_its_leader() {
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    let deadline = Duration::from_millis(200);
    let errors = world(Path::Hierarchy, 4, deadline, move |communicator, _| {
        communicator.barrier().unwrap();
        if communicator.rank() == 3 {
            let wait = wait.lock().unwrap();
            for _ in 0..3 {
                wait.recv_timeout(LONG).unwrap();
            }
            return None;
        }
        let error = communicator.all_reduce(&mut vec![1.0f32; LARGE], ReduceOp::Sum).unwrap_err();
        done.send(()).unwrap();
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        let due = "rank 3 has not entered all_reduce #1, 3 others wait";
        assert_eq!(error.to_string(), due);
    }
}
