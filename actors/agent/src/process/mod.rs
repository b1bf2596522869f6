//! The workers' processes, as the agent's actor sees them: [`ProcessPort`] starts and signals them,
//! [`ProcessEvent`] reports on them. [`SystemProcesses`] runs real processes; the simulation has a port of its
//! own.
//!
//! Guarantees and limits of a worker's process:
//! - The process leads a session and a process group of its own. Its stdin is empty. One descriptor of the agent
//!   is open in it, that of the table of locks, which `ELASTIC_LOCK` names. Its secret is in `ELASTIC_CREDENTIAL`.
//! - SIGTERM goes to this process alone, as under torchrun, Kubernetes or systemd's mixed mode. The process
//!   looks after its own children (data loaders, for example): if they got the signal too, the last step before
//!   a planned departure would fail for want of data. A wrapper script should therefore `exec` the program.
//! - SIGKILL goes to the whole group. When the process ends, the rest of its group is killed.
//! - When the agent dies, however it dies, the kernel kills the process (`PR_SET_PDEATHSIG`), and a guard
//!   process kills the rest of its group.
//! - A descendant that makes a session of its own ends with its worker, too: the agent adopts orphans and
//!   recognises them by their environment. Such a descendant survives only if it clears its environment, or if
//!   the agent is killed.
//! - A look at a process changes nothing of it, unless its stacks are wanted. For the native one its main thread is
//!   stopped for a moment, as by a profiler (`native_stack`); where it has offered the stacks of its Python threads, it gets
//!   the signal by which it writes them. That ends a sleep of native code early, as any signal that is handled.

mod announcement;
mod cgroup;
mod command;
mod control_groups;
mod error_file;
mod exit_watch;
mod guard;
mod health_check;
mod inspection;
mod memory;
mod orphans;
mod polling;
mod proc_files;
mod starting;
mod system;

#[cfg(test)]
mod tests;

use std::time::Duration;

use actix::{Message, Recipient};
use elastic_protocol::messages::{HealthFailure, LibraryTrace, ProcessSight};
use elastic_protocol::{ExitStatus, WorkerId};

use super::core::{LastWords, SpawnOrder, StartFailure, StopSignal};
pub use cgroup::control_group_id;
pub use system::{Leaders, SystemProcesses};

/// Events of a process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ProcessEvent {
    /// The result of a `spawn`; each has one.
    Spawned {
        /// The worker.
        worker: WorkerId,
        /// The process id, or why there is no process; the error names the program.
        result: Result<u32, StartFailure>,
    },
    /// The worker's lock has lost its owner: the worker is dead, and its process is about to end, or has replaced its
    /// program (`robust_lock`). Sent at most once for each process, after `Spawned`, mostly before `Exited`.
    Dying {
        /// The worker.
        worker: WorkerId,
    },
    /// A process ended. Sent once for each started process, after `Spawned`.
    Exited {
        /// The worker.
        worker: WorkerId,
        /// Its exit status.
        status: ExitStatus,
        /// The process's use of the library.
        library: LibraryTrace,
    },
    /// The last words of a process that has ended. Sent once for each, after `Exited`.
    LastWords {
        /// The worker.
        worker: WorkerId,
        /// Its last words.
        said: LastWords,
    },
    /// The answer to an `inspect`.
    Inspected {
        /// The worker.
        worker: WorkerId,
        /// The observations of its process.
        sight: Box<ProcessSight>,
    },
    /// The result of a `check_health`; each has one.
    HealthChecked {
        /// The reason of its failure; `None` if it has passed.
        failure: Option<HealthFailure>,
    },
}

impl Message for ProcessEvent {
    type Result = ();
}

/// Starts and signals processes. Dropping it ends all of them.
pub trait ProcessPort {
    /// Starts a process. `events` receives the result, and later the end of the process.
    fn spawn(&mut self, order: SpawnOrder, events: Recipient<ProcessEvent>);

    /// Signals a process. Has no effect if the process has ended already.
    fn signal(&mut self, worker: &WorkerId, signal: StopSignal);

    /// Inspects a process, with its stacks if they are asked for: the native one of its main thread, and those of its
    /// Python threads. The answer comes as [`ProcessEvent::Inspected`]. There is none if the process has ended already.
    fn inspect(&mut self, worker: &WorkerId, with_stack: bool, events: Recipient<ProcessEvent>);

    /// Runs a command of the operator's that says by its exit code whether this host is well. The result comes as
    /// [`ProcessEvent::HealthChecked`], within the timeout.
    fn check_health(&mut self, command: String, timeout: Duration, events: Recipient<ProcessEvent>);
}
