//! The event log of a state directory, for commands that read a job's past. Called by `explain`, `logs` and `timeline`.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use elastic_observe::JobLines;

use super::failure::{CommandFailure, ResultExt as _};
use super::find_job::{JobLog, short_id};
use crate::process::{EVENTS_FILE, is_locked, lines_of, number_aside, open_log};

/// Hint if a log does not have the beginning of its job.
pub(super) const OLDER_LOGS: &str =
    "older logs are read where they lie beside events.jsonl as events.jsonl.1, events.jsonl.2, …";

/// Gives the lines of a job's log to `read`, the oldest first, and returns its result: of a job that was named its own lines,
/// else all. Logs that were put aside, by the driver or by logrotate, are read before the present one. `command` is the
/// command for the hint to a user who gave the wrong directory.
///
/// # Errors
/// There is no log, or it names no job, or not the one that is meant.
pub(super) fn read_event_log<T>(
    log: &JobLog,
    command: &str,
    read: impl FnOnce(&mut dyn Iterator<Item = String>) -> Option<T>,
) -> Result<T, CommandFailure> {
    let folder = log.folder.as_path();
    let path = folder.join(EVENTS_FILE);
    let hint = format!(
        "on the driver's machine, give the driver's state directory: elastic-node {command} STATE_DIR"
    );
    let aside: Vec<File> =
        logs_aside(folder).iter().filter_map(|path| open_log(path).ok()).collect();
    let present = match open_log(&path) {
        // It was just put aside: the driver makes the next one with its next line.
        Err(error) if error.kind() == ErrorKind::NotFound && !aside.is_empty() => None,
        Err(error) if error.kind() == ErrorKind::NotFound && is_locked(folder) => {
            let message = format!("the event log {} was moved away or removed", path.display());
            return Err(CommandFailure::new(message).hint(format!(
                "the driver goes on in a new one with its next event, within half a minute; {OLDER_LOGS}"
            )));
        }
        opened => Some(
            opened
                .usage(format!("the event log {} cannot be read", path.display()))
                .map_err(|failure| failure.hint(&hint))?,
        ),
    };
    let mut own = log.job.clone().map(JobLines::new);
    let is_own = |line: &String| own.as_mut().is_none_or(|own| own.handle_line(line));
    let mut lines = aside.into_iter().chain(present).flat_map(lines_of).filter(is_own);
    read(&mut lines).ok_or_else(|| match &log.job {
        Some(job) => lines_lost(&path, job),
        None => CommandFailure::new(format!("the event log {} names no job", path.display()))
            .hint(&hint),
    })
}

/// The log has no line of a job any more.
fn lines_lost(path: &Path, job: &str) -> CommandFailure {
    let (path, job) = (path.display(), short_id(job));
    CommandFailure::new(format!("the event log {path} has no line of job {job}")).hint(format!(
        "other jobs have used this state directory, and the log of this one was moved away or removed; {OLDER_LOGS}"
    ))
}

/// The logs that were put aside and numbered, the oldest first: the highest number is the oldest.
pub(super) fn logs_aside(folder: &Path) -> Vec<PathBuf> {
    let Ok(found) = fs::read_dir(folder) else { return Vec::new() };
    let mut numbered: Vec<_> = found
        .flatten()
        .filter_map(|entry| Some((number_aside(entry.file_name().to_str()?)?, entry.path())))
        .collect();
    numbered.sort();
    numbered.into_iter().rev().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use elastic_observe::LoggedJob;

    use super::*;
    use crate::process::LOCK_FILE;

    fn last_of(folder: &tempfile::TempDir) -> JobLog {
        JobLog::of_last(folder.path())
    }

    #[test]
    fn of_a_job_that_is_named_its_own_lines_are_read_and_of_none_those_of_the_last() {
        let folder = tempfile::tempdir().expect("a folder");
        let started = |job: &str| {
            format!(r#"{{"t":"2026-01-01T00:00:00Z","kind":"driver_started","job":"{job}"}}"#)
        };
        let write = |name: &str, jobs: &[&str]| {
            let lines: String = jobs.iter().map(|job| started(job) + "\n").collect();
            fs::write(folder.path().join(name), lines).expect("written");
        };
        write(&format!("{EVENTS_FILE}.1"), &["first", "second"]);
        write(EVENTS_FILE, &["third"]);
        let read = |job: Option<&str>| {
            let log = JobLog { job: job.map(ToOwned::to_owned), ..last_of(&folder) };
            read_event_log(&log, "history", |lines| LoggedJob::of_lines(lines))
        };
        for job in ["first", "second", "third"] {
            assert_eq!(read(Some(job)).expect("it is there").job, job);
        }
        assert_eq!(read(None).expect("it is there").job, "third");
        let failure = read(Some("lost-and-gone")).expect_err("no line of it");
        let (message, hint) = failure.finding();
        assert!(message.ends_with("has no line of job lost-and"), "{message}");
        assert!(hint.contains("events.jsonl.1"), "{hint}");
    }

    #[test]
    fn a_device_in_the_place_of_the_log_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink("/dev/full", folder.path().join(EVENTS_FILE)).expect("a link");
        let refused = read_event_log(&last_of(&folder), "explain", |_| Some(()));
        let (error, _) = refused.expect_err("it has no end").finding();
        assert!(error.contains("no plain file"), "{error}");
    }

    #[test]
    fn a_log_that_was_just_put_aside_is_read_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = || read_event_log(&last_of(&folder), "logs", |lines| lines.next());
        assert!(read().is_err(), "there is none");
        fs::write(folder.path().join(format!("{EVENTS_FILE}.1")), b"1\n").expect("a file");
        assert_eq!(read().expect("it is aside"), "1");
    }

    #[test]
    fn logs_that_were_put_aside_several_times_are_read_in_their_order() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["10", "2", "1", "1.gz", "old"] {
            let path = folder.path().join(format!("{EVENTS_FILE}.{name}"));
            fs::write(path, format!("{name}\n")).expect("a file");
        }
        let read = || {
            read_event_log(&last_of(&folder), "logs", |lines| Some(lines.collect::<Vec<_>>()))
                .expect("they are there")
        };
        assert_eq!(read(), ["10", "2", "1"], "the present one was just moved");
        fs::write(folder.path().join(EVENTS_FILE), "now\n").expect("a file");
        assert_eq!(read(), ["10", "2", "1", "now"]);
    }

    #[test]
    fn a_log_that_was_moved_away_under_its_driver_is_said_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let lock = File::create(folder.path().join(LOCK_FILE)).expect("a file");
        lock.lock().expect("free");
        let error =
            read_event_log(&last_of(&folder), "logs", |_| Some(())).expect_err("it is away");
        assert!(error.finding().0.contains("was moved away or removed"));
    }

    #[test]
    fn what_comes_after_a_damaged_line_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = b"{\"kind\":1}\n{\"ki\xff\x00\":2}\n{\"kind\":3}\n";
        fs::write(folder.path().join(EVENTS_FILE), log).expect("a file");
        let read =
            read_event_log(&last_of(&folder), "explain", |lines| Some(lines.collect::<Vec<_>>()));
        let read = read.expect("it is there");
        assert_eq!(read.len(), 3);
        assert_eq!((&*read[0], &*read[2]), ("{\"kind\":1}", "{\"kind\":3}"));
    }
}
