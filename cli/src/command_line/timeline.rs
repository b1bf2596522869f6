//! `timeline`: a job's whole life as a trace, from the event log of a state directory. Called by `main`. The log is read
//! twice, first for the id of its job, and the trace written as it is made: neither is ever in memory as a whole.

use std::io::{self, BufWriter, Write as _};

use clap::Args;
use elastic_observe::JobTimeline;

use super::event_log::read_event_log;
use super::failure::CommandFailure;
use super::find_job::{JobLog, StateDirFlags};
use super::stdout::written;

/// Flags of `timeline`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TimelineFlags {
    /// The driver's state directory.
    #[command(flatten)]
    folder: StateDirFlags,
    /// The job, by the first letters of its id as `list` shows it [default: the one that runs on this machine, else
    /// the last]
    #[arg(long, value_name = "JOB", conflicts_with = "state_dir")]
    job: Option<String>,
}

/// Prints the trace: JSON that ui.perfetto.dev opens.
pub(crate) fn print_timeline(flags: &TimelineFlags) -> Result<(), CommandFailure> {
    let log = JobLog::find(flags.folder.given(), flags.job.as_deref())?;
    let job = read_event_log(&log, "timeline", |lines| JobTimeline::last_job(lines))?;
    let print = |lines: &mut dyn Iterator<Item = String>| {
        let mut stdout = BufWriter::new(io::stdout().lock());
        Some(write_trace(&mut stdout, job, lines).and_then(|()| stdout.flush()))
    };
    written(read_event_log(&log, "timeline", print)?)
}

/// Writes the trace of a job, one entry a line.
fn write_trace(
    stdout: &mut impl io::Write,
    job: String,
    lines: &mut dyn Iterator<Item = String>,
) -> io::Result<()> {
    let mut timeline = JobTimeline::new(job);
    stdout.write_all(b"{\"traceEvents\":[")?;
    let mut separator = "\n";
    let mut write = |timeline: &mut JobTimeline, stdout: &mut dyn io::Write| {
        while let Some(entry) = timeline.poll_entry() {
            write!(stdout, "{separator}{entry}")?;
            separator = ",\n";
        }
        io::Result::Ok(())
    };
    for line in lines {
        timeline.handle_line(&line);
        write(&mut timeline, stdout)?;
    }
    timeline.finish();
    write(&mut timeline, stdout)?;
    stdout.write_all(b"\n]}\n")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_trace_is_one_object_whatever_the_log_says() {
        let start = r#"{"t":"2026-01-01T00:00:00Z","kind":"driver_started","job":"j","term":1}"#;
        for log in [vec![], vec![start], vec!["half a li", start, "{}"]] {
            let mut written = Vec::new();
            let mut lines = log.iter().map(|line| (*line).to_owned());
            write_trace(&mut written, "j".to_owned(), &mut lines).expect("memory");
            let trace: Value = serde_json::from_slice(&written).expect("JSON");
            let named = trace["traceEvents"].as_array().expect("a list").len();
            assert_eq!(named > 0, !log.is_empty(), "{log:?}");
        }
    }
}
