//! The event log of a state directory, for commands that read a job's past. Called by `explain`, `logs` and `timeline`.

use std::io::ErrorKind;
use std::path::Path;

use super::failure::{CommandFailure, ResultExt as _};
use crate::process::{EVENTS_FILE, lines_of, open_log};

/// Gives the log's lines to `read`, the oldest first, and returns its result. A log that had become too long and was
/// put aside is read before the present one. `command` is the command for the hint to a user who gave the wrong
/// directory.
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
    let aside = open_log(&folder.join(format!("{EVENTS_FILE}.1"))).ok();
    let log = match open_log(&path) {
        // It was just put aside: the driver makes the next one with its next line.
        Err(error) if error.kind() == ErrorKind::NotFound && aside.is_some() => None,
        opened => Some(
            opened
                .usage(format!("the event log {} cannot be read", path.display()))
                .map_err(|failure| failure.hint(&hint))?,
        ),
    };
    let mut lines = aside.into_iter().chain(log).flat_map(lines_of);
    read(&mut lines).ok_or_else(|| {
        CommandFailure::new(format!("the event log {} names no job", path.display())).hint(&hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_in_the_place_of_the_log_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink("/dev/full", folder.path().join(EVENTS_FILE)).expect("a link");
        let refused = read_event_log(folder.path(), "explain", |_| Some(()));
        let (error, _) = refused.expect_err("it has no end").finding();
        assert!(error.contains("no plain file"), "{error}");
    }

    #[test]
    fn a_log_that_was_just_put_aside_is_read_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = || read_event_log(folder.path(), "logs", |lines| lines.next());
        assert!(read().is_err(), "there is none");
        std::fs::write(folder.path().join(format!("{EVENTS_FILE}.1")), b"1\n").expect("a file");
        assert_eq!(read().expect("it is aside"), "1");
    }

    #[test]
    fn what_comes_after_a_damaged_line_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = b"{\"kind\":1}\n{\"ki\xff\x00\":2}\n{\"kind\":3}\n";
        std::fs::write(folder.path().join(EVENTS_FILE), log).expect("a file");
        let read =
            read_event_log(folder.path(), "explain", |lines| Some(lines.collect::<Vec<_>>()));
        let read = read.expect("it is there");
        assert_eq!(read.len(), 3);
        assert_eq!((&*read[0], &*read[2]), ("{\"kind\":1}", "{\"kind\":3}"));
    }
}
