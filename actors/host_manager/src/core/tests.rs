//! Tests of the host manager's core by scenario: H-14 to H-19, and its part of X-7.

use std::time::Duration;

use elastic_protocol::ExitStatus;
use rand::SeedableRng;

use super::*;

const STDERR: &str = "no route to the scheduler";

fn name(name: &str) -> HostName {
    HostName::new(name).expect("a literal")
}

fn ms(ms: u64) -> Time {
    Time::from_ms(ms)
}

fn start(config: HostManagerConfig) -> HostManagerCore {
    let config = config.validate().expect("settings of a test");
    HostManagerCore::new(config, ChaCha8Rng::seed_from_u64(1), Time::ZERO)
}

fn script() -> HostManagerCore {
    let mut core = start(HostManagerConfig::new(HostSource::Script));
    let timeout = Duration::from_secs(10);
    assert_eq!(core.poll_output(), Some(HostManagerOutput::RunDiscovery { timeout }));
    core
}

fn cooldown(source: HostSource, min: u64, max: u64) -> HostManagerCore {
    let range = CooldownRange { min: Duration::from_secs(min), max: Duration::from_secs(max) };
    start(HostManagerConfig { cooldown: Some(range), ..HostManagerConfig::new(source) })
}

fn fixed(hosts: &[(&str, u32)]) -> HostSource {
    HostSource::Fixed(
        hosts.iter().map(|(host, slots)| HostSlots { name: name(host), slots: *slots }).collect(),
    )
}

fn failed() -> DiscoveryError {
    DiscoveryError::Failed {
        command: "hosts.sh".to_owned(),
        status: ExitStatus::Code(3),
        stderr: STDERR.to_owned(),
    }
}

/// A poll with this result, started when it is due and ended at once; returns the snapshot, if there is one.
fn poll(core: &mut HostManagerCore, result: Result<&str, DiscoveryError>) -> Option<HostsSnapshot> {
    let now = core.poll_timeout().unwrap_or(Time::ZERO);
    if now > Time::ZERO {
        core.handle_timeout(now);
        let request = core.poll_output();
        assert!(matches!(request, Some(HostManagerOutput::RunDiscovery { .. })), "{request:?}");
    }
    core.handle_discovery(now, result.map(str::to_owned));
    changed(core)
}

fn changed(core: &mut HostManagerCore) -> Option<HostsSnapshot> {
    match core.poll_output() {
        Some(HostManagerOutput::HostsChanged(snapshot)) => {
            assert_eq!(core.poll_output(), None, "one snapshot a change");
            Some(snapshot)
        }
        None => None,
        other => panic!("not a snapshot: {other:?}"),
    }
}

fn brief(snapshot: &HostsSnapshot) -> Vec<String> {
    let host = |host: &HostEntry| format!("{}:{}", host.name, host.usable_slots());
    snapshot.hosts.iter().map(host).collect()
}

#[test]
fn h_14_a_blacklisted_host_stays_out_for_min_then_twice_as_long() {
    let mut core = cooldown(fixed(&[("a", 2), ("b", 2)]), 1, 2);
    let mut given = vec![changed(&mut core).expect("the fixed hosts")];
    let mut now = ms(5_000);
    for least_ms in [1_000, 2_000, 2_000] {
        core.handle_failure(now, &name("b"), HostFault::Failed, "b[0] failed");
        given.push(changed(&mut core).expect("b is out"));
        let back = core.poll_timeout().expect("b comes back");
        assert!(back >= now + Duration::from_millis(least_ms), "never earlier");
        assert!(back <= now + Duration::from_millis(2_000), "never above MAX");
        core.handle_timeout(Time(back.0 - 1));
        assert_eq!(changed(&mut core), None, "not even a nanosecond earlier");
        core.handle_timeout(back);
        given.push(changed(&mut core).expect("b is back"));
        now = back + Duration::from_millis(300);
    }
    let updates: Vec<_> = given.iter().map(|snapshot| snapshot.update).collect();
    let (added, removed) = (HostUpdate::Added, HostUpdate::Removed);
    assert_eq!(updates, [added, removed, added, removed, added, removed, added]);
    assert_eq!(brief(&given[1]), ["a:2", "b:0"], "in its place");
}

#[test]
fn h_14_the_first_stay_is_min_up_to_a_tenth() {
    for seed in 0..50 {
        let range = CooldownRange { min: Duration::from_secs(10), max: Duration::from_secs(100) };
        let mut config = HostManagerConfig::new(fixed(&[("a", 1)]));
        config.cooldown = Some(range);
        let mut core = HostManagerCore::new(config, ChaCha8Rng::seed_from_u64(seed), Time::ZERO);
        let mut now = Time::ZERO;
        for base_ms in [10_000, 20_000, 40_000, 80_000, 100_000, 100_000] {
            core.handle_failure(now, &name("a"), HostFault::Failed, "it failed");
            let back = core.poll_timeout().expect("it comes back");
            let stay = back.since(now);
            assert!(stay >= Duration::from_millis(base_ms), "{stay:?}");
            assert!(stay <= Duration::from_millis(base_ms * 11 / 10), "{stay:?}");
            assert!(stay <= range.max, "{stay:?}");
            core.handle_timeout(back);
            now = back;
        }
    }
}

#[test]
fn h_14_a_failure_of_another_slot_does_not_lengthen_the_stay() {
    let mut core = cooldown(fixed(&[("a", 2), ("b", 1)]), 10, 100);
    let first = core.handle_failure(ms(0), &name("a"), HostFault::Failed, "a[0] failed");
    let FailureDecision::Blacklisted { until, reason } = first else { panic!("{first:?}") };
    assert_eq!(reason, "a[0] failed");
    let second = core.handle_failure(ms(9_000), &name("a"), HostFault::Failed, "a[1] failed");
    assert_eq!(second, FailureDecision::OutAlready { until });
    assert_eq!(core.poll_timeout(), until);
}

#[test]
fn the_cooldown_counts_down_when_all_hosts_are_out() {
    let mut core = cooldown(fixed(&[("a", 1)]), 1, 2);
    core.handle_failure(ms(0), &name("a"), HostFault::Failed, "it failed");
    assert_eq!(changed(&mut core).map(|snapshot| brief(&snapshot)), Some(vec!["a:0".to_owned()]));
    core.handle_timeout(ms(2_000));
    let back = changed(&mut core).expect("H-11: it comes back");
    assert_eq!((brief(&back), back.update), (vec!["a:1".to_owned()], HostUpdate::Added));
}

#[test]
fn without_a_cooldown_a_host_that_another_one_does_not_reach_is_tried_again() {
    let mut core = start(HostManagerConfig::new(fixed(&[("a", 1), ("b", 1)])));
    for least_s in [60, 120, 240] {
        let now = core.poll_timeout().unwrap_or_default();
        core.handle_timeout(now);
        let failed = core.handle_failure(now, &name("a"), HostFault::Unreached, "b does not");
        let FailureDecision::Blacklisted { until: Some(until), .. } = failed else {
            panic!("its stay has an end: {failed:?}")
        };
        let lasts = until.since(now);
        let least = Duration::from_secs(least_s);
        assert!((least..=least * 11 / 10).contains(&lasts), "{lasts:?}");
    }
}

#[test]
fn without_a_cooldown_a_host_is_out_for_ever() {
    let mut core = start(HostManagerConfig::new(fixed(&[("a", 1), ("b", 1)])));
    changed(&mut core);
    core.handle_failure(ms(0), &name("a"), HostFault::Failed, "it failed");
    let out = changed(&mut core).expect("a is out");
    assert_eq!(out.hosts[0].state, HostState::Blacklisted { until: None });
    assert_eq!(core.poll_timeout(), None);
    core.handle_timeout(Time(u64::MAX));
    assert_eq!(changed(&mut core), None);
}

#[test]
fn a_host_that_leaves_and_returns_is_still_out() {
    let mut core = cooldown(HostSource::Joined, 10, 10);
    core.handle_joined(ms(0), name("a"), 1);
    core.handle_left(ms(1), &name("a"));
    core.handle_failure(ms(2), &name("a"), HostFault::Failed, "it failed as it left");
    core.handle_joined(ms(3), name("a"), 1);
    assert_eq!(brief(&core.snapshot()), ["a:0"]);
    core.handle_timeout(ms(10_002));
    assert_eq!(brief(&core.snapshot()), ["a:1"]);
}

/// The host manager of the next driver, which knows what the last one's snapshot says.
fn next(source: HostSource, last: &HostsSnapshot) -> HostManagerCore {
    let known = |entry: &HostEntry, is_listed| KnownHost {
        host: HostSlots { name: entry.name.clone(), slots: entry.slots },
        is_listed,
        is_blacklisted: matches!(entry.state, HostState::Blacklisted { .. }),
        comes_back: matches!(entry.state, HostState::Blacklisted { until: Some(_) }),
        is_drained: entry.state == HostState::Drained,
    };
    let listed = last.hosts.iter().map(|entry| known(entry, true));
    let known = listed.chain(last.unlisted.iter().map(|entry| known(entry, false))).collect();
    start(HostManagerConfig { known, ..HostManagerConfig::new(source) })
}

#[test]
fn d_4_a_host_that_is_taken_out_while_it_is_off_the_list_is_out_under_the_next_driver() {
    let mut core = script();
    poll(&mut core, Ok("a:1\nb:1\nc:1\nd:1\n"));
    core.handle_drain(ms(1), &name("b"));
    core.handle_failure(ms(1), &name("c"), HostFault::Failed, "c[0] failed");
    core.handle_failure(ms(1), &name("d"), HostFault::Unreached, "a does not reach it");
    changed(&mut core);
    let off = poll(&mut core, Ok("a:1\n")).expect("three hosts leave the list");
    assert_eq!(brief(&off), ["a:1"]);
    let mut core = next(HostSource::Script, &off);
    assert!(matches!(core.poll_output(), Some(HostManagerOutput::RunDiscovery { .. })));
    let begins = changed(&mut core).expect("the hosts that are known");
    assert_eq!(brief(&begins), ["a:1"], "they are not listed");
    let names: Vec<_> = begins.unlisted.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["b", "c", "d"]);
    core.handle_discovery(ms(1), Ok("a:1\nb:1\nc:1\nd:1\n".to_owned()));
    let back = changed(&mut core).expect("they are listed again");
    assert_eq!(brief(&back), ["a:1", "b:0", "c:0", "d:0"]);
    assert_eq!(back.unlisted, []);
    assert_eq!(back.hosts[1].state, HostState::Drained);
    assert_eq!(back.hosts[2].state, HostState::Blacklisted { until: None });
    assert!(matches!(back.hosts[3].state, HostState::Blacklisted { until: Some(_) }));
}

#[test]
fn a_host_off_the_list_that_is_let_in_again_is_told_of() {
    let mut core = start(HostManagerConfig::new(HostSource::Joined));
    core.handle_joined(ms(0), name("a"), 1);
    core.handle_drain(ms(0), &name("a"));
    core.handle_left(ms(1), &name("a"));
    let off = changed(&mut core).expect("it is off the list");
    assert_eq!((off.hosts.len(), off.unlisted.len()), (0, 1));
    let mut core = next(HostSource::Joined, &off);
    changed(&mut core).expect("it is known");
    assert_eq!(core.handle_readmit(ms(2), &name("a")), ReadmitDecision::Readmitted);
    let told = changed(&mut core).expect("it is let in again");
    assert_eq!((told.unlisted, told.update), (vec![], HostUpdate::None));
    core.handle_joined(ms(3), name("a"), 1);
    assert_eq!(brief(&core.snapshot()), ["a:1"]);
}

#[test]
fn h_15_the_first_discoverys_failure_is_fatal() {
    let mut core = script();
    core.handle_discovery(ms(1), Err(failed()));
    let Some(HostManagerOutput::Fatal(failure)) = core.poll_output() else { panic!("not fatal") };
    let message = failure.to_string();
    assert!(message.contains(STDERR) && message.contains("exit code 3"), "{message}");
    assert!(failure.hint.contains("by hand"));
    assert_eq!((core.poll_output(), core.poll_timeout()), (None, None), "nothing is polled again");
}

#[test]
fn h_15_a_later_failure_is_a_warning_until_it_works_again() {
    let mut core = script();
    poll(&mut core, Ok("a:2\n"));
    let warned = poll(&mut core, Err(failed())).expect("a warning");
    assert_eq!((brief(&warned), warned.update), (vec!["a:2".to_owned()], HostUpdate::None));
    assert!(warned.warnings[0].contains(STDERR), "{:?}", warned.warnings);
    assert_eq!(poll(&mut core, Err(failed())), None, "told once");
    let cleared = poll(&mut core, Ok("a:2\n")).expect("the warning is gone");
    assert_eq!((cleared.warnings, cleared.update), (vec![], HostUpdate::None));
}

#[test]
fn h_16_an_empty_list_is_no_failure() {
    let mut core = script();
    assert_eq!(poll(&mut core, Ok("")), None);
    let slots = |snapshot: HostsSnapshot| -> u32 {
        snapshot.hosts.iter().map(HostEntry::usable_slots).sum()
    };
    let outputs = ["a:4", "a:4\nb:8", "a:4\nb:8\nc:4"];
    let seen: Vec<_> =
        outputs.iter().filter_map(|output| poll(&mut core, Ok(output))).map(slots).collect();
    assert_eq!(seen, [4, 12, 16]);
}

#[test]
fn h_17_the_oldest_first_and_who_returns_goes_last() {
    let mut core = script();
    poll(&mut core, Ok("a:1\nb:1\nc:1"));
    poll(&mut core, Ok("d:1\nc:1\nb:1"));
    assert_eq!(brief(&core.snapshot()), ["b:1", "c:1", "d:1"]);
    poll(&mut core, Ok("a:1\nb:1\nc:1\nd:1"));
    assert_eq!(brief(&core.snapshot()), ["b:1", "c:1", "d:1", "a:1"]);
}

#[test]
fn h_18_update_flags() {
    let mut core = script();
    let outputs = ["a:2", "a:2\nb:2", "b:2", "b:1\nc:1"];
    let updates: Vec<_> = outputs
        .iter()
        .filter_map(|output| poll(&mut core, Ok(output)))
        .map(|snapshot| snapshot.update)
        .collect();
    let (added, removed, mixed) = (HostUpdate::Added, HostUpdate::Removed, HostUpdate::Mixed);
    assert_eq!(updates, [added, added, removed, mixed]);
    assert_eq!(poll(&mut core, Ok("b:1\nc:1")), None, "the same is nothing");
}

#[test]
fn h_19_what_is_undone_between_two_looks_never_was() {
    let mut core = start(HostManagerConfig::new(HostSource::Joined));
    core.handle_joined(ms(0), name("a"), 1);
    changed(&mut core);
    core.handle_joined(ms(1), name("b"), 1);
    core.handle_left(ms(2), &name("b"));
    assert_eq!(changed(&mut core), None);
}

#[test]
fn polls_begin_an_interval_after_the_last_one_ended() {
    let mut core = script();
    assert_eq!(core.poll_timeout(), None, "one at a time");
    core.handle_discovery(ms(4_000), Ok("a:1".to_owned()));
    changed(&mut core);
    assert_eq!(core.poll_timeout(), Some(ms(5_000)));
    core.handle_discovery(ms(4_500), Ok("b:1".to_owned()));
    assert_eq!(changed(&mut core), None, "an answer that nobody asked for");
    core.handle_timeout(ms(5_000));
    assert!(matches!(core.poll_output(), Some(HostManagerOutput::RunDiscovery { .. })));
}

#[test]
fn x_7_a_malformed_line_is_skipped_and_named_in_the_first_poll_too() {
    let mut core = script();
    let snapshot = poll(&mut core, Ok("a:2\nb:-1\n:3\n")).expect("a is there");
    assert_eq!(brief(&snapshot), ["a:2"]);
    assert_eq!(snapshot.warnings.len(), 2);
    assert!(snapshot.warnings[0].contains("line 2 (\"b:-1\")"), "{:?}", snapshot.warnings);
    assert!(snapshot.warnings[1].contains("line 3 (\":3\")"), "{:?}", snapshot.warnings);
}

#[test]
fn x_7_garbage_alone_is_a_failure() {
    let mut core = script();
    core.handle_discovery(ms(1), Ok("a:x\nfe80::1:2\n".to_owned()));
    let Some(HostManagerOutput::Fatal(failure)) = core.poll_output() else { panic!("not fatal") };
    let message = failure.to_string();
    assert!(message.contains("line 1") && message.contains("line 2"), "{message}");

    let mut core = script();
    poll(&mut core, Ok("a:1"));
    let warned = poll(&mut core, Ok("Segmentation fault: core dumped: see log")).expect("warned");
    assert_eq!((brief(&warned), warned.warnings.len()), (vec!["a:1".to_owned()], 1));
}

#[test]
fn x_7_too_much_output_is_a_failure() {
    let mut core = script();
    poll(&mut core, Ok("a:1"));
    let flood = "b:1\n".repeat(OUTPUT_BYTES_MAX);
    let warned = poll(&mut core, Ok(&flood)).expect("a warning");
    assert_eq!(brief(&warned), ["a:1"]);
}

#[test]
fn a_slip_of_the_pen_does_not_take_a_host_out_but_zero_slots_do() {
    let mut core = script();
    poll(&mut core, Ok("a:1\nb:2\nc:1"));
    let slip = poll(&mut core, Ok("a:1\nb:two\nc:1")).expect("a warning");
    assert_eq!((brief(&slip), slip.update), (brief(&core.snapshot()), HostUpdate::None));
    let zero = poll(&mut core, Ok("a:1\nb:0\nc:1")).expect("b is out");
    assert_eq!(brief(&zero), ["a:1", "c:1"]);
    assert_eq!((zero.update, zero.warnings.len()), (HostUpdate::Removed, 1));
}

#[test]
fn joining_changes_the_list_only_where_hosts_are_whoever_joins() {
    let mut core = start(HostManagerConfig::new(fixed(&[("a", 2)])));
    changed(&mut core);
    let expected = core.handle_joined(ms(0), name("a"), 64);
    assert_eq!(expected, JoinDecision::Expected { slots: 2 });
    let refusal = JoinRefusal::NotListed { name: name("b") };
    assert!(refusal.to_string().contains("host b is not among the job's hosts"));
    assert_eq!(core.handle_joined(ms(0), name("b"), 1), JoinDecision::Refused(refusal));
    assert_eq!(core.handle_left(ms(0), &name("a")), LeaveDecision::StaysListed);
    assert_eq!(core.handle_left(ms(0), &name("b")), LeaveDecision::NotListed);
    assert_eq!(changed(&mut core), None);

    let mut core = start(HostManagerConfig::new(HostSource::Joined));
    let none = core.handle_joined(ms(0), name("a"), 0);
    assert!(matches!(none, JoinDecision::Refused(JoinRefusal::Slots { .. })));
    assert_eq!(core.handle_joined(ms(0), name("a"), 2), JoinDecision::Taken);
    core.handle_joined(ms(0), name("b"), 1);
    changed(&mut core);
    assert_eq!(core.handle_joined(ms(0), name("a"), 1), JoinDecision::Taken);
    let fewer = changed(&mut core).expect("a has one slot less");
    assert_eq!(
        (brief(&fewer), fewer.update),
        (vec!["a:1".into(), "b:1".into()], HostUpdate::Removed)
    );
    assert_eq!(core.handle_left(ms(0), &name("a")), LeaveDecision::Removed);
    core.handle_joined(ms(0), name("a"), 1);
    assert_eq!(brief(&core.snapshot()), ["b:1", "a:1"], "H-17");
}

#[test]
fn settings_that_cannot_be_meant_are_refused() {
    let reversed = CooldownRange { min: Duration::from_secs(2), max: Duration::from_secs(1) };
    let script = || HostManagerConfig::new(HostSource::Script);
    let refused = [
        HostManagerConfig { cooldown: Some(reversed), ..script() },
        HostManagerConfig { poll_interval: Duration::ZERO, ..script() },
        HostManagerConfig { script_timeout: Duration::ZERO, ..script() },
        HostManagerConfig { default_slots: Some(0), ..script() },
        HostManagerConfig::new(fixed(&[])),
        HostManagerConfig::new(fixed(&[("a", 0)])),
        HostManagerConfig::new(fixed(&[("a", SLOTS_MAX + 1)])),
        HostManagerConfig::new(fixed(&[("a", 1), ("a", 1)])),
    ];
    for config in refused {
        assert!(config.clone().validate().is_err(), "{config:?}");
    }
    assert!(script().validate().is_ok());
}

#[test]
fn a_broken_invariant_is_found() {
    type Breaks = fn(&mut HostManagerCore);
    let cases: [(Breaks, &str); 4] = [
        (|core| core.hosts.push(core.hosts[0].clone()), "host a is listed twice"),
        (|core| core.hosts[0].slots = 0, "host a is listed with 0 slots"),
        (|core| core.polling = Polling::Running, "Running, and hosts come from no script"),
        (
            |core| core.blacklist = Blacklist::with_endless_stay(core.config.cooldown, &name("a")),
            "the stay of a is Some(Stay { until: None, fault: Failed }), against the settings",
        ),
    ];
    for (breaks, expected) in cases {
        let mut core = cooldown(fixed(&[("a", 1)]), 1, 2);
        assert_eq!(core.check(), Ok(()));
        breaks(&mut core);
        assert_eq!(core.check(), Err(expected.to_owned()));
    }
}
