//! `forget`: takes a job that is over out of the list of this user's jobs, with the files that are kept of it by default.
//! Called by `main`.

use clap::Args;

use super::failure::{CommandFailure, ResultExt as _};
use super::find_job::{find_job, short_id};
use super::stdout::print_text;
use crate::process::{JobCondition, JobRegistry};

/// Flags of `forget`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ForgetFlags {
    /// The job, by the first letters of its id as `list` shows it
    #[arg(value_name = "JOB")]
    job: String,
}

/// Forgets a job.
pub(crate) fn forget_job(flags: &ForgetFlags) -> Result<(), CommandFailure> {
    let entry = find_job(Some(&flags.job))?;
    let id = short_id(&entry.job);
    if entry.condition() == JobCondition::Running {
        return Err(CommandFailure::usage(format!("job {id} still runs"))
            .hint(format!("`elastic-node stop {id}` ends it")));
    }
    let kept = JobRegistry::of_user().map(|registry| registry.forget(&entry)).transpose();
    let kept = kept.failed(format!("job {id} cannot be forgotten"))?.flatten();
    print_text(&match kept {
        None => format!("job {id} is forgotten"),
        Some(folder) => {
            format!("job {id} is forgotten; its files are kept in {}", folder.display())
        }
    })
}
