//! Errors that training code sees. Returned by everything that a training program calls.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use elastic_collectives::CollectiveError;
use elastic_protocol::messages::InvalidReport;

use super::device::DeviceError;
use crate::state::environment::InvalidEnvironment;
use crate::state::sampler::{InvalidBatchPlan, TooManyPasses};

/// The result of the functions that a training program calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of this library and of the training function. [`Error::is_reset`] is true for the errors that only
/// carry the end of a generation out of the training function.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The generation ended without warning. Return it from the training function: the state goes back to
    /// the last commit, and training goes on in the next generation.
    #[error("generation {generation} was aborted: {reason}")]
    Aborted {
        /// The generation that ended.
        generation: u64,
        /// The reason.
        reason: String,
    },
    /// The generation ended as planned, at this boundary on every rank. Return it from the training
    /// function: the state is kept, and training goes on in the next generation.
    #[error("generation {generation} was interrupted: the world changes")]
    Interrupted {
        /// The generation that ended.
        generation: u64,
    },
    /// A collective was called with arguments that make no sense; the generation goes on.
    #[error("a collective was called wrongly")]
    Collective(#[source] CollectiveError),
    /// The training state cannot be encoded, or a commit cannot be decoded into it.
    #[error(
        "the training state cannot be {action}; state types must survive postcard, a format without type information"
    )]
    State {
        /// `encoded` or `decoded`.
        action: &'static str,
        /// The error of postcard.
        #[source]
        source: postcard::Error,
    },
    /// The training state was decoded from a part of a commit, so the commit is of another type.
    #[error(
        "{unread} of the {length} bytes of a commit are left over when the training state is decoded from it: the commit is of \
         another type, or the state's type writes what it does not read"
    )]
    Unread {
        /// Bytes that nothing was decoded from.
        unread: usize,
        /// Length of the commit in bytes.
        length: usize,
    },
    /// The state's own code refuses to be encoded.
    #[error("the training state cannot be encoded: {reason}")]
    Refused {
        /// The reason, as the state's code gives it.
        reason: String,
    },
    /// The state's memory on the GPU cannot be committed or restored.
    #[error("the state's memory on the GPU cannot be {action}")]
    Device {
        /// `committed`, `restored` or `replaced`.
        action: &'static str,
        /// The error of the device.
        #[source]
        source: DeviceError,
    },
    /// A commit comes from a program whose state has other memory on the GPU.
    #[error(
        "the state has {ours:?} bytes of memory on the GPU, and the commit that came {theirs:?}: every rank runs one program"
    )]
    OtherDeviceMemory {
        /// The lengths of this worker's memory in bytes, in the order in which it was added.
        ours: Vec<u64>,
        /// The lengths in the commit.
        theirs: Vec<u64>,
    },
    /// The members' commit is of a state with other fields than this program's.
    #[error(
        "the state of this program has other fields, or fields of other types, than that of rank {root}, so it cannot take its \
         commit over: the program was changed while the job runs. Put the former version back; or end the job, and begin \
         another with the new version"
    )]
    OtherFields {
        /// The rank that has the commit.
        root: u32,
    },
    /// The commit that the root sent is not the one that it announced.
    #[error("the commit that came from rank {root} is not the one that it announced")]
    Corrupt {
        /// The root.
        root: u32,
    },
    /// The state cannot be loaded from a checkpoint.
    #[error(
        "the training state cannot be loaded from a checkpoint; --resume never begins from the start"
    )]
    Checkpoint(#[source] elastic_checkpoint::CheckpointLoadError),
    /// The batch plan cannot be carried out.
    #[error("the batch plan cannot be carried out")]
    BatchPlan(#[from] InvalidBatchPlan),
    /// More passes through data are unfinished than a commit holds.
    #[error("a pass through the data cannot begin")]
    Passes(#[from] TooManyPasses),
    /// The program reported a value that cannot be shown; the generation goes on.
    #[error("a value cannot be shown")]
    Report(#[from] InvalidReport),
    /// The training function's own error.
    #[error("{0}")]
    User(#[source] Box<dyn StdError + Send + Sync>),
    /// The environment that workers are started with is incomplete.
    #[error("this process was not started as a worker should be")]
    Environment(#[from] InvalidEnvironment),
    /// A step of the worker's start failed.
    #[error("the worker cannot start: {what}")]
    Start {
        /// The step that was attempted.
        what: String,
        /// The cause.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// `run` was called a second time under one driver.
    #[error("`run` was called before in this process; under a driver a process trains once")]
    RanBefore,
    /// The driver was gone for longer than the timeout.
    #[error("the driver was not there for {gone_ms} ms; this worker gave up waiting for it")]
    DriverGone {
        /// Time that the driver was gone, in milliseconds.
        gone_ms: u64,
    },
    /// The driver at this address runs another job.
    #[error("the driver runs job {theirs}, this worker was started for job {ours}")]
    WrongJob {
        /// The job that this worker was started for.
        ours: String,
        /// The driver's job.
        theirs: String,
    },
    /// The job ended, and failed.
    #[error("the job failed: {reason}{}", hint.as_deref().map(|hint| format!("; {hint}")).unwrap_or_default())]
    JobFailed {
        /// The reason, as the driver gave it.
        reason: String,
        /// Advice, if the driver gave any.
        hint: Option<String>,
    },
    /// The thread beside the training thread is gone: a fault of this library.
    #[error("the worker's actor thread ended: {reason}")]
    ActorsGone {
        /// The known cause.
        reason: String,
    },
}

/// The text for people, since `fn main() -> elastic_node::Result<()>` prints the `Debug` form of its error.
impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")?;
        self.causes().try_for_each(|cause| write!(formatter, "\n  caused by: {cause}"))
    }
}

impl Error {
    /// Wraps an error of the training function's own.
    pub fn user(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::User(error.into())
    }

    /// Whether the error only carries the end of a generation out of the training function.
    pub const fn is_reset(&self) -> bool {
        matches!(self, Self::Aborted { .. } | Self::Interrupted { .. })
    }

    /// The error with all its causes, on one line, as it is reported to the driver.
    pub fn chain(&self) -> String {
        self.causes().fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }

    fn causes(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        // The text of a user's error is already the text of this error.
        let first = match self {
            Self::User(error) => error.source(),
            _ => self.source(),
        };
        causes_from(first)
    }
}

/// An error's cause, the cause's cause, and so on.
pub(super) fn causes_from<'a>(
    first: Option<&'a (dyn StdError + 'static)>,
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(first, |error: &&'a (dyn StdError + 'static)| (*error).source())
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::user(error)
    }
}

impl From<Box<dyn StdError + Send + Sync>> for Error {
    fn from(error: Box<dyn StdError + Send + Sync>) -> Self {
        Self::User(error)
    }
}

impl From<String> for Error {
    fn from(message: String) -> Self {
        Self::user(message)
    }
}

impl From<&str> for Error {
    fn from(message: &str) -> Self {
        Self::user(message)
    }
}
