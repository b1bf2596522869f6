//! [`TraceSender`]: gives traces to OpenTelemetry's exporter, in batches, and counts those that were not taken. Used on
//! the thread of `traces`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use elastic_observe::ResetTrace;
use futures_executor::block_on;
use opentelemetry::{Key, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;

use super::TracesRefused;
use super::client::CollectorClient;
use super::settings::TracesSettings;
use super::spans::span_data;

/// Most spans of one request.
const BATCH_SPANS_MAX: usize = 512;

/// The traces that did not arrive. Shared with the actors' thread.
#[derive(Debug)]
pub(super) struct SentCounts {
    endpoint: String,
    dropped: AtomicU64,
    /// The reason why the last one was not taken; `None` if it was.
    failure: Mutex<Option<String>>,
}

impl SentCounts {
    /// Counts for the collector with this endpoint, as warnings name it.
    pub(super) const fn new(endpoint: String) -> Self {
        Self { endpoint, dropped: AtomicU64::new(0), failure: Mutex::new(None) }
    }

    /// Counts a trace that is lost.
    pub(super) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// The losses and their cause, in words; `None` if nothing was lost.
    pub(super) fn warning(&self) -> Option<String> {
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped == 0 {
            return None;
        }
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let why = failure.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        let endpoint = &self.endpoint;
        Some(format!("the traces of {dropped} resets did not reach {endpoint}{why}"))
    }

    /// Notes how a trace fared. Returns whether that is another outcome than before.
    fn note(&self, outcome: Option<String>) -> bool {
        if outcome.is_some() {
            self.count_dropped();
        }
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let has_changed = failure.is_some() != outcome.is_some();
        *failure = outcome;
        has_changed
    }
}

/// Sends traces to a collector.
#[derive(Debug)]
pub(super) struct TraceSender {
    exporter: SpanExporter,
    counts: Arc<SentCounts>,
    has_sent: AtomicBool,
}

impl TraceSender {
    /// A sender to the collector of these settings. Nothing is sent yet.
    ///
    /// # Errors
    /// [`TracesRefused`]: the environment's endpoint, headers or certificates cannot be used.
    pub(super) fn new(settings: &TracesSettings, job: &str) -> Result<Self, TracesRefused> {
        let client = CollectorClient::new(settings)?;
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .build()
            .map_err(TracesRefused::Exporter)?;
        exporter.set_resource(&resource(job));
        let counts = Arc::new(SentCounts::new(settings.shown_endpoint()));
        Ok(Self { exporter, counts, has_sent: AtomicBool::new(false) })
    }

    pub(super) fn counts(&self) -> Arc<SentCounts> {
        Arc::clone(&self.counts)
    }

    /// Sends a trace. Waits for the collector, with the exporter's own attempts and timeout.
    pub(super) fn send(&self, trace: &ResetTrace) {
        let mut failure = None;
        for batch in trace.spans.chunks(BATCH_SPANS_MAX) {
            let spans = batch.iter().map(|span| span_data(trace.trace_id, span)).collect();
            if let Err(error) = block_on(self.exporter.export(spans)) {
                failure = Some(error.to_string());
                break;
            }
        }
        let (endpoint, error) = (&self.counts.endpoint, failure.clone());
        let has_changed = self.counts.note(failure);
        match error {
            Some(error) if has_changed => {
                tracing::warn!(%endpoint, error, "a reset's trace did not reach the collector");
            }
            None if has_changed => tracing::info!(%endpoint, "resets reach the collector again"),
            None if !self.has_sent.swap(true, Ordering::Relaxed) => {
                tracing::info!(%endpoint, "a reset's trace has reached the collector");
            }
            _ => {}
        }
    }
}

/// The sender: the environment's `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, or `elastic-node`, with the job.
fn resource(job: &str) -> Resource {
    let of_environment = Resource::builder().build();
    let name = of_environment.get(&Key::from_static_str("service.name"));
    let is_named = name.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let about = [
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", job.to_owned()),
        KeyValue::new("process.pid", i64::from(std::process::id())),
    ];
    let ours = Resource::builder_empty().with_attributes(about);
    let ours = if is_named { ours } else { ours.with_service_name("elastic-node") };
    // The environment's attributes go before the program's own.
    let said = of_environment.iter().filter(|(key, _)| is_named || key.as_str() != "service.name");
    let said: Vec<KeyValue> =
        said.map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect();
    ours.with_attributes(said).build()
}
