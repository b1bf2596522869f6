//! [`ResetTrace`]: the spans of one reset, as plain values. Made by `traces`, read by the sender of traces.

use elastic_protocol::Time;

use super::ids::span_id;

/// The trace of one reset. The first span is its root.
#[derive(Clone, Debug, PartialEq)]
pub struct ResetTrace {
    /// The trace's id: 16 bytes, not zero.
    pub trace_id: u128,
    /// The spans; a parent stands before its children.
    pub spans: Vec<TraceSpan>,
}

/// A span.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSpan {
    /// Its id: 8 bytes, not zero.
    pub span_id: u64,
    /// The id of the span that it is part of; none for the root.
    pub parent_id: Option<u64>,
    /// Its name: `reset`, `detect`, `form`, `sync`, `first step`, or one of the last three followed by `: host`.
    pub name: &'static str,
    /// Its begin, since 1970.
    pub start: Time,
    /// Its end, since 1970, not before its begin.
    pub end: Time,
    /// Attributes.
    pub attributes: Vec<(&'static str, SpanValue)>,
    /// The reason for its failure; `None` if it did not fail.
    pub failure: Option<String>,
}

/// The value of an attribute.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SpanValue {
    /// A text.
    Text(String),
    /// A number.
    Number(u64),
}

impl From<&str> for SpanValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for SpanValue {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

/// The spans of a trace that is being made.
#[derive(Debug)]
pub(super) struct SpanTree(ResetTrace);

impl SpanTree {
    pub(super) const fn new(trace_id: u128) -> Self {
        Self(ResetTrace { trace_id, spans: Vec::new() })
    }

    /// Adds a span to a parent, by the parent's place. Returns its own place.
    pub(super) fn add(
        &mut self,
        parent: Option<usize>,
        name: &'static str,
        (start, end): (Time, Time),
        attributes: Vec<(&'static str, SpanValue)>,
    ) -> usize {
        let place = self.0.spans.len();
        let span_id = span_id(self.0.trace_id, place);
        let parent_id = parent.and_then(|parent| Some(self.0.spans.get(parent)?.span_id));
        let end = end.max(start);
        let span = TraceSpan { span_id, parent_id, name, start, end, attributes, failure: None };
        self.0.spans.push(span);
        place
    }

    /// Notes why a span failed.
    pub(super) fn fail(&mut self, place: usize, reason: String) {
        if let Some(span) = self.0.spans.get_mut(place) {
            span.failure = Some(reason);
        }
    }

    pub(super) fn into_trace(self) -> ResetTrace {
        self.0
    }
}
