//! [`RecordedDriver`]: the core, with a recorder beside it if one is wanted. The driver's actor and the simulation give
//! their inputs to it. Nothing is written here: a [`RecordingSink`] takes lines.

use std::fmt::{Debug, Write as _};
use std::ops::Deref;
use std::time::{Duration, SystemTime};

use elastic_journal::JournalBatch;
use elastic_protocol::{JobId, Term, Time};
use rand_chacha::ChaCha8Rng;

use super::{CoreStart, RecordingHead, RecordingLine, said, said_of_batch};
use crate::core::{DriverConfig, DriverCore, DriverInput, DriverOutput};
use crate::journal::Tenure;

/// Length of a segment after which the next one begins.
pub(super) const SEGMENT_BYTES: usize = 12 << 20;

/// Delay before a recording that has lost lines begins anew: by then the disk may have caught up.
const BEGINS_ANEW_AFTER: Duration = Duration::from_secs(5);

/// Takes the lines of a recording.
pub trait RecordingSink: Debug {
    /// Takes a line, without its end, and returns at once. False: this line is lost, or an earlier one has been.
    fn keep(&mut self, line: &str) -> bool;
}

/// Ways in which a driver begins.
#[derive(Clone, Debug)]
pub enum DriverStart {
    /// At the beginning of its job, without a journal.
    New {
        /// The settings.
        config: DriverConfig,
        /// The job.
        job: JobId,
        /// The driver's term.
        term: Term,
    },
    /// From a journal.
    Journal {
        /// The settings.
        config: DriverConfig,
        /// The journal's state.
        tenure: Box<Tenure>,
    },
}

impl DriverStart {
    /// The core.
    pub(super) fn core(self, rng: ChaCha8Rng, now: Time) -> DriverCore {
        match self {
            Self::New { config, job, term } => DriverCore::new(config, job, term, rng, now),
            Self::Journal { config, tenure } => DriverCore::with_journal(config, *tenure, rng, now),
        }
    }

    fn recorded(&self) -> (JobId, Term, CoreStart<&DriverCore>) {
        match self {
            Self::New { config, job, term } => {
                (*job, *term, CoreStart::New { config: Box::new(config.clone()) })
            }
            Self::Journal { config, tenure } => {
                let (job, term) = (tenure.job, tenure.image.term);
                let (config, tenure) = (Box::new(config.clone()), tenure.clone());
                (job, term, CoreStart::TakenOver { config, tenure })
            }
        }
    }
}

/// The parts of the current step that are not written yet, as JSON.
#[derive(Debug, Default)]
struct OpenStep {
    inputs: String,
    drawn: Vec<u64>,
    outputs: String,
    batch: Option<String>,
}

/// Records the inputs of a core and its decisions.
#[derive(Debug)]
pub struct DriverRecorder {
    sink: Box<dyn RecordingSink>,
    protocol: String,
    /// Number of the current step.
    number: u64,
    step: OpenStep,
    /// Length of the current segment.
    bytes: usize,
    /// Length of a segment after which the next one begins.
    segment_bytes: usize,
    /// Time at which the recording begins anew; set while lines are lost.
    begins_anew_at: Option<Time>,
}

impl DriverRecorder {
    /// A recorder of a program whose messages have this digest.
    pub fn new(sink: Box<dyn RecordingSink>, protocol: &str) -> Self {
        let protocol = protocol.to_owned();
        let step = OpenStep::default();
        let segment_bytes = SEGMENT_BYTES;
        Self { sink, protocol, number: 0, step, bytes: 0, segment_bytes, begins_anew_at: None }
    }

    /// Sets the length of a segment after which the next one begins.
    #[must_use]
    pub fn segments_of(self, segment_bytes: usize) -> Self {
        Self { segment_bytes, ..self }
    }

    fn begin(
        &mut self,
        job: JobId,
        term: Term,
        core: CoreStart<&DriverCore>,
        now: Time,
        wall: SystemTime,
    ) {
        let since_1970 = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let head = RecordingHead {
            protocol: self.protocol.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            job,
            term,
            next: self.number,
            at: now,
            wall_ms: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
            core,
        };
        match serde_json::to_string(&RecordingLine::Head(Box::new(head))) {
            Ok(line) => {
                self.bytes = 0;
                self.begins_anew_at = None;
                self.keep(&line, now);
            }
            Err(error) => {
                self.begins_anew_at = Some(now + BEGINS_ANEW_AFTER);
                tracing::error!(%error, "the driver's state cannot be recorded");
            }
        }
    }

    fn keep(&mut self, line: &str, now: Time) {
        if self.sink.keep(line) {
            self.bytes += line.len() + 1;
            return;
        }
        self.begins_anew_at = Some(now + BEGINS_ANEW_AFTER);
        tracing::warn!(
            step = self.number,
            "lines of the recording are lost; it begins anew in {} s",
            BEGINS_ANEW_AFTER.as_secs()
        );
    }

    fn input(&mut self, now: Time, input: &DriverInput) {
        if !self.step.outputs.is_empty() || self.step.batch.is_some() {
            // The input came while outputs were carried out.
            self.end(now, None, true);
        }
        let separator = if self.step.inputs.is_empty() { "" } else { "," };
        let input = serde_json::to_string(input).unwrap_or_else(|error| format!("\"{error}\""));
        let _infallible = write!(self.step.inputs, "{separator}[{},{input}]", now.0);
    }

    fn output(&mut self, output: &DriverOutput) {
        if !self.step.outputs.is_empty() {
            self.step.outputs.push(',');
        }
        self.step.outputs.push_str(&said(output));
    }

    /// Writes the current step.
    fn end(&mut self, now: Time, timeout: Option<Time>, is_cut: bool) {
        let OpenStep { inputs, drawn, outputs, batch } = std::mem::take(&mut self.step);
        if inputs.is_empty() && outputs.is_empty() && batch.is_none() {
            return;
        }
        let number = self.number;
        self.number += 1;
        if self.begins_anew_at.is_some() {
            return;
        }
        let batch = batch.unwrap_or_else(|| "null".to_owned());
        let timeout = timeout.map_or_else(|| "null".to_owned(), |at| at.0.to_string());
        let line = format!(
            "{{\"step\":{{\"number\":{number},\"inputs\":[{inputs}],\"drawn\":{drawn:?},\"outputs\":[{outputs}],\
             \"batch\":{batch},\"timeout\":{timeout},\"is_cut\":{is_cut}}}}}"
        );
        self.keep(&line, now);
    }

    /// Whether a new segment is to begin.
    fn is_due(&self, now: Time) -> bool {
        match self.begins_anew_at {
            Some(at) => at <= now,
            None => self.bytes >= self.segment_bytes,
        }
    }
}

/// The core, with a recorder if one is wanted.
#[derive(Debug)]
pub struct RecordedDriver {
    core: DriverCore,
    recorder: Option<Box<DriverRecorder>>,
}

impl Deref for RecordedDriver {
    type Target = DriverCore;

    fn deref(&self) -> &DriverCore {
        &self.core
    }
}

impl From<DriverCore> for RecordedDriver {
    /// A core that is not recorded.
    fn from(core: DriverCore) -> Self {
        Self { core, recorder: None }
    }
}

impl RecordedDriver {
    /// Begins a driver. `rng` must be seeded from the system's entropy outside of tests.
    pub fn begin(
        start: DriverStart,
        rng: ChaCha8Rng,
        now: Time,
        wall: SystemTime,
        recorder: Option<DriverRecorder>,
    ) -> Self {
        let Some(mut recorder) = recorder else { return start.core(rng, now).into() };
        let (job, term, recorded) = start.recorded();
        recorder.begin(job, term, recorded, now, wall);
        let mut core = start.core(rng, now);
        core.keep_drawn();
        Self { core, recorder: Some(Box::new(recorder)) }
    }

    /// Takes an input.
    pub fn handle(&mut self, now: Time, input: DriverInput) {
        let Some(recorder) = &mut self.recorder else { return self.core.handle(now, input) };
        recorder.input(now, &input);
        self.core.handle(now, input);
        recorder.step.drawn.extend(self.core.take_drawn());
    }

    /// The next output; call after every input until none is left.
    pub fn poll_output(&mut self) -> Option<DriverOutput> {
        let output = self.core.poll_output();
        if let (Some(recorder), Some(output)) = (&mut self.recorder, &output) {
            recorder.output(output);
        }
        output
    }

    /// The next batch of records to store; call when no output is left.
    pub fn poll_batch(&mut self) -> Option<JournalBatch> {
        let batch = self.core.poll_batch();
        if let (Some(recorder), Some(batch)) = (&mut self.recorder, &batch) {
            recorder.step.batch = Some(said_of_batch(batch));
        }
        batch
    }

    /// Ends a step: no output is left, and the next batch was asked for.
    pub fn end_step(&mut self, now: Time, wall: impl FnOnce() -> SystemTime) {
        let Some(recorder) = &mut self.recorder else { return };
        recorder.end(now, self.core.poll_timeout(), false);
        // Outputs are not part of the recorded state.
        if recorder.is_due(now) && !self.core.holds_outputs() {
            let (job, term) = (self.core.job(), self.core.term());
            recorder.begin(job, term, CoreStart::State(&self.core), now, wall());
        }
    }
}
