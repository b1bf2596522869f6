//! A bounded buffer in front of a writer that may be slow: who writes never waits, what does not fit is
//! dropped and counted.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How many bytes may wait for the reader.
pub(super) const WAITING_BYTES_MAX: usize = 1 << 20;

/// The buffer's side of those who write.
#[derive(Debug)]
pub(super) struct LossyLane {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    dropped_lines: u64,
    /// Whether the writer is busy with what it took.
    writing: bool,
    /// Whether nobody reads any more, or nobody writes any more.
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LossyLane {
    /// Starts the thread that writes to `writer`.
    pub(super) fn new(name: &str, writer: Box<dyn Write + Send>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        thread::Builder::new().name(name.to_owned()).spawn(move || write_on(&theirs, writer))?;
        Ok(Self { shared })
    }

    /// Takes a line with its end, or drops and counts it.
    pub(super) fn push(&self, line: &[&[u8]]) {
        let mut state = self.shared.lock();
        let length: usize = line.iter().map(|part| part.len()).sum();
        if state.closed {
            return;
        }
        if state.waiting.len() + length > WAITING_BYTES_MAX {
            state.dropped_lines += 1;
            return;
        }
        for part in line {
            state.waiting.extend_from_slice(part);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits until all was written, for `within` at most; says whether it was.
    pub(super) fn flush(&self, within: Duration) -> bool {
        let state = self.shared.lock();
        let busy = |state: &mut State| {
            !state.closed && (state.writing || !state.waiting.is_empty() || state.dropped_lines > 0)
        };
        let waited = self.shared.changed.wait_timeout_while(state, within, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for LossyLane {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

fn write_on(shared: &Shared, mut writer: Box<dyn Write + Send>) {
    let mut batch = Vec::new();
    loop {
        let idle = |state: &mut State| {
            !state.closed && state.waiting.is_empty() && state.dropped_lines == 0
        };
        let mut state = shared.lock();
        state.writing = false;
        shared.changed.notify_all();
        let waited = shared.changed.wait_while(state, idle);
        state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.closed && state.waiting.is_empty() && state.dropped_lines == 0 {
            return;
        }
        std::mem::swap(&mut state.waiting, &mut batch);
        let dropped = std::mem::take(&mut state.dropped_lines);
        state.writing = true;
        drop(state);
        let mut written = writer.write_all(&batch);
        if dropped > 0 {
            let note = format!(
                "[elastic-node] {dropped} lines are not shown: this output is read too slowly\n"
            );
            written = written.and_then(|()| writer.write_all(note.as_bytes()));
        }
        if written.and_then(|()| writer.flush()).is_err() {
            // Nobody reads: what workers write is dropped from here on, and kept in their files.
            let mut state = shared.lock();
            *state = State { closed: true, ..State::default() };
            shared.changed.notify_all();
            return;
        }
        batch.clear();
    }
}
