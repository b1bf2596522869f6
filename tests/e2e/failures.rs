//! Workers, agents and hosts that fail (sections H and X).

use nix::sys::signal::Signal;

use crate::support::{Job, is_running, program, signal, wait_until};

/// Four workers on two hosts.
fn two_by_two(flags: &[&str]) -> Job {
    let mut all = vec!["-H", "a:2,b:2", "--launcher", "local"];
    all.extend(flags);
    if !flags.contains(&"--min-np") {
        all.extend(["--min-np", "1"]);
    }
    let mut job = Job::start(&all, &[]);
    job.wait_for_sizes(&[4]);
    job
}

#[test]
fn h_10_a_program_that_cannot_even_begin_ends_the_job_with_what_it_said() {
    let script = ["/bin/sh", "-c", "echo no module named torch >&2; exit 1"].map(ToOwned::to_owned);
    let mut job = Job::start_program(
        &["-H", "a:2", "--launcher", "local", "--mode", "in-process", "--max-restarts", "100"],
        &script,
    );
    assert_eq!(job.end(), 1);
    let stderr = job.stderr();
    assert!(stderr.contains("before its first call of the library"), "{stderr}");
    assert!(stderr.contains("no module named torch"), "{stderr}");
}

#[test]
fn h_7_h_9_a_failure_blacklists_its_host() {
    for how in ["killed", "raises"] {
        let mut job = two_by_two(&["--on-failure", "blacklist"]);
        if how == "killed" {
            let victim = job.pid("a", 0);
            signal(victim, Signal::SIGKILL);
        } else {
            job.control("raise.0");
        }
        job.wait("host b alone", |job| (job.sizes().last() == Some(&2)).then_some(()));
        job.wait_for_progress();
        let status = job.status().expect("a status");
        assert_eq!(status["hosts"][0]["state"], "blacklisted", "{how}: {status}");
        assert_eq!(job.finish(), 0, "{how}");
        job.assert_exact();
    }
}

#[test]
fn h_8_the_slot_is_refilled() {
    let mut job = two_by_two(&[]);
    let victim = job.pid("b", 1);
    signal(victim, Signal::SIGKILL);
    job.wait("the slot's next worker", |job| {
        (job.sizes().len() > 1 && job.sizes().ends_with(&[4])).then_some(())
    });
    // On a busy machine the slot may be refilled before the others have regrouped.
    assert!(matches!(job.sizes()[..], [4, 3, 4] | [4, 4]), "{:?}", job.sizes());
    job.wait_for_progress();
    let reset = job.first_reset();
    let cause = reset["cause"].as_str().unwrap_or_default();
    assert!(cause.contains("signal 9 (SIGKILL)"), "{cause}");
    for phase in ["detect", "form", "sync", "total"] {
        assert!(reset["ms"][phase].is_number(), "{phase} is timed: {reset}");
    }
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

/// A QUIC connection does not show that a process has ended: its agent reports it (G-12).
#[test]
fn h_8_the_slot_is_refilled_on_every_data_plane() {
    for plane in ["tcp", "quic"] {
        let mut job = two_by_two(&["--data-plane", plane]);
        let (victim, survivor) = (job.pid("b", 1), job.pid("a", 0));
        let shown = |file: String| std::fs::read_to_string(file).unwrap_or_default();
        let maps = shown(format!("/proc/{survivor}/maps"));
        assert!(!maps.is_empty() && !maps.contains("memfd:elastic-collectives"), "{plane}");
        let threads = std::fs::read_dir(format!("/proc/{survivor}/task")).expect("it trains");
        let names: Vec<String> = threads
            .map(|thread| shown(format!("{}/comm", thread.expect("a thread").path().display())))
            .collect();
        let has_quic = names.iter().any(|name| name.trim() == "elastic-quic");
        assert_eq!(has_quic, plane == "quic", "{plane}: {names:?}");
        signal(victim, Signal::SIGKILL);
        job.wait("the slot's next worker", |job| {
            (job.sizes().len() > 1 && job.sizes().ends_with(&[4])).then_some(())
        });
        job.wait_for_progress();
        let reset = job.first_reset();
        let cause = reset["cause"].as_str().unwrap_or_default();
        assert!(cause.contains("signal 9 (SIGKILL)"), "{plane}: {cause}");
        assert_eq!(job.finish(), 0, "{plane}");
        job.assert_exact();
    }
}

#[test]
fn h_8_max_restarts_puts_the_host_out() {
    let mut job = two_by_two(&["--max-restarts", "0"]);
    let victim = job.pid("b", 1);
    signal(victim, Signal::SIGKILL);
    job.wait("host a alone", |job| (job.sizes().last() == Some(&2)).then_some(()));
    assert_eq!(job.finish(), 0);
}

#[test]
fn h_10_every_worker_raises() {
    let mut job = two_by_two(&["--max-restarts", "1"]);
    job.control("raise-all");
    assert_eq!(job.end(), 1);
    let stderr = job.stderr();
    assert!(stderr.contains("error:") && stderr.contains("was told to raise"), "{stderr}");
}

#[test]
fn h_11_every_host_is_blacklisted() {
    let mut job = two_by_two(&["--on-failure", "blacklist"]);
    for host in ["a", "b"] {
        let victim = job.pid(host, 0);
        signal(victim, Signal::SIGKILL);
        job.wait("the host to be out", |job| {
            let out = job
                .events_of("hosts_changed")
                .iter()
                .any(|event| event["hosts"].to_string().contains(&format!("({host}:2)")));
            (out || job.driver.try_wait().ok()?.is_some()).then_some(())
        });
        if host == "a" {
            job.wait_for_progress();
        }
    }
    assert_eq!(job.end(), 1);
    assert!(job.stderr().contains("every host is blacklisted: a, b"), "{}", job.stderr());
}

#[test]
fn h_12_the_elastic_timeout() {
    let mut job = two_by_two(&["--min-np", "4", "--elastic-timeout", "2", "--max-restarts", "0"]);
    let victim = job.pid("b", 0);
    signal(victim, Signal::SIGKILL);
    assert_eq!(job.end(), 1);
    let stderr = job.stderr();
    assert!(stderr.contains("elastic timeout of 2 s") && stderr.contains("hint:"), "{stderr}");
    assert!(stderr.contains("a:0") && stderr.contains("host b"), "{stderr}");
}

#[test]
fn h_13_the_reset_limit() {
    let mut job = two_by_two(&["--reset-limit", "1"]);
    let victim = job.pid("b", 1);
    signal(victim, Signal::SIGKILL);
    job.wait("the end of the first reset, or of the job", |job| {
        let is_over = !job.events_of("job_ended").is_empty();
        (is_over || job.sizes().len() > 1).then_some(())
    });
    // The refill is a second reset; on a busy machine the slot may be back in time for the first.
    if job.sizes() == [4, 4] {
        signal(job.pid("a", 1), Signal::SIGKILL);
    }
    assert_eq!(job.end(), 1);
    assert!(job.stderr().contains("limit of 1 resets"), "{}", job.stderr());
}

#[test]
fn h_14_a_blacklisted_host_comes_back_after_its_cooldown() {
    let mut job =
        two_by_two(&["--on-failure", "blacklist", "--blacklist-cooldown-range", "1", "2"]);
    let victim = job.pid("b", 0);
    signal(victim, Signal::SIGKILL);
    job.wait("the host's return", |job| (job.sizes().ends_with(&[2, 4])).then_some(()));
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn x_1_more_workers_die_while_the_reset_forms() {
    let mut job = two_by_two(&["--max-restarts", "0", "--on-failure", "restart"]);
    let victims = [job.pid("a", 1), job.pid("b", 0), job.pid("b", 1)];
    for victim in victims {
        signal(victim, Signal::SIGKILL);
    }
    job.wait("the end of those who are left, or a result", |job| {
        let out = job.events_of("hosts_changed").len() >= 2;
        (out || !job.events_of("job_ended").is_empty()).then_some(())
    });
    // Both hosts had a failure beyond their restart budget: both are blacklisted, which ends the job with its reason.
    assert_eq!(job.end(), 1);
    assert!(job.stderr().contains("every host is blacklisted"), "{}", job.stderr());
}

#[test]
fn x_1_down_to_min_np_and_back() {
    let mut job = two_by_two(&[]);
    let victims = [job.pid("a", 1), job.pid("b", 0), job.pid("b", 1)];
    for victim in victims {
        signal(victim, Signal::SIGKILL);
    }
    job.wait("all four again", |job| {
        let sizes = job.sizes();
        (sizes.len() > 1 && sizes.last() == Some(&4)).then_some(())
    });
    job.wait_for_progress();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn x_2_a_stopped_worker_is_evicted_and_does_not_come_back() {
    let mut job = two_by_two(&[]);
    let victim = job.pid("b", 1);
    signal(victim, Signal::SIGSTOP);
    job.wait("the others", |job| (job.sizes().get(1) == Some(&3)).then_some(()));
    if is_running(victim) {
        // The worker is usually killed already; if it continues before that, it changes nothing (G-2).
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(victim), Signal::SIGCONT);
    }
    job.wait("the slot's refill", |job| (job.sizes().last() == Some(&4)).then_some(()));
    assert!(!is_running(victim));
    let cause = job.first_reset()["cause"].to_string();
    assert!(cause.contains("not heard for"), "{cause}");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn x_2_a_stopped_agent_comes_back_with_its_workers() {
    let mut job = Job::start(&["-n", "2", "--min-np", "1"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    let pid = i32::try_from(job.agents["b"].id()).expect("a pid");
    let worker = job.pid("b", 0);
    signal(pid, Signal::SIGSTOP);
    job.wait("a alone", |job| (job.sizes().get(1) == Some(&1)).then_some(()));
    signal(pid, Signal::SIGCONT);
    job.wait("both", |job| (job.sizes().last() == Some(&2)).then_some(()));
    job.wait_for_progress();
    assert!(is_running(worker), "its process, with its state, was kept");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn x_8_the_agent_is_killed() {
    let mut job = Job::start(&["-n", "2", "--min-np", "1"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    let worker = job.pid("b", 0);
    let mut agent = job.agents.remove("b").expect("agent b");
    agent.kill().expect("the agent is there");
    agent.wait().expect("the agent is there");
    wait_until("the end of its worker", || (!is_running(worker)).then_some(()));
    job.wait_for_sizes(&[2, 1]);
    job.agent("c", 1);
    job.wait_for_sizes(&[2, 1, 2]);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn x_8_an_agent_of_the_same_name_takes_the_dead_ones_place() {
    let mut job = Job::start(&["-n", "2", "--min-np", "1"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    let mut agent = job.agents.remove("b").expect("agent b");
    agent.kill().expect("the agent is there");
    agent.wait().expect("the agent is there");
    job.agent("b", 1);
    job.wait("b's return", |job| (job.sizes().ends_with(&[1, 2])).then_some(()));
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn x_11_a_worker_leaves_on_sigterm() {
    let mut job = two_by_two(&[]);
    let leaver = job.pid("b", 1);
    signal(leaver, Signal::SIGTERM);
    job.wait_for_sizes(&[4, 3]);
    let reset = job.first_reset();
    assert_eq!(reset["steps_lost"], 0, "{reset}");
    let exits = job.wait_for_exits(1);
    assert_eq!(exits[0]["expected"], true);
    assert_eq!(exits[0]["status"], "exit code 0");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn x_11_an_agent_drains_on_sigterm() {
    let mut job = Job::start(&["-n", "2", "--min-np", "1"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    signal(i32::try_from(job.agents["b"].id()).expect("a pid"), Signal::SIGTERM);
    job.wait_for_sizes(&[2, 1]);
    assert_eq!(job.agent_end("b").code(), Some(0));
    assert_eq!(job.first_reset()["steps_lost"], 0);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn x_15_a_rank_in_a_collective_of_its_own() {
    let mut job = two_by_two(&[]);
    job.control("extra-collective.1");
    job.wait("a reset", |job| job.events_of("reset_done").pop());
    job.wait_for_progress();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn x_15_hosts_whose_ranks_are_in_different_collectives_again_and_again_are_not_at_fault() {
    let mut job = two_by_two(&[]);
    for resets in 1..=4 {
        job.control("extra-collective.1");
        job.wait("a reset", |job| (job.events_of("reset_done").len() == resets).then_some(()));
        job.wait_for_progress();
    }
    for kind in ["host_unreachable", "host_blacklisted"] {
        let events = job.events_of(kind);
        assert!(events.is_empty(), "the path between them carries data: {events:?}");
    }
    let cause = job.events_of("reset_decided").pop().expect("a reset")["cause"].to_string();
    assert!(cause.contains("this rank is in"), "{cause}");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn x_2_an_agent_that_was_killed_is_missed_before_its_silence_is() {
    let mut job = Job::start(&["-n", "2", "--min-np", "1"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    job.kill_agent("b");
    let lost = job.wait("the loss of its host", |job| job.events_of("host_lost").pop());
    // Its host refuses packets to its port, and says so; silence alone takes 2 s.
    let reason = lost["reason"].as_str().expect("a reason").to_owned();
    assert!(reason.contains("its port is closed, and it was not heard for"), "{reason}");
    job.wait("the other host trains alone", |job| (job.sizes() == [2, 1]).then_some(()));
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn g_10_a_program_that_no_host_can_start_ends_the_job_at_once_with_the_reason() {
    let program = ["no-such-program-anywhere".to_owned()];
    let mut job = Job::start_program(&["-n", "2", "--mode", "in-process"], &program);
    job.agent("a", 1);
    job.agent("b", 1);
    assert_eq!(job.end(), 1);
    let stderr = job.stderr();
    assert!(stderr.contains("the program cannot be started on any host"), "{stderr}");
    assert!(stderr.contains("no folder of PATH has a program of that name"), "{stderr}");
    let tried = job.events_of("worker_started").len();
    // A slot may be tried once more while the other host's first start is on its way.
    assert!((2..=4).contains(&tried), "{tried} starts on two slots: {stderr}");
}

#[test]
fn g_10_a_program_that_is_missing_for_a_while_does_not_end_those_who_train() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("trainer");
    std::fs::copy(program("trainer"), &copy).expect("copied");
    let own = [copy.to_str().expect("UTF-8"), "--control", "CONTROL", "--log", "LOG"];
    let flags = "-H a:2 --launcher local --min-np 1 --max-restarts 1 --mode in-process";
    let flags: Vec<&str> = flags.split(' ').collect();
    let mut job = Job::start_program(&flags, &own.map(ToOwned::to_owned));
    job.wait_for_sizes(&[2]);
    let victim = job.pid("a", 1);
    // As when another version of it is about to be put there.
    std::fs::remove_file(&copy).expect("it is there");
    signal(victim, Signal::SIGKILL);
    let failed = job.wait("a failed start", |job| job.events_of("worker_not_started").pop());
    assert!(failed["reason"].to_string().contains("no such file"), "{failed}");
    job.wait_for_sizes(&[2, 1]);
    job.wait_for_steps();
    assert_eq!(job.status().expect("a status")["hosts"][0]["state"], "active", "a:0 trains there");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}
