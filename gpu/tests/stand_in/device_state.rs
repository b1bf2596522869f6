//! State on the GPU: commits that overlap with the next step, and the way back.

use std::time::{Duration, Instant};

use elastic_gpu::cuda::Stream;
use elastic_gpu::nccl::{CommError, GpuPatience};
use elastic_gpu::{DeviceState, Gpu};

use crate::support::{Faults, LONG, faults, search};

const LENGTH: usize = 1 << 20;

fn all(state: &DeviceState, value: u8) -> bool {
    state.committed().is_some_and(|bytes| bytes.iter().all(|byte| *byte == value))
}

#[test]
fn h_22_what_was_committed_comes_back_and_what_was_not_does_not() {
    let _turn = faults();
    let gpu = Gpu::open(&search(), 0, false).expect("the stand-in works");
    let compute = Stream::new(gpu.device()).expect("a stream");
    let patience = GpuPatience { due: Instant::now() + LONG, stop: &|| None };
    let mut state = DeviceState::new(gpu.device(), LENGTH).expect("memory");
    assert_eq!(state.committed(), None);

    state.write(&[1; LENGTH], &compute, &patience).expect("it goes up");
    state.begin_commit(&compute, &patience).expect("it begins");
    // The next step changes the state once the copy has passed, whenever that is.
    state.write(&[2; LENGTH], &compute, &patience).expect("it goes up");
    state.finish_commit(&patience).expect("it ends");
    assert_eq!(state.committed(), None, "it counts once it is kept");
    state.keep_commit();
    assert!(all(&state, 1));
    assert_eq!(state.read(&compute, &patience).expect("it comes down"), [2; LENGTH]);
    state.restore(&compute, &patience).expect("it goes back");
    assert_eq!(state.read(&compute, &patience).expect("it comes down"), [1; LENGTH]);

    // Another member's commit takes its place, and is what is restored.
    state.replace_commit(&[3; LENGTH], &patience).expect("it is taken");
    state.restore(&compute, &patience).expect("it goes back");
    state.begin_commit(&compute, &patience).expect("it begins");
    state.begin_commit(&compute, &patience).expect("the one before is kept first");
    assert!(all(&state, 3));
    let cost = state.cost();
    assert_eq!(cost.commits, 2);
    assert!(cost.copied >= cost.waited);
}

#[test]
fn a_commit_after_a_step_that_was_aborted_is_none() {
    let _turn = faults();
    let gpu = Gpu::open(&search(), 0, false).expect("the stand-in works");
    let compute = Stream::new(gpu.device()).expect("a stream");
    let patience = GpuPatience { due: Instant::now() + LONG, stop: &|| None };
    let mut state = DeviceState::new(gpu.device(), LENGTH).expect("memory");
    state.write(&[1; LENGTH], &compute, &patience).expect("it goes up");
    state.begin_commit(&compute, &patience).expect("it begins");
    state.finish_commit(&patience).expect("it ends");
    state.keep_commit();
    state.write(&[2; LENGTH], &compute, &patience).expect("it goes up");
    // The queued work is done; this checks its result.
    let stop = || Some("the generation was aborted".to_owned());
    let aborted = GpuPatience { due: Instant::now() + LONG, stop: &stop };
    state.begin_commit(&compute, &aborted).expect_err("it may be spoilt");
    state.finish_commit(&patience).expect("nothing was begun");
    state.keep_commit();
    assert!(all(&state, 1));
    assert_eq!(state.cost().commits, 1);
}

/// A state with a begun commit whose copy does not end.
fn state_whose_copy_hangs(gpu: &Gpu, faults: &Faults) -> DeviceState {
    let compute = Stream::new(gpu.device()).expect("a stream");
    let patience = GpuPatience { due: Instant::now() + LONG, stop: &|| None };
    let mut state = DeviceState::new(gpu.device(), LENGTH).expect("memory");
    state.write(&[1; LENGTH], &compute, &patience).expect("it goes up");
    faults.set("call=cuMemcpyDtoHAsync do=hang");
    state.begin_commit(&compute, &patience).expect("it begins");
    state
}

#[test]
fn g_9_work_that_the_gpu_does_not_end_is_given_up_when_the_patience_is_over() {
    let faults = faults();
    let gpu = Gpu::open(&search(), 0, false).expect("the stand-in works");
    let mut state = state_whose_copy_hangs(&gpu, &faults);
    let short = GpuPatience { due: Instant::now() + Duration::from_millis(200), stop: &|| None };
    let error = state.finish_commit(&short).expect_err("the copy hangs");
    assert!(matches!(error, CommError::DeadlinePassed { .. }), "{error}");
}

#[test]
fn g_9_a_copy_that_does_not_end_is_waited_for_and_then_its_memory_is_given_up() {
    let faults = faults();
    let gpu = Gpu::open(&search(), 0, false).expect("the stand-in works");
    let state = state_whose_copy_hangs(&gpu, &faults);
    let begun = Instant::now();
    drop(state);
    assert!(begun.elapsed() >= Duration::from_secs(5), "the copy had its time");
}
