//! Hangs of programs in Rust: who hangs is named with the functions that it is in. Those of Python's programs are in
//! `python/tests/test_hangs.py`.

use crate::observe::run_explain;
use crate::support::Job;

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
