//! Hangs of programs in Rust: the hanging worker is named with the functions that it is in. Those of Python's
//! programs are in `python/tests/test_hangs.py`.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::observe::run_explain;
use crate::operate::operate;
use crate::support::{Job, now, signal};

/// The processes by rank, as `status` has them.
fn pids_by_rank(job: &Job) -> Vec<i64> {
    let status = job.status().expect("the driver answers");
    let workers = status["workers"].as_array().expect("workers");
    let ranked = workers.iter().filter_map(|it| Some((it["rank"].as_u64()?, it["pid"].as_i64()?)));
    let by_rank: std::collections::BTreeMap<u64, i64> = ranked.collect();
    by_rank.into_values().collect()
}

/// The process of the rank that an event names.
fn pid_of(job: &Job, named: &serde_json::Value) -> i64 {
    let rank = named["rank"].as_u64().expect("a rank");
    pids_by_rank(job)[rank as usize]
}

#[test]
fn x_2_a_hang_in_native_code_is_named_with_its_functions_everywhere() {
    let mut job = Job::start(&["-n", "2", "--hang-timeout", "2"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    job.control("hang.1");
    let named = job.wait("the hang", |job| job.events_of("worker_stalled").pop());
    assert_eq!((&named["rank"], &named["waiting"]), (&1.into(), &1.into()), "{named}");
    assert_eq!(named["pid"], pid_of(&job, &named), "{named}");
    let calls = named["native_stack"].as_str().unwrap_or_default();
    let place = |name: &str| calls.lines().position(|call| call.contains(name));
    let hangs = place("trainer::waits_for_a_batch_that_does_not_come");
    assert!(hangs.is_some() && hangs < place("trainer::main"), "{named}");
    assert_eq!(named["stack"], serde_json::Value::Null, "it has no Python: {named}");

    let status = job.wait("the status", |job| {
        let status = job.status()?;
        (!status["stalled"].as_array()?.is_empty()).then_some(status)
    });
    assert_eq!(status["stalled"][0]["native_stack"], named["native_stack"], "{status}");
    assert_eq!(status["stalled"][0]["pid"], named["pid"], "{status}");
    let (code, told, stderr) = run_explain(&job, &["now"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(told.contains("waits_for_a_batch_that_does_not_come (trainer)"), "{told}");
    assert_eq!(job.events_of("reset_decided").len(), 0, "nobody was disturbed");
}

#[test]
fn x_15_a_rank_in_a_collective_of_a_sub_group_is_named_with_both_collectives() {
    let mut job = Job::start(&["-n", "3", "--hang-timeout", "2"], &[]);
    job.control("pairs");
    for host in ["a", "b", "c"] {
        job.agent(host, 1);
    }
    job.wait_for_sizes(&[3]);
    job.wait_for_steps();
    job.control("elsewhere.1");
    let named = job.wait("the hang", |job| job.events_of("worker_stalled").pop());
    assert_eq!((&named["rank"], &named["waiting"]), (&1.into(), &2.into()), "{named}");
    assert_eq!(named["pid"], pid_of(&job, &named), "{named}");
    let awaited_in = named["operation"].as_str().unwrap_or_default();
    assert!(awaited_in.starts_with("all_reduce, call "), "{named}");
    let doing = named["doing"].as_str().unwrap_or_default();
    assert!(
        doing.starts_with("is in another collective, barrier of a sub-group of 2, and "),
        "{named}"
    );
    assert_eq!(job.events_of("reset_decided").len(), 0, "nobody was disturbed");
}

/// The host of a rank.
fn host_of(job: &mut Job, rank: u64) -> String {
    job.wait("its host", |job| {
        let status = job.status()?;
        let worker = status["workers"].as_array()?.iter().find(|it| it["rank"] == rank)?;
        worker["host"].as_str().map(ToOwned::to_owned)
    })
}

#[test]
fn x_2_a_hang_is_answered_also_as_its_generation_ends() {
    for is_death in [true, false] {
        let flags = ["-n", "3", "--min-np", "1", "--hang-timeout", "3", "--on-hang", "restart"];
        let mut job = Job::start(&flags, &[]);
        for host in ["a", "b", "c"] {
            job.agent(host, 1);
        }
        job.wait_for_sizes(&[3]);
        job.wait_for_steps();
        let (hanging, other) = (host_of(&mut job, 1), host_of(&mut job, 2));
        job.control("hang.1");
        // It is known to stand still, and does not count as a hang yet.
        job.wait("the wait for it", |job| {
            let status = job.status()?;
            let awaited = status["awaited"].as_array()?.first()?["host"] == *hanging;
            awaited.then_some(())
        });
        if is_death {
            let pid = job.pid(&other, 0);
            signal(pid, Signal::SIGKILL);
        } else {
            let drained = operate(&job, &["drain", &other]);
            assert_eq!(drained.status.code(), Some(0), "{drained:?}");
        }
        let named = job.wait("the hang", |job| job.events_of("worker_stalled").pop());
        let worker = named["worker"].as_str().unwrap_or_default();
        assert!(worker.starts_with(&format!("{hanging}[0]#")), "{named}");
        job.wait("the others' training", |job| {
            (job.events_of("generation_running").len() > 1).then_some(())
        });
        job.wait_for_progress();
        let stopped = job.events_of("worker_stopped");
        assert!(stopped.iter().any(|it| it["worker"] == named["worker"]), "{stopped:?}");
    }
}

/// Within which time of its stop a process is named, with steps of a second.
const NAMED_WITHIN: Duration = Duration::from_secs(3);

#[test]
fn x_2_a_stopped_worker_of_four_is_named_with_its_state_before_it_is_given_up() {
    let mut job = Job::start(&["-n", "4", "--min-np", "1"], &["--step-ms", "1000"]);
    for host in ["a", "b"] {
        job.agent(host, 2);
    }
    job.wait_for_sizes(&[4]);
    job.wait_for_steps();
    let (pid, pids) = (job.pid("b", 1), pids_by_rank(&job));
    let stopped = now();
    signal(pid, Signal::SIGSTOP);
    let named = job.wait("the name", |job| {
        assert!(
            now().saturating_duration_since(stopped) < NAMED_WITHIN,
            "nobody is named: {}",
            job.stderr()
        );
        job.events_of("worker_stalled").pop()
    });
    let rank = pids.iter().position(|it| *it == i64::from(pid));
    assert_eq!((named["rank"].as_u64(), &named["pid"]), (rank.map(|it| it as u64), &pid.into()));
    assert!(named["worker"].as_str().is_some_and(|it| it.starts_with("b[1]#")), "{named}");
    assert_eq!(named["doing"], "is stopped by a signal or a debugger", "{named}");
    let operation = named["operation"].as_str().unwrap_or_default();
    let known = ["all_reduce, call ", "the collectives after step "];
    assert!(known.iter().any(|known| operation.starts_with(known)), "{named}");
    assert!(named["silent_ms"].as_u64() >= Some(1_000), "{named}");
    let reset = job.wait("its reset", |job| job.events_of("reset_decided").pop());
    assert!(reset["cause"].to_string().contains("stopped by a signal"), "{reset}");
}

#[test]
fn x_2_by_restart_who_stands_still_elsewhere_than_its_peers_is_named_with_how_sure_that_is() {
    // Ranks that wait for each other in one way, and one that does in another.
    let script = "if [ \"$RANK\" = 1 ]; then exec sleep 100000; fi; \
                  mkfifo DIR/fifo.$RANK; exec cat DIR/fifo.$RANK";
    let program = ["/bin/sh", "-c", script].map(ToOwned::to_owned);
    let flags = ["-n", "3", "--mode", "restart", "--hang-timeout", "2"];
    let mut job = Job::start_program(&flags, &program);
    for host in ["a", "b", "c"] {
        job.agent(host, 1);
    }
    let named = job.wait("the hang", |job| job.events_of("worker_stalled").pop());
    assert_eq!((&named["rank"], &named["waiting"]), (&1.into(), &2.into()), "{named}");
    assert_eq!(named["grounds"]["sureness"], "likely", "{named}");
    let why = named["grounds"]["why"].as_str().unwrap_or_default();
    assert!(why.contains("2 others wait in something else: the opening of a file"), "{named}");
    assert!(named["native_stack"].as_str().is_some_and(|it| it.contains("nanosleep")), "{named}");
    let status = job.wait("the status", |job| {
        let status = job.status()?;
        (!status["stalled"].as_array()?.is_empty()).then_some(status)
    });
    assert_eq!(status["stalled"][0]["grounds"], named["grounds"], "{status}");

    // A process that cannot go on by itself is named for certain, whatever the others do.
    let stopped = status["workers"]
        .as_array()
        .and_then(|workers| workers.iter().find(|worker| worker["rank"] == 2)?["pid"].as_i64());
    let stopped = stopped.and_then(|pid| i32::try_from(pid).ok()).expect("a process id");
    signal(stopped, Signal::SIGSTOP);
    let named = job.wait("the stopped one", |job| {
        job.events_of("worker_stalled").into_iter().find(|named| named["rank"] == 2)
    });
    assert_eq!(named["grounds"]["sureness"], "certain", "{named}");
    assert_eq!(job.events_of("reset_decided").len(), 0, "nobody was disturbed");
}

#[test]
fn x_2_by_restart_a_stopped_process_is_replaced_with_its_generation_where_that_is_wanted() {
    let program = ["/bin/sh", "-c", "exec sleep 100000"].map(ToOwned::to_owned);
    let flags = ["-n", "2", "--mode", "restart", "--hang-timeout", "2", "--on-hang", "restart"];
    let mut job = Job::start_program(&[&flags[..], &["--grace-period", "1"]].concat(), &program);
    for host in ["a", "b"] {
        job.agent(host, 1);
    }
    job.wait("the generation", |job| job.events_of("generation_running").pop());
    let before = job.wait("both processes", |job| {
        job.status()?;
        Some(pids_by_rank(job)).filter(|pids| pids.len() == 2)
    });
    let stopped = i32::try_from(before[1]).expect("a process id");
    signal(stopped, Signal::SIGSTOP);
    let reset = job.wait("the reset", |job| job.events_of("reset_decided").pop());
    let cause = reset["cause"].to_string();
    assert!(cause.contains("it hung: its process was stopped, and it is stopped by"), "{reset}");
    job.wait("other processes", |job| {
        job.status()?;
        let after = pids_by_rank(job);
        (after.len() == 2 && after.iter().all(|pid| !before.contains(pid))).then_some(())
    });
}
