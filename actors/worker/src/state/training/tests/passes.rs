//! Tests of passes through data: many at a time, and one that is walked through again (H-23).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use elastic_protocol::messages::{Ballot, SyncPlan, WorkerToDriver};

use super::super::batches::Batches;
use super::super::{BatchPlan, Error, Membership, State, Worker, run_loop};
use super::cluster::{Cluster, Said};
use super::program::{self, Training};
use super::{FROM_0, nothing};
use crate::state::sampler::{DataPass, SampleLedger};

/// Samples of each pass: two batches.
const SAMPLES: usize = 6;
const BATCH: usize = 3;
/// Passes at a time, as of clients, languages, or parts of a corpus.
const MANY: usize = 1000;

/// Trains alone, without a driver.
fn alone(
    mut function: impl FnMut(&Worker, &mut State<Training>) -> Result<(), Error>,
) -> Result<(), Error> {
    run_loop(State::new(Training::default()), &mut Membership::alone(), |worker, state| {
        function(worker, state)
    })
}

fn passes<'a>(worker: &'a Worker, count: usize, samples: &'a usize) -> Vec<Batches<'a, usize>> {
    let pass =
        |number| worker.sampler(samples, BATCH, 0).named(format!("task {number}")).into_iter();
    (0..count).map(pass).collect()
}

#[test]
fn h_23_each_sample_of_a_thousand_passes_at_a_time_is_given_once() {
    alone(|worker, state| {
        let mut passes = passes(worker, MANY, &SAMPLES);
        let mut counts = vec![[0; SAMPLES]; passes.len()];
        // One batch of each in turn, once more than they have.
        for _ in 0..=SAMPLES / BATCH {
            for (pass, counts) in passes.iter_mut().zip(&mut counts) {
                pass.next().iter().flat_map(|batch| batch.iter()).for_each(|at| counts[at] += 1);
            }
            state.commit(worker)?;
        }
        assert!(counts.iter().all(|counts| *counts == [1; SAMPLES]));
        Ok(())
    })
    .expect("nothing is lost");
}

#[test]
fn h_23_a_pass_of_one_batch_ends_also_when_the_ledger_has_forgotten_it() {
    alone(|worker, _state| {
        let mut ended = worker.sampler(&BATCH, BATCH, 0).into_iter();
        assert_eq!(ended.next().map(|batch| batch.len()), Some(BATCH));
        let mut held = SampleLedger::with_finished(SampleLedger::FINISHED_MAX);
        std::mem::swap(&mut *worker.ledger().borrow_mut(), &mut held);
        assert_eq!(worker.ledger().borrow().place(&pass(BATCH), 0), None);
        assert!(ended.next().is_none());
        Ok(())
    })
    .expect("nothing is lost");
}

#[test]
fn h_23_a_pass_that_a_commit_cannot_hold_is_refused_with_the_limit_and_the_way_out() {
    alone(|worker, _state| {
        let _unfinished = passes(worker, SampleLedger::UNFINISHED_MAX, &SAMPLES);
        let one_more = || worker.sampler(&SAMPLES, BATCH, 0).named("one more").into_iter().count();
        let panic = catch_unwind(AssertUnwindSafe(one_more)).expect_err("it is one too many");
        let text = panic.downcast::<String>().expect("it is a text");
        assert!(text.contains("\"one more\"") && text.contains("1024 passes"), "{text}");
        assert!(text.contains("another epoch number"), "{text}");
        let plan = BatchPlan::new(3).shards(1).named("by shards");
        let refused = worker.shards(&SAMPLES, &plan, 0).map(drop).expect_err("it is one too many");
        assert!(matches!(&refused, Error::Passes(_)), "{refused:?}");
        Ok(())
    })
    .expect("nothing is lost");
}

/// The samples that one walk through a pass gives, or the rest of it, and no more than `most` batches.
fn walk(worker: &Worker, epoch: u64, counts: &mut [u32], most: usize) {
    let batches = worker.sampler(&SAMPLES, BATCH, epoch).into_iter().take(most);
    batches.for_each(|batch| batch.iter().for_each(|at| counts[at] += 1));
}

#[test]
fn h_23_two_epochs_of_a_pass_that_are_walked_side_by_side_give_each_sample_once() {
    alone(|worker, state| {
        let mut counts = [[0; SAMPLES]; 2];
        let [one, other] = [4, 5].map(|epoch| worker.sampler(&SAMPLES, BATCH, epoch).into_iter());
        for (one, other) in one.zip(other).take(10) {
            one.iter().for_each(|at| counts[0][at] += 1);
            other.iter().for_each(|at| counts[1][at] += 1);
            state.commit(worker)?;
        }
        assert_eq!(counts, [[1; SAMPLES]; 2]);
        Ok(())
    })
    .expect("nothing is lost");
}

#[test]
fn h_23_a_pass_goes_on_where_another_epoch_of_it_is_walked_within_it() {
    alone(|worker, state| {
        let (mut counts, mut evaluated) = ([0; SAMPLES], [0; SAMPLES]);
        let plan = BatchPlan::new(2).shards(1);
        let (mut steps, mut steps_evaluated) = (0, 0);
        for (step, batch) in worker.sampler(&SAMPLES, 1, 0).into_iter().take(20).enumerate() {
            batch.iter().for_each(|at| counts[at] += 1);
            state.commit(worker)?;
            walk(worker, 1_000_000 + step as u64, &mut evaluated, usize::MAX);
        }
        for step in worker.shards(&SAMPLES, &plan, 0)?.take(20) {
            steps += step.global_len();
            let within = worker.shards(&SAMPLES, &plan, 1_000_000 + steps as u64)?;
            steps_evaluated += within.count();
        }
        assert_eq!((counts, evaluated), ([1; SAMPLES], [SAMPLES as u32; SAMPLES]));
        assert_eq!((steps, steps_evaluated), (SAMPLES, 9));
        Ok(())
    })
    .expect("nothing is lost");
}

#[test]
fn h_23_epochs_that_are_done_stay_done_when_others_were_walked_after_them() {
    alone(|worker, state| {
        let mut counts = [0; SAMPLES];
        for epoch in 0..4 {
            walk(worker, epoch, &mut counts, usize::MAX);
            walk(worker, 1_000_000 + epoch, &mut [0; SAMPLES], usize::MAX);
        }
        state.commit(worker)?;
        walk(worker, 4, &mut counts, 1);
        state.restore()?;
        // A training function that begins anew: its epoch number is not in the state.
        (0..4).for_each(|epoch| walk(worker, epoch, &mut counts, usize::MAX));
        assert_eq!(counts.iter().sum::<u32>() as usize, 4 * SAMPLES + BATCH);
        Ok(())
    })
    .expect("nothing is lost");
}

#[test]
fn h_23_passes_that_are_broken_off_under_another_epoch_number_each_time_are_never_too_many() {
    alone(|worker, _state| {
        for epoch in 0..3 * SampleLedger::UNFINISHED_MAX as u64 {
            walk(worker, epoch, &mut [0; SAMPLES], 1);
        }
        Ok(())
    })
    .expect("the earlier ones are forgotten");
}

#[test]
fn h_23_a_pass_that_is_walked_is_not_forgotten_for_one_that_begins() {
    alone(|worker, _state| {
        let begin = |epoch| {
            let mut batches = worker.sampler(&SAMPLES, BATCH, epoch).into_iter();
            batches.next().map(|_first| batches)
        };
        let walked: Vec<_> = (0..SampleLedger::UNFINISHED_MAX as u64).filter_map(begin).collect();
        let panic = catch_unwind(AssertUnwindSafe(|| begin(10_000).is_some()));
        let text = panic.expect_err("it is one too many").downcast::<String>().expect("a text");
        assert!(text.contains("1024 passes") && text.contains("to their end"), "{text}");
        assert!(walked.into_iter().all(|batches| batches.count() == 1), "the second batch");
        assert!(begin(10_000).is_some());
        Ok(())
    })
    .expect("nothing is lost");
}

/// Draws a batch of each of so many tasks in turn, which one name and an epoch number of each tell, until all have ended or a
/// batch more than they have was drawn of each. Returns how often each sample was given.
fn draw_in_turn(
    worker: &Worker,
    state: &mut State<Training>,
    tasks: usize,
) -> Result<Vec<[u32; SAMPLES]>, Error> {
    let mut counts = vec![[0; SAMPLES]; tasks];
    for _ in 0..=SAMPLES / BATCH {
        (0..).zip(&mut counts).for_each(|(task, counts)| walk(worker, task, counts, 1));
        state.commit(worker)?;
    }
    Ok(counts)
}

#[test]
fn h_23_each_sample_of_a_thousand_tasks_that_are_drawn_from_in_turn_is_given_once() {
    let mut cluster = Cluster::new();
    cluster.start(0, nothing, |worker: &Worker, state: &mut State<Training>| {
        let counts = draw_in_turn(worker, state, SampleLedger::UNFINISHED_MAX)?;
        assert!(counts.iter().all(|counts| *counts == [1; SAMPLES]));
        // As one that breaks each epoch off.
        (10_000..12_000).for_each(|epoch| walk(worker, epoch, &mut [0; SAMPLES], 1));
        Ok(())
    });
    cluster.begin(&[0], FROM_0, 0);
    cluster.wait(|cluster| cluster.voted(0, &Ballot::Success));
    assert_eq!(warnings(&cluster), [""; 0]);
}

#[test]
fn h_23_a_task_that_lost_its_place_and_is_drawn_from_again_is_warned_of() {
    let mut cluster = Cluster::new();
    cluster.start(0, nothing, |worker: &Worker, state: &mut State<Training>| {
        let counts = draw_in_turn(worker, state, SampleLedger::UNFINISHED_MAX + 1)?;
        assert!(counts.iter().flatten().any(|count| *count > 1), "the first batch again");
        Ok(())
    });
    cluster.begin(&[0], FROM_0, 0);
    cluster.wait(|cluster| cluster.voted(0, &Ballot::Success));
    let told = warnings(&cluster);
    let is_it = |text: &str| text.contains("begins anew: 1024 passes");
    assert!(matches!(told[..], [text] if is_it(text)), "{told:?}");
}

/// A pass by ranks, without a name.
fn pass(length: usize) -> DataPass {
    DataPass { name: String::new(), length: length as u64, seed: Some(0), plan: None }
}

#[test]
fn h_23_a_pass_that_was_walked_to_its_end_and_begins_again_is_warned_of() {
    alone(|worker, _state| {
        assert_eq!(worker.sampler(&SAMPLES, BATCH, 0).into_iter().take(1).count(), 1);
        assert!(!worker.begins_empty(&pass(SAMPLES), 0), "it is not done");
        assert_eq!(worker.sampler(&SAMPLES, BATCH, 0).into_iter().count(), 1, "the rest");
        assert!(worker.begins_empty(&pass(SAMPLES), 0));
        assert_eq!(worker.sampler(&SAMPLES, BATCH, 1).into_iter().count(), 2, "the way out");
        assert_eq!(worker.sampler(&0, BATCH, 0).into_iter().count(), 0);
        assert!(!worker.begins_empty(&pass(0), 0), "there is nothing to give");
        let plan = BatchPlan::new(3).shards(1);
        let steps = |epoch| worker.shards(&SAMPLES, &plan, epoch).map(Iterator::count);
        assert_eq!((steps(0)?, steps(0)?, steps(1)?), (2, 0, 2));
        Ok(())
    })
    .expect("nothing is lost");
}

#[test]
fn h_23_a_pass_that_was_finished_before_a_reset_is_warned_of_only_if_it_is_walked_through_twice_after_it()
 {
    let mut cluster = Cluster::new();
    let mut entered = 0;
    let function = move |worker: &Worker, state: &mut State<Training>| {
        entered += 1;
        let is_told = worker.begins_empty(&pass(SAMPLES), 0);
        assert!(!is_told, "no pass of this generation was before");
        let batches = worker.sampler(&SAMPLES, BATCH, 0).into_iter().count();
        if entered == 1 {
            assert_eq!(batches, 2);
            loop {
                state.commit(worker)?;
            }
        }
        assert_eq!(batches, 0, "it is done");
        for _second_of_this_generation in 0..2 {
            assert_eq!(worker.sampler(&SAMPLES, BATCH, 0).into_iter().count(), 0);
        }
        Ok(())
    };
    cluster.start(0, nothing, function);
    cluster.begin(&[0], FROM_0, 0);
    let commits = cluster.interrupt(&[0]);
    cluster.begin(&[0], SyncPlan::Skip, commits[0].step.0);
    cluster.wait(|cluster| cluster.voted(0, &Ballot::Success));
    let told = warnings(&cluster);
    assert!(matches!(told[..], [text] if text.contains("another epoch number")), "{told:?}");
}

#[test]
fn h_23_what_is_drawn_after_an_interrupt_that_the_program_swallowed_is_given_again() {
    for commits in [true, false] {
        let mut cluster = Cluster::new();
        let finish = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&finish);
        cluster.start(0, nothing, move |worker: &Worker, state: &mut State<Training>| {
            while !state.done {
                for batch in worker.sampler(&program::SAMPLES, BATCH, state.epoch) {
                    worker.barrier()?;
                    batch.iter().for_each(|sample| state.counts[sample] += 1);
                    let told =
                        if commits { state.commit(worker) } else { worker.check_host_updates() };
                    // As a program that only logs the error.
                    drop(told);
                }
                state.epoch += 1;
                state.done = is_over.load(Ordering::SeqCst);
            }
            assert_eq!(state.counts, [state.epoch as u32; program::SAMPLES]);
            Ok(())
        });
        cluster.begin(&[0], FROM_0, 0);
        for _ in 0..3 {
            let kept = cluster.interrupt(&[0]);
            cluster.begin(&[0], SyncPlan::Skip, kept[0].step.0);
        }
        finish.store(true, Ordering::SeqCst);
        cluster.wait(|cluster| cluster.voted(0, &Ballot::Success));
        let told = warnings(&cluster);
        assert!(
            told.iter().all(|text| text.contains("after the generation has ended")),
            "{told:?}"
        );
    }
}

/// The warnings that worker 0 has told the driver.
fn warnings(cluster: &Cluster) -> Vec<&str> {
    let text_of = |said| match said {
        &Said::Driver(WorkerToDriver::Warning { ref text }) => Some(text.as_str()),
        _ => None,
    };
    cluster.said(0).iter().filter_map(text_of).collect()
}

#[test]
fn h_23_the_first_finished_pass_that_a_commit_cannot_hold_is_warned_of() {
    let mut cluster = Cluster::new();
    cluster.start(0, nothing, |worker: &Worker, _state: &mut State<Training>| {
        let mut held = SampleLedger::with_finished(SampleLedger::FINISHED_MAX);
        std::mem::swap(&mut *worker.ledger().borrow_mut(), &mut held);
        for name in ["one more", "and another"] {
            assert_eq!(worker.sampler(&SAMPLES, BATCH, 0).named(name).into_iter().count(), 2);
        }
        Ok(())
    });
    cluster.begin(&[0], FROM_0, 0);
    cluster.wait(|cluster| cluster.voted(0, &Ballot::Success));
    let told = warnings(&cluster);
    assert!(matches!(told[..], [text] if text.contains("16384 finished passes")), "{told:?}");
}
