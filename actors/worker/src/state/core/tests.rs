//! Tests of `StateCore` by example: one generation's life, and the messages that may cross it.

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

fn arrived(generation: u64, commit: Option<CommitId>, steps_lost: u64) -> StateOutput {
    let stamp = if generation == 0 { Stamp::default() } else { stamp(generation) };
    StateOutput::ToDriver(WorkerToDriver::Arrived { stamp, commit, steps_lost })
}

fn at_rest(core: &mut StateCore, commit: Option<CommitId>, steps_lost: u64) {
    core.handle_training(NOW, TrainingEvent::AtRest { commit, steps_lost });
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
    let mut core = running(1);
    core.handle_driver(NOW, DriverToWorker::Pause { stamp: stamp(1) });
    core.handle_pause_read(NOW, 1);
    assert_eq!(core.handle_boundary(NOW, stamp(1), 2), BoundaryAnswer::Hold);
    outputs(&mut core);
    core.handle_driver(NOW, DriverToWorker::Resume { stamp: stamp(1) });
    assert_eq!(
        outputs(&mut core),
        [StateOutput::PauseFlag { on: false }, StateOutput::Training(TrainingCommand::Pass)]
    );
}

#[test]
fn a_second_pause_keeps_the_first_promise() {
    let mut core = running(1);
    core.handle_driver(NOW, DriverToWorker::Pause { stamp: stamp(1) });
    core.handle_pause_read(NOW, 1);
    assert_eq!(core.handle_boundary(NOW, stamp(1), 2), BoundaryAnswer::Hold);
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
fn a_new_session_is_told_the_truth() {
    let mut core = running(1);
    core.handle_link(NOW, &lost());
    core.handle_training(
        NOW,
        TrainingEvent::CollectiveFailed {
            stamp: stamp(1),
            peer: Some(1),
            told_by: None,
            error: "x".to_owned(),
        },
    );
    at_rest(&mut core, Some(commit(1, 2)), 1);
    assert_eq!(outputs(&mut core), [], "nobody hears it");
    core.handle_link(NOW, &LinkEvent::Up);
    core.handle_driver(NOW, welcome());
    let said = outputs(&mut core);
    assert!(matches!(said[0], StateOutput::ToDriver(WorkerToDriver::Attach { active: false, .. })));
    assert_eq!(said[1..], [arrived(1, Some(commit(1, 2)), 1)]);
}

#[test]
fn a_generation_trains_on_without_a_driver_for_as_long_as_nobody_fails() {
    let mut core = running(1);
    core.handle_link(NOW, &lost());
    let later = NOW + Duration::from_secs(3_600);
    core.handle_timeout(later);
    assert!(core.is_active());
    let error = "a peer is gone".to_owned();
    let failed =
        TrainingEvent::CollectiveFailed { stamp: stamp(1), peer: Some(1), told_by: None, error };
    core.handle_training(later, failed);
    let rest = TrainingEvent::AtRest { commit: Some(commit(1, 2)), steps_lost: 0 };
    core.handle_training(later, rest);
    let patience = Deadlines::default().orphan;
    assert_eq!(core.poll_timeout(), Some(later + patience), "a new driver has that long to come");
    core.handle_timeout(later + patience);
    let gone_ms = 3_600_000 + 30_000;
    let exit = StateOutput::Training(TrainingCommand::Exit(RunExit::Orphaned { gone_ms }));
    assert_eq!(outputs(&mut core).last(), Some(&exit));
}

#[test]
fn a_rank_that_is_held_for_a_driver_that_is_gone_does_not_wait_for_ever() {
    let mut core = running(1);
    core.handle_driver(NOW, DriverToWorker::Pause { stamp: stamp(1) });
    core.handle_pause_read(NOW, 4);
    assert_eq!(core.handle_boundary(NOW, stamp(1), 5), BoundaryAnswer::Hold);
    core.handle_link(NOW, &lost());
    assert_eq!(core.poll_timeout().map(|_| ()), Some(()));
    core.handle_timeout(NOW + Deadlines::default().orphan);
    assert!(!core.is_active(), "G-9");
}

#[test]
fn what_a_former_driver_was_promised_is_not_told_to_the_next() {
    let mut core = running(1);
    core.handle_driver(NOW, DriverToWorker::Pause { stamp: stamp(1) });
    core.handle_pause_read(NOW, 4);
    assert_eq!(core.handle_boundary(NOW, stamp(1), 5), BoundaryAnswer::Hold);
    core.handle_link(NOW, &lost());
    core.handle_link(NOW, &LinkEvent::Up);
    outputs(&mut core);
    let (job, deadlines) = (JOB, Deadlines::default());
    core.handle_driver(NOW, DriverToWorker::Welcome { job, term: Term(2), deadlines });
    let told = outputs(&mut core);
    let is_paused = |output: &StateOutput| {
        matches!(output, StateOutput::ToDriver(WorkerToDriver::Paused { .. }))
    };
    assert!(!told.iter().any(is_paused), "{told:?}");
    core.handle_driver(NOW, DriverToWorker::Resume { stamp: stamp(1) });
    assert_eq!(outputs(&mut core).last(), Some(&StateOutput::Training(TrainingCommand::Pass)));
    assert!(!core.heeds(Term(1)) && core.heeds(Term(2)), "G-2");
}

#[test]
fn a_worker_without_a_driver_ends_at_its_limit_where_there_is_one() {
    let mut core = running(1);
    let limit = Deadlines::default().orphan;
    let deadlines = Deadlines { orphan_training: Some(limit), ..Deadlines::default() };
    core.handle_driver(NOW, DriverToWorker::Welcome { job: JOB, term: Term(1), deadlines });
    outputs(&mut core);
    core.handle_link(NOW, &lost());
    let deadline = NOW + limit;
    core.handle_timeout(NOW + Deadlines::default().lost);
    assert_eq!(outputs(&mut core), [StateOutput::SampleProgress]);
    assert!(core.is_active());
    core.handle_timeout(deadline);
    at_rest(&mut core, Some(commit(1, 2)), 0);
    let exit = StateOutput::Training(TrainingCommand::Exit(RunExit::Orphaned { gone_ms: 30_000 }));
    assert_eq!(outputs(&mut core).last(), Some(&exit));
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

#[test]
fn x_12_a_driver_of_another_job_is_left() {
    let mut core = core();
    at_rest(&mut core, None, 0);
    core.handle_link(NOW, &LinkEvent::Up);
    outputs(&mut core);
    let job = JobId(uuid::Uuid::from_u128(8));
    let welcome = DriverToWorker::Welcome { job, term: Term(1), deadlines: Deadlines::default() };
    core.handle_driver(NOW, welcome);
    let exit =
        StateOutput::Training(TrainingCommand::Exit(RunExit::WrongJob { ours: JOB, theirs: job }));
    assert_eq!(outputs(&mut core), [exit]);
}

fn loss(value: f64) -> ReportedValues {
    let mut reported = ReportedValues::default();
    reported.set("loss", value).expect("allowed");
    reported
}

#[test]
fn reported_values_are_told_with_the_progress_and_the_last_ones_count() {
    let mut core = running(1);
    let beat = Deadlines::default().beat;
    let at = |value| TrainingProgress { reported: loss(value), ..TrainingProgress::default() };
    let told = |core: &mut StateCore| -> Vec<ReportedValues> {
        let said = outputs(core).into_iter().filter_map(|output| match output {
            StateOutput::ToDriver(WorkerToDriver::Progress { reported, .. }) => Some(reported),
            _ => None,
        });
        said.collect()
    };
    for number in 0..50 {
        core.handle_progress(NOW, at(f64::from(number)));
    }
    assert_eq!(told(&mut core), [loss(0.0)], "no message for each of them");
    core.handle_progress(NOW + beat, at(50.0));
    core.handle_progress(NOW + beat + beat, at(50.0));
    assert_eq!(told(&mut core), [loss(50.0)], "nor for what the driver knows");
}

#[test]
fn bytes_that_are_moved_are_told_once_a_beat_while_the_state_is_taken_and_while_training_goes_on() {
    let moved = |work, done| Some(MovedBytes { work, done, total: 100 });
    let progress = |moved| TrainingProgress { moved, ..TrainingProgress::default() };
    let told = |core: &mut StateCore| -> Vec<u64> {
        let said = outputs(core).into_iter().filter_map(|output| match output {
            StateOutput::ToDriver(WorkerToDriver::Moves { bytes, .. }) => Some(bytes.done),
            _ => None,
        });
        said.collect()
    };
    let mut core = attached();
    let root = SyncPlan::FromRoot { root: 0 };
    core.handle_driver(NOW, DriverToWorker::Assign(formation(1, root, 0)));
    core.handle_training(NOW, TrainingEvent::Formed { stamp: stamp(1) });
    core.handle_driver(NOW, DriverToWorker::Go { stamp: stamp(1), source: None });
    outputs(&mut core);
    let beat = NOW + Deadlines::default().beat;
    assert_eq!(core.poll_timeout(), Some(beat), "it is looked at before training begins");
    core.handle_timeout(beat);
    assert_eq!(outputs(&mut core), [StateOutput::SampleProgress]);
    core.handle_progress(beat, progress(moved(BulkWork::TakesState, 10)));
    core.handle_progress(beat, progress(moved(BulkWork::TakesState, 10)));
    core.handle_progress(beat, progress(None));
    assert_eq!(told(&mut core), [10], "what has not changed, or is over, is not told");
    core.handle_training(beat, TrainingEvent::Synced { stamp: stamp(1), commit: commit(1, 0) });
    core.handle_progress(beat, progress(moved(BulkWork::SavesCheckpoint, 7)));
    assert_eq!(told(&mut core), [7]);
}

#[test]
fn step_times_are_told_with_progress_that_is_sent_anyway_and_once_a_second() {
    let mut core = running(1);
    let times = StepTimes {
        step_us: 10,
        compute_us: 8,
        waiting_us: 2,
        data_us: 1,
        commit_us: 1,
        shards: 0,
    };
    let from = HostName::new("b").expect("a name");
    let links = vec![LinkPace { from, rate: 1_000, load: 10 }];
    let at = |step| TrainingProgress {
        step: Step(step),
        steps: Some(times),
        links: links.clone(),
        ..TrainingProgress::default()
    };
    let told = |core: &mut StateCore| -> Vec<Option<StepTimes>> {
        let said = outputs(core).into_iter().filter_map(|output| match output {
            StateOutput::ToDriver(WorkerToDriver::Progress { steps, links: told, .. }) => {
                let expected = if steps.is_some() { &links[..] } else { &[] };
                assert_eq!(told, expected, "rates of links go with step times");
                Some(steps)
            }
            _ => None,
        });
        said.collect()
    };
    let beat = Deadlines::default().beat;
    for beats in 0..20 {
        core.handle_progress(NOW + beat * beats, at(u64::from(beats)));
    }
    let said = told(&mut core);
    assert_eq!(said.len(), 20);
    let with_times = (0..20).filter(|number| said[*number].is_some());
    assert_eq!(with_times.collect::<Vec<_>>(), [0, 10]);
    assert_eq!(said[10], Some(times));
    for beats in 20..40 {
        core.handle_progress(NOW + beat * beats, at(19));
    }
    assert_eq!(told(&mut core), [], "no message for them alone");
}

#[test]
fn progress_is_told_once_a_beat_and_when_it_changed() {
    let mut core = running(1);
    let beat = Deadlines::default().beat;
    let note = "é".repeat(200);
    let at = |step| TrainingProgress {
        step: Step(step),
        note: note.clone(),
        ..TrainingProgress::default()
    };
    core.handle_progress(NOW, at(1));
    core.handle_progress(NOW, at(2));
    let said = outputs(&mut core);
    assert!(matches!(
        &said[..],
        [StateOutput::ToDriver(WorkerToDriver::Progress { step: Step(1), note, .. })] if note.len() == 256
    ));
    core.handle_progress(NOW + beat, at(2));
    core.handle_progress(NOW + beat + beat, at(2));
    assert_eq!(outputs(&mut core).len(), 1);
}

#[test]
fn x_2_a_thread_that_stands_still_is_told_of_once_to_each_driver_and_again_when_it_goes_on() {
    let mut core = running(1);
    let beat = Deadlines::default().beat;
    let at = |entered| TrainingProgress {
        position: CollectivePosition { entered, inside: None, section: None },
        ..TrainingProgress::default()
    };
    let standstills = |core: &mut StateCore| -> Vec<(Option<u64>, u64)> {
        let said = outputs(core).into_iter().filter_map(|output| match output {
            StateOutput::ToDriver(WorkerToDriver::Standstill { position, for_ms, .. }) => {
                Some((position.map(|position| position.entered), for_ms))
            }
            _ => None,
        });
        said.collect()
    };
    for beats in 0..20 {
        core.handle_progress(NOW + beat * beats, at(7));
    }
    assert_eq!(standstills(&mut core), [(Some(7), 500)], "after five beats, once");
    core.handle_link(NOW, &lost());
    core.handle_link(NOW, &LinkEvent::Up);
    core.handle_driver(NOW, welcome());
    core.handle_progress(NOW + beat * 20, at(7));
    assert_eq!(standstills(&mut core), [(Some(7), 2_000)], "the next driver is told, too");
    core.handle_progress(NOW + beat * 21, at(8));
    assert_eq!(standstills(&mut core), [(None, 2_100)]);
    for beats in 22..26 {
        core.handle_progress(NOW + beat * beats, at(u64::from(beats)));
    }
    assert_eq!(standstills(&mut core), [], "a thread that moves costs no message");
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

#[test]
fn a_worker_whose_driver_is_silent_is_alone_although_the_session_is_kept() {
    let mut core = attached();
    core.handle_link(NOW, &LinkEvent::Silent { silent_ms: 1000 });
    assert_eq!(core.poll_timeout(), None, "suspected only");
    core.handle_link(NOW, &LinkEvent::Silent { silent_ms: 2000 });
    let orphaned = NOW + Deadlines::default().orphan;
    assert_eq!(core.poll_timeout(), Some(orphaned), "G-9");
    core.handle_link(NOW, &LinkEvent::Heard);
    assert_eq!(core.poll_timeout(), None, "D-3: as if nothing had happened");
}

#[test]
fn s_3_a_worker_whose_host_was_renumbered_attaches_with_its_new_address() {
    let mut core = running(1);
    let (peer, error) = (Some(1), "the path to it is silent".to_owned());
    let failed = TrainingEvent::CollectiveFailed { stamp: stamp(1), peer, told_by: None, error };
    core.handle_training(NOW, failed);
    outputs(&mut core);
    let data_address = ([10, 0, 0, 7], 9).into();
    let held = Some(commit(1, 0));
    core.handle_training(NOW, TrainingEvent::Moved { data_address, commit: held });
    let attach = |output: &StateOutput| {
        matches!(output, StateOutput::ToDriver(WorkerToDriver::Attach { data_address: told, active: false, commit, .. })
            if (*told, *commit) == (data_address, held))
    };
    let told = outputs(&mut core);
    assert!(told.len() == 1 && attach(&told[0]), "{told:?}");
    at_rest(&mut core, Some(commit(1, 0)), 0);
    assert_eq!(outputs(&mut core), [], "the address goes first");
    core.handle_driver(NOW, welcome());
    assert_eq!(outputs(&mut core), [arrived(1, Some(commit(1, 0)), 0)]);
    core.handle_link(NOW, &LinkEvent::Up);
    let told = outputs(&mut core);
    assert!(told.len() == 1 && attach(&told[0]), "a later session is told the same: {told:?}");
}

#[test]
fn s_3_a_worker_that_moves_while_no_driver_is_there_says_so_to_the_next() {
    let mut core = attached();
    core.handle_link(NOW, &lost());
    let data_address = ([10, 0, 0, 7], 9).into();
    core.handle_training(NOW, TrainingEvent::Moved { data_address, commit: None });
    at_rest(&mut core, None, 0);
    assert_eq!(outputs(&mut core), [], "nobody is there to be told");
}

/// The driver's order to save a step of generation 1.
fn save_order(step: u64) -> DriverToWorker {
    DriverToWorker::SaveCheckpoint(CheckpointOrder {
        stamp: stamp(1),
        step: Step(step),
        directory: "checkpoints".to_owned(),
        name: None,
        bytes_per_s: None,
    })
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
    assert_eq!((part.order.step, part.world_size), (Step(8), 1));
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
