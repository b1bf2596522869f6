//! The agent's core and its driver: joining, terms, other jobs, silence, and reports that are kept for the next driver.

use super::*;

#[test]
fn it_joins_starts_and_reports() {
    let mut core = AgentCore::new(T0, AgentSettings::new(host(), 2));
    core.handle_link(T0, DriverLink::Up);
    assert_eq!(drain(&mut core), [join()]);
    core.handle_driver(T0, welcome(1, 1));
    core.handle_driver(T0, start(worker(0, 1)));
    core.handle_driver(T0, start(worker(0, 1)));
    let outputs = drain(&mut core);
    let [AgentOutput::Spawn(order)] = outputs.as_slice() else { panic!("one spawn: {outputs:?}") };
    assert_eq!(order.environment[0].0, "A", "the program's environment comes first");
    assert_eq!(order.environment[1].0, "RANK");
    assert!(!format!("{order:?}").contains("secret"));
    core.handle_spawned(T0, &worker(0, 1), Ok(100));
    let started = AgentToDriver::Started { worker: worker(0, 1), pid: 100 };
    assert_eq!(drain(&mut core), [AgentOutput::ToDriver(started)]);
    end(&mut core, &worker(0, 1), ExitStatus::Code(0));
    let last = [exited(worker(0, 1), ExitStatus::Code(0)), silence(worker(0, 1))];
    assert_eq!(drain(&mut core), last);
    core.handle_driver(T0, start(worker(0, 1)));
    assert_eq!(drain(&mut core), [], "a repeated start of a life that is over changes nothing");
    assert_eq!(core.poll_timeout(), None, "an idle agent sets no timer");
}

#[test]
fn g_2_an_older_term_is_not_obeyed() {
    let mut core = running();
    core.handle_driver(T0, welcome(1, 3));
    core.handle_link(T0, lost());
    core.handle_link(T0, DriverLink::Up);
    drain(&mut core);
    core.handle_driver(T0, welcome(1, 2));
    core.handle_driver(T0, start(worker(1, 1)));
    core.handle_driver(T0, stop(worker(0, 1), 0));
    core.handle_driver(T0, DriverToAgent::Inspect { worker: worker(0, 1), with_stack: false });
    core.handle_driver(T0, DriverToAgent::Leave { code: 0, reason: String::new() });
    let warnings = [
        AgentWarning::OldTerm { ours: Term(3), theirs: Term(2) },
        AgentWarning::NotWelcomed { order: "Start" },
        AgentWarning::NotWelcomed { order: "Stop" },
        AgentWarning::NotWelcomed { order: "Inspect" },
        AgentWarning::NotWelcomed { order: "Leave" },
    ];
    assert_eq!(drain(&mut core), warnings.map(AgentOutput::Warn));
    assert_eq!(core.live().len(), 1);
}

#[test]
fn g_5_a_new_driver_is_told_which_processes_are_being_stopped() {
    let mut core = running();
    core.handle_driver(T0, start(worker(1, 1)));
    core.handle_spawned(T0, &worker(1, 1), Ok(101));
    core.handle_driver(T0, stop(worker(0, 1), 5000));
    let told = core.live().into_iter().map(|process| (process.worker, process.is_being_stopped));
    assert!(told.eq([(worker(0, 1), true), (worker(1, 1), false)]));
}

#[test]
fn d_2_the_refusal_of_a_driver_that_was_succeeded_is_not_heeded() {
    let mut core = AgentCore::new(T0, AgentSettings::new(host(), 2));
    let refused = DriverToAgent::Refused { reason: "host a already has an agent".to_owned() };
    assert!(core.heeds(Term(2), &refused), "nobody has welcomed it");
    core.handle_link(T0, DriverLink::Up);
    core.handle_driver(T0, welcome(1, 3));
    assert!(!core.heeds(Term(2), &refused));
    assert!(core.heeds(Term(3), &refused) && core.heeds(Term(4), &refused));
    assert!(core.heeds(Term(2), &welcome(1, 2)), "it is answered with a warning");
}

#[test]
fn x_12_another_job_ends_the_agent_and_its_workers() {
    let mut core = running();
    core.handle_link(T0, lost());
    core.handle_link(T0, DriverLink::Up);
    drain(&mut core);
    core.handle_driver(T0, welcome(2, 1));
    let reason = AgentWarning::OtherJob { ours: job(1), theirs: job(2) }.to_string();
    assert_eq!(drain(&mut core)[1], signal(worker(0, 1), StopSignal::Kill, &reason));
    end(&mut core, &worker(0, 1), ExitStatus::Signal(9));
    assert_eq!(drain(&mut core), [exit(1, &reason)]);
}

#[test]
fn a_host_whose_driver_is_silent_is_alone_although_the_session_is_kept() {
    let mut core = AgentCore::new(T0, AgentSettings::new(host(), 2));
    core.handle_link(T0, DriverLink::Up);
    core.handle_driver(T0, welcome(1, 1));
    core.handle_link(T0, DriverLink::Silent { silent_ms: 1_000 });
    assert_eq!(core.poll_timeout(), None, "suspected only");
    core.handle_link(T0, DriverLink::Silent { silent_ms: 2_000 });
    let orphaned = T0 + Deadlines::default().orphan;
    assert_eq!(core.poll_timeout(), Some(orphaned), "G-9");
    core.handle_link(T0, DriverLink::Heard);
    assert_eq!(core.poll_timeout(), None, "D-3: as if nothing had happened");
}

#[test]
fn g_9_a_host_whose_session_is_replaced_waits_for_the_next_welcome_with_a_deadline() {
    let mut core = AgentCore::new(T0, AgentSettings::new(host(), 2));
    core.handle_link(T0, DriverLink::Up);
    core.handle_driver(T0, welcome(1, 1));
    assert_eq!(core.poll_timeout(), None, "it has a driver");
    let later = T0 + Duration::from_secs(60);
    core.handle_link(later, DriverLink::Up);
    assert_eq!(core.poll_timeout(), Some(later + Deadlines::default().orphan));
}

#[test]
fn an_end_without_a_link_is_reported_to_the_next_driver() {
    let mut core = running();
    core.handle_link(T0, lost());
    drain(&mut core);
    end(&mut core, &worker(0, 1), ExitStatus::Code(3));
    assert_eq!((drain(&mut core), core.unreported()), (vec![], 2));
    core.handle_link(T0, DriverLink::Up);
    assert_eq!(drain(&mut core), [join()]);
    core.handle_driver(T0, welcome(1, 1));
    let report = exited(worker(0, 1), ExitStatus::Code(3));
    assert_eq!(drain(&mut core), [report.clone(), silence(worker(0, 1))]);
    let AgentOutput::ToDriver(message) = report.clone() else { unreachable!("it is a message") };
    core.handle_link(T0, lost());
    core.handle_undeliverable(T0, message);
    core.handle_link(T0, DriverLink::Up);
    core.handle_driver(T0, welcome(1, 2));
    assert_eq!(drain(&mut core).last(), Some(&report));
}

#[test]
fn a_report_that_came_back_is_sent_again_to_a_driver_that_is_still_there() {
    let mut core = running();
    core.handle_exited(&worker(0, 1), ExitStatus::Code(3), LibraryTrace::Unseen);
    let outputs = drain(&mut core);
    let [AgentOutput::ToDriver(report)] = outputs.as_slice() else { panic!("{outputs:?}") };
    core.handle_undeliverable(T0, report.clone());
    assert_eq!((drain(&mut core), core.poll_timeout()), (vec![], Some(Time::from_ms(100))));
    core.handle_timeout(Time::from_ms(100));
    assert_eq!((drain(&mut core), core.poll_timeout()), (outputs, None));
}

#[test]
fn a_process_that_started_between_join_and_welcome_is_announced_once() {
    let mut core = running();
    core.handle_driver(T0, start(worker(1, 1)));
    core.handle_link(T0, lost());
    core.handle_link(T0, DriverLink::Up);
    core.handle_spawned(T0, &worker(1, 1), Ok(101));
    drain(&mut core);
    core.handle_driver(T0, welcome(1, 1));
    let started = AgentToDriver::Started { worker: worker(1, 1), pid: 101 };
    assert_eq!(drain(&mut core), [AgentOutput::ToDriver(started)]);
}

#[test]
fn refused_ends_it_with_the_reason() {
    let mut core = AgentCore::new(T0, AgentSettings::new(host(), 2));
    core.handle_link(T0, DriverLink::Up);
    drain(&mut core);
    core.handle_driver(T0, DriverToAgent::Refused { reason: "another version".to_owned() });
    assert_eq!(drain(&mut core), [exit(1, "the driver refused this host: another version")]);
}

#[test]
fn an_orphan_stops_its_workers_and_ends() {
    let mut core = running();
    core.handle_link(Time::from_ms(1_000), lost());
    drain(&mut core);
    assert_eq!(core.poll_timeout(), None, "its workers train on");
    let mut limited = welcome(1, 1);
    if let DriverToAgent::Welcome { deadlines, .. } = &mut limited {
        deadlines.orphan_training = Some(deadlines.orphan);
    }
    core.handle_link(Time::from_ms(1_000), DriverLink::Up);
    core.handle_driver(Time::from_ms(1_000), limited);
    core.handle_link(Time::from_ms(1_000), lost());
    drain(&mut core);
    assert_eq!(core.poll_timeout(), Some(Time::from_ms(31_000)));
    core.handle_timeout(Time::from_ms(31_000));
    let reason = "the driver has been gone for 30000 ms";
    assert_eq!(drain(&mut core), [signal(worker(0, 1), StopSignal::Terminate, reason)]);
    end(&mut core, &worker(0, 1), ExitStatus::Signal(15));
    assert_eq!(drain(&mut core), [exit(1, reason)]);
}

#[test]
fn a_driver_that_never_comes_ends_it_too() {
    let mut core = AgentCore::new(T0, AgentSettings::new(host(), 2));
    core.handle_link(T0, DriverLink::Up);
    drain(&mut core);
    core.handle_timeout(Time::from_ms(600_000));
    assert_eq!(drain(&mut core), [exit(1, "no driver welcomed this host within 600000 ms")]);
}

#[test]
fn s_6_a_change_of_the_host_is_told_now_and_to_the_next_driver() {
    let mut core = running();
    let meeting = Some(([10, 0, 0, 7], 29_500).into());
    let lane = LaneStatus {
        name: "output file".to_owned(),
        answers_within_ms: 1_000,
        hanging_ms: Some(1_500),
        dropped_lines: 0,
    };
    let changed = |hanging| AgentOutput::ToDriver(AgentToDriver::HostChanged { meeting, hanging });
    core.handle_host_changed(T0, meeting, vec![lane.clone()]);
    assert_eq!(drain(&mut core), [changed(vec![lane.clone()])]);
    core.handle_link(T0, DriverLink::Lost { reason: "gone".to_owned() });
    core.handle_link(T0, DriverLink::Up);
    let joins = drain(&mut core);
    let joins = joins.iter().any(|output| {
        matches!(output, AgentOutput::ToDriver(AgentToDriver::Join { meeting: told, .. }) if *told == meeting)
    });
    assert!(joins, "it joins with its new address");
    core.handle_driver(T0 + Duration::from_secs(5), welcome(1, 2));
    let later = LaneStatus { hanging_ms: Some(6_500), ..lane.clone() };
    assert!(drain(&mut core).contains(&changed(vec![later])), "it hangs 5 s longer by now");
    core.handle_host_changed(T0, meeting, vec![lane; 20]);
    let told = drain(&mut core);
    let [AgentOutput::ToDriver(AgentToDriver::HostChanged { hanging, .. })] = told.as_slice()
    else {
        panic!("one message: {told:?}")
    };
    assert_eq!(hanging.len(), AgentToDriver::LANES_MAX);
}
