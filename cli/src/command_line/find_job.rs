//! The job that a command means: that of the driver at an address, the one with an id, or the one of this user on this
//! machine. Used by `list`, `status`, `explain`, `logs`, `timeline` and `report`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::failure::CommandFailure;
use crate::process::{JobCondition, JobEntry, JobRegistry};

/// Letters of a job's id that `list` shows.
const ID_SHOWN: usize = 8;

/// The state directory of a job, as a word or as a flag.
#[derive(Args, Clone, Debug)]
pub(super) struct StateDirFlags {
    /// The driver's state directory; it may be that of a job that is over [default: that of the job]
    #[arg(env = "ELASTIC_STATE_DIR", value_name = "STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// The same
    #[arg(
        id = "state_dir_flag",
        long = "state-dir",
        value_name = "FOLDER",
        conflicts_with = "job"
    )]
    flag: Option<PathBuf>,
}

impl StateDirFlags {
    /// The directory that is given.
    pub(super) fn given(&self) -> Option<&Path> {
        self.flag.as_deref().or(self.state_dir.as_deref())
    }
}

/// All jobs that are known here, the newest first.
pub(super) fn known_jobs() -> Result<Vec<JobEntry>, CommandFailure> {
    let Some(registry) = JobRegistry::of_user() else { return Ok(Vec::new()) };
    registry.jobs().map_err(|error| {
        let folder = registry.folder();
        CommandFailure::new(format!(
            "the list of this user's jobs, {}, cannot be read",
            folder.display()
        ))
        .source(error)
        .hint("give the folder back to this user, or name the job by `--driver` or `--state-dir`")
    })
}

/// The job whose id begins so; without an id the running job, else the last.
pub(super) fn find_job(id: Option<&str>) -> Result<JobEntry, CommandFailure> {
    choose(known_jobs()?, id, &JobEntry::condition)
}

/// The event log of a job.
#[derive(Clone, Debug)]
pub(super) struct JobLog {
    /// The state directory that it is in.
    pub(super) folder: PathBuf,
    /// The job's id, since other jobs may have used the directory; none: the last job of the log.
    pub(super) job: Option<String>,
}

impl JobLog {
    /// That of the last job of a state directory.
    pub(super) fn of_last(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), job: None }
    }

    /// That of a job of the list.
    pub(super) fn of_entry(entry: &JobEntry) -> Self {
        Self { folder: entry.state_dir.clone(), job: Some(entry.job.clone()) }
    }

    /// That of the given state directory, else of the selected job.
    pub(super) fn find(given: Option<&Path>, id: Option<&str>) -> Result<Self, CommandFailure> {
        match given {
            Some(folder) => Ok(Self::of_last(folder)),
            None => Ok(Self::of_entry(&find_job(id)?)),
        }
    }

    /// Whether the log may be of this job.
    pub(super) fn is_of(&self, job: &str) -> bool {
        self.job.as_deref().is_none_or(|ours| ours == job)
    }
}

fn choose(
    jobs: Vec<JobEntry>,
    id: Option<&str>,
    condition: &dyn Fn(&JobEntry) -> JobCondition,
) -> Result<JobEntry, CommandFailure> {
    let mut meant: Vec<JobEntry> = match id {
        Some(id) => jobs.into_iter().filter(|job| job.job.starts_with(id)).collect(),
        None => jobs,
    };
    let running: Vec<&JobEntry> =
        meant.iter().filter(|job| condition(job) == JobCondition::Running).collect();
    match (id, meant.len(), &running[..]) {
        (None, 0, _) => Err(CommandFailure::usage("no job of this user is known on this machine")
            .hint("for a job elsewhere: --driver HOST:PORT --token-file FILE")),
        (Some(id), 0, _) => {
            Err(CommandFailure::usage(format!("no job {id} is known on this machine"))
                .hint("`elastic-node list` shows the jobs of this user"))
        }
        (Some(id), 2.., _) => {
            Err(CommandFailure::usage(format!("{id} may be any of {}", names(meant.iter())))
                .hint("give more letters of the id"))
        }
        (None, _, [_, _, ..]) => Err(CommandFailure::usage(format!(
            "{} jobs run on this machine: {}",
            running.len(),
            names(running.iter().copied())
        ))
        .hint("say which is meant by its id; `elastic-node list` shows them")),
        (None, _, [only]) => Ok((*only).clone()),
        _ => Ok(meant.remove(0)),
    }
}

/// The first letters of the ids of jobs.
fn names<'a>(jobs: impl Iterator<Item = &'a JobEntry>) -> String {
    jobs.map(|job| short_id(&job.job)).collect::<Vec<_>>().join(", ")
}

/// The begin of a job's id, which names it among the jobs of a machine.
pub(crate) fn short_id(id: &str) -> String {
    id.chars().take(ID_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn job(id: &str) -> JobEntry {
        JobEntry {
            job: id.to_owned(),
            started_at: String::new(),
            address: String::new(),
            state_dir: "/nope".into(),
            pid: 0,
            program: Vec::new(),
            flags: Vec::new(),
            variables: BTreeMap::new(),
            version: String::new(),
            ended: None,
        }
    }

    #[test]
    fn the_job_that_runs_is_meant_else_the_last_one() {
        let chosen = |jobs: &[&str], id: Option<&str>, running: &[&str]| {
            let condition = |job: &JobEntry| match running.contains(&job.job.as_str()) {
                true => JobCondition::Running,
                false => JobCondition::Succeeded,
            };
            let jobs = jobs.iter().map(|id| job(id)).collect();
            choose(jobs, id, &condition).map(|job| job.job).map_err(|error| error.to_string())
        };
        assert_eq!(chosen(&["new", "old"], None, &[]).as_deref(), Ok("new"));
        assert_eq!(chosen(&["new", "old"], None, &["old"]).as_deref(), Ok("old"));
        assert_eq!(chosen(&["new", "old"], Some("ol"), &["new"]).as_deref(), Ok("old"));
        let error = chosen(&["new", "old"], None, &["new", "old"]).expect_err("two");
        assert_eq!(error, "2 jobs run on this machine: new, old");
        assert!(chosen(&["ab", "ac"], Some("a"), &[]).is_err());
        assert!(chosen(&[], None, &[]).is_err());
        assert!(chosen(&["ab"], Some("x"), &[]).is_err());
    }
}
