//! Whether a driver begins a job or goes on with one, as far as its state directory tells. A missing resource that a
//! running job can do without for a while is an error only at the beginning of a job. Used by `driver_plan`.

use std::net::SocketAddr;
use std::path::Path;

use super::failure::CommandFailure;
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
        match folder {
            Some(folder) if folder.join(left).is_file() => Self::Again,
            _ => Self::First,
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
        std::fs::write(folder.path().join(JOURNAL_FILE), "a job").expect("ours");
        assert_eq!([of(false), of(true)], [JobStart::Again, JobStart::First]);
        std::fs::write(folder.path().join(ADDRESS_FILE), "127.0.0.1:7070").expect("ours");
        assert_eq!(of(true), JobStart::Again);
        assert!(of(false).needs(missing()).is_ok(), "the next driver");
    }
}
