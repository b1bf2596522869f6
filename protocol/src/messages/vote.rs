//! Votes: a worker's messages to the registry about its own state in one generation.

use serde::{Deserialize, Serialize};

use crate::ids::{Stamp, WorkerId};
use crate::job::ExitStatus;

/// A worker's state in one generation, sent to the `WorkerStateRegistry`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Vote {
    /// The generation of the vote; a vote of any other generation is dropped and counted (G-2).
    pub stamp: Stamp,
    /// The voter.
    pub worker: WorkerId,
    /// Its content.
    pub ballot: Ballot,
}

/// One vote. Repeating one changes nothing.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Ballot {
    /// The worker's communicator stands.
    Ready,
    /// The worker holds the root's commit and trains.
    Synced,
    /// The worker's training function returned without an error, or its process exited with code 0.
    Success,
    /// The worker's training function returned an error, or its process ended in another way.
    Failure {
        /// Its process's exit status; `None` while the process lives.
        status: Option<ExitStatus>,
        /// Its error, or the last lines of its stderr.
        message: String,
    },
}
