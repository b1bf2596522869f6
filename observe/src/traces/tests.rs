//! Tests of traces: the spans of a reset nest and add up, and every reset has its own trace.

use elastic_protocol::{ExitStatus, HostName, Incarnation, JobOutcome, Term};

use super::*;

fn worker(host: &str, slot: u32) -> WorkerId {
    let host = HostName::new(host).expect("a literal");
    WorkerId { host, slot, incarnation: Incarnation(1) }
}

fn members() -> Vec<WorkerId> {
    vec![worker("a", 0), worker("a", 1), worker("b", 0), worker("b", 1)]
}

fn killed() -> ResetCause {
    ResetCause::WorkerExited { worker: worker("b", 0), status: ExitStatus::Signal(9) }
}

fn ms(detect: f64, form: f64, sync: f64) -> PhaseMs {
    PhaseMs { detect, form: Some(form), sync: Some(sync), total: Some(detect + form + sync) }
}

fn formed(members: Vec<WorkerId>) -> EventKind {
    EventKind::GenerationFormed { members, root: None, step: 3 }
}

fn host_ms(ready: f64, synced: f64, first_step: Option<f64>) -> HostResetMs {
    HostResetMs { ready, synced, first_step }
}

/// Gives events to traces; each is a time in milliseconds, a generation and a kind. Returns the finished traces.
fn told(traces: &mut ResetTraces, events: Vec<(u64, u64, EventKind)>) -> Vec<ResetTrace> {
    let mut all = Vec::new();
    for (at_ms, generation, kind) in events {
        let event = DriverEvent { term: Term(1), generation: GenerationId(generation), kind };
        all.extend(traces.handle_event(Time::from_ms(at_ms), &event));
    }
    all
}

/// A job that loses `b[0]` at 10.000 s and trains again 65 ms later.
fn events_of_a_reset(hosts: BTreeMap<HostName, HostResetMs>) -> Vec<(u64, u64, EventKind)> {
    let left: Vec<WorkerId> =
        members().into_iter().filter(|member| *member != worker("b", 0)).collect();
    vec![
        (1_000, 1, formed(members())),
        (2_000, 1, EventKind::GenerationRunning { world_size: 4 }),
        (10_005, 1, EventKind::ResetDecided { cause: killed(), way: ResetWay::Abort }),
        (10_020, 2, formed(left)),
        (10_065, 2, EventKind::GenerationRunning { world_size: 3 }),
        (
            10_070,
            2,
            EventKind::ResetDone {
                cause: killed(),
                from: GenerationId(1),
                ms: ms(5.0, 40.0, 20.0),
                steps_lost: 2,
                lost_ms: 0,
            },
        ),
        (10_300, 2, EventKind::FirstSteps { from: GenerationId(1), hosts }),
    ]
}

fn two_hosts() -> BTreeMap<HostName, HostResetMs> {
    let [a, b] = [worker("a", 0).host, worker("b", 0).host];
    let (a_ms, b_ms) = (host_ms(30.0, 58.0, Some(200.0)), host_ms(40.0, 60.0, Some(120.0)));
    BTreeMap::from([(a, a_ms), (b, b_ms)])
}

fn value<'a>(span: &'a TraceSpan, name: &str) -> Option<&'a SpanValue> {
    span.attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn named<'a>(trace: &'a ResetTrace, name: &str) -> Vec<&'a TraceSpan> {
    trace.spans.iter().filter(|span| span.name == name).collect()
}

#[test]
fn the_phases_of_a_reset_follow_one_another_and_add_up() {
    let mut traces = ResetTraces::new("j".to_owned());
    let all = told(&mut traces, events_of_a_reset(two_hosts()));
    let [trace] = &all[..] else { panic!("{all:?}") };
    let root = &trace.spans[0];
    assert_eq!((root.name, root.parent_id), ("reset", None));
    assert_eq!((root.start, root.end), (Time::from_ms(10_000), Time::from_ms(10_205)));
    let mut at = root.start;
    for (name, lasts_ms) in [("detect", 5), ("form", 40), ("sync", 20), ("first step", 140)] {
        let [phase] = named(trace, name)[..] else { panic!("one {name}") };
        assert_eq!(phase.parent_id, Some(root.span_id));
        assert_eq!(phase.start, at, "{name}");
        assert_eq!(phase.end.since(phase.start), Duration::from_millis(lasts_ms), "{name}");
        at = phase.end;
    }
    assert_eq!(at, root.end);

    let expected = [
        ("elastic_node.job", SpanValue::from("j")),
        ("elastic_node.way", SpanValue::from("abort")),
        ("elastic_node.worker", SpanValue::from("b[0]#1")),
        ("host.name", SpanValue::from("b")),
        ("elastic_node.rank", SpanValue::from(2)),
        ("elastic_node.ended_generation", SpanValue::from(1)),
        ("elastic_node.generation", SpanValue::from(2)),
        ("elastic_node.world_size", SpanValue::from(3)),
        ("elastic_node.steps_lost", SpanValue::from(2)),
    ];
    for (name, expected) in expected {
        assert_eq!(value(root, name), Some(&expected), "{name}");
    }
    assert_eq!(value(root, "elastic_node.cause"), Some(&SpanValue::Text(killed().to_string())));
}

#[test]
fn every_host_has_its_part_of_each_phase_within_it() {
    let mut traces = ResetTraces::new("j".to_owned());
    let all = told(&mut traces, events_of_a_reset(two_hosts()));
    let trace = &all[0];
    for (phase, of_host, ends_ms) in [
        ("form", "form: host", [10_035, 10_045]),
        ("sync", "sync: host", [10_063, 10_065]),
        ("first step", "first step: host", [10_205, 10_125]),
    ] {
        let [whole] = named(trace, phase)[..] else { panic!("one {phase}") };
        let hosts = named(trace, of_host);
        let ends: Vec<Time> = hosts.iter().map(|span| span.end).collect();
        assert_eq!(ends, ends_ms.map(Time::from_ms), "{phase}");
        for host in hosts {
            assert_eq!((host.parent_id, host.start), (Some(whole.span_id), whole.start));
            assert!(host.end <= whole.end, "{phase}");
        }
    }
    let ranks: Vec<_> = named(trace, "form: host")
        .iter()
        .map(|it| value(it, "elastic_node.ranks").cloned())
        .collect();
    assert_eq!(ranks, ["0-1", "2"].map(|ranks| Some(SpanValue::from(ranks))));
}

#[test]
fn every_reset_has_a_trace_and_ids_of_its_own_and_keeps_them() {
    let again = || told(&mut ResetTraces::new("j".to_owned()), events_of_a_reset(two_hosts()));
    let all = again();
    assert_eq!(all, again(), "the same reset has the same ids");
    let mut ids: Vec<u64> = all[0].spans.iter().map(|span| span.span_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all[0].spans.len());
    let other = told(&mut ResetTraces::new("k".to_owned()), events_of_a_reset(two_hosts()));
    assert_ne!(all[0].trace_id, other[0].trace_id);
}

#[test]
fn a_generation_that_breaks_before_it_trains_belongs_to_the_same_trace() {
    let mut events = events_of_a_reset(two_hosts());
    let again = EventKind::ResetDecided { cause: killed(), way: ResetWay::Abort };
    events.insert(4, (10_030, 2, again));
    let all = told(&mut ResetTraces::new("j".to_owned()), events);
    assert_eq!(all.len(), 1);
    assert_eq!(value(&all[0].spans[0], "elastic_node.rank"), Some(&SpanValue::from(2)));
}

#[test]
fn a_reset_is_told_without_first_steps_where_none_will_be_known() {
    let mut events = events_of_a_reset(two_hosts());
    events.pop();
    let mut traces = ResetTraces::new("j".to_owned());
    assert_eq!(told(&mut traces, events), []);
    let trace = traces.finish().expect("the reset is over");
    assert_eq!(trace.spans[0].end, Time::from_ms(10_065));
    assert!(named(&trace, "first step").is_empty());
    assert_eq!(traces.finish(), None, "once");
}

#[test]
fn the_end_of_the_job_during_a_reset_is_a_span_that_failed() {
    let mut events = events_of_a_reset(two_hosts());
    events.truncate(3);
    let result = JobResult {
        outcome: JobOutcome::Failed,
        code: 1,
        reason: "no worker is left".to_owned(),
        hint: None,
        first_failure: None,
        generation: GenerationId(1),
    };
    events.push((12_000, 1, EventKind::JobEnded { result }));
    let all = told(&mut ResetTraces::new("j".to_owned()), events);
    let [trace] = &all[..] else { panic!("{all:?}") };
    assert_eq!(trace.spans[0].failure.as_deref(), Some("the job ended: no worker is left"));
    assert_eq!(trace.spans[0].end, Time::from_ms(12_000));
}

#[test]
fn the_number_of_hosts_is_bounded_and_the_last_ones_are_shown() {
    let hosts = (0..3_000).map(|number| {
        let host = HostName::new(&format!("n{number:04}")).expect("allowed");
        (host, host_ms(1.0, 2.0, Some(100.0 + f64::from(number))))
    });
    let all = told(&mut ResetTraces::new("j".to_owned()), events_of_a_reset(hosts.collect()));
    let steps = named(&all[0], "first step: host");
    assert_eq!(steps.len(), HOSTS_TRACED_MAX);
    assert_eq!(value(steps[HOSTS_TRACED_MAX - 1], "host.name"), Some(&SpanValue::from("n2999")));
    let left_out = value(&all[0].spans[0], "elastic_node.hosts_left_out");
    assert_eq!(left_out, Some(&SpanValue::from(3_000 - HOSTS_TRACED_MAX as u64)));
}
