//! [`JournalError`]: errors of reading or writing a journal. Returned by every store.

use std::io;

/// Errors of reading or writing a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk is full, or a quota or a limit of the file's size is reached: the source says which.
    #[error("the journal cannot be written: no space is left for it")]
    Full(#[source] io::Error),
    /// The journal is read-only.
    #[error("the journal cannot be written: it is read-only")]
    ReadOnly(#[source] io::Error),
    /// The stored bytes are not the bytes that were written.
    #[error("the journal is damaged: {0}")]
    Corrupt(String),
    /// Another process has the journal open.
    #[error("another driver has the journal open")]
    InUse,
    /// Another journal, which nobody has open and which this one must not replace, stands where this one stood.
    #[error("another journal stands in its place, {place}: {what}")]
    Displaced {
        /// Name of the place.
        place: String,
        /// The reason for which that journal, or other file, is not replaced.
        what: String,
    },
    /// Another driver has taken over: this one must not act any more.
    #[error("another driver has taken over: {0}")]
    Fenced(String),
    /// This driver does not lead any more, and no other one is known to: it must not act.
    #[error("this driver does not lead any more: {0}")]
    NotLeading(String),
    /// Another error of the system.
    #[error("the journal cannot be reached")]
    Io(#[source] io::Error),
}

impl JournalError {
    /// Whether the same call may succeed later, for example when the disk has room again or is repaired.
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::Full(_) | Self::ReadOnly(_) | Self::Io(_))
    }

    /// Advice for the operator.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Full(error) if matches!(error.kind(), io::ErrorKind::FileTooLarge) => {
                "files may not become that large here: raise that limit (`ulimit -f`)"
            }
            Self::Full(_) => "make room on that disk",
            Self::ReadOnly(_) => {
                "make the state directory writable, or give another with --state-dir"
            }
            Self::Corrupt(_) => {
                "put an intact copy in its place; or remove it to begin a new job: workers of the old one \
                 then end by themselves"
            }
            Self::Displaced { .. } => {
                "put aside what stands there, put the newest copy of this job's journal in its place, and start the \
                 driver again"
            }
            Self::InUse | Self::Fenced(_) => "leave the job to that driver",
            Self::NotLeading(_) => "another driver goes on with the job, or this one started again",
            Self::Io(_) => "see what the system says of that disk",
        }
    }
}

impl From<io::Error> for JournalError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Self::Full(error),
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                Self::ReadOnly(error)
            }
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                Self::Corrupt(error.to_string())
            }
            _ => Self::Io(error),
        }
    }
}

impl From<redb::StorageError> for JournalError {
    fn from(error: redb::StorageError) -> Self {
        match error {
            redb::StorageError::Io(error) => error.into(),
            redb::StorageError::Corrupted(what) => Self::Corrupt(what),
            other => Self::Io(io::Error::other(other)),
        }
    }
}

impl From<redb::DatabaseError> for JournalError {
    fn from(error: redb::DatabaseError) -> Self {
        match error {
            redb::DatabaseError::DatabaseAlreadyOpen => Self::InUse,
            redb::DatabaseError::Storage(error) => error.into(),
            other => Self::Corrupt(other.to_string()),
        }
    }
}

impl From<redb::TransactionError> for JournalError {
    fn from(error: redb::TransactionError) -> Self {
        match error {
            redb::TransactionError::Storage(error) => error.into(),
            other => Self::Io(io::Error::other(other)),
        }
    }
}

impl From<redb::TableError> for JournalError {
    fn from(error: redb::TableError) -> Self {
        match error {
            redb::TableError::Storage(error) => error.into(),
            other => Self::Corrupt(other.to_string()),
        }
    }
}

impl From<redb::CommitError> for JournalError {
    fn from(error: redb::CommitError) -> Self {
        match error {
            redb::CommitError::Storage(error) => error.into(),
            other => Self::Io(io::Error::other(other)),
        }
    }
}
