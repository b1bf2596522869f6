//! State on the GPU: commits that overlap with the next step, and the way back.

use std::time::{Duration, Instant};

use elastic_gpu::cuda::Stream;
use elastic_gpu::nccl::Patience;
use elastic_gpu::{DeviceState, Gpu};

use crate::support::{LONG, faults, search};

const LENGTH: usize = 1 << 20;

#[test]
fn h_22_what_was_committed_comes_back_and_what_was_not_does_not() {
    let _turn = faults();
    let gpu = Gpu::open(&search(), 0, false).expect("the stand-in works");
    let compute = Stream::new(gpu.device()).expect("a stream");
    let patience = Patience { due: Instant::now() + LONG, stop: &|| None };
    let mut state = DeviceState::new(gpu.device(), LENGTH).expect("memory");
    assert_eq!(state.committed(), None);

    state.replace(&[1; LENGTH], &compute, &patience).expect("it goes up");
    state.begin_commit(&compute, &patience).expect("it begins");
    state.before_update(&compute).expect("it waits on the GPU");
    state.finish_commit(&patience).expect("it ends");
    assert_eq!(state.committed(), Some([1; LENGTH].as_slice()));

    // Another member's commit takes its place, and is what is restored.
    state.replace(&[2; LENGTH], &compute, &patience).expect("it goes up");
    state.restore(&compute, &patience).expect("it goes back");
    state.begin_commit(&compute, &patience).expect("it begins");
    state.begin_commit(&compute, &patience).expect("the one before is finished first");
    state.finish_commit(&patience).expect("it ends");
    assert_eq!(state.committed(), Some([2; LENGTH].as_slice()));
    let cost = state.cost();
    assert_eq!(cost.commits, 3);
    assert!(cost.copied >= cost.waited);
}

#[test]
fn a_wait_that_is_given_up_leaves_the_commit_of_before() {
    let _turn = faults();
    let gpu = Gpu::open(&search(), 0, false).expect("the stand-in works");
    let compute = Stream::new(gpu.device()).expect("a stream");
    let patience = Patience { due: Instant::now() + LONG, stop: &|| None };
    let mut state = DeviceState::new(gpu.device(), 64 << 20).expect("memory");
    state.replace(&vec![1; 64 << 20], &compute, &patience).expect("it goes up");
    state.begin_commit(&compute, &patience).expect("it begins");
    let stop = || Some("the generation was aborted".to_owned());
    let impatient = Patience { due: Instant::now() + Duration::ZERO, stop: &stop };
    // It may be done already, on a machine that is fast; if not, it counts later.
    let _ = state.finish_commit(&impatient);
    assert_eq!(state.committed().map(<[u8]>::len), Some(64 << 20));
    state.finish_commit(&patience).expect("it ends");
    assert_eq!(state.cost().commits, 1);
}
