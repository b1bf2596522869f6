//! The agent's core and its processes: starts, stops, ends and last words.

use super::*;

#[test]
fn a_start_that_cannot_be_is_answered_with_the_reason() {
    let mut core = running();
    core.handle_driver(T0, start(worker(2, 1)));
    let elsewhere = WorkerId { host: HostName::new("b").expect("a literal"), ..worker(0, 1) };
    core.handle_driver(T0, start(elsewhere));
    core.handle_driver(T0, start(worker(1, 1)));
    core.handle_spawned(T0, &worker(1, 1), Err("no such program: train".to_owned().into()));
    let reasons: Vec<_> = drain(&mut core)
        .into_iter()
        .filter_map(|output| match output {
            AgentOutput::ToDriver(AgentToDriver::StartFailed { reason, .. }) => Some(reason),
            _ => None,
        })
        .collect();
    assert_eq!(
        reasons,
        [
            "slot 2 does not exist: host a has 2 slots",
            "this is host a, not b",
            "no such program: train"
        ]
    );
}

#[test]
fn x_9_term_then_kill_after_the_grace() {
    let mut core = running();
    core.handle_driver(T0, stop(worker(0, 1), 50));
    assert_eq!(drain(&mut core), [signal(worker(0, 1), StopSignal::Terminate, "test")]);
    assert_eq!(core.poll_timeout(), Some(Time::from_ms(50)));
    core.handle_timeout(Time::from_ms(49));
    assert_eq!(drain(&mut core), []);
    core.handle_timeout(Time::from_ms(50));
    let outputs = drain(&mut core);
    assert!(matches!(outputs[0], AgentOutput::Warn(AgentWarning::KilledAfterGrace { .. })));
    assert_eq!(outputs[1], signal(worker(0, 1), StopSignal::Kill, "test"));
    assert_eq!(core.poll_timeout(), None);
    end(&mut core, &worker(0, 1), ExitStatus::Signal(9));
    let outputs = drain(&mut core);
    assert!(matches!(
        outputs.as_slice(),
        [AgentOutput::ToDriver(AgentToDriver::Exited { killed_after_grace: true, .. }), _words]
    ));
}

#[test]
fn a_second_stop_can_only_hasten_it() {
    let mut core = running();
    core.handle_driver(T0, stop(worker(0, 1), 50));
    core.handle_driver(T0, stop(worker(0, 1), 5_000));
    assert_eq!(core.poll_timeout(), Some(Time::from_ms(50)));
    core.handle_driver(T0, stop(worker(0, 1), 0));
    let kill = signal(worker(0, 1), StopSignal::Kill, "test");
    assert_eq!(drain(&mut core).last(), Some(&kill));
}

#[test]
fn a_stop_before_the_spawn_completed_is_honoured() {
    let mut core = running();
    core.handle_driver(T0, start(worker(1, 1)));
    core.handle_driver(T0, stop(worker(1, 1), 50));
    assert!(matches!(drain(&mut core).as_slice(), [AgentOutput::Spawn(_)]));
    core.handle_spawned(Time::from_ms(60), &worker(1, 1), Ok(101));
    assert_eq!(drain(&mut core)[1], signal(worker(1, 1), StopSignal::Kill, "test"));
}

#[test]
fn a_newer_life_waits_for_the_end_of_the_older_one() {
    let mut core = running();
    core.handle_driver(T0, start(worker(0, 2)));
    let outputs = drain(&mut core);
    assert_eq!(outputs[1], signal(worker(0, 1), StopSignal::Kill, "a[0]#2 takes its slot"));
    core.handle_driver(T0, start(worker(0, 1)));
    let warning = AgentWarning::OldIncarnation { worker: worker(0, 1), newest: 2 };
    assert_eq!(drain(&mut core), [AgentOutput::Warn(warning)]);
    end(&mut core, &worker(0, 1), ExitStatus::Signal(9));
    let outputs = drain(&mut core);
    let by = Some(StoppedBy::Driver(Term(1)));
    assert_eq!(outputs[0], exited_by(worker(0, 1), ExitStatus::Signal(9), by));
    assert!(matches!(&outputs[1], AgentOutput::Spawn(order) if order.worker == worker(0, 2)));
}

#[test]
fn an_older_life_that_is_being_stopped_keeps_its_grace() {
    let mut core = running();
    core.handle_driver(T0, stop(worker(0, 1), 5_000));
    core.handle_driver(T0, start(worker(0, 2)));
    assert_eq!(drain(&mut core), [signal(worker(0, 1), StopSignal::Terminate, "test")]);
    core.handle_driver(T0, stop(worker(0, 2), 0));
    let reason = "it was stopped before it was started: test".to_owned();
    let failed = AgentToDriver::StartFailed { worker: worker(0, 2), reason, is_programs: false };
    assert_eq!(drain(&mut core), [AgentOutput::ToDriver(failed)]);
}

#[test]
fn g_12_a_death_is_told_before_the_process_has_ended() {
    let mut core = running();
    core.handle_dying(&worker(0, 1));
    let dying = AgentOutput::ToDriver(AgentToDriver::Dying { worker: worker(0, 1) });
    assert_eq!(drain(&mut core), std::slice::from_ref(&dying));
    core.handle_dying(&worker(0, 1));
    assert_eq!(drain(&mut core), [], "once");
    core.handle_link(T0, lost());
    core.handle_link(T0, DriverLink::Up);
    let joins = drain(&mut core);
    assert!(
        matches!(&joins[1], AgentOutput::ToDriver(AgentToDriver::Join { live, .. }) if live.len() == 1)
    );
    core.handle_driver(T0, welcome(1, 2));
    assert_eq!(drain(&mut core), [dying], "the next driver learns of it");
    core.handle_exited(&worker(0, 1), ExitStatus::Signal(9), LibraryTrace::Unseen);
    assert_eq!(drain(&mut core), [exited(worker(0, 1), ExitStatus::Signal(9))]);
    core.handle_dying(&worker(0, 1));
    assert_eq!(drain(&mut core), [], "its end was told");
}

#[test]
fn a_process_that_even_sigkill_does_not_end_is_named() {
    let mut core = running();
    core.handle_driver(T0, DriverToAgent::Leave { code: 0, reason: "over".to_owned() });
    core.handle_timeout(Time::from_ms(5_000));
    drain(&mut core);
    let give_up = Time::from_ms(5_000) + AgentCore::KILL_PATIENCE;
    assert_eq!(core.poll_timeout(), Some(give_up));
    core.handle_timeout(give_up);
    assert_eq!(drain(&mut core), [exit(0, "over; a[0]#1 (pid 100) did not end after SIGKILL")]);
}

#[test]
fn the_tail_is_cut_at_a_character() {
    let text = last_bytes("ä".repeat(3_000), AgentToDriver::TAIL_BYTES_MAX - 1);
    assert_eq!(text.len(), AgentToDriver::TAIL_BYTES_MAX - 2);
    assert_eq!(last_bytes("short".to_owned(), 10), "short");
}

#[test]
fn g_12_a_death_is_told_before_its_last_words_and_the_slot_is_free_at_once() {
    let mut core = running();
    core.handle_exited(&worker(0, 1), ExitStatus::Code(1), LibraryTrace::Unseen);
    assert_eq!(drain(&mut core), [exited(worker(0, 1), ExitStatus::Code(1))]);
    core.handle_driver(T0, start(worker(0, 2)));
    assert!(matches!(drain(&mut core).as_slice(), [AgentOutput::Spawn(_)]));
    let tail = "no such file".to_owned();
    let said = LastWords { tail, error: None, out_of_memory: Some("2 kills".to_owned()) };
    core.handle_last_words(&worker(0, 1), said.clone());
    let LastWords { tail, error, out_of_memory } = said.clone();
    let words = AgentToDriver::LastWords { worker: worker(0, 1), tail, error, out_of_memory };
    assert_eq!(drain(&mut core), [AgentOutput::ToDriver(words)]);
    core.handle_last_words(&worker(0, 1), said);
    assert!(matches!(
        drain(&mut core).as_slice(),
        [AgentOutput::Warn(AgentWarning::UnknownProcess { .. })]
    ));
}
