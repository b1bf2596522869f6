//! Where a job is that a command asks: the driver at an address, or a job of this machine, running or over. Used by
//! `status`, and by the requests of `operate`.

use std::fs;
use std::path::Path;

use super::failure::CommandFailure;
use super::find_job::find_job;
use super::values::hosts_and_ports;
use crate::process::{ADDRESS_FILE, JobCondition, JobEntry, TokenSource};

/// Address of a driver that was given none.
const DEFAULT_DRIVER: &str = "127.0.0.1:7070";

/// The job that a command line names.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedJob<'a> {
    /// The first letters of its id.
    pub(super) job: Option<&'a str>,
    /// The address of its driver.
    pub(super) driver: Option<&'a str>,
    /// A file with its token.
    pub(super) token_file: Option<&'a Path>,
    /// Its driver's state directory.
    pub(super) state_dir: Option<&'a Path>,
}

/// Where the job is.
pub(super) enum JobSource {
    /// The driver at an address, with the token that it asks for.
    Driver(String, TokenSource),
    /// A job whose driver does not run any more.
    Past(Box<JobEntry>),
}

impl WantedJob<'_> {
    /// Finds the job.
    ///
    /// # Errors
    /// There is none, or several may be meant.
    pub(super) fn source(&self) -> Result<JobSource, CommandFailure> {
        let Self { job, driver, token_file: token, state_dir: folder } = *self;
        let at = |driver: &str, folder: Option<&Path>| {
            let driver = hosts_and_ports(driver)
                .map_err(|reason| CommandFailure::usage(format!("--driver: {reason}")))
                .map_err(|failure| {
                    failure.hint("give the address that the driver printed: HOST:PORT")
                })?;
            let token = TokenSource::new(&driver, None, token, folder)?;
            Ok(JobSource::Driver(driver, token))
        };
        if let Some(driver) = driver {
            return at(driver, folder);
        }
        if let Some(folder) = folder.filter(|_| job.is_none()) {
            let address = fs::read_to_string(folder.join(ADDRESS_FILE)).unwrap_or_default();
            let address = address.trim();
            return at(if address.is_empty() { DEFAULT_DRIVER } else { address }, Some(folder));
        }
        let found = find_job(job);
        let is_running = found.as_ref().is_ok_and(|job| job.condition() == JobCondition::Running);
        // A driver that is in no list, such as one of another user whose token file is given.
        if job.is_none()
            && !is_running
            && let JobSource::Driver(driver, source) = at(DEFAULT_DRIVER, None)?
            && (token.is_some() || !source.may_appear())
        {
            return Ok(JobSource::Driver(driver, source));
        }
        let entry = found?;
        match is_running {
            true => at(&entry.address, Some(&entry.state_dir)),
            false => Ok(JobSource::Past(Box::new(entry))),
        }
    }
}
