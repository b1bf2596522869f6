//! [`ReportError`]: reasons why there is no support bundle. Made by `report`.

use std::io;
use std::path::PathBuf;

use crate::command_line::failure::CommandFailure;

/// Why no support bundle was written.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReportError {
    /// The path of `--output` is taken.
    #[error("--output: {} exists already, and is not written over", path.display())]
    Taken {
        /// The path.
        path: PathBuf,
    },
    /// The path of `--output` lies in no folder.
    #[error("--output: {} cannot be a file: its folder does not exist", path.display())]
    NoFolder {
        /// The path.
        path: PathBuf,
    },
    /// The path given as a state directory is none.
    #[error("{} is no state directory of a driver", path.display())]
    NoStateDir {
        /// The path.
        path: PathBuf,
    },
    /// The archive cannot be made.
    #[error("the files cannot be put into one")]
    NoArchive(#[source] io::Error),
    /// The file cannot be written.
    #[error("{} cannot be written", path.display())]
    NotWritten {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl From<ReportError> for CommandFailure {
    fn from(error: ReportError) -> Self {
        let message = error.to_string();
        match error {
            ReportError::Taken { .. } => {
                Self::usage(message).hint("give another path, or remove that file")
            }
            ReportError::NoFolder { .. } => Self::usage(message).hint("make it, or give another path"),
            ReportError::NoStateDir { .. } => Self::usage(message).hint(
                "give the folder with the driver's events.jsonl, or the first letters of the job's id; \
                 `elastic-node list` shows both",
            ),
            ReportError::NoArchive(source) => {
                Self::new(message).source(source).hint("please report this")
            }
            ReportError::NotWritten { source, .. } => {
                Self::new(message).source(source).hint("give a path in another folder: -o FILE")
            }
        }
    }
}
