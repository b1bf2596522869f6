//! How a failure is told: `error:`, `caused by:`, `hint:` on stderr, and the exit code.

use std::error::Error;
use std::fmt;
use std::io::Write as _;

use anstyle::{AnsiColor, Style};

/// Exit code of a job, or a command, that failed.
pub(crate) const CODE_FAILED: u8 = 1;
/// Exit code of wrong use.
pub(crate) const CODE_USAGE: u8 = 2;

/// A failure as `main` reports it.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
    source: Option<Box<dyn Error>>,
    hint: Option<String>,
    is_told: bool,
}

impl Failure {
    /// Something did not work.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            code: CODE_FAILED,
            message: message.into(),
            source: None,
            hint: None,
            is_told: false,
        }
    }

    /// The command line cannot be meant.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: CODE_USAGE, ..Self::new(message) }
    }

    /// With the exit code that the driver gave the job.
    pub(crate) fn with_code(mut self, code: i32) -> Self {
        self.code = u8::try_from(code).ok().filter(|code| *code != 0).unwrap_or(CODE_FAILED);
        self
    }

    /// With its cause.
    pub(crate) fn source(mut self, source: impl Error + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// With a way out.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Somebody else on the same stderr tells it: only the exit code is left to give.
    pub(crate) fn told_elsewhere(mut self) -> Self {
        self.is_told = true;
        self
    }

    /// The exit code.
    pub(crate) const fn code(&self) -> u8 {
        self.code
    }

    /// Prints it to stderr; in colour where stderr shows colours (`NO_COLOR` is heard).
    pub(crate) fn report(&self) {
        if self.is_told {
            return;
        }
        let mut stderr = anstream::stderr().lock();
        // Nobody is left to tell that stderr is closed.
        let _ = stderr.write_all(self.text().as_bytes());
    }

    fn text(&self) -> String {
        let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
        let cyan = Style::new().bold().fg_color(Some(AnsiColor::Cyan.into()));
        let mut text = format!("{red}error:{red:#} {}\n", self.message);
        let mut said = self.message.clone();
        let mut cause = self.source.as_deref();
        while let Some(error) = cause {
            let message = error.to_string();
            // Some errors repeat their source in their own text.
            if !said.contains(&message) {
                text.push_str(&format!("{red}caused by:{red:#} {message}\n"));
            }
            said = message;
            cause = error.source();
        }
        if let Some(hint) = &self.hint {
            text.push_str(&format!("{cyan}hint:{cyan:#} {hint}\n"));
        }
        text
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

/// Turns errors into failures.
pub(crate) trait ResultExt<T> {
    /// Something did not work: `message` says what was attempted.
    fn failed(self, message: impl Into<String>) -> Result<T, Failure>;
    /// The command line cannot be meant: `message` says which part.
    fn usage(self, message: impl Into<String>) -> Result<T, Failure>;
}

impl<T, E: Error + 'static> ResultExt<T> for Result<T, E> {
    fn failed(self, message: impl Into<String>) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(message).source(error))
    }

    fn usage(self, message: impl Into<String>) -> Result<T, Failure> {
        self.map_err(|error| Failure::usage(message).source(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_one_another_and_the_hint_is_last() {
        let inner = "x".parse::<u32>().expect_err("not a number");
        let failure = Failure::usage("--np cannot be read").source(inner).hint("give a number");
        let text = anstream::adapter::strip_str(&failure.text()).to_string();
        let expected = "error: --np cannot be read\n\
                        caused by: invalid digit found in string\n\
                        hint: give a number\n";
        assert_eq!(text, expected);
        assert_eq!(failure.code(), 2);
    }

    #[test]
    fn a_failed_job_never_has_code_zero() {
        assert_eq!(Failure::new("x").with_code(0).code(), 1);
        assert_eq!(Failure::new("x").with_code(130).code(), 130);
    }
}
