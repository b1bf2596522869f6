//! Tests of the run loop with real threads, real sockets, and a driver that does what the test says.

mod beginning;
mod cluster;
mod device;
mod in_files;
mod late;
mod passes;
mod program;
mod resuming;
mod saving;
mod setting_aside;
mod shards;
mod syncing;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use elastic_collectives::ReduceOp;
use elastic_protocol::messages::{Ballot, DriverToWorker, SyncPlan, WorkerToDriver};
use elastic_protocol::{GenerationId, JobOutcome, JobResult};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Error, State, Worker};
use cluster::{Cluster, Said};
use program::{Strings, Training};

const FROM_0: SyncPlan = SyncPlan::FromRoot { root: 0 };

fn start(cluster: &mut Cluster, numbers: &[u32]) -> Vec<Strings> {
    let strings = |number: &u32| {
        let strings = Strings::default();
        cluster.start(*number, |_state| {}, strings.train());
        strings
    };
    numbers.iter().map(strings).collect()
}

fn nothing(_state: &mut State<Training>) {}

#[test]
fn h_5_an_interrupt_keeps_live_state_and_needs_no_sync() {
    let mut cluster = Cluster::new();
    let strings = start(&mut cluster, &[0, 1, 2]);
    cluster.begin(&[0, 1, 2], FROM_0, 0);
    let commits = cluster.interrupt(&[0, 1, 2]);
    assert!(commits.iter().all(|commit| *commit == commits[0]), "G-6: one step, one digest");
    cluster.leave(2).expect("G-11");
    cluster.begin(&[0, 1], SyncPlan::Skip, commits[0].step.0);
    strings[1].finish();
    cluster.wait(|cluster| cluster.all_voted(&[0, 1], &Ballot::Success));
    assert_eq!(strings[0].checked_result(), strings[1].checked_result());
    for number in [0, 1] {
        cluster.leave(number).expect("G-11");
    }
}

#[test]
fn h_7_a_lost_worker_costs_the_steps_since_the_last_commit() {
    let mut cluster = Cluster::new();
    let strings = start(&mut cluster, &[0, 1, 2]);
    cluster.begin(&[0, 1, 2], FROM_0, 0);
    Strings::set(&strings[1].die);
    cluster.bury(1, "told to die");
    let arrivals = cluster.arrivals(&[0, 2]);
    let failed =
        |said: &Said| matches!(said, Said::Driver(WorkerToDriver::CollectiveFailed { .. }));
    assert!(cluster.said(0).iter().any(failed), "G-12: by push");
    let highest = arrivals.iter().map(|(commit, _)| *commit).max().expect("two arrived");
    let root = arrivals.iter().position(|(commit, _)| *commit == highest).expect("one has it");
    let plan = SyncPlan::FromRoot { root: root as u32 };
    cluster.begin(&[0, 2], plan, highest.step.0);
    strings[0].finish();
    cluster.wait(|cluster| cluster.all_voted(&[0, 2], &Ballot::Success));
    assert_eq!(strings[0].checked_result(), strings[2].checked_result());
}

#[test]
fn h_4_h_24_a_newcomer_takes_the_state_over_and_callbacks_run_in_order() {
    let mut cluster = Cluster::new();
    let strings = [Strings::default(), Strings::default()];
    let prepare = |state: &mut State<Training>| {
        state.on_reset(|worker, training| training.resets.push(u64::from(worker.size())));
        state.on_reset(|worker, training| training.resets.push(100 + worker.generation()));
    };
    cluster.start(0, prepare, strings[0].train());
    cluster.begin(&[0], FROM_0, 0);
    let commits = cluster.interrupt(&[0]);
    cluster.start(1, prepare, strings[1].train());
    cluster.begin(&[0, 1], FROM_0, commits[0].step.0);
    strings[0].finish();
    cluster.wait(|cluster| cluster.all_voted(&[0, 1], &Ballot::Success));
    let result = strings[1].checked_result();
    assert_eq!(result, strings[0].checked_result());
    assert_eq!(result.resets, [2, 102], "not when training began, once when it went on");
}

#[test]
fn h_24_a_callback_that_panics_fails_its_worker_as_the_training_function_does() {
    for plan in [FROM_0, SyncPlan::Skip] {
        let mut cluster = Cluster::new();
        let strings = [Strings::default(), Strings::default()];
        let prepare = |state: &mut State<Training>| {
            state.on_reset(|_, _| panic!("as planned"));
        };
        cluster.start(0, |_| {}, strings[0].train());
        cluster.start(1, prepare, strings[1].train());
        cluster.begin(&[0, 1], FROM_0, 0);
        let commits = cluster.interrupt(&[0, 1]);
        cluster.begin(&[0, 1], plan, commits[0].step.0);
        cluster.bury(1, "as planned");
    }
}

/// An abort at two workers, one of which does otherwise with its error than to pass it on: training goes on in the same threads.
fn is_aborted_all_the_same(otherwise: impl Fn(&Strings) -> &AtomicBool) -> Cluster {
    let mut cluster = Cluster::new();
    let strings = start(&mut cluster, &[0, 1]);
    Strings::set(otherwise(&strings[1]));
    cluster.begin(&[0, 1], FROM_0, 0);
    cluster.abort(&[0, 1]);
    let arrivals = cluster.arrivals(&[0, 1]);
    assert!(!cluster.voted(1, &Ballot::Success), "the abort counts");
    let highest = arrivals.iter().map(|(commit, _)| *commit).max().expect("two arrived");
    let root = arrivals.iter().position(|(commit, _)| *commit == highest).expect("one has it");
    cluster.begin(&[0, 1], SyncPlan::FromRoot { root: root as u32 }, highest.step.0);
    strings[0].finish();
    cluster.wait(|cluster| cluster.all_voted(&[0, 1], &Ballot::Success));
    assert_eq!(strings[0].checked_result(), strings[1].checked_result());
    cluster
}

#[test]
fn an_aborted_generation_is_aborted_whatever_the_function_returns() {
    is_aborted_all_the_same(|strings| &strings.swallow);
}

#[test]
fn h_7_a_worker_that_panics_at_the_error_of_its_generation_s_end_keeps_its_process_and_warns() {
    let cluster = is_aborted_all_the_same(|strings| &strings.unwrap);
    let warned = |said: &Said| {
        let Said::Driver(WorkerToDriver::Warning { text }) = said else { return false };
        text.contains("rank 1 panicked: no error in this program")
            && text.contains("return the error")
    };
    assert!(cluster.said(1).iter().any(warned), "{:?}", cluster.said(1));
}

#[test]
fn h_21_a_finished_worker_takes_part_again_when_others_have_not_finished() {
    let mut cluster = Cluster::new();
    let strings = start(&mut cluster, &[0]);
    strings[0].finish();
    cluster.begin(&[0], FROM_0, 0);
    cluster.wait(|cluster| cluster.voted(0, &Ballot::Success));
    cluster.abort(&[0]);
    let arrivals = cluster.arrivals(&[0]);
    let late = Strings::default();
    cluster.start(1, nothing, late.train());
    cluster.begin(&[0, 1], FROM_0, arrivals[0].0.step.0);
    cluster.wait(|cluster| cluster.all_voted(&[0, 1], &Ballot::Success));
    assert_eq!(late.checked_result(), strings[0].checked_result());
    let result = JobResult {
        outcome: JobOutcome::Succeeded,
        code: 0,
        reason: "done".to_owned(),
        hint: None,
        generation: GenerationId(2),
        first_failure: None,
    };
    for number in [0, 1] {
        cluster.tell(number, DriverToWorker::Finished { result: result.clone() });
        cluster.join(number).expect("the job succeeded");
    }
}

#[test]
fn h_7_an_error_of_the_function_is_voted_and_returned() {
    let mut cluster = Cluster::new();
    let strings = start(&mut cluster, &[0, 1]);
    cluster.begin(&[0, 1], FROM_0, 0);
    Strings::set(&strings[0].fail);
    let failure = Ballot::Failure { status: None, message: "told to fail".to_owned() };
    cluster.wait(|cluster| cluster.voted(0, &failure));
    let error = cluster.join(0).expect_err("its own error");
    assert!(matches!(error, Error::User(_)));
    cluster.arrivals(&[1]);
    assert_eq!(strings[0].entered.load(Ordering::SeqCst), 1);
}

#[test]
fn g_11_a_worker_leaves_in_mid_training() {
    let mut cluster = Cluster::new();
    start(&mut cluster, &[0]);
    cluster.begin(&[0], FROM_0, 0);
    cluster.leave(0).expect("cleanly");
}

#[test]
fn a_worker_whose_actors_are_gone_ends_with_an_error() {
    let mut cluster = Cluster::new();
    start(&mut cluster, &[0, 1]);
    cluster.lose_actor(1);
    let error = cluster.join(1).expect_err("at rest");
    assert!(matches!(error, Error::ActorsGone { .. }));
    cluster.begin(&[0], FROM_0, 0);
    cluster.lose_actor(0);
    let error = cluster.join(0).expect_err("in training");
    assert!(matches!(error, Error::ActorsGone { .. }), "{error:?}");
}

#[test]
fn each_commit_ends_a_step_that_is_measured_with_the_commits_copy() {
    let mut cluster = Cluster::new();
    let (tell, told) = mpsc::channel();
    let function = move |worker: &Worker, state: &mut State<Training>| {
        state.counts = vec![1; 1 << 18];
        for _ in 0..4 {
            state.commit(worker)?;
        }
        let steps = worker.control().and_then(|control| control.shared().progress().steps);
        let _nobody_waits = tell.send(steps);
        Ok(())
    };
    cluster.start(0, nothing, function);
    cluster.begin(&[0], FROM_0, 0);
    cluster.wait(|cluster| cluster.all_voted(&[0], &Ballot::Success));
    let steps = told.try_recv().expect("it has returned").expect("steps were measured");
    assert!(0 < steps.commit_us && steps.commit_us <= steps.step_us, "{steps:?}");
}

#[test]
fn h_22_a_state_goes_back_to_its_last_commit() {
    let mut state = State::new(Training::default());
    state.save_initial().expect("it encodes");
    state.counts[3] = 7;
    state.restore().expect("it decodes");
    assert_eq!(state.counts[3], 0, "modified and restored");
    state.counts[3] = 8;
    state.save().expect("it encodes");
    state.epoch = 5;
    state.restore().expect("it decodes");
    assert_eq!((state.counts[3], state.epoch), (8, 0), "modified, committed and restored");
    assert_eq!(state.step().0, 1);
}

thread_local! {
    /// The number of values of [`Large`] that exist on this thread, and the most there were.
    static LARGE: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// A state of which memory holds one beside the commit.
#[derive(Serialize)]
struct Large(u64);

impl Large {
    fn new(value: u64) -> Self {
        let (exist, most) = LARGE.get();
        LARGE.set((exist + 1, most.max(exist + 1)));
        Self(value)
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        let (exist, most) = LARGE.get();
        LARGE.set((exist - 1, most));
    }
}

impl<'de> Deserialize<'de> for Large {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        u64::deserialize(from).map(Self::new)
    }
}

#[test]
fn a_state_that_goes_back_to_its_commit_is_not_there_twice() {
    let mut state = State::new(Large::new(5));
    state.save().expect("it encodes");
    state.0 = 6;
    state.restore().expect("it decodes");
    assert_eq!(state.0, 5);
    assert_eq!(LARGE.get(), (1, 1));
}

/// Launches each operation in a world of three, all before the first wait.
fn every_launched_operation(worker: &Worker) -> super::Result<()> {
    let rank = worker.rank();
    let reduced = worker.reduce_async(vec![rank], ReduceOp::Sum, 2)?;
    let broadcast = worker.broadcast_async(vec![rank], 1)?;
    let gathered = worker.gather_async(vec![rank], 1)?;
    let parts = (rank == 2).then(|| vec![7_u32, 8, 9]);
    let scattered = worker.scatter_async(parts, vec![0], 2)?;
    let all = worker.all_gather_async(vec![rank])?;
    let part = worker.reduce_scatter_async(vec![0, 1, 2_u32], ReduceOp::Sum)?;
    let exchanged = worker.all_to_all_async(vec![rank; 3])?;
    let barrier = worker.barrier_async()?;
    let message = match rank {
        0 => worker.send_async(vec![5_u32], 1)?,
        _ => worker.recv_async(vec![0_u32], rank - 1)?,
    };
    assert_eq!(reduced.wait()?, [if rank == 2 { 3 } else { rank }]);
    assert_eq!(broadcast.wait()?, [1]);
    assert_eq!(gathered.wait()?, (rank == 1).then(|| vec![0, 1, 2]));
    assert_eq!(scattered.wait()?, [7 + rank]);
    assert_eq!(all.wait()?, [0, 1, 2]);
    assert_eq!(part.wait()?, [3 * rank]);
    assert_eq!(exchanged.wait()?, [0, 1, 2]);
    barrier.wait()?;
    let received = message.wait()?;
    if rank == 1 {
        worker.send_async(received, 2)?.wait()?;
    } else {
        assert_eq!(received, [5]);
    }
    Ok(())
}

#[test]
fn sub_groups_and_launched_operations_live_as_long_as_their_generation() {
    let mut cluster = Cluster::new();
    let give_up = Strings::default();
    for number in 0..3 {
        let give_up = Arc::clone(&give_up.fail);
        let function = move |worker: &Worker, state: &mut State<Training>| {
            let rank = worker.rank();
            let half = worker.split(Some(rank % 2), 0)?.expect("each has a colour");
            loop {
                let all = worker.all_reduce_async(vec![rank], ReduceOp::Sum)?;
                let some = half.all_reduce_async(vec![rank + 1], ReduceOp::Sum)?;
                if rank == 1 && give_up.swap(false, Ordering::SeqCst) {
                    some.abort("rank 1 gives up");
                    assert!(matches!(some.wait(), Err(Error::Aborted { .. })));
                    return all.wait().map(drop);
                }
                assert_eq!(some.wait()?, [if rank == 1 { 2 } else { 4 }]);
                assert_eq!(all.wait()?, [3]);
                let (mut first, mut second) = ([1.5_f32], [rank as f32; 2]);
                worker.all_reduce_many(&mut [&mut first, &mut second], ReduceOp::Max)?;
                assert_eq!((first, second), ([1.5], [2.0; 2]));
                every_launched_operation(worker)?;
                state.commit(worker)?;
            }
        };
        cluster.start(number, nothing, function);
    }
    let all = [0, 1, 2];
    cluster.begin(&all, FROM_0, 0);
    let commits = cluster.interrupt(&all);
    cluster.begin(&all, SyncPlan::Skip, commits[0].step.0);
    Strings::set(&give_up.fail);
    cluster.arrivals(&all);
    let failed = |said: &Said| match said {
        Said::Driver(WorkerToDriver::CollectiveFailed { error, .. }) => error == "rank 1 gives up",
        _ => false,
    };
    assert!(cluster.said(1).iter().any(failed), "G-12: the driver is told why");
    for number in all {
        cluster.leave(number).expect("G-11");
    }
}
