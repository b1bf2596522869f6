//! `timeline`: a job's whole life as a trace, from the event log of a state directory. Called by `main`.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;

use clap::Args;
use elastic_observe::JobTimeline;

use super::failure::{CommandFailure, ResultExt as _};
use super::find_job::find_job;
use super::stdout::print_line;
use crate::process::EVENTS_FILE;

/// Flags of `timeline`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TimelineFlags {
    /// The driver's state directory; it may be that of a job that is over [default: that of the job]
    #[arg(env = "ELASTIC_STATE_DIR", value_name = "STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// The job, by the first letters of its id as `list` shows it [default: the one that runs on this machine, else
    /// the last]
    #[arg(long, value_name = "JOB", conflicts_with = "state_dir")]
    job: Option<String>,
}

/// Prints the trace: JSON that ui.perfetto.dev opens.
pub(crate) fn print_timeline(flags: &TimelineFlags) -> Result<(), CommandFailure> {
    let folder = match &flags.state_dir {
        Some(folder) => folder.clone(),
        None => find_job(flags.job.as_deref())?.state_dir,
    };
    let path = folder.join(EVENTS_FILE);
    let hint = "on the driver's machine, give the driver's state directory: elastic-node timeline STATE_DIR";
    let log = File::open(&path)
        .usage(format!("the event log {} cannot be read", path.display()))
        .map_err(|failure| failure.hint(hint))?;
    // A log that had become too long was put aside; most jobs have none.
    let aside = File::open(folder.join(format!("{EVENTS_FILE}.1"))).ok();
    let files = aside.into_iter().chain([log]);
    let lines = files.flat_map(|file| BufReader::new(file).lines().map_while(Result::ok));
    let timeline = JobTimeline::of_lines(lines).ok_or_else(|| {
        CommandFailure::new(format!("the event log {} names no job", path.display())).hint(hint)
    })?;
    let entries: Vec<String> = timeline.into_entries().iter().map(ToString::to_string).collect();
    print_line(&format!("{{\"traceEvents\":[\n{}\n]}}", entries.join(",\n")))
}
