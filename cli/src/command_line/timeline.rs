//! `timeline`: a job's whole life as a trace, from the event log of a state directory. Called by `main`.

use std::path::PathBuf;

use clap::Args;
use elastic_observe::JobTimeline;

use super::event_log::read_event_log;
use super::failure::CommandFailure;
use super::find_job::state_dir_of;
use super::stdout::print_line;

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
    let folder = state_dir_of(flags.state_dir.as_deref(), flags.job.as_deref())?;
    let timeline = read_event_log(&folder, "timeline", |lines| JobTimeline::of_lines(lines))?;
    let entries: Vec<String> = timeline.into_entries().iter().map(ToString::to_string).collect();
    print_line(&format!("{{\"traceEvents\":[\n{}\n]}}", entries.join(",\n")))
}
