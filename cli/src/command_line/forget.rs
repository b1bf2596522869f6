//! `forget`: takes a job that is over out of the list of this user's jobs, with the files that are kept of it by default.
//! Called by `main`.

use clap::Args;

use super::failure::{CommandFailure, ResultExt as _};
use super::find_job::{find_job, short_id};
use super::logging::say;
use super::printable::printable;
use super::stdout::print_text;
use crate::process::{ForgottenFiles, JobCondition, JobRegistry};

/// Most files that are named of those that stay.
const LEFT_NAMED_MAX: usize = 10;

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
    let files = JobRegistry::of_user().map(|registry| registry.forget(&entry)).transpose();
    let files = files.failed(format!("job {id} cannot be forgotten"))?;
    let folder = entry.state_dir.display();
    match files {
        Some(ForgottenFiles::Kept) => {
            print_text(&format!("job {id} is forgotten; its files are kept in {folder}"))
        }
        Some(ForgottenFiles::Foreign(names)) => {
            print_text(&format!("job {id} is forgotten"))?;
            let left = list_of(&names);
            say(&printable(&format!(
                "not written by Elastic Node, and left in {folder}: {left}\n"
            )));
            Ok(())
        }
        Some(ForgottenFiles::Removed) | None => print_text(&format!("job {id} is forgotten")),
    }
}

/// The names, as many as are shown.
fn list_of(names: &[String]) -> String {
    let shown = names[..names.len().min(LEFT_NAMED_MAX)].join(", ");
    match names.len().saturating_sub(LEFT_NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_files_that_stay_the_first_are_named_and_the_others_counted() {
        let names: Vec<String> = (0..12).map(|number| format!("f{number}")).collect();
        assert_eq!(list_of(&names[..2]), "f0, f1");
        assert!(list_of(&names).ends_with("f8, f9 and 2 more"), "{}", list_of(&names));
    }
}
