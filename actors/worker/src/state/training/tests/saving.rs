//! Tests of saving a commit: its hand-over to the writer's thread, and the reports to the driver.

use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use elastic_protocol::messages::{CheckpointOrder, CheckpointReport};
use elastic_protocol::{GenerationId, JobId, Stamp, Step, Term};

use super::super::checkpoint::{CheckpointDesk, SaveOrder};
use super::super::{ControlShared, State, TrainingControl};
use crate::state::core::{CheckpointCommand, CheckpointOutcome, CheckpointPart};

/// Time within which the writer's thread has finished its jobs.
const WRITTEN_WITHIN: Duration = Duration::from_secs(20);
const STAMP: Stamp = Stamp { term: Term(1), generation: GenerationId(1) };

fn part(directory: &Path, step: u64) -> CheckpointPart {
    let order = CheckpointOrder {
        stamp: STAMP,
        step: Step(step),
        directory: directory.display().to_string(),
        name: None,
        bytes_per_s: None,
        is_by_rank_0: false,
    };
    CheckpointPart { order, job: JobId(uuid::Uuid::nil()), rank: 0, parts: 1 }
}

/// A control whose desk keeps the outcomes.
fn control() -> (Rc<TrainingControl>, mpsc::Receiver<CheckpointOutcome>) {
    let shared = Arc::new(ControlShared::default());
    let (tell, outcomes) = mpsc::channel();
    shared.checkpoints().tell_through(move |outcome| drop(tell.send(outcome)));
    let (_, commands) = mpsc::sync_channel(1);
    (Rc::new(TrainingControl::new(|_| {}, commands, shared, String::new)), outcomes)
}

/// The order to save this step after the end of training, at a desk whose jobs no thread carries out.
pub(super) fn last_save(
    step: u64,
) -> (Rc<TrainingControl>, SaveOrder, mpsc::Receiver<CheckpointOutcome>) {
    let (control, outcomes) = control();
    control.shared().checkpoints().write_by_caller();
    let order = control.shared().checkpoints().take_last(part(Path::new("checkpoints"), step));
    (control, order, outcomes)
}

fn seal(desk: &CheckpointDesk, step: u64) -> Option<CheckpointReport> {
    let command = CheckpointCommand::Seal { stamp: STAMP, step: Step(step), keep: 3, spared: None };
    desk.command(command).map(|outcome| outcome.report)
}

#[test]
fn c_1_each_commit_is_written_and_sealed_by_the_writers_thread() {
    let directory = tempfile::tempdir().expect("a directory");
    let (control, outcomes) = control();
    let desk = control.shared().checkpoints();
    let mut state = State::new(vec![1.5_f64; 1000]);
    for step in 1..=2 {
        state.save().expect("it encodes");
        assert_eq!(state.step().0, step);
        let order = desk.take_last(part(directory.path(), step));
        state.save_last(&control, order).expect("it is given away");
        let outcome = outcomes.recv_timeout(WRITTEN_WITHIN).expect("its part is written");
        let CheckpointReport::PartSaved { bytes } = outcome.report else { panic!("{outcome:?}") };
        assert!((outcome.stamp, outcome.step) == (STAMP, Step(step)) && bytes >= 8000, "{bytes}");
        assert_eq!(desk.saving(), None, "nothing is being written");
        assert_eq!(seal(desk, step), None, "it is known later");
        let outcome = outcomes.recv_timeout(WRITTEN_WITHIN).expect("it is sealed");
        assert!(matches!(outcome.report, CheckpointReport::Sealed { .. }), "{outcome:?}");
    }
    let found = std::fs::read_dir(directory.path()).expect("it can be listed").count();
    assert!(found >= 2, "{found} checkpoints");
}

#[test]
fn c_1_a_writer_seals_nothing_before_a_part_that_waits() {
    let (control, order, outcomes) = last_save(1);
    let desk = control.shared().checkpoints();
    let mut state = State::new(1_u64);
    state.save().expect("it encodes");
    state.save_last(&control, order).expect("it is given away");
    let refused = seal(desk, 1).expect("it is known at once");
    let CheckpointReport::Failed { reason } = &refused else { panic!("{refused:?}") };
    assert!(reason.contains("busy with an earlier save"), "{reason}");
    assert!(
        desk.is_write_due() && outcomes.try_recv().is_err(),
        "the first is still to be written"
    );
}
