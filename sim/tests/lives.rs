//! The driver's process is killed and started again, and replaced while it stands still: in both modes the job that
//! follows trains, and nobody of the one before stays for ever.

use serde_json::json;
use sim::{Mode, Options, Plan, Recording, Verdict};

fn plan(fault: serde_json::Value) -> Plan {
    serde_json::from_value(json!([{ "moment": { "at": 4_000_000 }, "fault": fault }]))
        .expect("a fault")
}

fn passes(fault: &serde_json::Value) {
    for mode in [Mode::Cores, Mode::Actors] {
        for seed in 0..8 {
            let calm = Options { mode, seconds: 12, ..Options::new(seed) };
            let options = Options { plan: Some(plan(fault.clone())), ..calm };
            let report = sim::run(&options, Recording { keep: 40, words: true, file: None });
            let why = report.reason().unwrap_or_default();
            let last = report.last_events.join("\n");
            assert_eq!(report.verdict(), Verdict::Ok, "{mode:?} seed {seed}: {why}\n{last}");
            assert!(report.commits > 0, "{mode:?} seed {seed}");
        }
    }
}

#[test]
fn a_driver_that_is_started_again_begins_a_job_that_trains() {
    for for_us in [50_000, 1_000_000, 30_000_000] {
        passes(&json!({ "crash_driver": { "for_us": for_us } }));
    }
}

#[test]
fn a_driver_that_was_replaced_and_goes_on_does_no_harm() {
    for for_us in [500_000, 6_000_000] {
        passes(&json!({ "replace_driver": { "for_us": for_us } }));
    }
}
