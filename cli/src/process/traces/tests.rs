//! Tests of the lane: a collector that stands still costs traces, and neither the actors' thread nor the job's end.

use std::sync::mpsc::channel;

use super::*;

/// A lane whose collector takes a trace and never answers, with the first trace in its hands.
fn with_a_collector_that_hangs() -> TraceLane {
    let counts = Arc::new(SentCounts::new("http://collector".to_owned()));
    let (tell, taken) = channel();
    let send = move |_: &ResetTrace| {
        tell.send(()).expect("the test waits");
        loop {
            thread::park();
        }
    };
    let lane = TraceLane::start("j", counts, send).expect("a thread");
    lane.push(trace());
    taken.recv().expect("the first trace is taken");
    lane
}

fn trace() -> ResetTrace {
    ResetTrace { trace_id: 1, spans: Vec::new() }
}

#[test]
fn traces_that_do_not_fit_are_counted_and_nobody_waits() {
    let lane = with_a_collector_that_hangs();
    for _ in 0..TRACES_QUEUED_MAX {
        lane.push(trace());
    }
    assert_eq!(lane.warning(), None);
    for _ in 0..3 {
        lane.push(trace());
    }
    let warning = lane.warning().expect("three are lost");
    assert_eq!(warning, "the traces of 3 resets did not reach http://collector");
}

#[test]
fn g_9_a_collector_that_hangs_does_not_hold_up_the_end() {
    // Without a bound, the test would hang.
    drop(with_a_collector_that_hangs());
}
