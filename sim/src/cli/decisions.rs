//! `sim decisions`: compares what the recorded runs decide with what is committed, or records it anew.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use clap::Args;
use serde_json::json;
use sim::decisions::record::{self, Decisions, RecordedRun};

use super::{note, say};

/// Exit code if a decision differs from the recorded one.
const DIFFERS: u8 = 6;

/// Number of differing runs that are shown.
const SHOWN_MAX: usize = 5;

/// Number of decisions that are shown of a stretch with a difference.
const SHOWN_OF_STRETCH: usize = 3;

#[derive(Args, Debug)]
pub(crate) struct DecisionsArguments {
    /// Records what is decided now, in place of what is committed.
    #[arg(long)]
    accept: bool,
    /// The folder of the recorded decisions.
    #[arg(long, default_value = "sim/decisions")]
    folder: PathBuf,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Stops after so many runs that differ.
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    max_differences: usize,
    /// One JSON object at the end, on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs all of them, in threads; gives up after `max` runs that differ.
fn run_all(
    runs: &[RecordedRun],
    arguments: &DecisionsArguments,
) -> anyhow::Result<Vec<(usize, Decisions, Option<record::Difference>)>> {
    let next = AtomicUsize::new(0);
    let differing = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| {
                while differing.load(Ordering::Relaxed) < arguments.max_differences {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(run) = runs.get(index) else { return };
                    let now = Decisions::of(&run.options);
                    let differs = run.differs(&arguments.folder, &now);
                    if !matches!(differs, Ok(None)) {
                        differing.fetch_add(1, Ordering::Relaxed);
                    }
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push(differs.map(|differs| (index, now, differs)));
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut done = done.into_iter().collect::<Result<Vec<_>, _>>()?;
    done.sort_by_key(|(index, ..)| *index);
    Ok(done)
}

pub(crate) fn decisions(arguments: &DecisionsArguments) -> anyhow::Result<ExitCode> {
    let runs = record::read(&arguments.folder)?;
    let done = run_all(&runs, arguments)?;
    let count: usize = done.iter().map(|(_, now, _)| now.lines().len()).sum();
    let differing: Vec<_> = done
        .iter()
        .filter_map(|(index, _, differs)| Some((&runs[*index], differs.as_ref()?)))
        .collect();
    let words = |(run, differs): &(&RecordedRun, &record::Difference)| {
        let now = differs.new.first().map_or("nothing more", String::as_str);
        let then = match &differs.old {
            Some(old) => format!("; recorded: {old}"),
            None => String::new(),
        };
        format!("{} decides otherwise from number {}: {now}{then}", run.name(), differs.number)
    };
    if arguments.json {
        let failed: Vec<_> = differing
            .iter()
            .map(|at| json!({ "seed": at.0.options.seed, "reason": words(at) }))
            .collect();
        say(json!({ "runs": done.len(), "decisions": count, "failed": failed }).to_string());
    }
    if arguments.accept {
        let changed = differing.len();
        let now: Vec<_> =
            done.into_iter().map(|(index, now, _)| (runs[index].clone(), now)).collect();
        record::write(&arguments.folder, &now)?;
        note(format!("{changed} of {} runs decide otherwise, and are recorded", runs.len()));
        return Ok(ExitCode::SUCCESS);
    }
    // A run in words shows the decision itself.
    let told = differing.iter().filter(|(_, differs)| differs.old.is_some());
    let hashed = differing.iter().filter(|(_, differs)| differs.old.is_none());
    for (run, differs) in told.chain(hashed).take(SHOWN_MAX) {
        note(format!("{} decides otherwise", run.name()));
        match &differs.old {
            Some(old) => {
                note(format!("  recorded, line {}: {old}", differs.number));
                let now = differs.new.first().map_or("nothing more", String::as_str);
                note(format!("  now:              {now}"));
            }
            None => {
                note(format!("  one of the decisions from number {} on:", differs.number));
                for line in differs.new.iter().take(SHOWN_OF_STRETCH) {
                    note(format!("    {line}"));
                }
            }
        }
        note(format!("  {} --decisions FILE", run.options.command()));
    }
    if differing.is_empty() {
        if !arguments.json {
            say(format!("{} runs, {count} decisions: all as recorded", done.len()));
        }
        return Ok(ExitCode::SUCCESS);
    }
    note(format!(
        "{} of {} runs decide otherwise than recorded. If that is meant, `cargo xtask decisions --accept` records it",
        differing.len(),
        done.len()
    ));
    Ok(ExitCode::from(DIFFERS))
}
