//! The operator's view: readers of the driver's typed events, writers of nothing. `ledger` accounts for every second of
//! every slot; `explain` says why a generation ended; `log` reads events back from the event log; `metrics` is the job
//! as Prometheus scrapes it; `outputs` finds the files of a worker's output; `summary` is the last line about a job;
//! `words` are events as sentences; `worker_names` are the workers' names in them; `timeline` is a job's life as a
//! trace; `traces` are its resets as spans for OpenTelemetry; `page` is the content of the job's page. The driver's
//! process feeds the ledger live, and the simulation checks it.
//!
//! All of it is logic without I/O: `now` is an argument, and files and sockets are the command line's.

pub mod explain;
pub mod ledger;
pub mod log;
pub mod metrics;
pub mod outputs;
pub mod page;
mod summary;
pub mod timeline;
pub mod traces;
pub mod words;
mod worker_names;

pub use self::explain::{ExplainRequest, Explanation, NothingToExplain, explain, explain_resets};
pub use self::ledger::{BucketTotals, GoodputLedger, ResetAccount, TimeBucket, TotalsTimeline};
pub use self::log::{
    GoodputSign, JobLines, LoggedEntry, LoggedJob, LoggedLine, MissingBefore, since_1970,
    wall_clock_at,
};
pub use self::metrics::{
    EventTally, JobSnapshot, OPEN_METRICS_TYPE, PLAIN_TEXT_TYPE, open_metrics, plain_text,
};
pub use self::outputs::{NoOutput, OutputRequest, WorkerOutput, WorkerOutputs};
pub use self::page::{PageRecord, PageTopic};
pub use self::summary::summarize;
pub use self::timeline::JobTimeline;
pub use self::traces::{ResetTrace, ResetTraces, SpanValue, TraceSpan};
pub use self::words::{EventLevel, EventWords, describe_event, describe_phases};
pub use self::worker_names::with_short_names;
