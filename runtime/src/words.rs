//! The lane of words: a bounded buffer and a thread in front of a writer that may be slow or hang, such as a
//! terminal, a log file or a pipe. Callers never wait: a line that does not fit is dropped and counted, and the
//! writer is told how many lines it has missed. Used for logs, events, and workers' output.

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

/// Makes the line that says, in the writer's own format, how many lines it has missed.
pub type DropNote = Box<dyn Fn(u64) -> String + Send>;

/// The name and the bounds of a lane of words.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DroppingWriterLane {
    /// Its name, also that of its thread.
    pub name: &'static str,
    /// Most bytes that may wait for the writer.
    pub waiting_bytes_max: usize,
    /// Time within which a write should return; `status` names a write that takes longer.
    pub answers_within: Duration,
}

impl DroppingWriterLane {
    /// A lane for people: lines on stdout and stderr.
    pub const fn shown(name: &'static str) -> Self {
        Self { name, waiting_bytes_max: 1 << 20, answers_within: Duration::from_secs(5) }
    }

    /// A lane for a file. An event of a large job has some 100 KiB.
    pub const fn kept(name: &'static str) -> Self {
        Self { name, waiting_bytes_max: 16 << 20, answers_within: Duration::from_secs(5) }
    }
}

/// The callers' side; clones share the buffer. The thread ends when all clones are gone and its last write has
/// returned; the process does not wait for it.
#[derive(Clone, Debug)]
pub struct DroppingWriter(Arc<Callers>);

/// A lane of words without a claim on it: it ends although this is held.
#[derive(Clone, Debug)]
pub struct WeakDroppingWriter(Weak<Callers>);

impl WeakDroppingWriter {
    /// The lane, unless it has ended.
    pub fn upgrade(&self) -> Option<DroppingWriter> {
        self.0.upgrade().map(DroppingWriter)
    }
}

#[derive(Debug)]
struct Callers {
    lane: DroppingWriterLane,
    shared: Arc<WriterShared>,
}

#[derive(Debug, Default)]
struct WriterShared {
    state: Mutex<WriterState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WriterState {
    waiting: Vec<u8>,
    /// Dropped lines that the writer has not been told of.
    dropped_lines: u64,
    dropped_in_all: u64,
    /// Start of the current write; `None` while the writer is idle.
    writing_since: Option<Instant>,
    /// Whether the writer has failed, or all callers are gone.
    closed: bool,
}

impl WriterShared {
    fn lock(&self) -> MutexGuard<'_, WriterState> {
        // The state is whole between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DroppingWriter {
    /// Starts the thread that writes to `writer`. The writer is flushed once at the beginning, which can open a
    /// file.
    ///
    /// # Errors
    /// The system refused a thread.
    pub fn new(
        lane: DroppingWriterLane,
        writer: Box<dyn Write + Send>,
        note: DropNote,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(WriterShared::default());
        let of_thread = Arc::clone(&shared);
        let write = move || write_on(&of_thread, writer, &note);
        thread::Builder::new().name(lane.name.to_owned()).spawn(write)?;
        Ok(Self(Arc::new(Callers { lane, shared })))
    }

    /// The same lane, without a claim on it.
    pub fn downgrade(&self) -> WeakDroppingWriter {
        WeakDroppingWriter(Arc::downgrade(&self.0))
    }

    /// Takes a line with its end, given in parts. Drops and counts it if there is no room.
    pub fn push(&self, line: &[&[u8]]) {
        self.push_patiently(line, Duration::ZERO);
    }

    /// Like `push`, but waits for room while the writer makes progress: gives up once one write has lasted for
    /// `patience`. Returns whether the line was taken.
    pub fn push_patiently(&self, line: &[&[u8]], patience: Duration) -> bool {
        let length: usize = line.iter().map(|part| part.len()).sum();
        let fits = |state: &WriterState| {
            state.closed || state.waiting.len() + length <= self.0.lane.waiting_bytes_max
        };
        let mut state = self.0.shared.lock();
        while !fits(&state) {
            let patience = match state.writing_since {
                Some(since) => patience.saturating_sub(since.elapsed()),
                // The writer is about to take the buffer.
                None => patience,
            };
            if patience.is_zero() {
                let ends = line.iter().flat_map(|part| part.iter()).filter(|byte| **byte == b'\n');
                let lines = ends.count().max(1) as u64;
                state.dropped_lines += lines;
                state.dropped_in_all += lines;
                return false;
            }
            let waited = self.0.shared.changed.wait_timeout(state, patience);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.closed {
            return true;
        }
        for part in line {
            state.waiting.extend_from_slice(part);
        }
        drop(state);
        self.0.shared.changed.notify_all();
        true
    }

    /// Waits until all lines are written, for `within` at most. Returns whether they were.
    pub fn flush(&self, within: Duration) -> bool {
        let state = self.0.shared.lock();
        let busy = |state: &mut WriterState| {
            let is_idle = state.waiting.is_empty() && state.dropped_lines == 0;
            !state.closed && (state.writing_since.is_some() || !is_idle)
        };
        let waited = self.0.shared.changed.wait_timeout_while(state, within, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// The lane's name and bounds.
    pub fn bounds(&self) -> &DroppingWriterLane {
        &self.0.lane
    }

    /// The lane's trouble, if a write takes longer than the lane allows, or lines were dropped.
    pub fn trouble(&self) -> Option<DroppingWriterTrouble> {
        let state = self.0.shared.lock();
        let hanging = state.writing_since.map(|since| since.elapsed());
        let hanging = hanging.filter(|since| *since > self.0.lane.answers_within);
        let dropped_lines = state.dropped_in_all;
        (hanging.is_some() || dropped_lines > 0).then_some(DroppingWriterTrouble {
            lane: self.0.lane.name,
            answers_within: self.0.lane.answers_within,
            hanging,
            dropped_lines,
        })
    }
}

/// Trouble of a lane of words.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DroppingWriterTrouble {
    /// Name of the lane.
    pub lane: &'static str,
    /// Time within which a write should return.
    pub answers_within: Duration,
    /// Duration of the current write, if that is too long.
    pub hanging: Option<Duration>,
    /// Lines that were dropped so far.
    pub dropped_lines: u64,
}

impl fmt::Display for DroppingWriterTrouble {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.lane)?;
        if let Some(since) = self.hanging {
            write!(formatter, "not written for {} s, ", since.as_secs())?;
        }
        write!(formatter, "{} lines dropped", self.dropped_lines)
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

fn write_on(shared: &WriterShared, mut writer: Box<dyn Write + Send>, note: &DropNote) {
    let mut batch = Vec::new();
    shared.lock().writing_since = Some(Instant::now());
    let mut written = writer.flush();
    loop {
        if written.is_err() {
            // The writer failed: lines are dropped from now on.
            let mut state = shared.lock();
            *state = WriterState { closed: true, ..WriterState::default() };
            shared.changed.notify_all();
            return;
        }
        let idle = |state: &mut WriterState| {
            !state.closed && state.waiting.is_empty() && state.dropped_lines == 0
        };
        let mut state = shared.lock();
        state.writing_since = None;
        shared.changed.notify_all();
        let waited = shared.changed.wait_while(state, idle);
        state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.closed && state.waiting.is_empty() && state.dropped_lines == 0 {
            return;
        }
        std::mem::swap(&mut state.waiting, &mut batch);
        let dropped = std::mem::take(&mut state.dropped_lines);
        state.writing_since = Some(Instant::now());
        drop(state);
        written = writer.write_all(&batch);
        if dropped > 0 {
            written = written.and_then(|()| writer.write_all(note(dropped).as_bytes()));
        }
        written = written.and_then(|()| writer.flush());
        batch.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A writer that says when a write begins, and returns from it only when it is told to.
    struct HeldWriter {
        begins: Sender<()>,
        go: Receiver<()>,
        written: Sender<String>,
    }

    impl Write for HeldWriter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.begins.send(()).map_err(std::io::Error::other)?;
            self.go.recv().map_err(std::io::Error::other)?;
            let text = String::from_utf8_lossy(bytes).into_owned();
            self.written.send(text).map_err(std::io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn s_1_a_writer_that_hangs_costs_lines_and_says_how_many() {
        let (go, hears) = channel();
        let (says, written) = channel();
        let (begins, begun) = channel();
        let lane = DroppingWriterLane {
            name: "words",
            waiting_bytes_max: 10,
            answers_within: Duration::ZERO,
        };
        let writer = HeldWriter { begins, go: hears, written: says };
        let note = |dropped| format!("{dropped} lines dropped\n");
        let words = DroppingWriter::new(lane, Box::new(writer), Box::new(note)).expect("a thread");
        words.push(&[b"one\n"]);
        begun.recv().expect("the lane writes");
        for _ in 0..5 {
            words.push(&[b"1234", b"\n"]);
        }
        assert!(!words.flush(Duration::ZERO));
        let trouble = words.trouble().expect("it hangs");
        assert!(trouble.hanging.is_some() && trouble.dropped_lines == 3, "{trouble}");
        (0..3).for_each(|_| go.send(()).expect("it waits"));
        let said: Vec<String> = (0..3).map(|_| written.recv().expect("written")).collect();
        assert_eq!(said, ["one\n", "1234\n1234\n", "3 lines dropped\n"]);
        assert!(words.flush(Duration::from_secs(10)));
    }
}
