//! Errors of a configuration file: each names the file, the line and the key, and has a remedy. Used by the other files
//! of `config`.

use std::io;

use thiserror::Error;

use super::super::failure::CommandFailure;

/// A place in a configuration file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct FilePlace {
    /// The file's name, as it was given.
    pub(super) file: String,
    /// The line, from 1.
    pub(super) line: usize,
}

impl std::fmt::Display for FilePlace {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}, line {}", self.file, self.line)
    }
}

/// A configuration file that cannot be used.
#[derive(Debug, Error)]
pub(super) enum ConfigFileError {
    /// It cannot be read.
    #[error("--config {file} cannot be read: {source}")]
    Unreadable {
        /// The file's name.
        file: String,
        /// The system's reason.
        source: io::Error,
    },
    /// It is longer than any configuration.
    #[error("--config {file} is longer than {} KiB", bytes_max / 1024)]
    TooLong {
        /// The file's name.
        file: String,
        /// The bound.
        bytes_max: u64,
    },
    /// It is not TOML.
    #[error("{at}, column {column}: this is not TOML: {reason}")]
    NotToml {
        /// The place.
        at: FilePlace,
        /// The column, from 1.
        column: usize,
        /// The parser's message.
        reason: String,
    },
    /// A key is no flag's name.
    #[error("{at}: no flag is called {key:?}")]
    UnknownKey {
        /// The place.
        at: FilePlace,
        /// The key.
        key: String,
        /// The flag that is nearly called so.
        meant: Option<String>,
    },
    /// A table is none of a role or command.
    #[error("{at}: there is no table [{table}]")]
    UnknownTable {
        /// The place.
        at: FilePlace,
        /// The table's name.
        table: String,
        /// The table that is nearly called so.
        meant: Option<&'static str>,
    },
    /// A table of one role has a flag of others.
    #[error("{at}: {key} is no flag of [{table}]")]
    OtherTable {
        /// The place.
        at: FilePlace,
        /// The key.
        key: String,
        /// The table.
        table: &'static str,
        /// The tables that may have the key.
        tables: Vec<&'static str>,
    },
    /// A flag that says which file, or which part of it, is meant.
    #[error("{at}: {key} cannot be set in a configuration file")]
    OfCommandLine {
        /// The place.
        at: FilePlace,
        /// The key.
        key: String,
    },
    /// A secret itself, in place of a file with it.
    #[error("{at}: {key} is a secret, which does not belong into a configuration file")]
    SecretInFile {
        /// The place.
        at: FilePlace,
        /// The key.
        key: String,
    },
    /// A value of a type that the flag does not take.
    #[error("{at}: {key} takes {expected}, not {found}")]
    WrongType {
        /// The place.
        at: FilePlace,
        /// The key.
        key: String,
        /// The kind of value that the flag takes.
        expected: &'static str,
        /// The kind of value in the file.
        found: &'static str,
    },
    /// A value that the flag refuses.
    #[error("{at}: {key} = {value:?}: {reason}")]
    WrongValue {
        /// The place.
        at: FilePlace,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The flag's own reason.
        reason: String,
    },
    /// Two keys of the file say the same, or exclude each other.
    #[error("{at}: {key} and {other} contradict each other")]
    TwoKeys {
        /// The place of the second key.
        at: FilePlace,
        /// The second key.
        key: String,
        /// The first key.
        other: String,
    },
}

impl ConfigFileError {
    /// The way out.
    fn hint(&self) -> String {
        match self {
            Self::Unreadable { .. } => "give a file that exists and can be read".to_owned(),
            Self::TooLong { .. } => "it has one line for each flag: is it another file?".to_owned(),
            Self::NotToml { .. } => {
                "a line has the form `min-np = 2` or `hosts = \"a:2,b:2\"`; see docs/configuration.md"
                    .to_owned()
            }
            Self::UnknownKey { meant: Some(meant), .. } => format!("did you mean {meant}?"),
            Self::UnknownKey { .. } => {
                "a key is a flag's name without its dashes; `elastic-node run --help` and `elastic-node --help` list them"
                    .to_owned()
            }
            Self::UnknownTable { meant: Some(meant), .. } => format!("did you mean [{meant}]?"),
            Self::UnknownTable { .. } => "the tables are [run], [driver] and [worker]".to_owned(),
            Self::OtherTable { tables, .. } => {
                let tables: Vec<String> = tables.iter().map(|table| format!("[{table}]")).collect();
                format!("it is a flag of {}", tables.join(" and "))
            }
            Self::OfCommandLine { key, .. } => format!("give --{key} on the command line"),
            Self::SecretInFile { .. } => {
                "name a file of mode 0600 that has it: token-file = \"FILE\" for a worker, \
                 rdzv-conf = \"token_file=FILE\" for `run`"
                    .to_owned()
            }
            Self::WrongType { key, .. } | Self::WrongValue { key, .. } => {
                format!("`elastic-node --help` and `elastic-node run --help` say what --{key} takes")
            }
            Self::TwoKeys { .. } => "keep one of them".to_owned(),
        }
    }
}

impl From<ConfigFileError> for CommandFailure {
    fn from(error: ConfigFileError) -> Self {
        Self::usage(error.to_string()).hint(error.hint())
    }
}
