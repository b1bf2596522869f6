//! The report at the end of the demo, made from the event log and the trainer's accuracy. Used by `demo`.

use elastic_protocol::counted;
use std::fmt;
use std::path::Path;

use elastic_observe::describe_phases;
use elastic_protocol::messages::PhaseMs;
use serde::{Deserialize, Serialize};

use crate::command_line::{CommandFailure, ResultExt};

/// The JSON object printed by `demo --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct DemoReport {
    /// Share of the test images that are classified correctly.
    accuracy: f64,
    /// Number of worker processes started.
    workers_started: u64,
    /// Number of worker processes that SIGKILL ended.
    workers_killed: u64,
    /// Number of generations that trained.
    generations: u64,
    /// The resets, each the way from one generation to the next.
    resets: Vec<Reset>,
    /// Number of steps that were trained and rolled back.
    steps_lost: u64,
}

/// One reset.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Reset {
    cause: String,
    ms: PhaseMs,
}

/// The lines of the event log that the report uses.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum ReportedEvent {
    WorkerStarted {},
    WorkerExited {
        status: String,
        expected: bool,
    },
    GenerationRunning {},
    ResetDone {
        cause: String,
        ms: PhaseMs,
        steps_lost: u64,
    },
    #[serde(other)]
    Other,
}

impl DemoReport {
    /// Reads the event log of a job that is over.
    pub(crate) fn read(events: &Path, accuracy: Option<f64>) -> Result<Self, CommandFailure> {
        let text = std::fs::read_to_string(events).failed("the event log cannot be read")?;
        let accuracy =
            accuracy.ok_or_else(|| CommandFailure::new("the trainer told no accuracy"))?;
        let mut report = Self { accuracy, ..Self::default() };
        for line in text.lines() {
            let line = serde_json::from_str(line).failed("a line of the event log is malformed")?;
            report.add(line);
        }
        Ok(report)
    }

    fn add(&mut self, line: ReportedEvent) {
        match line {
            ReportedEvent::WorkerStarted {} => self.workers_started += 1,
            ReportedEvent::WorkerExited { status, expected: false }
                if status.contains("SIGKILL") =>
            {
                self.workers_killed += 1;
            }
            ReportedEvent::GenerationRunning {} => self.generations += 1,
            ReportedEvent::ResetDone { cause, ms, steps_lost } => {
                self.resets.push(Reset { cause, ms });
                self.steps_lost += steps_lost;
            }
            ReportedEvent::WorkerExited { .. } | ReportedEvent::Other => {}
        }
    }
}

impl fmt::Display for DemoReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { accuracy, workers_started, workers_killed, generations, steps_lost, .. } = self;
        writeln!(formatter, "accuracy on the test images: {accuracy:.4}")?;
        writeln!(
            formatter,
            "{} started, {workers_killed} killed, {}, {} lost",
            counted(*workers_started, "worker"),
            counted(*generations, "generation"),
            counted(*steps_lost, "step"),
        )?;
        for (index, reset) in self.resets.iter().enumerate() {
            let number = index + 1;
            let phases = describe_phases(&reset.ms);
            write!(formatter, "reset {number}: {}\n         {phases}", reset.cause)?;
            if number < self.resets.len() {
                writeln!(formatter)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_what_the_event_log_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        let lines = [
            r#"{"t":"x","term":1,"generation":0,"kind":"driver_started","job":"j"}"#,
            r#"{"t":"x","term":1,"generation":0,"kind":"worker_started","worker":"a[0]#1"}"#,
            r#"{"t":"x","term":1,"generation":1,"kind":"generation_running","world_size":1}"#,
            r#"{"t":"x","term":1,"generation":1,"kind":"worker_exited","worker":"a[0]#1","status":"signal 9 (SIGKILL)","expected":false,"killed_after_grace":false}"#,
            r#"{"t":"x","term":1,"generation":2,"kind":"reset_done","cause":"c","from":1,"ms":{"detect":1.0,"form":2.0,"sync":3.0,"total":6.0},"steps_lost":1}"#,
        ];
        std::fs::write(&path, lines.join("\n")).expect("written");
        let report = DemoReport::read(&path, Some(0.95)).expect("well formed");
        let expected = serde_json::json!({
            "accuracy": 0.95, "workers_started": 1, "workers_killed": 1, "generations": 1,
            "resets": [
                {"cause": "c", "ms": {"detect": 1.0, "form": 2.0, "sync": 3.0, "total": 6.0}}
            ],
            "steps_lost": 1,
        });
        assert_eq!(serde_json::to_value(&report).expect("an object"), expected);
    }
}
