//! Streams as threads that do queued work in order, and events as counters of it.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Work of a stream.
pub type Work = Box<dyn FnOnce() + Send>;

/// A stream.
pub struct Stream {
    queue: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    pub fn new() -> Stream {
        let (queue, work) = mpsc::channel::<Work>();
        let run = move || work.into_iter().for_each(|work| work());
        Stream { queue: Some(queue), thread: Some(std::thread::spawn(run)) }
    }

    pub fn push(&self, work: Work) {
        if let Some(queue) = &self.queue {
            let _ = queue.send(work);
        }
    }
}

impl Default for Stream {
    fn default() -> Stream {
        Stream::new()
    }
}

impl Drop for Stream {
    /// Queued work is still done, as CUDA does it; the thread ends by itself then.
    fn drop(&mut self) {
        self.queue = None;
        drop(self.thread.take());
    }
}

/// An event: how often it was recorded, and how often that was reached.
#[derive(Default)]
pub struct Event {
    state: Arc<(Mutex<(u64, u64)>, Condvar)>,
}

impl Event {
    pub fn record(&self, stream: &Stream) {
        let state = Arc::clone(&self.state);
        let number = {
            let mut counts = state.0.lock().unwrap_or_else(PoisonError::into_inner);
            counts.0 += 1;
            counts.0
        };
        stream.push(Box::new(move || {
            let mut counts = state.0.lock().unwrap_or_else(PoisonError::into_inner);
            counts.1 = counts.1.max(number);
            state.1.notify_all();
        }));
    }

    pub fn is_passed(&self) -> bool {
        let counts = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.1 >= counts.0
    }

    pub fn hold(&self, stream: &Stream) {
        let state = Arc::clone(&self.state);
        let number = state.0.lock().unwrap_or_else(PoisonError::into_inner).0;
        stream.push(Box::new(move || {
            let mut counts = state.0.lock().unwrap_or_else(PoisonError::into_inner);
            while counts.1 < number {
                counts = state.1.wait(counts).unwrap_or_else(PoisonError::into_inner);
            }
        }));
    }
}
