//! Tests of passes through data: many at a time, and one that is walked through again (H-23).

use std::panic::{AssertUnwindSafe, catch_unwind};

use elastic_protocol::messages::{Ballot, SyncPlan, WorkerToDriver};

use super::super::batches::Batches;
use super::super::{BatchPlan, Error, Membership, State, Worker, run_loop};
use super::cluster::{Cluster, Said};
use super::program::Training;
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
        let mut ended = passes(worker, 1, &BATCH);
        assert_eq!(ended[0].next().map(|batch| batch.len()), Some(BATCH));
        for number in 0..SampleLedger::ENTRIES_MAX {
            let other = worker.sampler(&BATCH, BATCH, 0).named(format!("other {number}"));
            assert_eq!(other.into_iter().count(), 1);
        }
        assert!(ended[0].next().is_none());
        Ok(())
    })
    .expect("nothing is lost");
}

#[test]
fn h_23_a_pass_that_a_commit_cannot_hold_is_refused_with_the_limit_and_the_way_out() {
    alone(|worker, _state| {
        let _unfinished = passes(worker, SampleLedger::ENTRIES_MAX, &SAMPLES);
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
    let said = cluster.said(0);
    let told = said.iter().filter_map(|said| match said {
        Said::Driver(WorkerToDriver::Warning { text }) => Some(text),
        _ => None,
    });
    let told: Vec<_> = told.collect();
    assert!(matches!(told[..], [text] if text.contains("another epoch number")), "{told:?}");
}
