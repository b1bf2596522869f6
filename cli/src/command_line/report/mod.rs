//! `report`: collects the files of a bug report into one: `gather` reads them, `mask` takes secrets out, `redact`
//! names, `bundle` lists them, `archive` writes the file. Called by `main`; the driver's process stores its flags by
//! `flags`.

mod archive;
mod bundle;
mod error;
mod flags;
mod gather;
mod mask;
mod redact;

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use clap::Args;
use elastic_agent::host;
use elastic_runtime::wall_clock;
use nix::unistd::{Uid, User};

use self::archive::{archive, check_target, write_new};
use self::error::ReportError;
pub(crate) use self::flags::{masked_flags, masked_variables};
use self::gather::gather;
pub(super) use self::mask::masked_command;
use self::redact::NameRedactor;
use super::failure::CommandFailure;
use super::find_job::{JobLog, find_job, known_jobs};
use super::logging::say;
use super::printable::printable;
use super::stdout::print_line;
use crate::process::{EVENTS_FILE, JOURNAL_FILE, JobEntry, LOCK_FILE, messages_known};

/// Files of which a state directory has at least one.
const STATE_FILES: [&str; 3] = [EVENTS_FILE, JOURNAL_FILE, LOCK_FILE];

/// Flags of `report`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReportFlags {
    /// The driver's state directory, or the job, by the first letters of its id as `list` shows it; it may be over
    /// [default: the job that runs on this machine, else the last]
    #[arg(env = "ELASTIC_STATE_DIR", value_name = "STATE_DIR|JOB")]
    target: Option<PathBuf>,
    /// The job, by the first letters of its id
    #[arg(long, value_name = "JOB", conflicts_with = "target")]
    job: Option<String>,
    /// The file to write, with mode 0600: a tar archive, compressed with Zstandard
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Replace the names of hosts, addresses, users, jobs, paths and the program's arguments, each by the same everywhere
    #[arg(long)]
    redact: bool,
    /// Print the list of the files as one JSON object
    #[arg(long)]
    json: bool,
}

/// Lists the bundle's content on stderr, and writes the bundle.
pub(crate) fn run_report(flags: &ReportFlags) -> Result<(), CommandFailure> {
    check_target(&flags.output)?;
    let (log, entry) = job_of(flags)?;
    let mut bundle = gather(&log, entry.as_ref())?;
    if flags.redact {
        bundle.redact(names_known(entry.as_ref()), &messages_known());
    }
    let path = flags.output.display().to_string();
    say(&printable(&bundle.describe(&path)));
    let unix = wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
    let bytes = archive(&bundle, unix.as_secs()).map_err(ReportError::NoArchive)?;
    write_new(&flags.output, &bytes)?;
    say(&printable(&format!("{path} is written: {} bytes\n", bytes.len())));
    if flags.json {
        let mut manifest = bundle.manifest();
        manifest["bundle"] = path.into();
        if let Some(entry) = entry.filter(|_| !flags.redact) {
            manifest["job"] = entry.job.into();
        }
        manifest["bytes"] = bytes.len().into();
        print_line(&manifest.to_string())?;
    }
    Ok(())
}

/// The log of the selected job, and the job's entry in the list of this user's jobs, if it has one.
fn job_of(flags: &ReportFlags) -> Result<(JobLog, Option<JobEntry>), CommandFailure> {
    let id = match (&flags.target, &flags.job) {
        (Some(target), _) if target.is_dir() => return Ok(last_job_of(target)?),
        (Some(target), _) if target.components().count() > 1 => {
            return Err(ReportError::NoStateDir { path: target.clone() }.into());
        }
        (Some(target), _) => target.to_str(),
        (None, job) => job.as_deref(),
    };
    let entry = find_job(id)?;
    check_state_dir(&entry.state_dir)?;
    Ok((JobLog::of_entry(&entry), Some(entry)))
}

/// The log and the entry of the last job of a state directory.
fn last_job_of(folder: &Path) -> Result<(JobLog, Option<JobEntry>), ReportError> {
    check_state_dir(folder)?;
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    // Without its entry a report has the job's files all the same.
    let jobs = known_jobs().unwrap_or_default();
    let entry = jobs.into_iter().find(|entry| entry.state_dir == whole);
    Ok((JobLog::of_last(folder), entry))
}

/// Refuses a folder that is no state directory.
fn check_state_dir(folder: &Path) -> Result<(), ReportError> {
    match STATE_FILES.iter().any(|name| folder.join(name).exists()) {
        true => Ok(()),
        false => Err(ReportError::NoStateDir { path: folder.to_owned() }),
    }
}

/// The names that are known before anything is read: this host's, this user's, and the job's.
fn names_known(entry: Option<&JobEntry>) -> NameRedactor {
    let mut names = NameRedactor::default();
    if let Ok(name) = host::host_name() {
        names.add_host(name.as_str());
    }
    if let Ok(Some(user)) = User::from_uid(Uid::current()) {
        names.add_user(&user.name);
    }
    if let Some(entry) = entry {
        names.add_program(&entry.program);
        names.add_flags(&entry.flags);
        let variables = entry.variables.iter().map(|(name, value)| format!("{name}={value}"));
        names.add_flags(&variables.collect::<Vec<_>>());
    }
    names
}
