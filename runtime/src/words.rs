//! The lane of words: a bounded buffer and a thread in front of a writer that may be slow or hang, such as a
//! terminal, a log file or a pipe. Callers never wait: a line that does not fit is dropped and counted, and the
//! writer is told how many lines it has missed. A write that fails is tried again, and what waits behind it is kept as behind
//! a write that hangs. Used for logs, events, and workers' output.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

/// Pause before a write that has failed is tried again: a disk that is full, or a server that is gone, may be back.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The same where the writer does not block and its reader is behind.
const RETRY_FULL_AFTER: Duration = Duration::from_millis(5);

/// Whether a write failed for want of room: its descriptor is good once there is some. After another error the file may have to be
/// opened again.
pub fn is_for_want_of_room(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

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
    /// Whether an error of the device ends the lane. A terminal that is gone gives it for good; a file may be opened anew.
    pub ends_with_device: bool,
}

impl DroppingWriterLane {
    /// A lane for people: lines on stdout and stderr.
    pub const fn shown(name: &'static str) -> Self {
        Self {
            name,
            waiting_bytes_max: 1 << 20,
            answers_within: Duration::from_secs(5),
            ends_with_device: true,
        }
    }

    /// A lane for a file. An event of a large job has some 100 KiB.
    pub const fn kept(name: &'static str) -> Self {
        Self {
            name,
            waiting_bytes_max: 16 << 20,
            answers_within: Duration::from_secs(5),
            ends_with_device: false,
        }
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
    /// file. An error of kind [`ErrorKind::BrokenPipe`] ends the lane, and so may those of a device: lines are then dropped.
    /// Each other error is tried again until it passes.
    ///
    /// # Errors
    /// The system refused a thread.
    pub fn new(
        lane: DroppingWriterLane,
        writer: Box<dyn Write + Send>,
        note: DropNote,
    ) -> io::Result<Self> {
        let shared = Arc::new(WriterShared::default());
        let of_thread = Arc::clone(&shared);
        let run = WriterThread { lane, shared: of_thread, writer };
        let write = move || run.write_on(&note);
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

/// The lane's thread.
struct WriterThread {
    lane: DroppingWriterLane,
    shared: Arc<WriterShared>,
    writer: Box<dyn Write + Send>,
}

/// The lane has no use any more: the writer has failed for good, or fails while no caller is left.
struct LaneOver;

impl WriterThread {
    fn write_on(mut self, note: &DropNote) {
        let mut batch = Vec::new();
        self.shared.lock().writing_since = Some(Instant::now());
        let mut written = self.flush();
        while written.is_ok() {
            let idle = |state: &mut WriterState| {
                !state.closed && state.waiting.is_empty() && state.dropped_lines == 0
            };
            let mut state = self.shared.lock();
            state.writing_since = None;
            self.shared.changed.notify_all();
            let waited = self.shared.changed.wait_while(state, idle);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            if state.closed && state.waiting.is_empty() && state.dropped_lines == 0 {
                return;
            }
            std::mem::swap(&mut state.waiting, &mut batch);
            let dropped = std::mem::take(&mut state.dropped_lines);
            state.writing_since = Some(Instant::now());
            drop(state);
            written = self.write(&batch);
            if dropped > 0 {
                written = written.and_then(|()| self.write(note(dropped).as_bytes()));
            }
            written = written.and_then(|()| self.flush());
            batch.clear();
        }
        // Lines are dropped from now on.
        let mut state = self.shared.lock();
        *state = WriterState { closed: true, ..WriterState::default() };
        self.shared.changed.notify_all();
    }

    /// Writes all bytes, each once.
    fn write(&mut self, mut rest: &[u8]) -> Result<(), LaneOver> {
        while !rest.is_empty() {
            match self.writer.write(rest) {
                Ok(0) => self.pause(RETRY_AFTER)?,
                Ok(written) => {
                    rest = &rest[written..];
                    self.shared.lock().writing_since = Some(Instant::now());
                }
                Err(error) => self.wait_after(&error)?,
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LaneOver> {
        while let Err(error) = self.writer.flush() {
            self.wait_after(&error)?;
        }
        Ok(())
    }

    /// Waits until a write that has failed is worth another attempt.
    fn wait_after(&self, error: &io::Error) -> Result<(), LaneOver> {
        let device_errors = [libc::EIO, libc::EBADF, libc::ENXIO, libc::ENODEV];
        let is_of_device = error.raw_os_error().is_some_and(|errno| device_errors.contains(&errno));
        match error.kind() {
            ErrorKind::Interrupted => Ok(()),
            ErrorKind::WouldBlock => self.pause(RETRY_FULL_AFTER),
            ErrorKind::BrokenPipe => Err(LaneOver),
            _ if is_of_device && self.lane.ends_with_device => Err(LaneOver),
            _ => self.pause(RETRY_AFTER),
        }
    }

    fn pause(&self, time: Duration) -> Result<(), LaneOver> {
        let open = |state: &mut WriterState| !state.closed;
        let state = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(state, time, open);
        match waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            true => Ok(()),
            false => Err(LaneOver),
        }
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
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.begins.send(()).map_err(io::Error::other)?;
            self.go.recv().map_err(io::Error::other)?;
            let text = String::from_utf8_lossy(bytes).into_owned();
            self.written.send(text).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
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
            ends_with_device: false,
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

    /// A writer that fails in these ways before it takes anything, and takes a few bytes at a time.
    struct FailingWriter {
        fails: Vec<i32>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for FailingWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Some(errno) = self.fails.pop() {
                return Err(io::Error::from_raw_os_error(errno));
            }
            let taken = &bytes[..bytes.len().min(3)];
            self.taken.send(taken.to_vec()).map_err(io::Error::other)?;
            Ok(taken.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The text that a writer which fails in these ways first has written of two lines.
    fn written_after(lane: DroppingWriterLane, fails: &[i32]) -> String {
        let (taken, written) = channel();
        let writer = FailingWriter { fails: fails.to_vec(), taken };
        let note = |dropped| format!("{dropped} lines dropped\n");
        let words = DroppingWriter::new(lane, Box::new(writer), Box::new(note)).expect("a thread");
        words.push(&[b"first\n"]);
        words.push(&[b"second\n"]);
        assert!(words.flush(Duration::from_secs(60)));
        drop(words);
        let written: Vec<u8> = written.into_iter().flatten().collect();
        String::from_utf8(written).expect("text")
    }

    #[test]
    fn s_6_a_write_that_fails_for_a_while_loses_nothing() {
        let kept = DroppingWriterLane::kept("words");
        let full = [libc::ENOSPC, libc::EIO, libc::EDQUOT, libc::ESTALE, libc::EBADF, libc::EINTR];
        assert_eq!(written_after(kept, &full), "first\nsecond\n");
        // A pipe that does not block, and whose reader is behind.
        let shown = DroppingWriterLane::shown("words");
        assert_eq!(written_after(shown, &[libc::EAGAIN, libc::EAGAIN]), "first\nsecond\n");
    }

    #[test]
    fn s_6_a_reader_or_a_terminal_that_is_gone_ends_the_lane() {
        let shown = DroppingWriterLane::shown("words");
        for errno in [libc::EPIPE, libc::EIO, libc::EBADF] {
            assert_eq!(written_after(shown, &[errno]), "", "{errno}");
        }
    }
}
