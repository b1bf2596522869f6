//! The page's topics, from events and a status.

use elastic_driver::{EventKind, ListedHost, ResetWay};
use elastic_protocol::messages::{
    HostCondition, HostStatus, JobPhase, ReportedValues, StalledWorker, WorkerCondition,
    WorkerStatus,
};
use elastic_protocol::{ExitStatus, GenerationId, Incarnation, JobId, ResetCause, Term, WorkerId};
use serde_json::Value;

use super::*;

const HOSTILE: &str = "<script>alert(1)</script>";

fn at(seconds: u64) -> Time {
    Time::from_ms(seconds * 1_000)
}

fn name(text: &str) -> elastic_protocol::HostName {
    elastic_protocol::HostName::new(text).expect("allowed")
}

fn worker(host: &str, slot: u32) -> WorkerId {
    WorkerId { host: name(host), slot, incarnation: Incarnation(1) }
}

fn event(generation: u64, kind: EventKind) -> DriverEvent {
    DriverEvent { term: Term(1), generation: GenerationId(generation), kind }
}

/// A job of two slots that has trained from second 2 to second 5, when a worker died.
fn record() -> PageRecord {
    let mut record = PageRecord::new("j".to_owned(), at(1));
    let host = ListedHost { name: name("a"), slots: 2, is_blacklisted: false, is_drained: false };
    let members = vec![worker("a", 0), worker("a", 1)];
    let cause = ResetCause::WorkerExited { worker: worker("a", 1), status: ExitStatus::Signal(9) };
    let kinds = [
        (1, 0, EventKind::HostsChanged { needed: 1, min_np: 1, hosts: vec![host] }),
        (1, 0, EventKind::HostJoined { host: name("a"), slots: 2 }),
        (1, 0, EventKind::WorkerAttached { worker: worker("a", 0), pid: 1 }),
        (1, 0, EventKind::WorkerAttached { worker: worker("a", 1), pid: 2 }),
        (1, 1, EventKind::GenerationFormed { members, root: None, step: 0 }),
        (2, 1, EventKind::GenerationRunning { world_size: 2 }),
        (5, 1, EventKind::ResetDecided { cause, way: ResetWay::Abort }),
    ];
    for (second, generation, kind) in kinds {
        record.handle_event(at(second), event(generation, kind));
    }
    record
}

fn status() -> StatusReport {
    let hosts = vec![HostStatus {
        health_check: None,
        health_failure: None,
        name: name("a"),
        slots: 2,
        state: HostCondition::Active,
        until: None,
        lanes: Vec::new(),
    }];
    StatusReport {
        job: JobId(
            serde_json::from_str("\"00000000-0000-0000-0000-000000000000\"").expect("an id"),
        ),
        term: 1,
        driver: elastic_protocol::messages::DriverStatus::default(),
        standbys: Vec::new(),
        generation: 1,
        phase: JobPhase::Gather,
        world_size: 2,
        min_np: 1,
        max_np: None,
        shards: None,
        resets: 1,
        steps_lost: 0,
        hosts,
        workers: Vec::new(),
        last_reset: None,
        resets_recent: Vec::new(),
        moved: None,
        gather: None,
        waiting_for: Some(HOSTILE.to_owned()),
        awaited: Vec::new(),
        stalled: Vec::new(),
        stragglers: Vec::new(),
        slow_links: Vec::new(),
        divergence: Vec::new(),
        not_compared: Vec::new(),
        warnings: Vec::new(),
        unreachable: Vec::new(),
        lanes: Vec::new(),
        checkpoint: None,
        goodput: None,
        dashboard: None,
        dropped_messages: 0,
        result: None,
        answered_at: None,
    }
}

fn topic(topics: &[PageTopic], name: &str) -> Option<Value> {
    let topic = topics.iter().find(|topic| topic.name == name)?;
    Some(serde_json::from_str(&topic.json).expect("JSON"))
}

#[test]
fn a_reader_that_has_nothing_gets_everything() {
    let (record, status) = (record(), status());
    let whole = record.whole(at(6), Some(&status));
    let of = |name: &str| topic(&whole, name).expect("a topic");
    assert_eq!(of("world")[0]["size"], 2);
    assert_eq!(
        (&of("world")[1]["size"], &of("world")[1]["reset"]["way"]),
        (&0.into(), &"abort".into())
    );
    assert_eq!(of("resets")[0]["worker"], "a[1]#1");
    assert_eq!(
        of("goodput")["t"],
        serde_json::json!([1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 6_000])
    );
    assert_eq!(
        of("goodput")["slots"]["training"],
        serde_json::json!([0.0, 2.0, 2.0, 2.0, 0.0, 0.0])
    );
    let buckets = of("buckets");
    let slots = of("fleet")[0]["slots"].as_str().expect("letters").to_owned();
    let shown = slots.bytes().map(|letter| &buckets[usize::from(letter - b'a')]);
    assert_eq!(shown.collect::<Vec<_>>(), ["gathering", "gathering"]);
    assert_eq!(of("events").as_array().expect("events").len(), 7);
    let last = &of("events")[6];
    assert_eq!((&last["kind"], &last["level"]), (&"reset_decided".into(), &"warn".into()));
    assert!(last["text"].as_str().is_some_and(|text| text.contains("signal 9")), "{last}");
    assert_eq!(of("status")["waiting_for"], HOSTILE);
}

/// A worker that hangs.
pub(crate) fn stalled() -> StalledWorker {
    StalledWorker {
        rank: 1,
        host: name("b"),
        slot: 0,
        pid: Some(4711),
        operation: "all_reduce, call 17".to_owned(),
        late_ms: 12_500,
        doing: "is stopped by a signal or a debugger".to_owned(),
        stack: None,
        native_stack: None,
        grounds: None,
    }
}

#[test]
fn a_worker_that_hangs_is_among_the_warnings_until_it_goes_on() {
    let mut record = record();
    let hangs = StatusReport { stalled: vec![stalled()], ..status() };
    let shown = topic(&record.changes(at(6), Some(&hangs)), "status").expect("the status");
    let expected = "rank 1 (b:0) hangs: others have waited 12500 ms for it in all_reduce, call 17, and its process 4711 \
                    is stopped by a signal or a debugger";
    assert_eq!(shown["warnings"], serde_json::json!([expected]));
    let shown = topic(&record.changes(at(7), Some(&status())), "status").expect("the status");
    assert_eq!(shown["warnings"], serde_json::json!([]));
}

#[test]
fn what_has_not_changed_is_not_sent_again() {
    let (mut record, status) = (record(), status());
    let first = record.changes(at(6), Some(&status));
    assert!(topic(&first, "events").is_some() && topic(&first, "world").is_some());
    let second = record.changes(at(7), Some(&status));
    let names: Vec<&str> = second.iter().map(|topic| topic.name).collect();
    assert_eq!(names, ["goodput", "status"], "the costs of a reset grow with the next event");
    let hostile = EventKind::Warning { message: HOSTILE.to_owned() };
    record.handle_event(at(7), event(1, hostile));
    let third = record.changes(at(7), Some(&status));
    let events = topic(&third, "events").expect("the new one");
    assert_eq!((events.as_array().map(Vec::len), &events[0]["text"]), (Some(1), &HOSTILE.into()));
}

#[test]
fn the_history_is_bounded_and_a_long_text_is_shortened() {
    let mut record = PageRecord::new("j".to_owned(), at(0));
    for number in 0..5_000 {
        let message = format!("{number} {}", "ü".repeat(2_000));
        record.handle_event(at(number), event(1, EventKind::Warning { message }));
        record.handle_event(at(number), event(1, EventKind::GenerationRunning { world_size: 1 }));
    }
    let whole = record.whole(at(5_000), None);
    let events = topic(&whole, "events").expect("events");
    let events = events.as_array().expect("events");
    assert_eq!(events.len(), 2_000);
    assert_eq!(events[1_998]["text"].as_str().map(|text| text.chars().count()), Some(601));
    let world = topic(&whole, "world").expect("sizes");
    assert_eq!(world.as_array().map(Vec::len), Some(2_000));
}

/// A status with a worker for each of these, by rank, which has reported it as its loss.
fn status_with(losses: &[f64]) -> StatusReport {
    let workers = losses.iter().zip(0..).map(|(loss, rank)| {
        let mut reported = ReportedValues::default();
        reported.set("loss", *loss).expect("allowed");
        WorkerStatus {
            rank: Some(rank),
            host: name("a"),
            slot: rank,
            pid: None,
            state: WorkerCondition::Running,
            step: 1,
            note: String::new(),
            reported,
            step_ms: None,
            compute_ms: None,
            waiting_ms: None,
            shards: None,
        }
    });
    StatusReport { workers: workers.collect(), ..status() }
}

/// A status with a worker for each of these, by rank, which computes for so long in a step, in milliseconds.
pub(super) fn status_computing(computes: &[Option<f64>]) -> StatusReport {
    let mut status = status_with(&vec![0.0; computes.len()]);
    for (worker, compute_ms) in status.workers.iter_mut().zip(computes) {
        worker.compute_ms = *compute_ms;
    }
    status
}

#[test]
fn what_programs_report_is_drawn_once_a_second_as_mean_and_range_over_the_members() {
    let mut record = record();
    let spare = WorkerStatus { rank: None, ..status_with(&[900.0]).workers.remove(0) };
    let mut first = status_with(&[1.0, 2.0, 6.0]);
    first.workers.push(spare);
    record.handle_status(at(10), &first);
    record.handle_status(Time::from_ms(10_999), &status_with(&[7.0]));
    record.handle_status(at(11), &status_with(&[]));
    record.handle_status(at(12), &status_with(&[0.1]));
    let reported = topic(&record.whole(at(12), None), "reported").expect("a topic");
    let expected = serde_json::json!({
        "t": [10_000, 12_000],
        "series": { "loss": { "mean": [3.0, 0.1], "low": [1.0, 0.1], "high": [6.0, 0.1] } },
    });
    assert_eq!(reported, expected);
}

#[test]
fn a_long_job_has_fewer_points_of_what_it_reports_and_no_extreme_less() {
    let mut record = record();
    for second in 0..10_000 {
        let loss = if second == 777 { 5.0 } else { 1.0 };
        record.handle_status(at(second), &status_with(&[loss, 0.0]));
    }
    let reported = topic(&record.whole(at(10_000), None), "reported").expect("a topic");
    let times = reported["t"].as_array().expect("times").len();
    assert!((200..=400).contains(&times), "{times}");
    let highest = reported["series"]["loss"]["high"].as_array().expect("values").iter();
    assert_eq!(highest.clone().count(), times);
    assert_eq!(highest.filter_map(Value::as_f64).fold(0.0, f64::max), 5.0);
}

#[test]
fn the_first_names_are_drawn_and_a_worker_cannot_fill_the_memory_with_others() {
    let mut record = record();
    for second in 0..100 {
        let mut status = status_with(&[1.0, f64::MAX, f64::MAX]);
        let number = &mut status.workers[0].reported;
        number.set(&format!("number {second}"), 0.5).expect("allowed");
        record.handle_status(at(second), &status);
    }
    let reported = topic(&record.whole(at(100), None), "reported").expect("a topic");
    let names = reported["series"].as_object().expect("names");
    assert_eq!(names.len(), 8);
    assert!(names["loss"]["mean"].as_array().is_some_and(|it| it.iter().all(Value::is_f64)));
    assert_eq!(names["number 6"]["mean"][5], Value::Null, "not yet");
    assert_eq!(names["number 6"]["mean"][6], 0.5);
}

#[test]
fn the_output_of_a_rank_is_that_of_its_worker_in_the_last_generation() {
    let mut record = record();
    let members = vec![worker("b", 0), worker("a", 0)];
    record.handle_event(
        at(6),
        event(2, EventKind::GenerationFormed { members, root: None, step: 0 }),
    );
    let of = |rank| {
        let found = record.output_of(rank).map(|it| (it.worker.to_string(), it.first));
        found.map_err(|error| error.to_string())
    };
    assert_eq!(of(0), Ok(("b[0]#1".to_owned(), (GenerationId(2), 0))));
    assert_eq!(of(1), Ok(("a[0]#1".to_owned(), (GenerationId(1), 0))), "it goes on with its files");
    assert!(of(2).is_err_and(|error| error.contains("which has 2 workers")));
}

#[test]
fn a_log_of_another_job_is_forgotten() {
    let mut record = record();
    let entry = LoggedEntry::DriverStarted {
        job: "other".to_owned(),
        is_successor: false,
        output_dir: None,
    };
    record.handle_line(&LoggedLine { at: at(9), entry });
    assert_eq!(topic(&record.whole(at(9), None), "events"), Some(Value::Array(Vec::new())));
}
