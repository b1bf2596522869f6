//! The agent's core and its end: orders to leave, and drains.

use super::*;

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
fn g_10_an_agent_that_leaves_tells_last_words_first() {
    let mut core = running();
    core.handle_driver(T0, DriverToAgent::Leave { code: 0, reason: "over".to_owned() });
    drain(&mut core);
    core.handle_exited(&worker(0, 1), ExitStatus::Signal(15), LibraryTrace::Unseen);
    assert_eq!(drain(&mut core).len(), 1, "its end, and no Exit yet");
    core.handle_last_words(&worker(0, 1), LastWords::default());
    assert_eq!(drain(&mut core), [silence(worker(0, 1)), exit(0, "over")]);
}
