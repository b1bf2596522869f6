//! Tests of orders to save a step.

use super::*;

/// The driver's order to save a step of generation 1.
fn save_order(step: u64) -> DriverToWorker {
    DriverToWorker::SaveCheckpoint(order(step, false))
}

fn order(step: u64, is_by_rank_0: bool) -> CheckpointOrder {
    CheckpointOrder {
        stamp: stamp(1),
        step: Step(step),
        directory: "checkpoints".to_owned(),
        name: None,
        bytes_per_s: None,
        is_by_rank_0,
    }
}

/// The user's function returns in generation 1 with this commit.
fn return_with(core: &mut StateCore, commit: CommitId) {
    let (note, reported) = (String::new(), ReportedValues::default());
    let returned = TrainingEvent::Returned { stamp: stamp(1), commit, note, reported };
    core.handle_training(NOW, returned);
}

#[test]
fn c_1_an_order_to_save_a_step_takes_the_place_of_the_one_before() {
    let mut core = running(1);
    core.handle_driver(NOW, save_order(9));
    let saves = |outputs: &[StateOutput]| {
        matches!(outputs, [StateOutput::Checkpoint(CheckpointCommand::Save(_))])
    };
    assert!(saves(&outputs(&mut core)));
    core.handle_driver(NOW, save_order(9));
    assert_eq!(outputs(&mut core), [], "a repeated order has no effect");
    for (step, of) in [(6, "a job that is to end, or a new driver"), (12, "the next one")] {
        core.handle_driver(NOW, save_order(step));
        assert!(saves(&outputs(&mut core)), "{of}");
    }
    let outcome = |step| CheckpointOutcome { stamp: stamp(1), step, report: PART_SAVED };
    core.handle_checkpoint(NOW, outcome(Step(6)));
    assert_eq!(outputs(&mut core), [], "nobody waits for it any more");
    core.handle_checkpoint(NOW, outcome(Step(12)));
    assert_eq!(outputs(&mut core).len(), 1);
}

const PART_SAVED: CheckpointReport = CheckpointReport::PartSaved { bytes: 3 };

#[test]
fn g_9_an_order_to_save_that_comes_after_the_interrupt_of_an_ended_training_is_answered() {
    let mut core = running(1);
    return_with(&mut core, commit(1, 8));
    core.handle_driver(NOW, DriverToWorker::StopAt { stamp: stamp(1), boundary: 9 });
    outputs(&mut core);
    core.handle_driver(NOW, save_order(8));
    let told = outputs(&mut core);
    let [StateOutput::ToDriver(WorkerToDriver::Checkpoint { report, .. })] = &told[..] else {
        panic!("{told:?}");
    };
    assert!(matches!(report, CheckpointReport::Failed { .. }), "{report:?}");
}

#[test]
fn g_9_a_save_that_was_under_way_as_training_ended_is_made_whole_after_an_interrupt() {
    let mut core = running(1);
    core.handle_driver(NOW, save_order(8));
    return_with(&mut core, commit(1, 9));
    core.handle_driver(NOW, DriverToWorker::StopAt { stamp: stamp(1), boundary: 9 });
    outputs(&mut core);
    let seal = |step| DriverToWorker::SealCheckpoint {
        stamp: stamp(1),
        step: Step(step),
        keep: 2,
        spared: Some(Step(4)),
    };
    core.handle_driver(NOW, seal(8));
    let command =
        CheckpointCommand::Seal { stamp: stamp(1), step: Step(8), keep: 2, spared: Some(Step(4)) };
    assert_eq!(outputs(&mut core), [StateOutput::Checkpoint(command)]);
    core.handle_driver(NOW, seal(7));
    assert_eq!(outputs(&mut core), [], "of that step it has no part");
}

#[test]
fn c_1_after_the_end_of_training_its_last_commit_is_saved_and_no_other() {
    let mut core = running(1);
    core.handle_driver(NOW, save_order(20));
    return_with(&mut core, commit(1, 8));
    outputs(&mut core);
    core.handle_driver(NOW, save_order(7));
    let report = CheckpointReport::Missed { reached: Step(8) };
    let missed = WorkerToDriver::Checkpoint { stamp: stamp(1), step: Step(7), report };
    assert_eq!(outputs(&mut core), [StateOutput::ToDriver(missed)]);
    core.handle_driver(NOW, save_order(8));
    let saves = outputs(&mut core);
    let [StateOutput::Training(TrainingCommand::SaveLast(part))] = &saves[..] else {
        panic!("{saves:?}");
    };
    assert_eq!((part.order.step, part.parts), (Step(8), 1));
    core.handle_driver(NOW, save_order(8));
    assert_eq!(outputs(&mut core), [], "nothing is saved twice");
    let (stamp, step) = (stamp(1), Step(8));
    let report = PART_SAVED;
    core.handle_checkpoint(NOW, CheckpointOutcome { stamp, step, report: report.clone() });
    let told = StateOutput::ToDriver(WorkerToDriver::Checkpoint { stamp, step, report });
    assert_eq!(outputs(&mut core), std::slice::from_ref(&told));
    core.handle_driver(NOW, save_order(8));
    assert_eq!(outputs(&mut core), std::slice::from_ref(&told), "the driver waits for it again");
    core.handle_link(NOW, &lost());
    core.handle_link(NOW, &LinkEvent::Up);
    core.handle_driver(NOW, welcome());
    assert!(outputs(&mut core).contains(&told), "a new connection may follow a lost message");
}

#[test]
fn c_1_the_last_commit_is_saved_anew_by_rank_0_where_the_contents_differ() {
    let mut core = running(1);
    return_with(&mut core, commit(1, 8));
    outputs(&mut core);
    for is_by_rank_0 in [false, true] {
        core.handle_driver(NOW, DriverToWorker::SaveCheckpoint(order(8, is_by_rank_0)));
        let saves = outputs(&mut core);
        let [StateOutput::Training(TrainingCommand::SaveLast(part))] = &saves[..] else {
            panic!("{saves:?}");
        };
        assert_eq!(part.order.is_by_rank_0, is_by_rank_0);
        let (stamp, step, report) = (stamp(1), Step(8), PART_SAVED);
        core.handle_checkpoint(NOW, CheckpointOutcome { stamp, step, report });
        outputs(&mut core);
    }
}
