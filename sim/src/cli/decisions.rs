//! `sim decisions`: compares the decisions of the recorded runs with the committed ones, or records them anew.

use std::process::ExitCode;

use serde_json::json;
use sim::decisions::record::{self, Decisions, RecordedRun};

use super::recorded_runs::{self, DIFFERS, RecordedRunsArguments, SHOWN_MAX};
use super::{note, say};

/// Number of decisions that are shown of a stretch with a difference.
const SHOWN_OF_STRETCH: usize = 3;

pub(crate) fn decisions(arguments: &RecordedRunsArguments) -> anyhow::Result<ExitCode> {
    let runs = arguments.chosen()?;
    let done = recorded_runs::compare(arguments, &runs, |run| {
        let now = Decisions::of(&run.options);
        let differs = run.differs(&arguments.folder, &now)?;
        Ok((now, differs))
    })?;
    let count: usize = done.iter().map(|it| it.now.lines().len()).sum();
    let differing: Vec<_> =
        done.iter().filter_map(|it| Some((&it.run, it.differs.as_ref()?))).collect();
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
        let now: Vec<_> = done.into_iter().map(|it| (it.run, it.now)).collect();
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
