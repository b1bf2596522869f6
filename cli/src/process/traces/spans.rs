//! Spans of a reset as OpenTelemetry's exporter takes them. Used by `sender`.

use elastic_observe::{SpanValue, TraceSpan, wall_clock_at};
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

/// A span of the trace with this id.
pub(super) fn span_data(trace_id: u128, span: &TraceSpan) -> SpanData {
    let trace_id = TraceId::from_bytes(trace_id.to_be_bytes());
    let id = |id: u64| SpanId::from_bytes(id.to_be_bytes());
    let (flags, state) = (TraceFlags::SAMPLED, TraceState::default());
    let attribute =
        |(key, value): &(&'static str, SpanValue)| KeyValue::new(*key, attribute_value(value));
    SpanData {
        span_context: SpanContext::new(trace_id, id(span.span_id), flags, false, state),
        parent_span_id: span.parent_id.map_or(SpanId::INVALID, id),
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: span.name.into(),
        start_time: wall_clock_at(span.start),
        end_time: wall_clock_at(span.end),
        attributes: span.attributes.iter().map(attribute).collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: span.failure.as_ref().map_or(Status::Unset, |why| Status::error(why.clone())),
        instrumentation_scope: InstrumentationScope::builder("elastic-node")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

fn attribute_value(value: &SpanValue) -> Value {
    match value {
        SpanValue::Text(text) => Value::from(text.clone()),
        SpanValue::Number(number) => Value::from(i64::try_from(*number).unwrap_or(i64::MAX)),
    }
}
