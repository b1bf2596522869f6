//! Processes, as the agent's actor sees them: started and signalled through [`ProcessPort`], heard of
//! through [`ProcessEvent`]. [`SystemProcesses`] has real ones; the simulation gives its own.
//!
//! What a worker's process can rely on, and what it cannot escape:
//! - It leads a session and a process group of its own; its stdin is empty; no descriptor of the agent's
//!   is open in it; its secret is in `ELASTIC_CREDENTIAL`.
//! - SIGTERM goes to this process alone. Its children (data loaders, say) are its own affair, as under
//!   torchrun, Kubernetes or systemd's mixed mode: if they got the signal too, the last step before a planned
//!   departure would fail for want of data. A wrapper script should therefore `exec` the program.
//! - SIGKILL goes to the whole group, and so does the end of the process: what is left of its group is killed
//!   when it ends.
//! - When the agent dies, however it dies, the kernel kills the process (`PR_SET_PDEATHSIG`), and a guard
//!   process kills the rest of its group.
//! - A descendant that makes a session of its own leaves all this on purpose, and is let go.

mod command;
mod error_file;
mod exit_watch;
mod guard;
mod system;

#[cfg(test)]
mod tests;

use actix::{Message, Recipient};
use elastic_protocol::{ExitStatus, WorkerId};

use super::core::{LastWords, SpawnOrder, StopSignal};
pub use system::{Leaders, SystemProcesses};

/// Something happened to a process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ProcessEvent {
    /// The answer to each `spawn`.
    Spawned {
        /// Who.
        worker: WorkerId,
        /// Its process id, or why there is none: names the program.
        result: Result<u32, String>,
    },
    /// A process ended. Told once for each that was started, after `Spawned`.
    Exited {
        /// Who.
        worker: WorkerId,
        /// How.
        status: ExitStatus,
        /// Its last words.
        said: LastWords,
    },
}

impl Message for ProcessEvent {
    type Result = ();
}

/// Has processes. Dropped, it leaves none behind.
pub trait ProcessPort {
    /// Starts a process; `events` is told how that went, and later of its end.
    fn spawn(&mut self, order: SpawnOrder, events: Recipient<ProcessEvent>);

    /// Signals a process. Nothing happens if it has ended already.
    fn signal(&mut self, worker: &WorkerId, signal: StopSignal);
}
