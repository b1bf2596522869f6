//! Logs to stderr; stdout is data.

use std::io;

use tracing_subscriber::EnvFilter;

use super::failure::{Failure, ResultExt};

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
        .with_writer(io::stderr)
        .init();
    Ok(())
}
