//! The event log of a state directory, for commands that read a job's past. Called by `explain`, `logs` and `timeline`.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use super::failure::{CommandFailure, ResultExt as _};
use crate::process::EVENTS_FILE;

/// Reads what `read` finds in the log's lines, the oldest first; a log that had become too long and was put aside is
/// read before the present one. `command` is what a user who gave the wrong directory types instead.
///
/// # Errors
/// There is no log, or it names no job.
pub(crate) fn read_event_log<T>(
    folder: &Path,
    command: &str,
    read: impl FnOnce(&mut dyn Iterator<Item = String>) -> Option<T>,
) -> Result<T, CommandFailure> {
    let path = folder.join(EVENTS_FILE);
    let hint = format!(
        "on the driver's machine, give the driver's state directory: elastic-node {command} STATE_DIR"
    );
    let log = File::open(&path)
        .usage(format!("the event log {} cannot be read", path.display()))
        .map_err(|failure| failure.hint(&hint))?;
    let aside = File::open(folder.join(format!("{EVENTS_FILE}.1"))).ok();
    let files = aside.into_iter().chain([log]);
    let mut lines = files.flat_map(|file| BufReader::new(file).lines().map_while(Result::ok));
    read(&mut lines).ok_or_else(|| {
        CommandFailure::new(format!("the event log {} names no job", path.display())).hint(&hint)
    })
}
