//! Orders and reports about durable checkpoints, between the driver and the workers. The driver decides when; the ranks
//! of a generation write each a part of one commit; rank 0 makes the checkpoint whole when all parts are safe.

use serde::{Deserialize, Serialize};

use crate::commit::Step;
use crate::ids::Stamp;

/// The driver's order to save a step: the same for all members of the generation.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CheckpointOrder {
    /// The generation.
    pub stamp: Stamp,
    /// The commit to save. It has not been made yet when the order is given.
    pub step: Step,
    /// The directory of checkpoints, which all hosts share.
    pub directory: String,
    /// The job's name, if the user gave it one.
    pub name: Option<String>,
    /// Most bytes a second that one member writes; none: no bound.
    pub bytes_per_s: Option<u64>,
    /// Whether rank 0 writes the whole commit, since the contents of the members differ. The others report their parts as safe
    /// once they have made the commit, and write nothing.
    #[serde(default)]
    pub is_by_rank_0: bool,
}

/// The checkpoint that a generation's root restores: no member holds a commit, or only commits of an earlier generation.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CheckpointSource {
    /// The directory of checkpoints.
    pub directory: String,
    /// The directory of the one step to begin from; `None`: the newest whole checkpoint, or the start if there is none.
    pub exactly: Option<String>,
    /// Whether training begins from the start. The content of the directory is set aside then.
    pub begins_anew: bool,
    /// The checkpoint that the job has saved or loaded last; none if it has none.
    pub last: Option<LastCheckpoint>,
    /// The job's name, if the user gave it one.
    pub name: Option<String>,
}

/// The checkpoint that a job has saved or loaded last.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LastCheckpoint {
    /// Its step.
    pub step: Step,
    /// The directory of checkpoints that it is in: another one than that of the job if it was loaded from there, or if a
    /// former driver of the job saved to another one.
    pub directory: String,
    /// Whether training may not begin without it: the job ends rather than lose its steps.
    pub must_exist: bool,
}

/// A member's report on the step that it was told to save.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum CheckpointReport {
    /// Its part is safe.
    PartSaved {
        /// The part's bytes.
        bytes: u64,
    },
    /// The commit was made before the order came.
    Missed {
        /// The step that the member had reached.
        reached: Step,
    },
    /// Rank 0: the checkpoint is whole and safe.
    Sealed {
        /// Its bytes.
        bytes: u64,
        /// Troubles with the removal of old checkpoints, in words.
        troubles: Vec<String>,
    },
    /// It cannot be saved.
    Failed {
        /// The error with its causes; at most [`CheckpointReport::TEXT_BYTES_MAX`] bytes.
        reason: String,
    },
    /// Rank 0: all parts are safe, and they are not of one content.
    Differ {
        /// The first difference; at most [`CheckpointReport::TEXT_BYTES_MAX`] bytes.
        reason: String,
    },
}

impl CheckpointReport {
    /// Longest text, in bytes.
    pub const TEXT_BYTES_MAX: usize = 1024;
    /// Most texts of one message.
    pub const TEXTS_MAX: usize = 16;
}
