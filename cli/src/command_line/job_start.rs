//! Whether a driver begins a job or goes on with one, as far as its state directory tells. A missing resource that a
//! running job can do without for a while is an error only at the beginning of a job. Used by `driver_plan`.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use super::failure::CommandFailure;
use super::refusal::may_pass;
use crate::process::{ADDRESS_FILE, JOURNAL_FILE, default_state_dir};

/// The part of a driver in its job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum JobStart {
    /// It begins a job.
    First,
    /// It goes on with a job, whose nodes wait for a driver.
    Again,
}

impl JobStart {
    /// The part of a driver with a journal. A driver that goes leaves a file behind, unless the job is over: its own
    /// journal, or its address if the journal is in a store.
    pub(super) fn of(state_dir: Option<&Path>, bind: SocketAddr, has_store: bool) -> Self {
        let folder = state_dir.map(Path::to_owned).or_else(|| default_state_dir(bind));
        let left = if has_store { ADDRESS_FILE } else { JOURNAL_FILE };
        let Some(folder) = folder else { return Self::First };
        Self::told_by(fs::metadata(folder.join(left)).map(|found| found.is_file()))
    }

    /// The part of a driver where a look for that file has found it, something else, or an error. A disk that does not
    /// let itself be read may hold a job.
    fn told_by(is_file: io::Result<bool>) -> Self {
        match is_file {
            Ok(true) => Self::Again,
            Ok(false) => Self::First,
            Err(error) => match error.raw_os_error() {
                Some(code) if may_pass(code) => Self::Again,
                _ => Self::First,
            },
        }
    }

    /// Refuses a job that fails a check at its beginning. A job that goes on does so all the same, with a warning.
    pub(super) fn needs(self, checked: Result<(), CommandFailure>) -> Result<(), CommandFailure> {
        match (self, checked) {
            (Self::Again, Err(failure)) => {
                let (reason, way_out) = failure.finding();
                tracing::warn!(
                    reason,
                    way_out,
                    "the job goes on all the same; this is looked at again"
                );
                Ok(())
            }
            (_, checked) => checked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_12_only_a_job_that_begins_is_refused_for_what_it_could_do_without() {
        let folder = tempfile::tempdir().expect("a folder");
        let bind = SocketAddr::from(([127, 0, 0, 1], 0));
        let of = |has_store| JobStart::of(Some(folder.path()), bind, has_store);
        let missing = || Err(CommandFailure::usage("--hostfile hosts: there is no such file"));
        assert_eq!([of(false), of(true)], [JobStart::First; 2]);
        assert!(of(false).needs(missing()).is_err(), "the first driver");
        fs::write(folder.path().join(JOURNAL_FILE), "a job").expect("ours");
        assert_eq!([of(false), of(true)], [JobStart::Again, JobStart::First]);
        fs::write(folder.path().join(ADDRESS_FILE), "127.0.0.1:7070").expect("ours");
        assert_eq!(of(true), JobStart::Again);
        assert!(of(false).needs(missing()).is_ok(), "the next driver");
    }

    #[test]
    fn d_4_a_folder_that_cannot_be_read_may_hold_a_job_and_one_that_is_not_there_holds_none() {
        let told_by = |code| JobStart::told_by(Err(io::Error::from_raw_os_error(code)));
        for code in [libc::ESTALE, libc::EIO, libc::EACCES, libc::ETIMEDOUT, libc::ENOTCONN] {
            assert_eq!(told_by(code), JobStart::Again, "{code}");
        }
        for code in [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::ENAMETOOLONG] {
            assert_eq!(told_by(code), JobStart::First, "{code}");
        }
    }
}
