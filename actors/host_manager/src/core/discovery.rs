//! Errors of a discovery. Made by the shell that runs it, judged by the core.

use std::time::Duration;

use elastic_protocol::ExitStatus;

use super::limits::OUTPUT_BYTES_MAX;

/// Errors of a discovery that gave no hosts.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DiscoveryError {
    /// The script could not be started.
    #[error("{command} cannot be started: {message}")]
    CannotStart {
        /// The script.
        command: String,
        /// The system's error message.
        message: String,
    },
    /// The host file could not be read.
    #[error("{path} cannot be read: {message}")]
    CannotRead {
        /// The file.
        path: String,
        /// The system's error message.
        message: String,
    },
    /// DNS failed, or gave no addresses although it had some before.
    #[error("the addresses of {name} cannot be had: {message}")]
    NoAddresses {
        /// The name.
        name: String,
        /// The system's error message.
        message: String,
    },
    /// The script ended otherwise than with exit code 0.
    #[error("{command} ended with {status}{}", after_stderr(stderr))]
    Failed {
        /// The script.
        command: String,
        /// The script's exit status.
        status: ExitStatus,
        /// The end of its stderr.
        stderr: String,
    },
    /// The script took too long, and was killed.
    #[error("{command} took longer than {limit:?} and was stopped{}", after_stderr(stderr))]
    TimedOut {
        /// The script.
        command: String,
        /// The limit.
        limit: Duration,
        /// The end of its stderr.
        stderr: String,
    },
    /// A longer host file than a list of hosts can be.
    #[error("{path} has more than {OUTPUT_BYTES_MAX} bytes")]
    TooLong {
        /// The file.
        path: String,
    },
    /// More output than a list of hosts can be.
    #[error("{command} gave more than {OUTPUT_BYTES_MAX} bytes")]
    TooMuchOutput {
        /// The script.
        command: String,
    },
    /// Output, but not one line that is a host.
    #[error("not one line is a host: {complaints}")]
    Garbage {
        /// The lines, each with its error.
        complaints: String,
    },
}

fn after_stderr(stderr: &str) -> String {
    match stderr.trim() {
        "" => "; it wrote nothing to stderr".to_owned(),
        stderr => format!("; its stderr: {stderr}"),
    }
}

impl DiscoveryError {
    /// The way out, as one sentence.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::CannotStart { .. } => {
                "give --host-discovery-script the path of an executable file (chmod +x) that begins \
                 with a #! line"
            }
            Self::CannotRead { .. } => {
                "give --hostfile the path of a file that the driver can read"
            }
            Self::NoAddresses { .. } => {
                "give --discovery the name of a service as dns://NAME, or dns://SERVER:PORT/NAME to ask \
                 another name server"
            }
            Self::Failed { .. } => {
                "run the script by hand: it must print one host:slots a line and end with exit code 0"
            }
            Self::TimedOut { .. } => {
                "run the script by hand: it is run anew for each poll, and must print the hosts and end"
            }
            Self::TooLong { .. } => {
                "write one host:slots a line into the host file, and nothing else"
            }
            Self::TooMuchOutput { .. } | Self::Garbage { .. } => {
                "print one host:slots a line on stdout, and everything else on stderr"
            }
        }
    }
}

/// The first discovery failed: the job cannot begin (H-15).
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the first host discovery failed: {error}")]
pub struct DiscoveryFailure {
    /// The cause; part of this error's own text.
    pub error: DiscoveryError,
    /// The way out, as one sentence.
    pub hint: &'static str,
}
