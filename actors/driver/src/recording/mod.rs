//! Recordings of a driver (`--record`): the inputs of its core, with times, and its decisions. [`RecordedDriver`] writes
//! them while a job runs. [`replay`] gives the inputs to the core again and compares its decisions. [`redact`] replaces
//! names.
//!
//! A recording is a sequence of JSON lines in segments. Each segment begins with a `RecordingHead`: the core as it was
//! then. So a segment can be replayed when those before it are gone. Each further line is a `RecordedStep`: inputs,
//! and all outputs of the core before the next inputs.

pub mod moment;
pub(crate) mod readable;
mod recorder;
pub mod redact;
pub mod replay;
pub mod substitutes;
#[cfg(test)]
mod tests;

use elastic_journal::JournalBatch;
use elastic_protocol::{JobId, Term, Time};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::recorder::{DriverRecorder, DriverStart, RecordedDriver, RecordingSink};
use crate::core::{DriverConfig, DriverInput};
use crate::journal::{JournalRecord, Tenure};

/// First bytes of a line that begins a segment.
pub const HEAD_PREFIX: &[u8] = b"{\"head\":";

/// Most bytes of an output that are recorded. A longer one is cut, and a digest of the whole is added.
const OUTPUT_BYTES_MAX: usize = 4096;

/// A line of a recording. `State` is the state of a core: JSON that was read, or a core to write.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecordingLine<State = Value> {
    Head(Box<RecordingHead<State>>),
    Step(RecordedStep),
}

/// First line of a segment.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RecordingHead<State = Value> {
    /// Digest of the messages that the program knows.
    protocol: String,
    /// Version of the program.
    version: String,
    job: JobId,
    term: Term,
    /// Number of the next step. The one before it is the last step of the segment before, unless steps were lost.
    next: u64,
    at: Time,
    /// The same moment by the wall clock, in milliseconds since 1970.
    wall_ms: u64,
    core: CoreStart<State>,
}

/// The job of a segment, by its first line; none if that is no head.
pub fn job_of_segment(segment: &str) -> Option<JobId> {
    #[derive(Deserialize)]
    struct NamedJob {
        job: JobId,
    }
    #[derive(Deserialize)]
    struct NamedHead {
        head: NamedJob,
    }
    let first = segment.lines().next()?;
    serde_json::from_str::<NamedHead>(first).ok().map(|named| named.head.job)
}

/// The core at the beginning of a segment.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum CoreStart<State = Value> {
    /// A driver at the beginning of its job.
    New { config: Box<DriverConfig> },
    /// A driver that goes on from a journal.
    TakenOver { config: Box<DriverConfig>, tenure: Box<Tenure> },
    /// A core that has run for a while: its state.
    State(State),
}

/// Inputs, and all outputs of the core before the next inputs.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct RecordedStep {
    /// Number of the step in its driver's life, from 0.
    number: u64,
    inputs: Vec<(Time, DriverInput)>,
    /// Random numbers that the inputs drew.
    drawn: Vec<u64>,
    outputs: Vec<Value>,
    batch: Option<Value>,
    /// Time at which the core asked to be called next.
    timeout: Option<Time>,
    /// Whether the next input came while outputs were carried out: the outputs are those until then.
    is_cut: bool,
}

/// A batch of journal records, as it is recorded.
#[derive(Serialize)]
struct RecordedBatch {
    first: u64,
    records: Vec<JournalRecord>,
    /// Last record of the snapshot that is written with the batch.
    snapshot: Option<u64>,
}

/// A value as JSON, by way of its text. Text is the only form from and to which recorded types are converted: each further
/// form would be code for each type of the core, which takes longer to compile than the rest of it.
fn json_of(value: &impl Serialize) -> serde_json::Result<Value> {
    serde_json::from_str(&serde_json::to_string(value)?)
}

/// A decision as it is recorded: its JSON, or the beginning of a long one with a digest of the whole.
fn said(decision: &impl Serialize) -> String {
    let text = serde_json::to_string(decision).unwrap_or_else(|error| format!("\"{error}\""));
    if text.len() <= OUTPUT_BYTES_MAX {
        return text;
    }
    // FNV-1a: the same on every machine.
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let end = (0..=OUTPUT_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let short = format!("{}… ({} bytes, digest {digest:016x})", &text[..end], text.len());
    Value::String(short).to_string()
}

fn said_of_batch(batch: &JournalBatch) -> String {
    let records = batch.records.iter().filter_map(|bytes| JournalRecord::decode(bytes).ok());
    said(&RecordedBatch {
        first: batch.first,
        records: records.collect(),
        snapshot: batch.snapshot.as_ref().map(|snapshot| snapshot.upto),
    })
}
