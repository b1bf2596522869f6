//! Logs to stderr; stdout is data.

use std::io::{self, IsTerminal as _};

use elastic_worker::agent::output::FRESH_LINE;
use tracing_subscriber::EnvFilter;

use super::failure::{Failure, ResultExt};

/// stderr; on a terminal each event begins on a line of its own, whatever another process has left there.
#[derive(Debug)]
struct FreshLine {
    is_terminal: bool,
}

impl FreshLine {
    fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal() }
    }
}

impl io::Write for FreshLine {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        if !self.is_terminal {
            return io::stderr().write(event);
        }
        // In one call, so that nobody else writes between.
        io::stderr().write_all(&[FRESH_LINE, event].concat())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Starts logging by `filter`, in colour where stderr shows colours.
pub(crate) fn start_logging(filter: &str) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter)
        .usage(format!("--log {filter:?} is neither a level nor a list of directives"))
        .map_err(|failure| failure.hint("such as: info, debug, or warn,elastic_driver=debug"))?;
    let choice = anstream::AutoStream::choice(&io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(choice != anstream::ColorChoice::Never)
        .with_target(false)
        .with_writer(FreshLine::new)
        // It would say on stderr that stderr cannot be written, and panic of that.
        .log_internal_errors(false)
        .init();
    Ok(())
}
