//! Faults of NCCL and their handling: calls that fail, hang, or fail late, and ends that never return.

use std::sync::Arc;
use std::time::{Duration, Instant};

use elastic_collectives::wire::OperationKind;
use elastic_collectives::{CollectiveError, Communicator, CommunicatorExt, DataType, ReduceOp};
use elastic_gpu::cuda::{CudaEvent, DeviceBuffer};
use elastic_gpu::nccl::Region;
use elastic_gpu::{DeviceOperation, NcclGroup};

use crate::support::{LONG, Options, World, describe, faults, faults_met, sum, wait_for_faults};

/// Short, for an operation that is to pass its deadline.
const SHORT: Duration = Duration::from_millis(500);

/// [`sum`], with that deadline from here on.
fn short_sum(group: &mut dyn Communicator) -> Result<f32, CollectiveError> {
    group.set_operation_deadline(SHORT);
    sum(group)
}

fn error(result: Result<f32, CollectiveError>) -> CollectiveError {
    result.expect_err("it must fail")
}

#[test]
fn a_call_that_fails_is_told_and_the_next_generation_works() {
    let faults = faults();
    let mut world = World::new(0..2, Options::default());
    world.form_and_check();
    faults.set("call=ncclAllReduce rank=1 do=fail:3");
    let other = world.seats[&0].with_group(sum);
    let failed = world.seats[&1].with_group(sum).recv_timeout(LONG).expect("it returns");
    let text = describe(&error(failed));
    assert!(text.contains("all_reduce #1") && text.contains("ncclAllReduce"), "{text}");
    faults.set("");
    world.abort();
    assert!(other.recv_timeout(LONG).expect("it returns").is_err());
    world.form_and_check();
}

#[test]
fn an_error_that_comes_late_is_seen_without_a_call() {
    let faults = faults();
    let mut world = World::new(0..2, Options::default());
    world.form_and_check();
    faults.set("call=ncclAllReduce do=late:6");
    for result in world.collective(sum) {
        let text = describe(&error(result));
        assert!(text.contains("all_reduce #1"), "{text}");
    }
    faults.set("");
    world.form_anew_and_check();
}

#[test]
fn what_failed_is_named_also_where_the_abort_was_quicker_than_the_wait() {
    let faults = faults();
    let mut world = World::new(0..2, Options::default());
    world.form_and_check();
    faults.set("call=ncclAllReduce do=late:6");
    let results = world.collective(|group| {
        let nccl = group.as_any_mut().downcast_mut::<NcclGroup>();
        let nccl = nccl.expect("all have GPUs");
        let device = Arc::clone(nccl.stream().expect("it has one").device());
        let buffer = DeviceBuffer::new(&device, 64).expect("memory");
        let (data, data_type, op) = (Region::all(&buffer), DataType::F32, ReduceOp::Sum);
        let launched = nccl.launch_operation(&DeviceOperation::AllReduce { data, data_type, op });
        // A member that is slow meets the error of the other one as it begins.
        let sequence = match launched {
            Ok(sequence) => sequence,
            Err(error) => return error,
        };
        // The actor sees the error and ends the communicator, and with it the operation, which counts as passed then.
        let end = CudaEvent::new(&device).expect("a mark");
        end.record(nccl.stream().expect("it has one")).expect("it is queued");
        let due = Instant::now() + LONG;
        while nccl.verdict().is_none() || !end.is_passed().expect("the GPU works") {
            assert!(Instant::now() < due, "the actor ends it");
            std::thread::yield_now();
        }
        nccl.wait(OperationKind::AllReduce, sequence).expect_err("it has failed")
    });
    for error in results {
        let text = describe(&error);
        assert!(text.contains("all_reduce #1"), "{text}");
    }
    faults.set("");
    world.form_anew_and_check();
}

#[test]
fn x_15_who_does_not_come_is_named_by_those_who_wait() {
    let _turn = faults();
    let mut world = World::new(0..3, Options::default());
    world.form_and_check();
    let waiting: Vec<_> =
        [0, 2].iter().map(|rank| world.seats[rank].with_group(short_sum)).collect();
    for result in waiting {
        let error = error(result.recv_timeout(LONG).expect("it returns"));
        let CollectiveError::DeadlinePassed { sequence, waiting_for, .. } = &error else {
            panic!("it hangs: {error}");
        };
        assert_eq!((*sequence, waiting_for.as_slice()), (1, [1].as_slice()), "{error}");
    }
    world.form_anew_and_check();
}

#[test]
fn a_hang_in_which_all_take_part_is_told_as_such() {
    let faults = faults();
    let mut world = World::new(0..2, Options::default());
    world.form();
    faults.set("call=ncclAllReduce do=hang");
    for result in world.collective(short_sum) {
        let error = error(result);
        assert!(
            matches!(&error, CollectiveError::DeadlinePassed { waiting_for, .. } if waiting_for.is_empty()),
            "{error}"
        );
    }
    faults.set("");
    world.form_anew_and_check();
}

#[test]
fn a_call_that_does_not_return_is_freed_by_the_abort() {
    let faults = faults();
    let mut world = World::new(0..2, Options::default());
    world.form_and_check();
    let both = faults_met() + 2;
    faults.set("call=ncclAllReduce do=block");
    let blocked: Vec<_> = world.seats.values().map(|seat| seat.with_group(sum)).collect();
    wait_for_faults(both);
    for seat in world.seats.values() {
        seat.end(world.generation());
    }
    for result in blocked {
        assert!(result.recv_timeout(LONG).expect("it returns").is_err());
    }
    faults.set("");
    world.form_anew_and_check();
}

#[test]
fn ends_that_never_return_cost_a_thread_and_not_the_worker() {
    let faults = faults();
    let mut world = World::new(0..2, Options::default());
    faults.set("version=22304");
    world.form_and_check();
    faults.set("version=22304\ncall=ncclCommAbort do=stick");
    world.abort();
    faults.set("version=22304");
    world.form_and_check();
}

#[test]
fn where_forming_fails_for_one_all_are_told() {
    let faults = faults();
    let mut world = World::new(0..2, Options::default());
    faults.set("call=ncclCommInitRankConfig rank=1 do=fail:2");
    for seat in world.try_form() {
        let reason = seat.expect_err("one cannot");
        assert!(reason.contains("NCCL") || reason.contains("aborted"), "{reason}");
    }
    faults.set("");
    world.form_and_check();
}

#[test]
fn an_abort_ends_the_forming_at_once() {
    let faults = faults();
    let mut world = World::new(0..2, Options::default());
    let one = faults_met() + 1;
    faults.set("call=ncclCommInitRankConfig rank=1 do=hang");
    let ends: Vec<_> =
        world.seats.values().map(|seat| (seat.abort.clone(), seat.port.clone())).collect();
    let ender = std::thread::spawn(move || {
        wait_for_faults(one);
        for (abort, port) in ends {
            crate::support::Rank::end(&abort, &port, 1);
        }
    });
    for formed in world.try_form() {
        assert!(formed.is_err());
    }
    ender.join().expect("it does not panic");
    faults.set("");
    world.form_and_check();
}

#[test]
fn g_4_an_aborted_group_delivers_nothing_more() {
    let _turn = faults();
    let mut world = World::new(0..2, Options::default());
    world.form();
    for seat in world.seats.values() {
        seat.end(1);
    }
    for result in world.collective(|group: &mut dyn Communicator| group.barrier()) {
        assert!(matches!(result, Err(CollectiveError::Aborted { generation: 1, .. })));
    }
}
