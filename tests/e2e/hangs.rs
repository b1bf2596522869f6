//! Hangs of programs in Rust: who hangs is named with the functions that it is in. Those of Python's programs are in
//! `python/tests/test_hangs.py`.

use nix::sys::signal::Signal;

use crate::observe::run_explain;
use crate::support::{Job, signal};

#[test]
fn x_2_a_hang_in_native_code_is_named_with_its_functions_everywhere() {
    let mut job = Job::start(&["-n", "2", "--hang-timeout", "2"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    job.control("hang.1");
    let named = job.wait("the hang", |job| job.events_of("worker_stalled").pop());
    assert_eq!((&named["rank"], &named["waiting"]), (&1.into(), &1.into()), "{named}");
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
    let (code, told, stderr) = run_explain(&job, &["now"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(told.contains("waits_for_a_batch_that_does_not_come (trainer)"), "{told}");
    assert_eq!(job.events_of("reset_decided").len(), 0, "nobody was disturbed");
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
