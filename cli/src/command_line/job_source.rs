//! The source of answers about a job: the driver at an address, or a job of this machine, running or over. Used by
//! `status`, and by the requests of `operate`.

use std::path::{Path, PathBuf};

use clap::Args;
use elastic_observe::{LoggedJob, wall_clock_at};
use elastic_transport::TOKEN_FILE;

use super::event_log::read_event_log;
use super::failure::CommandFailure;
use super::find_job::{JobLog, find_job};
use super::values::hosts_and_ports;
use crate::process::{
    JobCondition, JobEnd, JobEntry, TokenSource, address_on_this_machine, entry_time, is_locked,
};

/// Address of a driver that was given none.
const DEFAULT_DRIVER: &str = "127.0.0.1:7070";

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
