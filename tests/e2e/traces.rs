//! Resets as traces: sent by OTLP to a collector that decodes them, and to collectors that hang, refuse or are not there.

use std::collections::BTreeSet;
use std::net::TcpListener;

use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::trace::v1::Span;

use crate::collector::{Collector, CollectorManner, attribute};
use crate::support::{Job, signal};

/// A job of two hosts with one worker each, with this environment of the driver.
fn pair(environment: &[(&str, &str)]) -> Job {
    let mut job = Job::start_in(environment, &["-n", "2", "--min-np", "1"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    job
}

/// Kills the worker of host b, and waits until a new one trains.
fn lose_a_worker(job: &mut Job) {
    signal(job.pid("b", 0), Signal::SIGKILL);
    job.wait_for_sizes(&[2, 1, 2]);
}

fn ms(span: &Span) -> f64 {
    (span.end_time_unix_nano - span.start_time_unix_nano) as f64 / 1e6
}

/// The one span of this name in a trace.
fn one<'a>(trace: &[&'a Span], name: &str) -> &'a Span {
    let found: Vec<&&Span> = trace.iter().filter(|span| span.name == name).collect();
    let [span] = found[..] else { panic!("{} spans {name}: {trace:?}", found.len()) };
    span
}

#[test]
fn a_reset_after_kill_9_arrives_as_one_trace_whose_spans_nest_and_add_up() {
    let collector = Collector::start(CollectorManner::Takes);
    let mut job = pair(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-scope-orgid=team-7"),
        ("OTEL_SERVICE_NAME", "my-training"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"),
    ]);
    lose_a_worker(&mut job);
    let reset = job.first_reset();
    let spans = job.wait("the traces of both resets", |_| {
        let spans = collector.spans();
        (spans.iter().filter(|span| span.name == "reset").count() >= 2).then_some(spans)
    });
    assert_eq!(job.finish(), 0);

    let root = spans.iter().find(|span| {
        let ended = attribute(&span.attributes, "elastic_node.ended_generation");
        span.name == "reset" && ended == Some(reset["from"].to_string())
    });
    let root = root.expect("the trace of the reset that the kill began");
    assert!(root.parent_span_id.is_empty());
    assert!(root.trace_id.len() == 16 && root.span_id.len() == 8);
    let trace: Vec<&Span> = spans.iter().filter(|it| it.trace_id == root.trace_id).collect();
    let own_ids: BTreeSet<&Vec<u8>> = trace.iter().map(|span| &span.span_id).collect();
    assert_eq!(own_ids.len(), trace.len(), "every span has an id of its own");

    // The phases follow one another, and are as long as the event says.
    let mut at = root.start_time_unix_nano;
    for name in ["detect", "form", "sync", "first step"] {
        let phase = one(&trace, name);
        assert_eq!(phase.parent_span_id, root.span_id, "{name}");
        assert_eq!(phase.start_time_unix_nano, at, "{name}");
        at = phase.end_time_unix_nano;
        if let Some(told_ms) = reset["ms"][name].as_f64() {
            assert!((ms(phase) - told_ms).abs() < 0.01, "{name}: {} and {told_ms}", ms(phase));
        }
    }
    assert_eq!(at, root.end_time_unix_nano, "they add up");
    let total_ms = reset["ms"]["total"].as_f64().expect("all phases are known");
    let step_ms = ms(one(&trace, "first step"));
    assert!((ms(root) - total_ms - step_ms).abs() < 0.01);

    // The host that is left has its part of each phase, within it.
    for phase in ["form", "sync", "first step"] {
        let (whole, host) = (one(&trace, phase), one(&trace, &format!("{phase}: host")));
        assert_eq!(host.parent_span_id, whole.span_id);
        assert_eq!(attribute(&host.attributes, "host.name").as_deref(), Some("a"));
        assert_eq!(attribute(&host.attributes, "elastic_node.ranks").as_deref(), Some("0"));
        assert!(host.start_time_unix_nano >= whole.start_time_unix_nano, "{phase}");
        assert!(host.end_time_unix_nano <= whole.end_time_unix_nano, "{phase}");
    }
    let cause = reset["cause"].as_str().map(ToOwned::to_owned);
    assert_eq!(attribute(&root.attributes, "elastic_node.cause"), cause);
    let text = |name| attribute(&root.attributes, name).unwrap_or_default();
    assert_eq!(text("host.name"), "b");
    assert_eq!(
        (text("elastic_node.way"), text("elastic_node.world_size")),
        ("abort".into(), "1".into())
    );
    assert_eq!(text("elastic_node.job"), job.events()[0]["job"].as_str().expect("an id"));

    let request = &collector.taken()[0];
    for part in
        ["post /v1/traces ", "content-type: application/x-protobuf", "x-scope-orgid: team-7"]
    {
        assert!(request.head.contains(part), "{part}: {}", request.head);
    }
    let resource = request.body.resource_spans[0].resource.clone().expect("who sends");
    for (name, value) in [("service.name", "my-training"), ("deployment.environment.name", "test")]
    {
        assert_eq!(attribute(&resource.attributes, name).as_deref(), Some(value));
    }
}

#[test]
fn without_an_endpoint_or_disabled_nothing_is_sent() {
    let collector = Collector::start(CollectorManner::Takes);
    let mut job = pair(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint()),
        ("OTEL_SDK_DISABLED", "true"),
    ]);
    lose_a_worker(&mut job);
    assert_eq!(job.finish(), 0);
    assert_eq!(collector.connections(), 0);
}

#[test]
fn a_collector_that_hangs_refuses_or_is_not_there_does_not_disturb_the_job() {
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it listens");
    let refuses = Collector::start(CollectorManner::Refuses);
    let hangs = Collector::start(CollectorManner::Hangs);
    for (what, endpoint) in [
        ("hangs", hangs.endpoint()),
        ("refuses", refuses.endpoint()),
        ("is not there", format!("http://{gone}")),
    ] {
        let mut job = pair(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "300"),
        ]);
        lose_a_worker(&mut job);
        job.wait(&format!("a warning of a collector that {what}"), |job| {
            let warnings = job.status()?["warnings"].as_array()?.clone();
            let about = format!("did not reach {endpoint}");
            warnings
                .iter()
                .any(|it| it.as_str().is_some_and(|it| it.contains(&about)))
                .then_some(())
        });
        assert_eq!(job.finish(), 0, "a collector that {what}");
    }
    assert!(hangs.connections() >= 1 && refuses.connections() >= 1);
}

#[test]
fn a_protocol_that_is_not_spoken_is_told_and_the_job_runs_without_traces() {
    let collector = Collector::start(CollectorManner::Takes);
    let mut job = pair(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    ]);
    assert!(job.stderr().contains("OTEL_EXPORTER_OTLP_PROTOCOL=grpc is not spoken"));
    assert_eq!(job.finish(), 0);
    assert_eq!(collector.connections(), 0);
}
