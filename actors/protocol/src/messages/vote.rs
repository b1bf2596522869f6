//! What a worker tells the registry about itself in one generation.

use serde::{Deserialize, Serialize};

use crate::ids::{Stamp, WorkerId};
use crate::job::ExitStatus;

/// A worker's state in one generation, sent to the `WorkerStateRegistry`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Vote {
    /// The generation that it is about; of any other it is dropped and counted (G-2).
    pub stamp: Stamp,
    /// Whose.
    pub worker: WorkerId,
    /// What.
    pub ballot: Ballot,
}

/// One vote. Repeating one changes nothing.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Ballot {
    /// Its communicator stands.
    Ready,
    /// It holds the root's commit and trains.
    Synced,
    /// Its training function returned without an error, or its process exited with code 0.
    Success,
    /// Its training function returned an error, or its process ended otherwise.
    Failure {
        /// How its process ended, if it did.
        status: Option<ExitStatus>,
        /// Its error, or the last lines of its stderr.
        message: String,
    },
}
