//! Tests of the timeline: slices, flows and counters of small logs, and the size of a large job's day.

use super::*;

const LOG: &str = r#"
{"t":"2026-01-01T00:00:00Z","kind":"driver_started","term":1,"generation":0,"job":"j","address":"x","pid":1,"version":"1"}
{"t":"2026-01-01T00:00:01Z","kind":"worker_started","term":1,"generation":0,"worker":"a[0]#1"}
{"t":"2026-01-01T00:00:01Z","kind":"worker_started","term":1,"generation":0,"worker":"b[0]#2"}
{"t":"2026-01-01T00:00:02Z","kind":"worker_attached","term":1,"generation":0,"worker":"a[0]#1","pid":7}
{"t":"2026-01-01T00:00:02Z","kind":"worker_attached","term":1,"generation":0,"worker":"b[0]#2","pid":8}
{"t":"2026-01-01T00:00:03Z","kind":"generation_running","term":1,"generation":1,"world_size":2}
{"t":"2026-01-01T00:00:10Z","kind":"worker_exited","term":1,"generation":1,"worker":"b[0]#2","status":"signal 9 (SIGKILL)","expected":false,"killed_after_grace":false}
"#;

/// Lines that follow `LOG`: a reset of 1 s, whose first decision is not its last.
const RESET: &str = r#"
{"t":"2026-01-01T00:00:10.200Z","kind":"reset_decided","term":1,"generation":1,"cause":"b[0]#2 ended: signal 9 (SIGKILL)","cause_data":{"WorkerExited":{"worker":{"host":"b","slot":0,"incarnation":2},"status":{"Signal":9}}},"way":"abort"}
{"t":"2026-01-01T00:00:10.500Z","kind":"reset_decided","term":1,"generation":2,"cause":"b[0]#2 ended: signal 9 (SIGKILL)","cause_data":{"WorkerExited":{"worker":{"host":"b","slot":0,"incarnation":2},"status":{"Signal":9}}},"way":"abort"}
{"t":"2026-01-01T00:00:11Z","kind":"generation_running","term":1,"generation":3,"world_size":1}
{"t":"2026-01-01T00:00:11.1Z","kind":"reset_done","term":1,"generation":3,"cause":"b[0]#2 ended: signal 9 (SIGKILL)","cause_data":{"WorkerExited":{"worker":{"host":"b","slot":0,"incarnation":2},"status":{"Signal":9}}},"from":2,"ms":{"detect":200.0,"form":500.0,"sync":300.0,"total":1000.0},"steps_lost":1}
{"t":"2026-01-01T00:00:12Z","kind":"first_steps","term":1,"generation":3,"from":2,"hosts":{"a":{"ready":500.0,"synced":800.0,"first_step":1000.0}}}
"#;

fn entries(log: &str) -> Vec<Value> {
    let lines = || log.lines().map(ToOwned::to_owned);
    let mut timeline = JobTimeline::new(JobTimeline::last_job(lines()).expect("a job"));
    lines().for_each(|line| timeline.handle_line(&line));
    timeline.finish();
    std::iter::from_fn(|| timeline.poll_entry()).collect()
}

fn named<'a>(entries: &'a [Value], name: &str) -> &'a Value {
    entries.iter().find(|entry| entry["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

/// Begin and end of a slice in milliseconds.
fn span_ms(entry: &Value) -> (u64, u64) {
    let [at, lasts] = ["ts", "dur"].map(|name| entry[name].as_u64().expect("microseconds"));
    (at / 1_000, (at + lasts) / 1_000)
}

#[test]
fn workers_have_slices_from_start_to_end_on_the_track_of_their_slot() {
    let entries = entries(LOG);
    let ended = named(&entries, "b:0");
    assert_eq!(span_ms(ended), (1_000, 10_000));
    assert_eq!(ended["args"]["end"], "signal 9 (SIGKILL)");
    let lives = named(&entries, "a:0");
    assert_eq!(lives["args"]["end"], "it had not ended");
    assert_ne!(lives["pid"], ended["pid"], "each host is a process");
    assert_ne!(lives["tid"], ended["tid"], "each slot is a thread");
    assert_eq!(span_ms(named(&entries, "starting")), (1_000, 2_000));
    assert_eq!(span_ms(named(&entries, "generation 1")), (3_000, 10_000));
}

#[test]
fn a_reset_has_its_phases_and_those_of_hosts_whatever_was_decided_meanwhile() {
    let entries = entries(&format!("{LOG}{RESET}"));
    let reset = named(&entries, "reset: b:0 ended: signal 9 (SIGKILL)");
    assert_eq!(span_ms(reset), (10_000, 11_000));
    assert_eq!(reset["args"]["way"], "abort");
    let on = |track: &Value, name: &str| {
        let is_it =
            |it: &&Value| it["name"] == name && it["ph"] == "X" && it["tid"] == track["tid"];
        span_ms(entries.iter().find(is_it).unwrap_or_else(|| panic!("no {name}")))
    };
    assert_eq!(on(reset, "detect"), (10_000, 10_200));
    assert_eq!(on(reset, "form"), (10_200, 10_700));
    assert_eq!(on(reset, "sync"), (10_700, 11_000));
    let of_host = named(&entries, "first step");
    assert_eq!(span_ms(of_host), (11_000, 11_200));
    assert_eq!((on(of_host, "form"), on(of_host, "sync")), ((10_200, 10_700), (10_700, 11_000)));
}

#[test]
fn a_flow_leads_from_the_worker_to_its_reset_and_to_the_next_generation() {
    let entries = entries(&format!("{LOG}{RESET}"));
    let parts: Vec<&Value> = entries.iter().filter(|it| it["cat"] == "reset").collect();
    let kinds: Vec<&str> = parts.iter().filter_map(|it| it["ph"].as_str()).collect();
    assert_eq!(kinds, ["s", "t", "f"]);
    let began = named(&entries, "began a reset");
    let [lost, at] = [named(&entries, "b:0"), began];
    assert_eq!(
        (span_ms(at), &at["tid"]),
        ((9_999, 10_000), &lost["tid"]),
        "within its last microsecond"
    );
    let ends = ["began a reset", "reset: b:0 ended: signal 9 (SIGKILL)", "generation 3"];
    for (part, slice) in parts.iter().zip(ends) {
        let slice = named(&entries, slice);
        assert_eq!((&part["pid"], &part["tid"]), (&slice["pid"], &slice["tid"]));
        let at = part["ts"].as_u64().expect("microseconds");
        let [from, lasts] = ["ts", "dur"].map(|name| slice[name].as_u64().expect("microseconds"));
        assert!(from <= at && at < from + lasts, "{part} is within {slice}");
    }
}

#[test]
fn goodput_lines_are_counters_of_steps_goodput_and_slots() {
    let goodput = |second: u32, step: u64, training: f64| {
        format!(
            r#"{{"t":"2026-01-01T00:00:{second}Z","kind":"goodput","term":1,"generation":1,"since_start":0.5,"last_10_min":0.5,"slot_seconds":100.0,"buckets":{{"training":{training},"forming":1.0}},"step":{step}}}"#
        )
    };
    let log = format!("{LOG}{}\n{}", goodput(20, 100, 30.0), goodput(50, 160, 90.0));
    let entries = entries(&log);
    let last = |name: &str| {
        let found = entries.iter().rfind(|it| it["ph"] == "C" && it["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}"))["args"].clone()
    };
    assert_eq!(last("step"), json!({ "step": 160 }));
    assert_eq!(last("steps a second"), json!({ "steps a second": 2.0 }));
    assert_eq!(last("goodput of 10 min in percent"), json!({ "percent": 50.0 }));
    assert_eq!(last("slots"), json!({ "training": 2.0, "forming": 0.0 }));
}

#[test]
fn a_checkpoint_is_a_slice_as_long_as_its_save() {
    let saved = r#"{"t":"2026-01-01T00:00:20Z","kind":"checkpoint_saved","term":1,"generation":1,"step":40,"bytes":1000,"ms":2500.0}"#;
    let entries = entries(&format!("{LOG}{saved}"));
    assert_eq!(span_ms(named(&entries, "checkpoint of step 40")), (17_500, 20_000));
}

#[test]
fn a_slot_has_one_process_at_a_time_though_the_end_of_the_former_one_was_not_told() {
    let next = r#"{"t":"2026-01-01T00:00:15Z","kind":"worker_started","term":1,"generation":1,"worker":"a[0]#3"}"#;
    let lost = r#"{"t":"2026-01-01T00:00:18Z","kind":"host_lost","term":1,"generation":1,"host":"a","reason":"silent"}"#;
    let entries = entries(&format!("{LOG}{next}\n{lost}"));
    assert_eq!(span_ms(named(&entries, "a:0")), (1_000, 15_000));
    let last = entries
        .iter()
        .find(|entry| entry["name"] == "a:0" && entry["args"]["incarnation"] == 3)
        .expect("its next process");
    assert_eq!(
        (span_ms(last), &last["args"]["end"]),
        ((15_000, 18_000), &json!("its host was lost"))
    );
}

#[test]
fn only_the_last_job_of_a_log_is_shown() {
    let two = format!("{LOG}{}", LOG.replace("\"j\"", "\"k\"").replace("b[0]#2", "c[0]#3"));
    let entries = entries(&two);
    assert_eq!(entries[0]["args"]["name"], "job k");
    assert!(entries.iter().all(|entry| entry["name"] != "b:0"));
}

#[test]
fn a_log_without_a_job_has_no_timeline() {
    assert_eq!(JobTimeline::last_job(["{}".to_owned(), "x".to_owned()]), None);
}
