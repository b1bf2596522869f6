//! Unit tests of the agent's core, one decision at a time.

use elastic_protocol::messages::{
    AgentToDriver, DriverToAgent, HealthFailure, LaneStatus, LibraryTrace, ProcessActivity,
    ProcessSight, StoppedBy,
};
use elastic_protocol::{
    Deadlines, ExitStatus, HostName, Incarnation, JobId, ProgramSpec, Term, Time, WorkerId,
};

use super::*;

pub(super) fn host() -> HostName {
    HostName::new("a").expect("a literal")
}

pub(super) fn worker(slot: u32, incarnation: u64) -> WorkerId {
    WorkerId { host: host(), slot, incarnation: Incarnation(incarnation) }
}

pub(super) fn job(number: u128) -> JobId {
    JobId(uuid::Uuid::from_u128(number))
}

pub(super) fn welcome(number: u128, term: u64) -> DriverToAgent {
    DriverToAgent::Welcome {
        job: job(number),
        term: Term(term),
        program: ProgramSpec {
            argv: vec!["train".to_owned()],
            environment: vec![("A".to_owned(), "program".to_owned())],
        },
        deadlines: Deadlines::default(),
        output: Box::default(),
    }
}

pub(super) fn start(worker: WorkerId) -> DriverToAgent {
    let environment = vec![("RANK".to_owned(), "0".to_owned())];
    DriverToAgent::Start { worker, environment, place: None, credential: "secret".to_owned() }
}

pub(super) fn stop(worker: WorkerId, grace_ms: u64) -> DriverToAgent {
    DriverToAgent::Stop { worker, grace_ms, reason: "test".to_owned() }
}

fn lost() -> DriverLink {
    DriverLink::Lost { reason: "cable".to_owned() }
}

fn drain(core: &mut AgentCore) -> Vec<AgentOutput> {
    std::iter::from_fn(|| core.poll_output()).collect()
}

const T0: Time = Time::ZERO;

/// An agent of two slots that was welcomed, with a running worker `a[0]#1` of pid 100.
fn running() -> AgentCore {
    let mut core = AgentCore::new(T0, AgentSettings::new(host(), 2));
    core.handle_link(T0, DriverLink::Up);
    core.handle_driver(T0, welcome(1, 1));
    core.handle_driver(T0, start(worker(0, 1)));
    core.handle_spawned(T0, &worker(0, 1), Ok(100));
    drain(&mut core);
    core
}

fn exited(worker: WorkerId, status: ExitStatus) -> AgentOutput {
    exited_by(worker, status, None)
}

fn exited_by(worker: WorkerId, status: ExitStatus, stopped_by: Option<StoppedBy>) -> AgentOutput {
    AgentOutput::ToDriver(AgentToDriver::Exited {
        worker,
        status,
        stopped_by,
        killed_after_grace: false,
        library: LibraryTrace::Unseen,
    })
}

/// A process ends without last words.
fn end(core: &mut AgentCore, worker: &WorkerId, status: ExitStatus) {
    core.handle_exited(worker, status, LibraryTrace::Unseen);
    core.handle_last_words(worker, LastWords::default());
}

fn silence(worker: WorkerId) -> AgentOutput {
    let (tail, error, out_of_memory) = (String::new(), None, None);
    AgentOutput::ToDriver(AgentToDriver::LastWords { worker, tail, error, out_of_memory })
}

fn signal(worker: WorkerId, signal: StopSignal, reason: &str) -> AgentOutput {
    AgentOutput::Signal { worker, signal, reason: reason.to_owned() }
}

/// The first message over a link, of an agent without processes.
fn join() -> AgentOutput {
    AgentOutput::ToDriver(AgentToDriver::Join {
        host: host(),
        slots: 2,
        role: "default".to_owned(),
        meeting: None,
        run_id: None,
        nodes: None,
        live: vec![],
    })
}

fn exit(code: i32, reason: &str) -> AgentOutput {
    AgentOutput::Exit { code, reason: reason.to_owned() }
}

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
fn leave_stops_all_and_ends_with_the_drivers_code() {
    let mut core = running();
    core.handle_driver(T0, DriverToAgent::Leave { code: 3, reason: "over".to_owned() });
    assert_eq!(drain(&mut core), [signal(worker(0, 1), StopSignal::Terminate, "over")]);
    core.handle_driver(T0, start(worker(1, 1)));
    assert!(matches!(
        drain(&mut core).as_slice(),
        [AgentOutput::ToDriver(AgentToDriver::StartFailed { .. })]
    ));
    end(&mut core, &worker(0, 1), ExitStatus::Code(0));
    let end = exited_by(worker(0, 1), ExitStatus::Code(0), Some(StoppedBy::Agent));
    assert_eq!(drain(&mut core), [end, silence(worker(0, 1)), exit(3, "over")]);
    assert_eq!((core.poll_timeout(), core.has_ended()), (None, true));
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
fn x_17_drain_asks_the_driver_first_and_ends_at_once_the_second_time() {
    let mut core = running();
    core.handle_drain(T0, "SIGTERM", 143);
    let asked = AgentToDriver::Drain { reason: "SIGTERM".to_owned() };
    assert_eq!(drain(&mut core), [AgentOutput::ToDriver(asked)]);
    core.handle_drain(T0, "SIGTERM", 143);
    let reason = "SIGTERM, again: ended at once";
    assert_eq!(drain(&mut core), [signal(worker(0, 1), StopSignal::Kill, reason)]);
    end(&mut core, &worker(0, 1), ExitStatus::Signal(9));
    assert_eq!(drain(&mut core).last(), Some(&exit(143, reason)));
}

#[test]
fn drain_is_over_when_the_workers_are_gone_or_the_grace_is() {
    let mut core = running();
    core.handle_drain(T0, "SIGTERM", 143);
    end(&mut core, &worker(0, 1), ExitStatus::Code(0));
    assert_eq!(drain(&mut core).last(), Some(&exit(0, "SIGTERM")));

    let mut core = running();
    core.handle_drain(T0, "SIGTERM", 143);
    drain(&mut core);
    assert_eq!(core.poll_timeout(), Some(Time::from_ms(5_000)));
    core.handle_timeout(Time::from_ms(5_000));
    let reason = "SIGTERM; the driver did not take the workers out in time";
    assert_eq!(drain(&mut core), [signal(worker(0, 1), StopSignal::Terminate, reason)]);
}

#[test]
fn drain_is_told_again_to_a_driver_that_comes_back() {
    let mut core = running();
    core.handle_link(T0, lost());
    core.handle_drain(T0, "SIGTERM", 143);
    core.handle_link(T0, DriverLink::Up);
    drain(&mut core);
    core.handle_driver(T0, welcome(1, 2));
    let asked = AgentToDriver::Drain { reason: "SIGTERM".to_owned() };
    assert_eq!(drain(&mut core), [AgentOutput::ToDriver(asked)]);
}

#[test]
fn a_drain_that_the_driver_could_not_hear_is_told_to_it_after_the_grace_period_too() {
    let mut core = running();
    core.handle_link(T0, lost());
    core.handle_drain(T0, "SIGTERM", 143);
    core.handle_link(T0, DriverLink::Up);
    core.handle_timeout(Time::from_ms(5_000));
    drain(&mut core);
    core.handle_driver(Time::from_ms(5_000), welcome(1, 2));
    let reason = "SIGTERM; the driver did not take the workers out in time".to_owned();
    let asked = AgentToDriver::Drain { reason };
    assert_eq!(drain(&mut core), [AgentOutput::ToDriver(asked)]);
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
fn a_second_order_to_leave_can_only_hasten_the_end() {
    let mut core = running();
    let leave = || DriverToAgent::Leave { code: 0, reason: "over".to_owned() };
    let give_up = |from_ms: u64| Time::from_ms(from_ms) + AgentCore::KILL_PATIENCE;
    core.handle_driver(T0, leave());
    core.handle_driver(Time::from_ms(1_000), leave());
    core.handle_timeout(Time::from_ms(5_000));
    assert_eq!(core.poll_timeout(), Some(give_up(5_000)), "the first order's grace");
    core.handle_drain(Time::from_ms(2_000), "SIGTERM", 143);
    core.handle_drain(Time::from_ms(2_000), "SIGTERM", 143);
    assert_eq!(core.poll_timeout(), Some(give_up(2_000)), "at once");
    drain(&mut core);
    core.handle_timeout(give_up(2_000));
    let outputs = drain(&mut core);
    let said = "over; a[0]#1 (pid 100) did not end after SIGKILL";
    assert_eq!(outputs, [exit(0, said)], "the first reason is kept");
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

#[test]
fn g_10_an_agent_that_leaves_tells_last_words_first() {
    let mut core = running();
    core.handle_driver(T0, DriverToAgent::Leave { code: 0, reason: "over".to_owned() });
    drain(&mut core);
    core.handle_exited(&worker(0, 1), ExitStatus::Signal(15), LibraryTrace::Unseen);
    assert_eq!(drain(&mut core).len(), 1, "its end, and no Exit yet");
    core.handle_last_words(&worker(0, 1), LastWords::default());
    assert_eq!(drain(&mut core), [silence(worker(0, 1)), exit(0, "over")]);
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

#[test]
fn a_process_is_looked_at_once_at_a_time_and_only_while_it_runs() {
    let mut core = running();
    let inspect = |with_stack| DriverToAgent::Inspect { worker: worker(0, 1), with_stack };
    let look = |with_stack| AgentOutput::Inspect { worker: worker(0, 1), with_stack };
    for with_stack in [false, false, true, true] {
        core.handle_driver(T0, inspect(with_stack));
    }
    assert_eq!(drain(&mut core), [look(false)], "the others wait for its answer");
    let sight = Box::new(ProcessSight::new(ProcessActivity::Stopped, 200));
    core.handle_inspected(&worker(0, 1), sight.clone());
    let told = AgentToDriver::Inspected { worker: worker(0, 1), sight: sight.clone() };
    let told = AgentOutput::ToDriver(told);
    assert_eq!(drain(&mut core), [told.clone(), look(true)], "the stacks were wanted, too");
    core.handle_inspected(&worker(0, 1), sight.clone());
    assert_eq!(drain(&mut core), [told]);
    core.handle_driver(T0, inspect(true));
    assert_eq!(drain(&mut core), [look(true)]);
    end(&mut core, &worker(0, 1), ExitStatus::Code(0));
    drain(&mut core);
    core.handle_inspected(&worker(0, 1), sight);
    assert_eq!(drain(&mut core), [], "its end was reported");
}

#[test]
fn one_health_check_runs_at_a_time_and_its_result_answers_the_newest_question() {
    let mut core = running();
    let ask = |number| DriverToAgent::CheckHealth {
        number,
        command: "check".to_owned(),
        timeout_ms: 5_000,
    };
    let run =
        AgentOutput::CheckHealth { command: "check".to_owned(), timeout: Duration::from_secs(5) };
    core.handle_driver(T0, ask(1));
    core.handle_driver(T0, ask(2));
    assert_eq!(drain(&mut core), std::slice::from_ref(&run));
    let failure =
        Some(HealthFailure { reason: "exit code 1".to_owned(), output: "ill".to_owned() });
    core.handle_health_checked(failure.clone());
    let told =
        |number, failure| AgentOutput::ToDriver(AgentToDriver::HealthChecked { number, failure });
    assert_eq!(drain(&mut core), [told(2, failure)]);
    core.handle_health_checked(None);
    assert_eq!(drain(&mut core), [], "nobody has asked");
    core.handle_driver(T0, ask(3));
    core.handle_health_checked(None);
    assert_eq!(drain(&mut core), [run, told(3, None)]);
}

#[test]
fn a_broken_invariant_is_found() {
    type Breaks = fn(&mut AgentCore);
    fn process(core: &mut AgentCore) -> &mut SlotProcess {
        core.process_mut(&worker(0, 1)).expect("it runs")
    }
    let cases: [(Breaks, &str); 6] = [
        (|core| core.link_up = false, "a driver is obeyed without a session or a welcome"),
        (
            |core| core.accepted = false,
            "G-9: no driver is there, and the wait for one has no begin",
        ),
        (
            |core| process(core).pid = None,
            "slot 0 of a has a[0]#1, which is not started and was signalled or announced",
        ),
        (
            |core| process(core).worker.slot = 1,
            "slot 0 of a has a[1]#1, and the newest is Some(Incarnation(1))",
        ),
        (|core| core.settings.slots = 0, "slot 0 of a does not exist"),
        (
            |core| core.keep(AgentToDriver::Drain { reason: String::new() }),
            "G-9: 1 reports are kept, and a driver is there",
        ),
    ];
    for (breaks, expected) in cases {
        let mut core = running();
        assert_eq!(core.check(), Ok(()));
        breaks(&mut core);
        assert_eq!(core.check(), Err(expected.to_owned()));
    }
}
