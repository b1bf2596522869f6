//! The port between the training thread and the actor thread: a few atomics for what happens at every
//! step, channels for the rest. No lock is held while either waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use elastic_protocol::messages::WorkerToDriver;
use elastic_protocol::{Deadlines, Stamp, Step};

use crate::state::core::{Progress, TrainingCommand, TrainingEvent, prefix};

use super::error::{Error, Result};

/// What both threads see.
///
/// The boundary protocol is Dekker's: the training thread stores the boundary, then loads the flag; the
/// actor stores the flag, then loads the boundary. In the single order of sequentially consistent
/// operations one of the two sees the other's store. So a thread that did not see the flag has a boundary
/// that the actor did see, and `Paused` never tells less than was passed.
#[derive(Debug)]
pub struct Shared {
    boundary: AtomicU64,
    pause: AtomicBool,
    step: AtomicU64,
    form_ms: AtomicU64,
    /// Locked for a copy of some bytes.
    note: Mutex<String>,
}

impl Default for Shared {
    fn default() -> Self {
        let shared = Self {
            boundary: AtomicU64::new(0),
            pause: AtomicBool::new(false),
            step: AtomicU64::new(0),
            form_ms: AtomicU64::new(0),
            note: Mutex::new(String::new()),
        };
        shared.set_deadlines(&Deadlines::default());
        shared
    }
}

impl Shared {
    /// Training thread: this boundary is reached. Returns whether it must ask before it passes it.
    pub(super) fn reach(&self, boundary: u64) -> bool {
        self.boundary.store(boundary, Ordering::SeqCst);
        self.pause.load(Ordering::SeqCst)
    }

    /// Actor, while the training thread is at rest: a generation begins.
    pub fn begin_generation(&self) {
        self.boundary.store(0, Ordering::SeqCst);
    }

    /// Actor: sets the pause flag, and returns the boundary that the training thread has reached.
    pub fn pause(&self) -> u64 {
        self.pause.store(true, Ordering::SeqCst);
        self.boundary.load(Ordering::SeqCst)
    }

    /// Whether the training thread must ask at its next boundary.
    #[cfg(test)]
    pub(in crate::state) fn must_ask(&self) -> bool {
        self.pause.load(Ordering::SeqCst)
    }

    /// Actor: clears the pause flag.
    pub fn unpause(&self) {
        self.pause.store(false, Ordering::SeqCst);
    }

    /// Actor: the driver said how long waits may last.
    pub fn set_deadlines(&self, deadlines: &Deadlines) {
        // Before the driver's own deadline, which only knows who is not ready: here it is known who was not reached.
        let form_ms = u64::try_from((deadlines.form * 3 / 4).as_millis()).unwrap_or(u64::MAX);
        self.form_ms.store(form_ms, Ordering::Relaxed);
    }

    /// Actor: how far training is.
    pub fn progress(&self) -> Progress {
        let note = self.note.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Progress { step: Step(self.step.load(Ordering::Relaxed)), note }
    }

    pub(super) fn form_deadline(&self) -> Duration {
        Duration::from_millis(self.form_ms.load(Ordering::Relaxed))
    }

    pub(super) fn set_step(&self, step: Step) {
        self.step.store(step.0, Ordering::Relaxed);
    }

    /// Keeps what fits into a progress message.
    pub(super) fn set_note(&self, text: &str) {
        let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        note.clear();
        note.push_str(prefix(text, WorkerToDriver::NOTE_BYTES_MAX));
    }
}

/// What the training thread tells the actor.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ThreadMessage {
    /// For `StateCore::handle_training`.
    Event(TrainingEvent),
    /// For `StateCore::handle_boundary`; the thread waits for the verdict as a command.
    Boundary {
        /// The generation.
        stamp: Stamp,
        /// The boundary that it has reached.
        boundary: u64,
    },
    /// The first commit of a generation: worth telling before the next sample is due.
    FirstCommit,
}

/// The training thread's end of the port.
pub struct Control {
    tell: Box<dyn Fn(ThreadMessage)>,
    commands: mpsc::Receiver<TrainingCommand>,
    shared: std::sync::Arc<Shared>,
    why_gone: Box<dyn Fn() -> String>,
    checking: Option<(Duration, Check)>,
}

/// What is asked again and again while the training thread waits.
type Check = Box<dyn Fn() -> Result<()>>;

impl Control {
    /// Commands that can be on their way to the training thread at once. The core sends one only to a
    /// thread that waits, and `End` may follow it.
    pub const COMMANDS_MAX: usize = 4;

    /// `tell` hands a message to the actor and never blocks; `why_gone` says what is known of the actor's
    /// end, once the channel of its commands is closed.
    pub fn new(
        tell: impl Fn(ThreadMessage) + 'static,
        commands: mpsc::Receiver<TrainingCommand>,
        shared: std::sync::Arc<Shared>,
        why_gone: impl Fn() -> String + 'static,
    ) -> Self {
        Self {
            tell: Box::new(tell),
            commands,
            shared,
            why_gone: Box::new(why_gone),
            checking: None,
        }
    }

    /// While the training thread waits, calls `check` with this period; an error ends the wait with it. A binding
    /// whose language handles signals on this thread needs that.
    #[must_use]
    pub fn checking(mut self, period: Duration, check: impl Fn() -> Result<()> + 'static) -> Self {
        self.checking = Some((period, Box::new(check)));
        self
    }

    pub(super) fn tell(&self, message: ThreadMessage) {
        (self.tell)(message);
    }

    pub(super) fn event(&self, event: TrainingEvent) {
        self.tell(ThreadMessage::Event(event));
    }

    /// Waits for the next command. Ends when the actor does, so it cannot hang.
    pub(super) fn wait(&self) -> Result<TrainingCommand> {
        let Some((period, check)) = &self.checking else {
            return self.commands.recv().map_err(|_| self.gone());
        };
        loop {
            match self.commands.recv_timeout(*period) {
                Ok(command) => return Ok(command),
                Err(mpsc::RecvTimeoutError::Timeout) => check()?,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(self.gone()),
            }
        }
    }

    pub(super) fn gone(&self) -> Error {
        Error::ActorsGone { reason: (self.why_gone)() }
    }

    pub(super) fn unexpected(&self, command: &TrainingCommand) -> Error {
        let reason = format!("it gave the training thread a command out of turn: {command:?}");
        Error::ActorsGone { reason }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "two threads are what is tested")]
    fn a_boundary_passed_unseen_is_never_undercounted() {
        for _ in 0..2_000 {
            let shared = Arc::new(Shared::default());
            let training = Arc::clone(&shared);
            let thread = std::thread::spawn(move || {
                (1..=20).find(|boundary| training.reach(*boundary)).map_or(20, |asked| asked - 1)
            });
            let counted = shared.pause();
            let passed = thread.join().expect("it does not panic");
            assert!(counted >= passed, "told {counted}, passed {passed}");
        }
    }

    #[test]
    fn a_note_is_cut_at_a_character() {
        let shared = Shared::default();
        shared.set_note(&"€".repeat(100));
        assert_eq!(shared.progress().note.len(), 255);
    }
}
