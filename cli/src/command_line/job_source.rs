//! The source of answers about a job: the driver at an address, or a job of this machine, running or over. Used by
//! `status`, and by the requests of `operate`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use elastic_observe::{LoggedJob, wall_clock_at};
use elastic_transport::TOKEN_FILE;
use tokio::time::Instant;

use super::event_log::read_event_log;
use super::failure::CommandFailure;
use super::find_job::{JobLog, find_job};
use super::values::hosts_and_ports;
use crate::process::{
    JobCondition, JobEnd, JobEntry, TokenSource, address_on_this_machine, entry_time, is_locked,
};

/// Address of a driver that was given none.
const DEFAULT_DRIVER: &str = "127.0.0.1:7070";

/// Timeout of a driver that answers no more and still holds its state directory, to end.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Interval between two looks at whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Flags for a driver that is not in the list of this user's jobs.
#[derive(Args, Clone, Debug)]
pub(crate) struct DriverAccess {
    /// The driver, as HOST:PORT; with the other drivers that may act, separated by commas [default: that of the job]
    #[arg(long, env = "ELASTIC_DRIVER", value_name = "ADDR")]
    driver: Option<String>,
    /// A file with the driver's token [default: that of its state directory on this machine]
    #[arg(long, env = "ELASTIC_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The driver's state directory, if one was given to it
    #[arg(long, env = "ELASTIC_STATE_DIR", value_name = "FOLDER")]
    state_dir: Option<PathBuf>,
}

/// The source of answers about a job.
pub(super) enum JobSource {
    /// The driver at an address, with the token that it asks for.
    Driver(String, TokenSource),
    /// A job that is over.
    Over(Box<EndedJob>),
    /// A job whose driver does not run any more, and has told no end.
    Lost(Box<JobEntry>),
}

/// A job that is over.
pub(super) struct EndedJob {
    /// Its id.
    pub(super) job: String,
    /// Its end.
    pub(super) end: JobEnd,
}

impl EndedJob {
    /// The job of this machine's list with this id, if it is over.
    pub(super) fn listed(job: &str) -> Option<Box<Self>> {
        let JobEntry { job, ended, .. } = find_job(Some(job)).ok()?;
        Some(Box::new(Self { job, end: ended? }))
    }

    /// The last job of a state directory, if it is over and has no driver any more. The list may not have it: it is that of
    /// one user, and forgets the oldest.
    fn of_state_dir(folder: &Path) -> Option<Box<Self>> {
        if folder.join(TOKEN_FILE).exists() || is_locked(folder) {
            return None;
        }
        let LoggedJob { job, result, last_at, .. } =
            read_event_log(&JobLog::of_last(folder), "status --state-dir", |lines| {
                LoggedJob::of_lines(lines)
            })
            .ok()?;
        let end = JobEnd { at: entry_time(wall_clock_at(last_at)), result: result?, status: None };
        // The list has the last status, too.
        Some(Self::listed(&job).unwrap_or_else(|| Box::new(Self { job, end })))
    }
}

impl DriverAccess {
    /// The end of a job whose driver did not answer, if the driver is about to end: its token is withdrawn, and its process
    /// holds the state directory for a moment more.
    pub(super) async fn end_soon(&self, job: Option<&str>) -> Option<Box<EndedJob>> {
        let folder = match (job, &self.state_dir, &self.driver) {
            (None, Some(folder), _) => folder.clone(),
            (_, _, None) => find_job(job).ok()?.state_dir,
            (_, _, Some(_)) => return None,
        };
        let asked_at = Instant::now();
        loop {
            let is_ending = is_locked(&folder) && asked_at.elapsed() < ENDS_WITHIN;
            match self.source(job) {
                Ok(JobSource::Over(ended)) => return Some(ended),
                _ if is_ending => tokio::time::sleep(LOOK_EVERY).await,
                _ => return None,
            }
        }
    }

    /// Finds a job again that [`source`](Self::source) has found: its next driver may have another address.
    ///
    /// # Errors
    /// There is none any more.
    pub(super) fn source_again(
        &self,
        given: Option<&str>,
        known: Option<&str>,
    ) -> Result<JobSource, CommandFailure> {
        let is_named = self.driver.is_some() || (self.state_dir.is_some() && given.is_none());
        let listed = known.filter(|known| !is_named && find_job(Some(known)).is_ok());
        self.source(listed.or(given))
    }

    /// Finds the job: the one whose id begins so, the one at the given address, or the one of this machine.
    ///
    /// # Errors
    /// There is none, or several may be meant.
    pub(super) fn source(&self, job: Option<&str>) -> Result<JobSource, CommandFailure> {
        let (driver, token) = (self.driver.as_deref(), self.token_file.as_deref());
        let folder = self.state_dir.as_deref();
        let at = |driver: &str, folder: Option<&Path>| {
            let driver = hosts_and_ports(driver)
                .map_err(|reason| CommandFailure::usage(format!("--driver: {reason}")))
                .map_err(|failure| {
                    failure.hint("give the address that the driver printed: HOST:PORT")
                })?;
            let token = TokenSource::new(&driver, None, token, folder)?;
            Ok(JobSource::Driver(driver, token))
        };
        let is_of_folder = token.is_none() && job.is_none();
        if let Some(ended) = folder.filter(|_| is_of_folder).and_then(EndedJob::of_state_dir) {
            return Ok(JobSource::Over(ended));
        }
        if let Some(driver) = driver {
            return at(driver, folder);
        }
        if let Some(folder) = folder.filter(|_| job.is_none()) {
            let address = address_on_this_machine(folder).map(|address| address.to_string());
            return at(address.as_deref().unwrap_or(DEFAULT_DRIVER), Some(folder));
        }
        let found = find_job(job);
        let is_running = found.as_ref().is_ok_and(|job| job.condition() == JobCondition::Running);
        // A driver that is in no list, such as one of another user whose token file is given.
        if job.is_none()
            && !is_running
            && let JobSource::Driver(driver, source) = at(DEFAULT_DRIVER, None)?
            && (token.is_some() || !source.is_missing())
        {
            return Ok(JobSource::Driver(driver, source));
        }
        let entry = found?;
        if is_running {
            // The address that other machines use may be out of reach from the driver's own.
            let here = address_on_this_machine(&entry.state_dir).map(|here| here.to_string());
            let addresses = match here.filter(|here| *here != entry.address) {
                Some(here) => format!("{},{here}", entry.address),
                None => entry.address,
            };
            return at(&addresses, Some(&entry.state_dir));
        }
        match entry.ended {
            Some(end) => Ok(JobSource::Over(Box::new(EndedJob { job: entry.job, end }))),
            None => Ok(JobSource::Lost(Box::new(entry))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use elastic_runtime::system;

    use super::*;
    use crate::process::{EVENTS_FILE, LOCK_FILE};

    fn access(folder: &Path) -> DriverAccess {
        let state_dir = Some(folder.to_path_buf());
        DriverAccess { driver: None, token_file: None, state_dir }
    }

    /// A state directory whose token is withdrawn, and whose log has the end of its job if `is_over`; with the driver's lock.
    fn ending(is_over: bool) -> (tempfile::TempDir, File) {
        let folder = tempfile::tempdir().expect("a folder");
        let event = |second: u32, rest: &str| {
            format!(
                r#"{{"t":"2026-01-01T00:00:0{second}Z","term":1,"generation":0,{rest}}}{}"#,
                "\n"
            )
        };
        let mut log = event(0, r#""kind":"driver_started","job":"it""#);
        if is_over {
            let result = r#"{"outcome":"succeeded","code":0,"reason":"done","hint":null,"generation":1,"first_failure":null}"#;
            log += &event(1, &format!(r#""kind":"job_ended","result":{result}"#));
        }
        fs::write(folder.path().join(EVENTS_FILE), log).expect("written");
        let lock = File::create(folder.path().join(LOCK_FILE)).expect("a file");
        lock.try_lock().expect("nobody else has it");
        (folder, lock)
    }

    #[test]
    fn a_driver_that_withdrew_its_token_and_still_ends_is_waited_for() {
        let (folder, lock) = ending(true);
        assert!(!matches!(access(folder.path()).source(None), Ok(JobSource::Over(_))));
        let over = system::run_paused(async {
            let ends = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                drop(lock);
            };
            let access = access(folder.path());
            let (over, ()) = futures_util::future::join(access.end_soon(None), ends).await;
            over
        });
        let over = over.expect("its end is known");
        assert_eq!((over.job.as_str(), over.end.result.code), ("it", 0));
    }

    #[test]
    fn g_9_a_driver_that_does_not_end_is_waited_for_no_longer_than_its_time() {
        let (folder, _lock) = ending(true);
        system::run_paused(async {
            let asked_at = Instant::now();
            assert!(access(folder.path()).end_soon(None).await.is_none());
            assert!(asked_at.elapsed() >= ENDS_WITHIN);
        });
    }

    #[test]
    fn a_driver_that_was_killed_is_not_waited_for() {
        let (folder, lock) = ending(false);
        drop(lock);
        let over = system::run_paused(async { access(folder.path()).end_soon(None).await });
        assert!(over.is_none(), "its log has no end");
    }
}
