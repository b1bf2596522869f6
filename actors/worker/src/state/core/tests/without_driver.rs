//! Tests of a State whose driver is gone or silent, is a new one or of another job, and of a State whose own address
//! changes.

use super::*;

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
    let rest =
        TrainingEvent::AtRest { commit: Some(commit(1, 2)), undone: UndoneTraining::default() };
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
    let mut core = held(5);
    core.handle_link(NOW, &lost());
    assert_eq!(core.poll_timeout().map(|_| ()), Some(()));
    core.handle_timeout(NOW + Deadlines::default().orphan);
    assert!(!core.is_active(), "G-9");
}

#[test]
fn what_a_former_driver_was_promised_is_not_told_to_the_next() {
    let mut core = held(5);
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
fn what_a_driver_was_promised_it_is_told_again_in_its_next_session() {
    let mut core = promised(4);
    core.handle_link(NOW, &lost());
    core.handle_link(NOW, &LinkEvent::Up);
    outputs(&mut core);
    core.handle_driver(NOW, welcome());
    let paused = WorkerToDriver::Paused { stamp: stamp(1), boundary: 4 };
    let told = outputs(&mut core);
    assert!(told.contains(&StateOutput::ToDriver(paused)), "{told:?}");
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
