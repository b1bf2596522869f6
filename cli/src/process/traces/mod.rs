//! Resets as traces for OpenTelemetry, sent by OTLP to `OTEL_EXPORTER_OTLP_ENDPOINT`, or not at all without it. Fed by
//! `observer`, on the actors' thread, which never waits: a trace that does not fit into the queue is counted. Traces
//! are sent on a thread of their own, so that a collector that is slow or away costs the job nothing.

mod client;
mod sender;
mod settings;
mod spans;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime};

use elastic_driver::DriverEvent;
use elastic_observe::{ResetTrace, ResetTraces, since_1970};
use opentelemetry_otlp::ExporterBuildError;

use self::sender::{SentCounts, TraceSender};
use self::settings::{TracesSettings, UnusableTraces};

/// Most resets whose traces wait for the collector.
const TRACES_QUEUED_MAX: usize = 64;

/// Timeout for the last traces when the driver ends.
const LAST_TRACES_WITHIN: Duration = Duration::from_secs(1);

/// The reason why resets are not sent as traces.
#[derive(Debug, thiserror::Error)]
enum TracesRefused {
    /// The environment asks for a feature that this program does not have.
    #[error(transparent)]
    Settings(#[from] UnusableTraces),
    /// The endpoint or the headers cannot be used.
    #[error("OTEL_EXPORTER_OTLP_ENDPOINT or one of its settings cannot be used: {0}")]
    Exporter(#[source] ExporterBuildError),
    /// The file of the collector's authority cannot be read.
    #[error("OTEL_EXPORTER_OTLP_CERTIFICATE names {path}, which cannot be read: {source}", path = path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// No authority is known that could vouch for the collector.
    #[error(
        "no certificate authority is known for a collector over TLS; hint: OTEL_EXPORTER_OTLP_CERTIFICATE names a file \
         with one in PEM"
    )]
    NoAuthority,
    /// The system refuses a thread.
    #[error("there is no thread for them: {0}")]
    Thread(#[source] io::Error),
}

/// The traces of a driver's process.
#[derive(Debug)]
pub(crate) struct TraceLane {
    traces: ResetTraces,
    /// None once no more will come.
    queue: Option<SyncSender<ResetTrace>>,
    /// Loses its other end when all are sent.
    sent: Receiver<()>,
    counts: Arc<SentCounts>,
}

impl TraceLane {
    /// The traces of a job, if the environment names a destination. A setting that cannot be used is warned of, and
    /// costs the traces and not the job.
    pub(crate) fn open(job: &str) -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        let settings = match TracesSettings::read(variable) {
            Ok(settings) => Ok(settings?),
            Err(error) => Err(TracesRefused::Settings(error)),
        };
        let open = |settings: TracesSettings| {
            let sender = TraceSender::new(&settings, job)?;
            Self::start(job, sender.counts(), move |trace| sender.send(trace))
        };
        let opened = settings.and_then(open);
        match opened {
            Ok(lane) => Some(lane),
            Err(error) => {
                tracing::warn!(%error, "resets are not sent as traces");
                None
            }
        }
    }

    /// Starts the thread, which gives each trace to `send`.
    fn start(
        job: &str,
        counts: Arc<SentCounts>,
        send: impl Fn(&ResetTrace) + Send + 'static,
    ) -> Result<Self, TracesRefused> {
        let (queue, waiting) = sync_channel::<ResetTrace>(TRACES_QUEUED_MAX);
        let (all_sent, sent) = sync_channel(1);
        let work = move || {
            // It is dropped with this thread's end; `sent` waits for that.
            let _all_sent: SyncSender<()> = all_sent;
            waiting.iter().for_each(|trace| send(&trace));
        };
        let thread = thread::Builder::new().name("traces".to_owned());
        thread.spawn(work).map_err(TracesRefused::Thread)?;
        Ok(Self { traces: ResetTraces::new(job.to_owned()), queue: Some(queue), sent, counts })
    }

    /// Takes an event.
    pub(crate) fn handle_event(&mut self, at: SystemTime, event: &DriverEvent) {
        if let Some(trace) = self.traces.handle_event(since_1970(at), event) {
            self.push(trace);
        }
    }

    /// A warning for the operator; `None` while all traces arrive.
    pub(crate) fn warning(&self) -> Option<String> {
        self.counts.warning()
    }

    fn push(&self, trace: ResetTrace) {
        let is_queued = self.queue.as_ref().is_some_and(|queue| queue.try_send(trace).is_ok());
        if !is_queued {
            self.counts.count_dropped();
        }
    }
}

impl Drop for TraceLane {
    fn drop(&mut self) {
        if let Some(trace) = self.traces.finish() {
            self.push(trace);
        }
        self.queue = None;
        if self.sent.recv_timeout(LAST_TRACES_WITHIN) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the traces of the last resets were not sent in time");
        }
    }
}
