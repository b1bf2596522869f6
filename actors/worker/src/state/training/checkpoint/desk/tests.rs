//! Tests of orders to save a step, and of their outcomes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

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

/// Time within which the writer's thread has done what is waited for.
const WRITTEN_WITHIN_MS: u64 = 20_000;

const fn stamp(generation: u64) -> Stamp {
    Stamp { term: Term(1), generation: GenerationId(generation) }
}

impl Subject {
    fn new() -> Self {
        let subject = Self::with_a_thread();
        subject.desk.write_by_caller();
        subject
    }

    /// A desk whose jobs a thread carries out.
    fn with_a_thread() -> Self {
        let (desk, told) = (CheckpointDesk::new(store_of), Arc::new(Mutex::new(Vec::new())));
        let to = Arc::clone(&told);
        desk.tell_through(move |outcome| to.lock().expect("no panic").push(outcome));
        desk.begin_generation();
        Self { desk, told, folder: TempDir::new().expect("a folder") }
    }

    /// Waits for what the thread is to do.
    fn wait(&self, is_done: impl Fn(&Self) -> bool) {
        let mut looks = 0..WRITTEN_WITHIN_MS;
        while !is_done(self) {
            assert!(looks.next().is_some(), "the thread has not done it");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// The steps that have a directory.
    fn steps(&self) -> Vec<u64> {
        let steps = (0..20).filter(|step| {
            self.folder.path().join(elastic_checkpoint::step_directory(*step)).exists()
        });
        steps.collect()
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
            is_by_rank_0: false,
        };
        CheckpointPart { order, job: JobId(uuid::Uuid::from_u128(7)), rank: 0, parts: 1 }
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
        let command = CheckpointCommand::Seal { stamp, step, keep: 1, spared: None };
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
        self.give_content(order, 7);
    }

    /// Gives a commit away whose bytes are all this one.
    fn give_content(&self, order: SaveOrder, byte: u8) {
        let commit = SavedCommit {
            bytes: Arc::new(vec![byte; 3_000]),
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
fn c_4_an_order_of_another_step_gives_the_part_before_up_and_its_commit_is_written() {
    let subject = Subject::new();
    for step in [5, 6] {
        let order = subject.take(1, step);
        subject.give(order);
    }
    assert!(subject.told().is_empty(), "nobody waits for step 5, and step 6 is not refused");
    let reason = "this worker is still busy with an earlier save".to_owned();
    assert_eq!(subject.seal(1, 6), Some(CheckpointReport::Failed { reason }), "it is not written");
    subject.desk.write_next();
    assert!(matches!(subject.told()[..], [CheckpointReport::PartSaved { .. }]));
    assert!(!subject.desk.is_write_due());
    assert_eq!(subject.steps(), [6]);
    assert_eq!(subject.seal(1, 6), None, "it is to be sealed");
    assert!(subject.desk.is_write_due());
    // A new driver does not know of the checkpoint that is being made whole.
    assert_eq!(subject.order(1, 9), None);
    let order = subject.reach(1, 9).expect("it is due");
    subject.give(order);
    subject.desk.write_next();
    assert!(matches!(subject.told()[..], [CheckpointReport::Sealed { .. }]), "that goes on");
    subject.desk.write_next();
    assert!(matches!(subject.told()[..], [CheckpointReport::PartSaved { .. }]));
}

#[test]
fn c_4_an_order_that_is_missed_gives_no_part_up() {
    let subject = Subject::new();
    let order = subject.take(1, 5);
    subject.give(order);
    assert_eq!(subject.order(1, 4), Some(missed(5)));
    subject.desk.write_next();
    assert!(matches!(subject.told()[..], [CheckpointReport::PartSaved { .. }]));
    assert_eq!(subject.seal(1, 5), None);
    assert!(subject.desk.is_write_due());
}

#[test]
fn c_4_a_generation_begins_without_the_parts_of_the_one_before() {
    let subject = Subject::new();
    let order = subject.take(1, 5);
    subject.give(order);
    assert!(subject.desk.is_write_due());
    subject.desk.begin_generation();
    assert!(!subject.desk.is_write_due());
    let order = subject.take(2, 5);
    subject.give(order);
    subject.desk.write_next();
    assert!(matches!(subject.told()[..], [CheckpointReport::PartSaved { .. }]), "one of them");
}

#[test]
fn c_4_a_commit_whose_save_a_later_order_made_vain_is_not_written() {
    let subject = Subject::new();
    let order = subject.take(1, 5);
    assert_eq!(subject.order(1, 8), None, "the commit is being encoded meanwhile");
    subject.give(order);
    assert!(!subject.desk.is_write_due());
    let order = subject.reach(1, 8).expect("it is due");
    subject.give(order);
    assert!(subject.desk.is_write_due() && subject.told().is_empty());
}

#[test]
fn c_4_a_part_that_is_being_written_is_given_up_with_its_generation_and_leaves_nothing() {
    let subject = Subject::with_a_thread();
    for (generation, steps) in [(1, [5, 6]), (2, [5, 6])] {
        for step in steps {
            let mut order = subject.take(generation, step);
            // Its first piece takes an hour.
            order.bytes_per_s = Some(1);
            subject.give(order);
            subject.wait(|subject| subject.desk.saving().is_some_and(|it| it.done > 0));
        }
        subject.desk.begin_generation();
    }
    let order = subject.take(3, 2);
    subject.give(order);
    subject.wait(|subject| !subject.told.lock().expect("no panic").is_empty());
    assert_eq!(subject.told.lock().expect("no panic")[0].stamp, stamp(3));
    let told = subject.told();
    assert!(matches!(told[..], [CheckpointReport::PartSaved { .. }]), "of it alone: {told:?}");
    assert_eq!(subject.steps(), [2], "their files are gone");
}

#[test]
fn the_last_commit_of_a_training_takes_the_place_of_a_save_that_nobody_waits_for() {
    let subject = Subject::new();
    let order = subject.take(1, 5);
    subject.give(order);
    subject.order(1, 9);
    let last = subject.desk.take_last(subject.part(1, 6));
    assert!(subject.reach(1, 9).is_none(), "no other commit follows");
    subject.give(last);
    let again = subject.desk.take_last(subject.part(1, 6));
    subject.give(again);
    assert!(subject.told().is_empty(), "it waits");
    subject.desk.write_next();
    assert!(matches!(subject.told()[..], [CheckpointReport::PartSaved { .. }]), "once");
    assert_eq!(subject.seal(1, 6), None);
    assert!(subject.desk.is_write_due(), "the last one is sealed");
}

#[test]
fn a_commit_that_cannot_be_encoded_is_told() {
    let subject = Subject::new();
    let order = subject.take(1, 5);
    subject.desk.fail(&order, "why".to_owned());
    assert_eq!(subject.told(), [CheckpointReport::Failed { reason: "why".to_owned() }]);
}

#[test]
fn c_1_contents_that_differ_are_told_and_are_then_those_of_rank_0() {
    let [first, second] = [Subject::new(), Subject::new()];
    let save = |subject: &Subject, step, rank, is_by_rank_0| {
        let mut part = subject.part(1, step);
        part.order.directory = first.folder.path().display().to_string();
        (part.order.is_by_rank_0, part.rank) = (is_by_rank_0, rank);
        part.parts = if is_by_rank_0 { 1 } else { 2 };
        assert_eq!(subject.desk.command(CheckpointCommand::Save(part)), None);
        let taken = subject.reach(1, step).expect("it is due");
        subject.give_content(taken, 7 + rank as u8);
        subject.desk.write_next();
        let told = subject.told();
        assert!(matches!(told[..], [CheckpointReport::PartSaved { .. }]), "{told:?}");
        told
    };
    for (step, is_by_rank_0) in [(5, false), (6, true)] {
        save(&first, step, 0, is_by_rank_0);
        let of_second = save(&second, step, 1, is_by_rank_0);
        if is_by_rank_0 {
            assert_eq!(of_second, [CheckpointReport::PartSaved { bytes: 0 }]);
        }
        assert_eq!(first.seal(1, step), None);
        first.desk.write_next();
        match &first.told()[..] {
            [CheckpointReport::Differ { reason }] if step == 5 => {
                assert!(reason.contains("part 1 is of another commit than part 0"), "{reason}");
            }
            [CheckpointReport::Sealed { bytes: 3_000.., .. }] if step == 6 => {}
            told => panic!("step {step}: {told:?}"),
        }
    }
}
