//! Errors of writers and readers of checkpoints. They name the file and its defect.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::step_directory;

/// A checkpoint cannot be saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The file system refused an operation.
    #[error("{action} {path} failed{}", way_out(.source))]
    Io {
        /// The attempted operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A directory is to be made in the place of a symbolic link.
    #[error(
        "{path} is a link to a place that does not exist: make that folder, or remove the link"
    )]
    DanglingLink {
        /// The link.
        path: PathBuf,
    },
    /// A part that its writer has reported is not there.
    #[error(
        "part {rank} of {world_size} is not visible in {directory}: the directory must be one that all hosts share"
    )]
    PartMissing {
        /// The writer.
        rank: u32,
        /// The number of writers.
        world_size: u32,
        /// The step's directory.
        directory: PathBuf,
    },
    /// A part was removed while the checkpoint was made whole.
    #[error(
        "part {rank} was removed from {directory} by a later save: this one counts as given up"
    )]
    PartRemoved {
        /// The writer.
        rank: u32,
        /// The step's directory.
        directory: PathBuf,
    },
    /// Two writers' parts are not of the same commit.
    #[error("part {rank} is of another commit than part 0: {what} differ")]
    PartsDiffer {
        /// The writer of the part.
        rank: u32,
        /// The property in which the parts differ.
        what: &'static str,
    },
    /// The arrays make no sense.
    #[error("the array {name:?} cannot be written: {reason}")]
    Tensor {
        /// The array.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The save was given up by its owner.
    #[error("the save was given up")]
    GivenUp,
}

impl SaveError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// The limit behind an error that names none.
fn way_out(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::FileTooLarge => " (a limit of the size of files: `ulimit -f`)",
        _ => "",
    }
}

/// Reason for which a checkpoint is not taken: one for each checkpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Damage {
    /// It has no manifest: its save did not end.
    Partial,
    /// A file that its manifest names is missing.
    Missing {
        /// The file.
        file: String,
    },
    /// A file cannot be read.
    Unreadable {
        /// The file.
        file: String,
        /// The system's error.
        reason: String,
    },
    /// A file has another length than it was written with.
    Length {
        /// The file.
        file: String,
        /// The length, in bytes.
        found: u64,
        /// The length that was written.
        written: u64,
    },
    /// A part of a file has other content than was written.
    Content {
        /// The file.
        file: String,
        /// Offset of the damaged part, in bytes.
        offset: u64,
    },
    /// The manifest cannot be understood.
    Manifest {
        /// The defect.
        reason: String,
    },
    /// The state that it has is of another type than the program's.
    OtherState {
        /// The fields of the state in it.
        saved: String,
        /// The fields of the program's state.
        own: String,
    },
    /// Its commit is whole, and the program's state cannot be read from it.
    Undecodable {
        /// The defect, in words.
        reason: String,
    },
    /// It belongs to another job, its directory was renamed, or its name is that of a file.
    Foreign {
        /// The mismatch, in words.
        reason: String,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partial => {
                formatter.write_str("partial: it has no manifest, its save did not end")
            }
            Self::Missing { file } => write!(formatter, "{file} is missing"),
            Self::Unreadable { file, reason } => {
                write!(formatter, "{file} cannot be read: {reason}")
            }
            Self::Length { file, found, written } => {
                write!(formatter, "{file} has {found} bytes instead of {written}")
            }
            Self::Content { file, offset } => {
                write!(
                    formatter,
                    "{file} has other content than was written, from byte {offset} on"
                )
            }
            Self::Manifest { reason } => write!(formatter, "manifest.json: {reason}"),
            Self::OtherState { saved, own } => {
                write!(
                    formatter,
                    "the state in it has the fields {saved}, and the program's has {own}: a state is read in the order of its fields. \
                     Give the type those fields in that order, or begin anew with --resume never"
                )
            }
            Self::Undecodable { reason } => {
                write!(
                    formatter,
                    "{reason}. Give the fields of the state the types that they had when it was saved, or begin anew with --resume never"
                )
            }
            Self::Foreign { reason } => formatter.write_str(reason),
        }
    }
}

/// Checkpoints cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointLoadError {
    /// The directory cannot be listed.
    #[error("the directory of checkpoints {path} cannot be listed")]
    List {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There are checkpoints, and none is whole.
    #[error("none of the checkpoints in {path} is whole: {damages}")]
    NoneWhole {
        /// The directory.
        path: PathBuf,
        /// Each with its reason.
        damages: String,
    },
    /// The step that was asked for has no directory.
    #[error("there is no checkpoint {path}")]
    NoSuchStep {
        /// The directory that it would have.
        path: PathBuf,
        /// The steps that have one beside it, in order.
        others: Vec<u64>,
    },
    /// The checkpoint that was asked for is not whole.
    #[error("the checkpoint {path} cannot be taken: {damage}")]
    Damaged {
        /// Its directory.
        path: PathBuf,
        /// The defect.
        damage: Damage,
    },
    /// A checkpoint is later than the step to begin from, and cannot be set aside: the job would go on from it after a loss of
    /// all workers.
    #[error(
        "the checkpoint {path} is of a later step than training is to begin from, and cannot be set aside; remove it or \
         move it away, or give another folder (--checkpoint) and the path of the step (--resume)"
    )]
    InTheWay {
        /// Its directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The checkpoint that the job has saved or loaded last is not there.
    #[error(
        "the checkpoint of step {step}, which this job has saved or loaded, is not in {path}: is that folder mounted on \
         every host?"
    )]
    Gone {
        /// Its step.
        step: u64,
        /// The directory.
        path: PathBuf,
    },
    /// A copy for other readers cannot be written.
    #[error("the copy cannot be written")]
    Export(#[source] Box<SaveError>),
}

/// Most steps that a hint names, the newest of them.
const STEPS_NAMED_MAX: usize = 8;

impl CheckpointLoadError {
    /// The way out, where it depends on what is there.
    pub fn hint(&self) -> Option<String> {
        let Self::NoSuchStep { path, others } = self else { return None };
        let directory = path.parent().unwrap_or(path).display();
        let earlier = others.len().saturating_sub(STEPS_NAMED_MAX);
        let named: Vec<String> = others[earlier..].iter().map(ToString::to_string).collect();
        let Some(newest) = others.last() else {
            return Some(format!(
                "{directory} has no checkpoint of any step: is that folder mounted on every host?"
            ));
        };
        let more =
            if earlier == 0 { String::new() } else { format!(" and {earlier} earlier ones") };
        let (named, newest) = (named.join(", "), step_directory(*newest));
        Some(format!(
            "{directory} has the steps {named}{more}: give one of them, such as {directory}/{newest}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_for_a_step_that_is_not_there_names_the_newest_that_are() {
        let hint = |others: &[u64]| {
            let (path, others) = ("ck/step-0000000020".into(), others.to_vec());
            CheckpointLoadError::NoSuchStep { path, others }.hint().expect("it has one")
        };
        let one = "ck has the steps 40: give one of them, such as ck/step-0000000040";
        assert_eq!(hint(&[40]), one);
        let many: Vec<u64> = (1..=10).collect();
        assert_eq!(
            hint(&many),
            "ck has the steps 3, 4, 5, 6, 7, 8, 9, 10 and 2 earlier ones: give one of them, such as ck/step-0000000010"
        );
        assert!(hint(&[]).contains("mounted"), "{}", hint(&[]));
    }
}
