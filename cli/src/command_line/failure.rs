//! Failures and their reports: `error:`, `caused by:`, `hint:` on stderr, and the exit code. Used by every command;
//! `main` reports.

use std::error::Error;
use std::fmt;
use std::io;

use anstyle::{AnsiColor, Style};

use super::logging::say;
use super::printable::printable;

/// Exit code of a failed job or command.
pub(crate) const CODE_FAILED: u8 = 1;
/// Exit code of a usage error.
pub(crate) const CODE_USAGE: u8 = 2;

/// Way out of a want of descriptors.
const MORE_DESCRIPTORS: &str =
    "raise the limit of open files (`ulimit -n`, LimitNOFILE= of a unit)";

/// A failure that `main` reports.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    code: u8,
    message: String,
    source: Option<Box<dyn Error>>,
    hint: Option<String>,
    is_told: bool,
}

impl CommandFailure {
    /// A failure with exit code `CODE_FAILED`; `message` names the step that failed.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            code: CODE_FAILED,
            message: message.into(),
            source: None,
            hint: None,
            is_told: false,
        }
    }

    /// A usage error: the command line is invalid.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: CODE_USAGE, ..Self::new(message) }
    }

    /// Sets the exit code that the driver gave the job.
    pub(crate) fn with_code(mut self, code: i32) -> Self {
        self.code = u8::try_from(code).ok().filter(|code| *code != 0).unwrap_or(CODE_FAILED);
        self
    }

    /// Adds the cause.
    pub(crate) fn source(mut self, source: impl Error + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Adds a hint: a way out.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Marks the failure as reported by another process on the same stderr, or of no interest to anybody: only the exit code remains to be given.
    pub(crate) fn told_elsewhere(mut self) -> Self {
        self.is_told = true;
        self
    }

    /// The message with its causes, and the way out, for a report that has other findings, too.
    pub(crate) fn finding(&self) -> (String, &str) {
        let causes = self.causes().into_iter();
        let text = causes.fold(self.message.clone(), |text, cause| format!("{text}: {cause}"));
        (text, self.way_out().unwrap_or_default())
    }

    /// The messages of the causes, without those that an error repeats in its own text.
    fn causes(&self) -> Vec<String> {
        let (mut causes, mut said) = (Vec::new(), self.message.clone());
        let mut cause = self.source.as_deref();
        while let Some(error) = cause {
            let message = error.to_string();
            if !said.contains(&message) {
                causes.push(message.clone());
            }
            said = message;
            cause = error.source();
        }
        causes
    }

    /// Whether this process, or the system, had no descriptor left.
    pub(crate) fn is_for_want_of_descriptors(&self) -> bool {
        matches!(self.system_code(), Some(libc::EMFILE | libc::ENFILE))
    }

    /// The system's number of the error that is behind this failure, if one is.
    pub(crate) fn system_code(&self) -> Option<i32> {
        let mut cause = self.source.as_deref();
        while let Some(error) = cause {
            if let Some(code) = error.downcast_ref().and_then(system_code) {
                return Some(code);
            }
            cause = error.source();
        }
        None
    }

    /// Whether only the exit code remains to be given.
    #[cfg(test)]
    pub(crate) const fn is_told(&self) -> bool {
        self.is_told
    }

    /// The exit code.
    pub(crate) const fn code(&self) -> u8 {
        self.code
    }

    /// Prints the failure to stderr; in colour where stderr shows colours (`NO_COLOR` is respected).
    pub(crate) fn report(&self) {
        if self.is_told {
            return;
        }
        say(&self.text());
    }

    /// The way out: its own, or that of a want of descriptors.
    fn way_out(&self) -> Option<&str> {
        let of_want = || self.is_for_want_of_descriptors().then_some(MORE_DESCRIPTORS);
        self.hint.as_deref().or_else(of_want)
    }

    fn text(&self) -> String {
        let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
        let cyan = Style::new().bold().fg_color(Some(AnsiColor::Cyan.into()));
        let mut text = format!("{red}error:{red:#} {}\n", printable(&self.message));
        for cause in self.causes() {
            text.push_str(&format!("{red}caused by:{red:#} {}\n", printable(&cause)));
        }
        if let Some(hint) = self.way_out() {
            text.push_str(&format!("{cyan}hint:{cyan:#} {}\n", printable(hint)));
        }
        text
    }
}

/// The system's number of an error, or of an error inside it. The latter is not among the error's sources.
fn system_code(error: &io::Error) -> Option<i32> {
    error.raw_os_error().or_else(|| system_code(error.get_ref()?.downcast_ref()?))
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

/// Turns errors into failures.
pub(crate) trait ResultExt<T> {
    /// A failure; `message` names the attempted step.
    fn failed(self, message: impl Into<String>) -> Result<T, CommandFailure>;
    /// A usage error; `message` says which part of the command line is invalid.
    fn usage(self, message: impl Into<String>) -> Result<T, CommandFailure>;
}

impl<T, E: Error + 'static> ResultExt<T> for Result<T, E> {
    fn failed(self, message: impl Into<String>) -> Result<T, CommandFailure> {
        self.map_err(|error| CommandFailure::new(message).source(error))
    }

    fn usage(self, message: impl Into<String>) -> Result<T, CommandFailure> {
        self.map_err(|error| CommandFailure::usage(message).source(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_one_another_and_the_hint_is_last() {
        let inner = "x".parse::<u32>().expect_err("not a number");
        let failure =
            CommandFailure::usage("--np cannot be read").source(inner).hint("give a number");
        let text = anstream::adapter::strip_str(&failure.text()).to_string();
        let expected = "error: --np cannot be read\n\
                        caused by: invalid digit found in string\n\
                        hint: give a number\n";
        assert_eq!(text, expected);
        assert_eq!(failure.code(), 2);
    }

    #[test]
    fn s_2_a_want_of_descriptors_is_seen_behind_other_errors() {
        let of = |code| io::Error::other(io::Error::from_raw_os_error(code));
        let failure = |code| CommandFailure::new("the log cannot be opened").source(of(code));
        assert!(failure(libc::EMFILE).is_for_want_of_descriptors());
        assert!(failure(libc::ENFILE).is_for_want_of_descriptors());
        assert!(!failure(libc::ENOSPC).is_for_want_of_descriptors());
        assert_eq!(failure(libc::EMFILE).finding().1, MORE_DESCRIPTORS);
        assert_eq!(failure(libc::EMFILE).hint("free some").finding().1, "free some");
        assert!(!CommandFailure::new("no cause").is_for_want_of_descriptors());
    }

    #[test]
    fn a_failed_job_never_has_code_zero() {
        assert_eq!(CommandFailure::new("x").with_code(0).code(), 1);
        assert_eq!(CommandFailure::new("x").with_code(130).code(), 130);
    }
}
