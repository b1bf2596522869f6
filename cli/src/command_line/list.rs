//! `list`: the jobs of this user on this machine, running and past. Called by `main`.

use clap::Args;
use comfy_table::Table;
use serde_json::json;

use super::failure::CommandFailure;
use super::find_job::{known_jobs, short_id};
use super::printable::printable;
use super::stdout::print_line;
use super::tables::{lines_of, plain_table};
use crate::process::JobEntry;

/// Most letters of a program with its arguments that the table shows.
const PROGRAM_SHOWN: usize = 60;

/// Flags of `list`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ListFlags {
    /// Print a JSON array instead of a table
    #[arg(long)]
    json: bool,
}

/// Prints the jobs, the newest first.
pub(crate) fn print_jobs(flags: &ListFlags) -> Result<(), CommandFailure> {
    let jobs = known_jobs()?;
    if flags.json {
        let jobs: Vec<serde_json::Value> = jobs.iter().map(as_json).collect();
        return print_line(&serde_json::Value::from(jobs).to_string());
    }
    if jobs.is_empty() {
        return print_line("no job of this user is known on this machine");
    }
    print_line(&printable(&lines_of(&table(&jobs))))
}

fn as_json(entry: &JobEntry) -> serde_json::Value {
    let end = entry.ended.as_ref();
    json!({
        "job": entry.job,
        "state": entry.condition().as_str(),
        "started_at": entry.started_at,
        "ended_at": end.map(|end| &end.at),
        "reason": end.map(|end| &end.result.reason),
        "address": entry.address,
        "state_dir": entry.state_dir,
        "pid": entry.pid,
        "program": entry.program,
        "version": entry.version,
    })
}

fn table(jobs: &[JobEntry]) -> Table {
    let mut table = plain_table(["JOB", "STATE", "STARTED", "DRIVER", "PROGRAM"]);
    for entry in jobs {
        table.add_row([
            short_id(&entry.job),
            entry.condition().as_str().to_owned(),
            // To the second: the milliseconds and the zone are in the JSON.
            entry.started_at.chars().take(19).collect(),
            entry.address.clone(),
            shortened(&entry.program.join(" ")),
        ]);
    }
    table
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(PROGRAM_SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
