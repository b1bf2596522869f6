//! [`replay`]: gives recorded inputs to the core again, and compares its decisions with the recorded ones. Called by
//! `elastic-node replay` and by the simulation.

use elastic_journal::JournalBatch;
use elastic_protocol::Time;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use serde_json::Value;

use super::{CoreStart, RecordedStep, RecordingHead, RecordingLine, json_of, said, said_of_batch};
use crate::core::DriverCore;

/// Reason why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// There is no recording.
    #[error("there is no recorded driver")]
    Empty,
    /// The recording is of a program with other messages.
    #[error(
        "it was recorded by version {version} with the messages {theirs}; this program has the messages {ours}"
    )]
    OtherMessages {
        /// Version of the program that recorded.
        version: String,
        /// Digest of its messages.
        theirs: String,
        /// Digest of this program's messages.
        ours: String,
    },
    /// The core's state cannot be read.
    #[error("the state before step {step} is of another version of the driver")]
    State {
        /// Number of the step.
        step: u64,
        /// The error.
        #[source]
        source: serde_json::Error,
    },
    /// A line is no line of a recording.
    #[error("line {line} of segment {segment} is no line of a recording")]
    Line {
        /// Number of the segment, from 1.
        segment: usize,
        /// Number of the line, from 1.
        line: usize,
        /// The error.
        #[source]
        source: serde_json::Error,
    },
}

/// The first decision that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayDifference {
    /// Number of the step in its driver's life.
    pub step: u64,
    /// The driver's term.
    pub term: u64,
    /// The recorded time of the step, in milliseconds since 1970.
    pub wall_ms: u64,
    /// The inputs of the step, each with the core's time in nanoseconds.
    pub inputs: Vec<(Time, Value)>,
    /// The kind of decision that differs: `output`, `records`, `timeout` or `state`.
    pub kind: &'static str,
    /// The recorded decision; none if there was none.
    pub recorded: Option<Value>,
    /// The decision of this program's core.
    pub replayed: Option<Value>,
    /// Number of the segment, from 1.
    pub segment: usize,
    /// Least number of first inputs of that segment that shows the difference.
    pub inputs_needed: u64,
}

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReplayReport {
    /// Whether every decision is as it was recorded.
    pub is_same: bool,
    /// Number of segments.
    pub segments: usize,
    /// Number of incarnations of the driver.
    pub lives: u64,
    /// Number of steps.
    pub steps: u64,
    /// Number of inputs that were given.
    pub inputs: u64,
    /// Number of outputs that were compared, batches of records included.
    pub outputs: u64,
    /// Number of steps that are missing, or stand behind a missing one in their segment and so cannot be replayed.
    pub steps_missing: u64,
    /// The first difference.
    pub difference: Option<ReplayDifference>,
}

/// A core that is replayed.
struct ReplayedCore {
    core: DriverCore,
    head: RecordingHead,
    next: u64,
    /// Number of the step after the last one that was read, replayed or not.
    read_to: u64,
    inputs: u64,
    at: Time,
    /// The batch of records that the last step gave to the journal.
    batch: Option<JournalBatch>,
}

/// Gives the core the inputs of a recording and compares its decisions. `segments` are in the order in which they were
/// written; a last line that was not written to its end does not count.
///
/// # Errors
/// [`ReplayError`].
pub fn replay(segments: &[String], protocol: &str) -> Result<ReplayReport, ReplayError> {
    let mut walk = Walk::new(protocol);
    for (segment, text) in (1..).zip(segments) {
        for line in parsed_lines(segment, text) {
            walk.line(&line?.1, segment)?;
            if !walk.is_same() {
                return Ok(walk.report);
            }
        }
    }
    if walk.report.segments == 0 { Err(ReplayError::Empty) } else { Ok(walk.report) }
}

/// The lines of a segment with their numbers. A last line that was not written to its end does not count.
pub(super) fn parsed_lines(
    segment: usize,
    text: &str,
) -> impl Iterator<Item = Result<(usize, RecordingLine), ReplayError>> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    (1..).zip(whole.lines()).map(move |(line, text)| match serde_json::from_str(text) {
        Ok(parsed) => Ok((line, parsed)),
        Err(source) => Err(ReplayError::Line { segment, line, source }),
    })
}

/// A replay, line by line.
pub(super) struct Walk<'a> {
    protocol: &'a str,
    replayed: Option<ReplayedCore>,
    report: ReplayReport,
}

impl<'a> Walk<'a> {
    pub(super) fn new(protocol: &'a str) -> Self {
        let report = ReplayReport { is_same: true, ..ReplayReport::default() };
        Self { protocol, replayed: None, report }
    }

    /// Whether no decision has differed so far.
    pub(super) const fn is_same(&self) -> bool {
        self.report.is_same
    }

    /// The core as it is after the last line, and the batch of records that the last step gave to the journal.
    pub(super) fn core(&self) -> Option<(&DriverCore, Option<&JournalBatch>)> {
        self.replayed.as_ref().map(|replayed| (&replayed.core, replayed.batch.as_ref()))
    }

    /// The first difference so far.
    pub(super) const fn difference(&self) -> Option<&ReplayDifference> {
        self.report.difference.as_ref()
    }

    /// Takes a line. Returns the step with the core's own outputs; none for a head, and for a step that cannot be replayed,
    /// since steps before it are missing.
    pub(super) fn line(
        &mut self,
        line: &RecordingLine,
        segment: usize,
    ) -> Result<Option<RecordedStep>, ReplayError> {
        match line {
            RecordingLine::Head(head) => self.head(head, segment).map(|()| None),
            RecordingLine::Step(step) => Ok(self.step(step, segment)),
        }
    }

    fn head(&mut self, head: &RecordingHead, segment: usize) -> Result<(), ReplayError> {
        if head.protocol != self.protocol {
            return Err(ReplayError::OtherMessages {
                version: head.version.clone(),
                theirs: head.protocol.clone(),
                ours: self.protocol.to_owned(),
            });
        }
        if let Some(difference) = self.compare_states(head, segment) {
            self.report.found(difference);
        }
        self.report.count_head(self.replayed.as_ref(), head);
        self.replayed = Some(begin(head)?);
        Ok(())
    }

    fn step(&mut self, step: &RecordedStep, segment: usize) -> Option<RecordedStep> {
        let replayed = self.replayed.as_mut()?;
        if step.number != replayed.next {
            self.report.steps_missing += (step.number + 1).saturating_sub(replayed.read_to);
            replayed.read_to = replayed.read_to.max(step.number + 1);
            return None;
        }
        let (given, kind) = replayed.step(step);
        self.report.steps += 1;
        self.report.inputs += step.inputs.len() as u64;
        self.report.outputs += (step.outputs.len() + usize::from(step.batch.is_some())) as u64;
        if let Some(kind) = kind {
            let difference = replayed.difference(step, &given, kind, segment);
            self.report.found(difference);
        }
        Some(given)
    }

    /// Whether a segment goes on from the replayed core without a gap.
    pub(super) fn is_next(&self, head: &RecordingHead) -> bool {
        self.replayed.as_ref().is_some_and(|former| {
            let place = (former.head.job, former.head.term, former.next);
            place == (head.job, head.term, head.next)
        })
    }

    /// The state of the replayed core, if a segment goes on from it without a gap.
    pub(super) fn state_before(&self, head: &RecordingHead) -> Option<Value> {
        let former = self.replayed.as_ref().filter(|_| self.is_next(head))?;
        json_of(&former.core).ok()
    }

    /// Compares the state of the replayed core with the state that was recorded at the same step.
    fn compare_states(&self, head: &RecordingHead, segment: usize) -> Option<ReplayDifference> {
        let CoreStart::State(recorded) = &head.core else { return None };
        let replayed = self.state_before(head).filter(|replayed| replayed != recorded)?;
        let (recorded, replayed) = first_part_that_differs(recorded, &replayed);
        Some(ReplayDifference {
            step: head.next,
            term: head.term.0,
            wall_ms: head.wall_ms,
            inputs: Vec::new(),
            kind: "state",
            recorded: Some(recorded),
            replayed: Some(replayed),
            segment: segment - 1,
            inputs_needed: self.replayed.as_ref().map_or(0, |replayed| replayed.inputs),
        })
    }
}

fn begin(head: &RecordingHead) -> Result<ReplayedCore, ReplayError> {
    // A replayed core draws recorded numbers only.
    let rng = ChaCha8Rng::seed_from_u64(0);
    let mut core = match head.core.clone() {
        CoreStart::New { config } => DriverCore::new(*config, head.job, head.term, rng, head.at),
        CoreStart::TakenOver { config, tenure } => {
            DriverCore::with_journal(*config, *tenure, rng, head.at)
        }
        CoreStart::State(state) => serde_json::from_str(&state.to_string())
            .map_err(|source| ReplayError::State { step: head.next, source })?,
    };
    core.give_drawn(Vec::new());
    let (head, next, at) = (head.clone(), head.next, head.at);
    Ok(ReplayedCore { core, head, next, read_to: next, inputs: 0, at, batch: None })
}

/// The first field of two states that differs.
fn first_part_that_differs(recorded: &Value, replayed: &Value) -> (Value, Value) {
    let (Value::Object(fields), Value::Object(ours)) = (recorded, replayed) else {
        return (recorded.clone(), replayed.clone());
    };
    let differs = fields.iter().find(|(name, value)| ours.get(*name) != Some(value));
    let name = differs.map(|(name, _)| name.clone()).unwrap_or_default();
    let part = |fields: &serde_json::Map<String, Value>| {
        let value = fields.get(&name).cloned().unwrap_or_default();
        serde_json::json!({ &name: value })
    };
    (part(fields), part(ours))
}

impl ReplayReport {
    fn found(&mut self, difference: ReplayDifference) {
        self.is_same = false;
        self.difference = Some(difference);
    }

    fn count_head(&mut self, former: Option<&ReplayedCore>, head: &RecordingHead) {
        self.segments += 1;
        match former {
            Some(former) if (former.head.job, former.head.term) == (head.job, head.term) => {
                self.steps_missing += head.next.saturating_sub(former.read_to);
            }
            _ => {
                self.lives += 1;
                self.steps_missing += head.next;
            }
        }
    }
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

impl ReplayedCore {
    /// Gives the core the inputs of a step. Returns the step with the core's own outputs, and the kind of the first difference.
    fn step(&mut self, step: &RecordedStep) -> (RecordedStep, Option<&'static str>) {
        self.core.give_drawn(step.drawn.clone());
        for (at, input) in &step.inputs {
            self.at = *at;
            self.core.handle(*at, input.clone());
        }
        let mut outputs = Vec::new();
        while !(step.is_cut && outputs.len() == step.outputs.len()) {
            let Some(output) = self.core.poll_output() else { break };
            outputs.push(value(&said(&output)));
        }
        let mut given = RecordedStep { outputs, batch: None, timeout: None, ..step.clone() };
        self.batch = None;
        if !step.is_cut {
            self.batch = self.core.poll_batch();
            given.batch = self.batch.as_ref().map(|batch| value(&said_of_batch(batch)));
            given.timeout = self.core.poll_timeout();
        }
        self.next = step.number + 1;
        self.read_to = self.next;
        self.inputs += step.inputs.len() as u64;
        let kind = if given.outputs != step.outputs {
            Some("output")
        } else if given.batch != step.batch {
            Some("records")
        } else if given.timeout != step.timeout {
            Some("timeout")
        } else {
            None
        };
        (given, kind)
    }

    fn difference(
        &self,
        step: &RecordedStep,
        given: &RecordedStep,
        kind: &'static str,
        segment: usize,
    ) -> ReplayDifference {
        let timeout = |step: &RecordedStep| step.timeout.map(|at| Value::from(at.0));
        let (recorded, replayed) = match kind {
            "records" => (step.batch.clone(), given.batch.clone()),
            "timeout" => (timeout(step), timeout(given)),
            _ => {
                let same =
                    step.outputs.iter().zip(&given.outputs).take_while(|(a, b)| a == b).count();
                (step.outputs.get(same).cloned(), given.outputs.get(same).cloned())
            }
        };
        let inputs =
            step.inputs.iter().map(|(at, input)| (*at, json_of(input).unwrap_or_default()));
        let later_ms = self.at.since(self.head.at).as_millis();
        ReplayDifference {
            step: step.number,
            term: self.head.term.0,
            wall_ms: self.head.wall_ms + u64::try_from(later_ms).unwrap_or_default(),
            inputs: inputs.collect(),
            kind,
            recorded,
            replayed,
            segment,
            inputs_needed: self.inputs,
        }
    }
}
