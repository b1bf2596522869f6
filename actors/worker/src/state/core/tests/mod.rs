//! Tests of `StateCore` by example: one generation's life, and the messages that may cross it.

mod checkpoints;
mod telling;
mod without_driver;

use std::time::Duration;

use elastic_protocol::DataPlane;
use elastic_protocol::messages::{
    Ballot, BulkWork, CheckpointOrder, CheckpointReport, CollectivePosition, DriverToWorker,
    Formation, FormationTable, GroupKey, JobShards, LinkPace, MovedBytes, Placement,
    ReportedValues, StepTimes, SyncPlan, Vote, WorkerToDriver,
};
use elastic_protocol::{
    Assignment, AssignmentDelta, CommitId, Deadlines, GenerationId, HostName, Incarnation, JobId,
    ResetCause, Stamp, Step, Term, Time, WorkerId,
};
use elastic_runtime::transport::{LinkEvent, LossReason};

use super::*;

const NOW: Time = Time::from_ms(1_000);

const JOB: JobId = JobId(uuid::Uuid::from_u128(7));

pub(super) fn worker() -> WorkerId {
    let host = HostName::new("a").expect("a literal");
    WorkerId { host, slot: 0, incarnation: Incarnation(1) }
}

pub(super) fn core() -> StateCore {
    let config = StateConfig {
        job: JOB,
        worker: worker(),
        pid: 42,
        data_address: ([127, 0, 0, 1], 9).into(),
        deadlines: Deadlines::default(),
    };
    StateCore::new(config, NOW)
}

pub(super) fn stamp(generation: u64) -> Stamp {
    Stamp { term: Term(1), generation: GenerationId(generation) }
}

pub(super) fn commit(generation: u64, step: u64) -> CommitId {
    CommitId { generation: GenerationId(generation), step: Step(step), digest: step }
}

/// Another worker, with its address.
fn other(slot: u32) -> (WorkerId, std::net::SocketAddr) {
    (WorkerId { slot, ..worker() }, ([127, 0, 0, 1], 9).into())
}

fn table(others: u32) -> Arc<Assignment> {
    Arc::new(Assignment::new((0..=others).map(other)))
}

pub(super) fn formation(generation: u64, sync: SyncPlan, step: u64) -> Formation {
    Formation {
        stamp: stamp(generation),
        table: FormationTable::Full(table(0)),
        sync,
        step: Step(step),
        key: GroupKey([0; 32]),
        encrypts: false,
        data_plane: DataPlane::Auto,
        shards: JobShards::Unsaid,
    }
}

fn placement(generation: u64, sync: SyncPlan, step: u64) -> Placement {
    Placement {
        stamp: stamp(generation),
        assignment: table(0),
        rank: 0,
        sync,
        step: Step(step),
        key: GroupKey([0; 32]),
        encrypts: false,
        data_plane: DataPlane::Auto,
        shards: JobShards::Unsaid,
    }
}

pub(super) fn welcome() -> DriverToWorker {
    DriverToWorker::Welcome { job: JOB, term: Term(1), deadlines: Deadlines::default() }
}

fn lost() -> LinkEvent {
    LinkEvent::Lost { reason: LossReason::Forgotten, silent_ms: 0 }
}

fn cause() -> ResetCause {
    ResetCause::WorkerFailed { worker: worker(), error: "x".to_owned() }
}

fn outputs(core: &mut StateCore) -> Vec<StateOutput> {
    std::iter::from_fn(|| core.poll_output()).collect()
}

fn vote(generation: u64, ballot: Ballot) -> StateOutput {
    StateOutput::Vote(Vote { stamp: stamp(generation), worker: worker(), ballot })
}

fn undone(steps: u64) -> UndoneTraining {
    UndoneTraining { steps, ms: 10 * steps }
}

fn arrived(generation: u64, commit: Option<CommitId>, steps_lost: u64) -> StateOutput {
    let stamp = if generation == 0 { Stamp::default() } else { stamp(generation) };
    StateOutput::ToDriver(WorkerToDriver::Arrived { stamp, commit, undone: undone(steps_lost) })
}

fn at_rest(core: &mut StateCore, commit: Option<CommitId>, steps_lost: u64) {
    core.handle_training(NOW, TrainingEvent::AtRest { commit, undone: undone(steps_lost) });
}

fn attached() -> StateCore {
    let mut core = core();
    at_rest(&mut core, None, 0);
    core.handle_link(NOW, &LinkEvent::Up);
    core.handle_driver(NOW, welcome());
    outputs(&mut core);
    core
}

/// A core whose thread trains in this generation, from step 0.
fn running(generation: u64) -> StateCore {
    let mut core = attached();
    let root = SyncPlan::FromRoot { root: 0 };
    core.handle_driver(NOW, DriverToWorker::Assign(formation(generation, root, 0)));
    core.handle_training(NOW, TrainingEvent::Formed { stamp: stamp(generation) });
    core.handle_driver(NOW, DriverToWorker::Go { stamp: stamp(generation), source: None });
    let event = TrainingEvent::Synced { stamp: stamp(generation), commit: commit(generation, 0) };
    core.handle_training(NOW, event);
    outputs(&mut core);
    core
}

/// A core that was asked to pause in generation 1 when its thread had reached this boundary.
fn promised(boundary: u64) -> StateCore {
    let mut core = running(1);
    core.handle_driver(NOW, DriverToWorker::Pause { stamp: stamp(1) });
    core.handle_pause_read(NOW, boundary);
    core
}

/// The same, once its thread is held at this boundary, the next one.
fn held(boundary: u64) -> StateCore {
    let mut core = promised(boundary - 1);
    assert_eq!(core.handle_boundary(NOW, stamp(1), boundary), BoundaryAnswer::Hold);
    core
}

#[test]
fn the_first_generation_from_attach_to_synced() {
    let mut core = core();
    at_rest(&mut core, None, 0);
    assert_eq!(outputs(&mut core), [], "nobody is there to be told");
    core.handle_link(NOW, &LinkEvent::Up);
    assert_eq!(
        outputs(&mut core),
        [StateOutput::ToDriver(WorkerToDriver::Attach {
            pid: 42,
            data_address: ([127, 0, 0, 1], 9).into(),
            stamp: Stamp::default(),
            active: false,
            commit: None,
        })]
    );
    core.handle_driver(NOW, welcome());
    assert_eq!(outputs(&mut core), [arrived(0, None, 0)]);
    let root = SyncPlan::FromRoot { root: 0 };
    core.handle_driver(NOW, DriverToWorker::Assign(formation(1, root, 0)));
    assert_eq!(
        outputs(&mut core),
        [
            StateOutput::PauseFlag { on: false },
            StateOutput::Training(TrainingCommand::Form(Box::new(placement(1, root, 0))))
        ]
    );
    core.handle_training(NOW, TrainingEvent::Formed { stamp: stamp(1) });
    assert_eq!(outputs(&mut core), [vote(1, Ballot::Ready)]);
    core.handle_driver(NOW, DriverToWorker::Go { stamp: stamp(1), source: None });
    let plan = SyncPlan::FromRoot { root: 0 };
    let sync = TrainingCommand::Sync { stamp: stamp(1), plan, source: None };
    assert_eq!(outputs(&mut core), [StateOutput::Training(sync)]);
    core.handle_training(NOW, TrainingEvent::Synced { stamp: stamp(1), commit: commit(1, 0) });
    assert_eq!(outputs(&mut core), [vote(1, Ballot::Synced)]);
    core.handle_driver(NOW, DriverToWorker::Go { stamp: stamp(1), source: None });
    assert_eq!(outputs(&mut core), [], "a repeated Go changes nothing");
}

#[test]
fn an_abort_ends_the_generation_and_the_worker_arrives() {
    let mut core = running(1);
    core.handle_driver(NOW, DriverToWorker::Abort { stamp: stamp(1), cause: cause() });
    let abort = StateOutput::Abort { stamp: stamp(1), reason: cause().to_string() };
    assert_eq!(outputs(&mut core), [abort]);
    at_rest(&mut core, Some(commit(1, 3)), 1);
    assert_eq!(outputs(&mut core), [arrived(1, Some(commit(1, 3)), 1)]);
    core.handle_driver(NOW, DriverToWorker::Abort { stamp: stamp(1), cause: cause() });
    assert_eq!(outputs(&mut core), [], "it has said so already");
}

#[test]
fn an_abort_while_formed_takes_the_thread_out_of_its_wait() {
    let mut core = attached();
    let root = SyncPlan::FromRoot { root: 0 };
    core.handle_driver(NOW, DriverToWorker::Assign(formation(1, root, 0)));
    core.handle_driver(NOW, DriverToWorker::Abort { stamp: stamp(1), cause: cause() });
    outputs(&mut core);
    core.handle_training(NOW, TrainingEvent::Formed { stamp: stamp(1) });
    assert_eq!(
        outputs(&mut core),
        [StateOutput::Training(TrainingCommand::End)],
        "no READY after the end (G-4)"
    );
}

#[test]
fn g_2_older_stamps_are_dropped_and_counted() {
    let mut core = running(3);
    core.handle_driver(NOW, DriverToWorker::Abort { stamp: stamp(2), cause: cause() });
    core.handle_driver(NOW, DriverToWorker::Pause { stamp: stamp(2) });
    core.handle_driver(NOW, DriverToWorker::StopAt { stamp: stamp(2), boundary: 1 });
    core.handle_driver(NOW, DriverToWorker::Assign(formation(3, SyncPlan::Skip, 0)));
    assert_eq!(outputs(&mut core), []);
    assert_eq!(core.dropped_messages(), 4);
    assert!(core.is_active());
}

#[test]
fn an_assignment_over_an_active_generation_aborts_it_first() {
    let mut core = running(1);
    let root = SyncPlan::FromRoot { root: 0 };
    core.handle_driver(NOW, DriverToWorker::Assign(formation(2, root, 0)));
    let reason = "a newer generation was assigned".to_owned();
    assert_eq!(outputs(&mut core), [StateOutput::Abort { stamp: stamp(1), reason }]);
    at_rest(&mut core, Some(commit(1, 2)), 0);
    assert_eq!(
        outputs(&mut core),
        [
            StateOutput::PauseFlag { on: false },
            StateOutput::Training(TrainingCommand::Form(Box::new(placement(2, root, 0))))
        ]
    );
}

#[test]
fn g_6_a_skip_without_proof_is_refused() {
    let mut core = attached();
    core.handle_driver(NOW, DriverToWorker::Assign(formation(1, SyncPlan::Skip, 5)));
    core.handle_training(NOW, TrainingEvent::Formed { stamp: stamp(1) });
    outputs(&mut core);
    core.handle_driver(NOW, DriverToWorker::Go { stamp: stamp(1), source: None });
    let said = outputs(&mut core);
    assert!(matches!(
        &said[..],
        [
            StateOutput::ToDriver(WorkerToDriver::CollectiveFailed { .. }),
            StateOutput::Abort { .. },
            StateOutput::Training(TrainingCommand::End)
        ]
    ));
}

#[test]
fn s_2_a_warning_is_told_once_and_no_worker_warns_without_end() {
    let mut core = running(1);
    for text in ["the port is flooded", "the port is flooded"] {
        core.handle_training(NOW, TrainingEvent::Warned { text: text.to_owned() });
    }
    let warning = WorkerToDriver::Warning { text: "the port is flooded".to_owned() };
    assert_eq!(outputs(&mut core), [StateOutput::ToDriver(warning)]);
    for number in 0..WorkerToDriver::WARNINGS_MAX * 2 {
        let text = format!("{number}: {}", "x".repeat(WorkerToDriver::WARNING_BYTES_MAX));
        core.handle_training(NOW, TrainingEvent::Warned { text });
    }
    let said = outputs(&mut core);
    assert_eq!(said.len(), WorkerToDriver::WARNINGS_MAX - 1);
    for output in said {
        let StateOutput::ToDriver(WorkerToDriver::Warning { text }) = output else {
            panic!("{output:?}")
        };
        assert!(text.len() <= WorkerToDriver::WARNING_BYTES_MAX);
    }
}

#[test]
fn h_4_an_interrupt_stops_at_the_agreed_boundary() {
    let mut core = running(1);
    core.handle_driver(NOW, DriverToWorker::Pause { stamp: stamp(1) });
    assert_eq!(outputs(&mut core), [StateOutput::PauseFlag { on: true }]);
    core.handle_pause_read(NOW, 4);
    let paused = WorkerToDriver::Paused { stamp: stamp(1), boundary: 4 };
    assert_eq!(outputs(&mut core), [StateOutput::ToDriver(paused)]);
    assert_eq!(core.handle_boundary(NOW, stamp(1), 4), BoundaryAnswer::Pass);
    assert_eq!(core.handle_boundary(NOW, stamp(1), 5), BoundaryAnswer::Hold);
    core.handle_driver(NOW, DriverToWorker::StopAt { stamp: stamp(1), boundary: 6 });
    assert_eq!(outputs(&mut core), [StateOutput::Training(TrainingCommand::Pass)]);
    assert_eq!(core.handle_boundary(NOW, stamp(1), 6), BoundaryAnswer::Stop);
    at_rest(&mut core, Some(commit(1, 6)), 0);
    assert_eq!(outputs(&mut core), [arrived(1, Some(commit(1, 6)), 0)]);
}

#[test]
fn h_19_a_resume_lets_a_held_thread_go_on() {
    let mut core = held(2);
    outputs(&mut core);
    core.handle_driver(NOW, DriverToWorker::Resume { stamp: stamp(1) });
    assert_eq!(
        outputs(&mut core),
        [StateOutput::PauseFlag { on: false }, StateOutput::Training(TrainingCommand::Pass)]
    );
}

#[test]
fn a_second_pause_keeps_the_first_promise() {
    let mut core = held(2);
    core.handle_driver(NOW, DriverToWorker::Pause { stamp: stamp(1) });
    outputs(&mut core);
    core.handle_pause_read(NOW, 2);
    let paused = WorkerToDriver::Paused { stamp: stamp(1), boundary: 1 };
    assert_eq!(outputs(&mut core), [StateOutput::ToDriver(paused)], "and stays held");
}

#[test]
fn a_pause_before_the_generation_began_here_is_kept() {
    let mut core = running(1);
    let next = formation(2, SyncPlan::FromRoot { root: 0 }, 0);
    core.handle_driver(NOW, DriverToWorker::Assign(next));
    core.handle_driver(NOW, DriverToWorker::Pause { stamp: stamp(2) });
    outputs(&mut core);
    at_rest(&mut core, Some(commit(1, 0)), 0);
    assert_eq!(outputs(&mut core).last(), Some(&StateOutput::PauseFlag { on: true }));
    core.handle_pause_read(NOW, 0);
    let paused = WorkerToDriver::Paused { stamp: stamp(2), boundary: 0 };
    assert_eq!(outputs(&mut core), [StateOutput::ToDriver(paused)]);
}

#[test]
fn a_thread_beyond_the_agreed_boundary_is_rolled_back() {
    let mut core = running(1);
    core.handle_driver(NOW, DriverToWorker::StopAt { stamp: stamp(1), boundary: 3 });
    outputs(&mut core);
    assert_eq!(core.handle_boundary(NOW, stamp(1), 4), BoundaryAnswer::End);
    let said = outputs(&mut core);
    assert!(matches!(
        &said[..],
        [StateOutput::ToDriver(WorkerToDriver::CollectiveFailed { .. }), StateOutput::Abort { .. }]
    ));
}

#[test]
fn g_11_leave_while_training_ends_the_generation_then_run() {
    let mut core = running(1);
    core.handle_driver(NOW, DriverToWorker::Leave { reason: "removed".to_owned() });
    assert!(matches!(outputs(&mut core)[..], [StateOutput::Abort { .. }]));
    at_rest(&mut core, Some(commit(1, 2)), 1);
    let exit = RunExit::Left { reason: "removed".to_owned() };
    assert_eq!(outputs(&mut core), [StateOutput::Training(TrainingCommand::Exit(exit))]);
    at_rest(&mut core, Some(commit(1, 2)), 1);
    assert_eq!(outputs(&mut core), [], "it has told the thread to exit already");
}

fn loss(value: f64) -> ReportedValues {
    let mut reported = ReportedValues::default();
    reported.set("loss", value).expect("allowed");
    reported
}

#[test]
fn h_21_a_finished_worker_stays_and_takes_part_again() {
    let mut core = running(1);
    let (note, reported) = ("done".to_owned(), loss(0.5));
    let (stamp, commit) = (stamp(1), commit(1, 9));
    let (told, last) = (note.clone(), reported.clone());
    core.handle_training(NOW, TrainingEvent::Returned { stamp, commit, note, reported });
    let progress = WorkerToDriver::Progress {
        stamp,
        step: Step(9),
        note: told,
        reported: last,
        steps: None,
        links: Vec::new(),
        digests: None,
    };
    assert_eq!(outputs(&mut core), [StateOutput::ToDriver(progress), vote(1, Ballot::Success)]);
    core.handle_driver(NOW, DriverToWorker::Abort { stamp, cause: cause() });
    assert_eq!(outputs(&mut core), [arrived(1, Some(commit), 0)]);
    core.handle_driver(NOW, DriverToWorker::Assign(formation(2, SyncPlan::Skip, 9)));
    assert!(matches!(outputs(&mut core)[1], StateOutput::Training(TrainingCommand::Form(_))));
}

#[test]
fn a_users_error_is_voted_before_the_exit() {
    let mut core = running(1);
    let event = TrainingEvent::Failed { stamp: stamp(1), message: "NaN".to_owned() };
    core.handle_training(NOW, event);
    let ballot = Ballot::Failure { status: None, message: "NaN".to_owned() };
    let exit = StateOutput::Training(TrainingCommand::Exit(RunExit::Failed));
    assert_eq!(outputs(&mut core), [vote(1, ballot), exit]);
}

#[test]
fn a_worker_that_has_failed_takes_part_in_no_further_generation() {
    let mut core = running(1);
    let failed = TrainingEvent::Failed { stamp: stamp(1), message: "boom".to_owned() };
    core.handle_training(NOW, failed);
    outputs(&mut core);
    let next = formation(2, SyncPlan::FromRoot { root: 0 }, 0);
    core.handle_driver(NOW, DriverToWorker::Assign(next));
    assert_eq!(outputs(&mut core), []);
    assert!(core.is_exited() && !core.is_active());
}

#[test]
fn x_11_sigterm_is_told_and_training_goes_on() {
    let mut core = running(1);
    core.handle_sigterm(NOW);
    let leaving = WorkerToDriver::Leaving { reason: "SIGTERM".to_owned() };
    assert_eq!(outputs(&mut core), [StateOutput::ToDriver(leaving)]);
    assert!(core.is_active());
    core.handle_sigterm(NOW);
    assert!(
        matches!(outputs(&mut core)[..], [StateOutput::Abort { .. }]),
        "X-17: twice is at once"
    );
}

fn changed(generation: u64, base: &Assignment, next: &Assignment) -> DriverToWorker {
    let table = FormationTable::Delta(Arc::new(AssignmentDelta::between(base, next)));
    let root = SyncPlan::FromRoot { root: 0 };
    DriverToWorker::Assign(Formation { table, ..formation(generation, root, 0) })
}

#[test]
fn a_change_of_the_table_is_applied_to_the_one_that_was_told_last() {
    let mut core = running(1);
    core.handle_driver(NOW, changed(2, &table(0), &table(3)));
    at_rest(&mut core, Some(commit(1, 0)), 0);
    let formed = outputs(&mut core).into_iter().find_map(|output| match output {
        StateOutput::Training(TrainingCommand::Form(placement)) => Some(placement.assignment),
        _ => None,
    });
    assert_eq!(formed, Some(table(3)));
}

#[test]
fn a_change_of_another_table_is_not_obeyed_and_the_full_one_is_asked_for() {
    let mut core = running(1);
    core.handle_driver(NOW, changed(3, &table(2), &table(3)));
    let wanted = WorkerToDriver::TableWanted { stamp: stamp(3) };
    assert_eq!(outputs(&mut core), [StateOutput::ToDriver(wanted)]);
    assert_eq!(core.stamp(), stamp(1));
    let full =
        Formation { table: FormationTable::Full(table(3)), ..formation(3, SyncPlan::Skip, 0) };
    core.handle_driver(NOW, DriverToWorker::Assign(full));
    assert_eq!(core.stamp(), stamp(3));
}
