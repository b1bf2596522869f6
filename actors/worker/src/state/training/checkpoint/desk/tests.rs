//! Tests of orders to save a step, and of their outcomes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use elastic_checkpoint::store_of;
use elastic_protocol::messages::{BulkWork, CheckpointOrder, CheckpointReport, MovedBytes};
use elastic_protocol::{GenerationId, JobId, Stamp, Step, Term};
use tempfile::TempDir;

use super::{CheckpointDesk, SaveOrder, SavedCommit};
use crate::state::core::{CheckpointCommand, CheckpointOutcome, CheckpointPart};

/// A desk whose jobs the test carries out, with the outcomes that it has reported.
struct Subject {
    desk: CheckpointDesk,
    told: Arc<Mutex<Vec<CheckpointOutcome>>>,
    folder: TempDir,
}

const fn stamp(generation: u64) -> Stamp {
    Stamp { term: Term(1), generation: GenerationId(generation) }
}

impl Subject {
    fn new() -> Self {
        let (desk, told) = (CheckpointDesk::new(store_of), Arc::new(Mutex::new(Vec::new())));
        let to = Arc::clone(&told);
        desk.tell_through(move |outcome| to.lock().expect("no panic").push(outcome));
        desk.write_by_caller();
        desk.begin_generation();
        Self { desk, told, folder: TempDir::new().expect("a folder") }
    }

    fn told(&self) -> Vec<CheckpointReport> {
        let told = std::mem::take(&mut *self.told.lock().expect("no panic"));
        told.into_iter().map(|outcome| outcome.report).collect()
    }

    fn part(&self, generation: u64, step: u64) -> CheckpointPart {
        let order = CheckpointOrder {
            stamp: stamp(generation),
            step: Step(step),
            directory: self.folder.path().display().to_string(),
            name: None,
            bytes_per_s: None,
        };
        CheckpointPart { order, job: JobId(uuid::Uuid::from_u128(7)), rank: 0, world_size: 1 }
    }

    /// Orders a save, and returns the outcome if it is known at once.
    fn order(&self, generation: u64, step: u64) -> Option<CheckpointReport> {
        let part = self.part(generation, step);
        let outcome = self.desk.command(CheckpointCommand::Save(part))?;
        assert_eq!((outcome.stamp, outcome.step), (stamp(generation), Step(step)));
        Some(outcome.report)
    }

    fn seal(&self, generation: u64, step: u64) -> Option<CheckpointReport> {
        let (stamp, step) = (stamp(generation), Step(step));
        let command = CheckpointCommand::Seal { stamp, step, keep: 1 };
        self.desk.command(command).map(|outcome| outcome.report)
    }

    fn reach(&self, generation: u64, step: u64) -> Option<SaveOrder> {
        self.desk.reach(stamp(generation), Step(step))
    }

    /// Orders a save in time, and takes the order at its commit.
    fn take(&self, generation: u64, step: u64) -> SaveOrder {
        assert_eq!(self.order(generation, step), None);
        self.reach(generation, step).expect("it is due")
    }

    fn give(&self, order: SaveOrder) {
        let commit = SavedCommit {
            bytes: Arc::new(vec![7; 3_000]),
            tensors: Vec::new(),
            position: serde_json::Value::Null,
        };
        self.desk.give(order, commit);
    }
}

fn missed(reached: u64) -> CheckpointReport {
    CheckpointReport::Missed { reached: Step(reached) }
}

#[test]
fn an_order_is_taken_at_its_step_of_its_generation_and_at_no_other_one() {
    let subject = Subject::new();
    assert_eq!(subject.order(2, 5), None);
    assert!(subject.reach(2, 4).is_none());
    assert!(subject.reach(1, 5).is_none(), "another generation's step");
    assert_eq!(subject.order(2, 6), None);
    let order = subject.reach(2, 6).expect("it is due");
    assert_eq!((order.stamp, order.attempt.step, order.rank), (stamp(2), 6, 0));
    assert!(subject.reach(2, 6).is_none(), "it is taken once");
    assert!(subject.told().is_empty());
}

#[test]
fn an_order_that_comes_after_its_commit_is_missed() {
    let subject = Subject::new();
    assert!(subject.reach(1, 5).is_none());
    assert_eq!(subject.order(1, 4), Some(missed(5)));
    assert_eq!(subject.order(1, 5), Some(missed(5)));
    assert_eq!(subject.order(1, 6), None);
}

#[test]
fn a_generation_begins_without_the_orders_of_the_one_before() {
    let subject = Subject::new();
    let taken = subject.take(1, 5);
    subject.give(taken);
    subject.desk.write_next();
    subject.told();
    subject.order(1, 8);
    subject.desk.begin_generation();
    assert_eq!(subject.order(2, 3), None, "steps of the generation before do not count");
    assert!(subject.reach(1, 8).is_none());
    assert_eq!(subject.seal(1, 5), None);
    assert!(!subject.desk.is_write_due(), "what was not taken in this generation is not sealed");
}

#[test]
fn an_order_from_before_a_generation_knew_its_step_is_missed_if_that_is_later() {
    for (ordered, is_missed) in [(4, true), (5, true), (6, false)] {
        let subject = Subject::new();
        assert_eq!(subject.order(1, ordered), None);
        subject.desk.begin_from(Step(5));
        let expected = if is_missed { vec![missed(5)] } else { Vec::new() };
        assert_eq!(subject.told(), expected, "step {ordered}");
        assert_eq!(subject.reach(1, ordered).is_some(), !is_missed);
    }
    let subject = Subject::new();
    subject.desk.begin_from(Step(5));
    assert_eq!(subject.order(1, 5), Some(missed(5)));
}

#[test]
fn a_part_is_written_and_then_sealed() {
    let subject = Subject::new();
    assert!(!subject.desk.is_write_due());
    subject.desk.write_next();
    subject.order(1, 5);
    assert_eq!(subject.seal(1, 5), None, "it is not taken yet");
    let order = subject.reach(1, 5).expect("it is due");
    subject.give(order);
    assert!(subject.desk.is_write_due());
    assert_eq!(subject.desk.saving(), None);
    subject.desk.written[0].store(10, Ordering::Relaxed);
    subject.desk.written[1].store(30, Ordering::Relaxed);
    let moved = MovedBytes { work: BulkWork::SavesCheckpoint, done: 10, total: 30 };
    assert_eq!(subject.desk.saving(), Some(moved));
    subject.desk.write_next();
    assert_eq!(subject.desk.saving(), None);
    assert!(matches!(subject.told()[..], [CheckpointReport::PartSaved { bytes: 3_000.. }]));
    assert_eq!(subject.seal(2, 5), None);
    assert_eq!(subject.seal(1, 6), None);
    assert!(!subject.desk.is_write_due(), "nobody has taken these");
    assert_eq!(subject.seal(1, 5), None);
    subject.desk.write_next();
    assert!(matches!(subject.told()[..], [CheckpointReport::Sealed { bytes: 3_000.., .. }]));
    assert!(subject.folder.path().join(elastic_checkpoint::step_directory(5)).is_dir());
}

#[test]
fn a_writer_that_is_busy_takes_no_second_commit() {
    let subject = Subject::new();
    for step in [5, 6] {
        let order = subject.take(1, step);
        subject.give(order);
    }
    let reason = "this worker is still busy with an earlier save".to_owned();
    assert_eq!(subject.told(), [CheckpointReport::Failed { reason: reason.clone() }]);
    assert_eq!(subject.seal(1, 6), Some(CheckpointReport::Failed { reason }));
    subject.desk.write_next();
    assert!(matches!(subject.told()[..], [CheckpointReport::PartSaved { .. }]));
    assert!(!subject.desk.is_write_due());
    let order = subject.take(1, 7);
    subject.give(order);
    assert!(subject.desk.is_write_due(), "it is free again");
}

#[test]
fn the_last_commit_of_a_training_waits_for_the_save_before_it() {
    let subject = Subject::new();
    let order = subject.take(1, 5);
    subject.give(order);
    subject.order(1, 9);
    // The writer has one job, and a second one waits behind it.
    assert!(subject.desk.is_write_due());
    let last = subject.desk.take_last(subject.part(1, 6));
    assert!(subject.reach(1, 9).is_none(), "no other commit follows");
    subject.give(last);
    assert!(subject.told().is_empty(), "it waits");
    subject.desk.write_next();
    subject.desk.write_next();
    assert!(matches!(
        subject.told()[..],
        [CheckpointReport::PartSaved { .. }, CheckpointReport::PartSaved { .. }]
    ));
    assert_eq!(subject.seal(1, 6), None);
    assert!(subject.desk.is_write_due(), "the last one is sealed");
    subject.desk.begin_generation();
    let order = subject.take(2, 7);
    subject.give(order);
    assert!(matches!(subject.told()[..], [CheckpointReport::Failed { .. }]), "as before the end");
}

#[test]
fn a_commit_that_cannot_be_encoded_is_told() {
    let subject = Subject::new();
    let order = subject.take(1, 5);
    subject.desk.fail(&order, "why".to_owned());
    assert_eq!(subject.told(), [CheckpointReport::Failed { reason: "why".to_owned() }]);
}
