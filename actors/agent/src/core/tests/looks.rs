//! The agent's core and what it asks for: looks at processes, checks of the host's health, and its own invariants.

use super::*;

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
