//! The trace of a run. Every event goes into a rolling hash: two runs are the same if and only if hash and count are
//! equal. The last events go into a ring for the report. All events go into a file as JSON lines, if one is wanted.

use std::collections::VecDeque;
use std::io::Write;

use serde::Serialize;

use crate::decisions::DecisionLog;
use crate::states::{KeptStates, StateLog};

/// Number of events between two kept hashes.
pub(crate) const CHECKPOINT: u64 = 4096;

/// Kinds of events, the vocabulary of both modes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceKind {
    /// A frame left a node.
    Send,
    /// A frame arrived.
    Deliver,
    /// A frame was thrown away with its session.
    Drop,
    /// A frame was given back to its sender.
    Return,
    /// A link came up, fell silent, was heard again, was lost.
    Link,
    /// A node tried to reach the driver.
    Dial,
    /// A node's timer fired.
    Timer,
    /// A message between actors of one node.
    Local,
    /// A process was started.
    Start,
    /// A process ended.
    Exit,
    /// A signal was sent.
    Signal,
    /// The training thread was told, or told, something.
    Thread,
    /// A collective was entered.
    Enter,
    /// A collective gave its result.
    Result,
    /// A collective's result came too late and was dropped (G-4).
    Late,
    /// A collective broke.
    Break,
    /// A collective's deadline passed.
    Overdue,
    /// A rank committed.
    Commit,
    /// A generation was formed.
    Form,
    /// A generation trains.
    Run,
    /// A generation is to end.
    Reset,
    /// The driver's journal was given a batch, or has stored it.
    Journal,
    /// Host discovery.
    Discovery,
    /// A fault began.
    Fault,
    /// A fault ended.
    Mend,
    /// Faults are over, a core of hosts is whole.
    Heal,
    /// The job is over.
    Ended,
    /// The driver wrote to its event log.
    Log,
}

/// The host and slot of an event; [`TracePlace::DRIVER`] for the driver.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct TracePlace {
    /// Host number.
    pub host: u32,
    /// Slot; `u32::MAX` for the agent.
    pub slot: u32,
}

impl TracePlace {
    /// The driver's node.
    pub const DRIVER: Self = Self { host: u32::MAX, slot: u32::MAX };

    /// A host's agent.
    pub const fn agent(host: u32) -> Self {
        Self { host, slot: u32::MAX }
    }

    /// The place as one number.
    pub(crate) fn code(self) -> u64 {
        u64::from(self.host) << 32 | u64::from(self.slot)
    }

    pub(crate) fn label(self) -> String {
        match (self.host, self.slot) {
            (u32::MAX, _) => "driver".to_owned(),
            (host, u32::MAX) => format!("h{host}"),
            (host, slot) => format!("h{host}[{slot}]"),
        }
    }
}

/// One event.
#[derive(Clone, Debug)]
struct TraceLine {
    number: u64,
    at: u64,
    kind: TraceKind,
    place: TracePlace,
    a: u64,
    b: u64,
    text: Option<String>,
}

#[derive(Serialize)]
struct JsonLine<'a> {
    number: u64,
    ms: f64,
    place: String,
    kind: TraceKind,
    a: u64,
    b: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

/// Settings of a run's recording.
#[derive(Default)]
pub struct Recording {
    /// Number of last events kept for the report; 0: none.
    pub keep: usize,
    /// Whether events carry a description in words (slow).
    pub words: bool,
    /// Destination of all events as JSON lines.
    pub file: Option<Box<dyn Write>>,
    /// Whether the decisions of the nodes are kept in words.
    pub decisions: bool,
    /// Whether the states of the nodes' cores are kept, and in which form.
    pub states: KeptStates,
    /// Whether the drivers are recorded, as with `--record`.
    pub drivers: bool,
}

/// The trace of one run.
pub(crate) struct RunTrace {
    hash: u64,
    count: u64,
    recording: Recording,
    last: VecDeque<TraceLine>,
    /// Hash after every [`CHECKPOINT`] events: where two runs first differ.
    checkpoints: Vec<u64>,
    pub(crate) decisions: DecisionLog,
    pub(crate) states: StateLog,
}

impl RunTrace {
    pub(crate) fn new(recording: Recording) -> Self {
        let decisions = DecisionLog::new(recording.decisions);
        let states = StateLog::new(recording.states);
        let (last, checkpoints) = (VecDeque::new(), Vec::new());
        Self { hash: 0, count: 0, recording, last, checkpoints, decisions, states }
    }

    /// Whether events need a description in words.
    pub(crate) fn wants_words(&self) -> bool {
        self.recording.words
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn checkpoints(&self) -> &[u64] {
        &self.checkpoints
    }

    /// Records an event; `words` is called only where words are wanted.
    #[inline]
    pub(crate) fn record(
        &mut self,
        at: u64,
        kind: TraceKind,
        place: TracePlace,
        (a, b): (u64, u64),
        words: impl FnOnce() -> String,
    ) {
        for value in [at, kind as u64, place.code(), a, b] {
            self.hash = (self.hash.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        self.count += 1;
        if self.count.is_multiple_of(CHECKPOINT) {
            self.checkpoints.push(self.hash);
        }
        if self.recording.keep > 0 || self.recording.file.is_some() {
            let text = self.recording.words.then(words).filter(|text| !text.is_empty());
            self.keep(TraceLine { number: self.count, at, kind, place, a, b, text });
        }
    }

    #[cold]
    fn keep(&mut self, line: TraceLine) {
        if let Some(file) = &mut self.recording.file {
            let json = JsonLine {
                number: line.number,
                ms: line.at as f64 / 1e6,
                place: line.place.label(),
                kind: line.kind,
                a: line.a,
                b: line.b,
                text: line.text.as_deref(),
            };
            // A failed write of the trace must not change the run. A reader sees the trace end early.
            let _written =
                serde_json::to_writer(&mut *file, &json).is_ok() && file.write_all(b"\n").is_ok();
        }
        if self.recording.keep > 0 {
            if self.last.len() >= self.recording.keep {
                self.last.pop_front();
            }
            self.last.push_back(line);
        }
    }

    /// Flushes the file.
    pub(crate) fn finish(&mut self) {
        if let Some(file) = &mut self.recording.file {
            let _flushed = file.flush().is_ok();
        }
    }

    /// The last events, one line each, with a column for each host among them.
    pub(crate) fn columns(&self) -> Vec<String> {
        let mut hosts: Vec<u32> = self.last.iter().map(|line| line.place.host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let has_driver = hosts.last() == Some(&u32::MAX);
        hosts.rotate_right(usize::from(has_driver));
        const WIDTH: usize = 12;
        let mut head = format!("{:>14} ", "ms");
        for host in &hosts {
            head += &format!("{:<WIDTH$}", TracePlace::agent(*host).label());
        }
        let mut lines = vec![head.trim_end().to_owned()];
        for line in &self.last {
            let column = hosts.iter().position(|host| *host == line.place.host).unwrap_or(0);
            let slot = match line.place.slot {
                u32::MAX => String::new(),
                slot => format!("[{slot}]"),
            };
            let cell = format!("{slot}{:?}", line.kind);
            let mut text = format!(
                "{:>14.3} {:indent$}{cell:<WIDTH$}",
                line.at as f64 / 1e6,
                "",
                indent = column * WIDTH
            );
            let rest = (hosts.len() - 1 - column) * WIDTH;
            text += &" ".repeat(rest);
            match &line.text {
                Some(words) => text += words,
                None => text += &format!("{} {}", line.a, line.b),
            }
            lines.push(text.trim_end().to_owned());
        }
        lines
    }
}
