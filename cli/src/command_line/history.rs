//! `history`: the resets of a job, each with its cause and cost, from the event log of its state directory. Called by
//! `main`.

use std::path::PathBuf;

use clap::Args;
use elastic_observe::{LoggedJob, ResetAccount, wall_clock_at, with_short_names};
use serde_json::{Value, json};

use super::event_log::read_event_log;
use super::failure::CommandFailure;
use super::find_job::{JobLog, short_id};
use super::printable::printable;
use super::stdout::{print_line, print_text};
use super::tables::{lines_of, plain_table};

/// Flags of `history`.
#[derive(Args, Clone, Debug)]
pub(crate) struct HistoryFlags {
    /// The job, by the first letters of its id as `list` shows it [default: the one that runs on this machine, else
    /// the last]
    #[arg(value_name = "JOB", conflicts_with = "state_dir")]
    job: Option<String>,
    /// The driver's state directory; it may be that of a job that is over [default: that of the job]
    #[arg(long, env = "ELASTIC_STATE_DIR", value_name = "FOLDER")]
    state_dir: Option<PathBuf>,
    /// Print a JSON array instead of a table
    #[arg(long)]
    json: bool,
}

/// Prints the resets, the oldest first.
pub(crate) fn print_history(flags: &HistoryFlags) -> Result<(), CommandFailure> {
    let log = JobLog::find(flags.state_dir.as_deref(), flags.job.as_deref())?;
    let job = read_event_log(&log, "history --state-dir", |lines| LoggedJob::of_lines(lines))?;
    if flags.json {
        let resets: Vec<Value> =
            job.ledger.resets().map(|reset| as_json(&job.job, reset)).collect();
        return print_line(&Value::from(resets).to_string());
    }
    print_text(&with_short_names(&printable(&describe(&job))))
}

fn as_json(job: &str, reset: &ResetAccount) -> Value {
    json!({
        "job": job,
        "from": reset.from,
        "to": reset.to,
        "at": rfc_3339(reset),
        "way": reset.way.name(),
        "cause": reset.cause.to_string(),
        "ms": reset.ms,
        "steps_lost": reset.steps_lost,
        "lost_ms": reset.lost_ms,
        "cost": reset.cost.non_empty().map(|(bucket, seconds)| (bucket.name(), seconds)).collect::<Vec<_>>(),
    })
}

fn rfc_3339(reset: &ResetAccount) -> String {
    humantime::format_rfc3339_millis(wall_clock_at(reset.decided_at)).to_string()
}

fn describe(job: &LoggedJob) -> String {
    let id = short_id(&job.job);
    let end = match &job.result {
        Some(result) => format!("\njob {id} is over: {}", result.reason),
        None => format!("\njob {id} goes on"),
    };
    if job.ledger.resets().next().is_none() {
        return match &job.missing_before {
            Some(missing) => format!("{missing}, and job {id} has had no reset since{end}"),
            None => format!("job {id} has had no reset{end}"),
        };
    }
    let missing = job.missing_before.map(|missing| format!("\n{missing}")).unwrap_or_default();
    let mut table = plain_table(["AT", "GENERATION", "WAY", "TOOK", "LOST", "CAUSE"]);
    for reset in job.ledger.resets() {
        let total = reset.ms.and_then(|ms| ms.total);
        table.add_row([
            // To the second: the milliseconds and the zone are in the JSON.
            rfc_3339(reset).chars().take(19).collect(),
            reset.to.map_or_else(|| reset.from.to_string(), |to| format!("{} > {to}", reset.from)),
            reset.way.name().to_owned(),
            total.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0} ms")),
            match reset.lost_unseen {
                true => format!("at least {}", reset.steps_lost),
                false => reset.steps_lost.to_string(),
            },
            // Before the table is made, so that it knows how wide the cells are.
            with_short_names(&reset.cause.to_string()).into_owned(),
        ]);
    }
    format!("{}\n{missing}{end}", lines_of(&table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_without_its_beginning_is_no_proof_that_there_was_no_reset() {
        let described = |kind: &str| {
            let line =
                format!(r#"{{"t":"2026-01-01T00:00:00Z","kind":"{kind}","job":"12345678"}}"#);
            describe(&LoggedJob::of_lines([line]).expect("a job"))
        };
        assert_eq!(
            described("driver_started"),
            "job 12345678 has had no reset\njob 12345678 goes on"
        );
        assert_eq!(
            described("log_continued"),
            "the event log begins at 2026-01-01T00:00:00Z: what came before is missing, and job 12345678 has had no reset \
             since\njob 12345678 goes on"
        );
    }
}
