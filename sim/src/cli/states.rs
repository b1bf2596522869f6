//! `sim states`: compares the states of the nodes' cores in the recorded runs with the committed ones, or records them
//! anew.

use std::process::ExitCode;

use serde_json::json;
use sim::decisions::record;
use sim::states::record::{RecordedStates, RunStates};

use super::recorded_runs::{self, DIFFERS, RecordedRunsArguments, SHOWN_MAX};
use super::{note, say};

pub(crate) fn states(arguments: &RecordedRunsArguments) -> anyhow::Result<ExitCode> {
    let runs = arguments.chosen()?;
    let recorded = match arguments.accept {
        true => RecordedStates::default(),
        false => RecordedStates::read(&arguments.folder)?,
    };
    let done = recorded_runs::compare(arguments, &runs, |run| {
        let now = RunStates::of(&run.options);
        let differs = recorded.run_differs(&run.name(), &now);
        Ok((now, differs))
    })?;
    let count = done.len();
    if arguments.accept {
        let now: Vec<_> = done.into_iter().map(|it| (it.run.name(), it.now)).collect();
        RecordedStates::write(&arguments.folder, &now)?;
        note(format!("the states of {count} runs are recorded"));
        return Ok(ExitCode::SUCCESS);
    }
    let differing: Vec<_> = done.iter().filter_map(|it| Some((&it.run, it.differs?))).collect();
    // Runs that were not made would count as a difference of all fields.
    let fields = match count == runs.len() && arguments.are_all() {
        true => recorded.parts_that_differ(done.iter().map(|it| &it.now)),
        false => Vec::new(),
    };
    if arguments.json {
        let reason = |(run, second): &(&record::RecordedRun, f64)| {
            format!("{} has other states from second {second} on", run.name())
        };
        let failed: Vec<_> = differing
            .iter()
            .map(|at| json!({ "seed": at.0.options.seed, "reason": reason(at) }))
            .collect();
        say(json!({ "runs": count, "fields": fields, "failed": failed }).to_string());
    }
    if differing.is_empty() {
        if !arguments.json {
            say(format!("{count} runs: all states as recorded"));
        }
        return Ok(ExitCode::SUCCESS);
    }
    for (run, second) in differing.iter().take(SHOWN_MAX) {
        note(format!("{} has other states from second {second} on", run.name()));
        note(format!("  {} --states FILE", run.options.command()));
    }
    if !fields.is_empty() {
        note(format!("other than recorded: {}", fields.join(", ")));
    }
    note(format!(
        "{} of {count} runs have other states than recorded. `sim run … --states FILE` on both commits shows the difference; \
         if it is meant, `cargo xtask decisions --accept` records it",
        differing.len(),
    ));
    Ok(ExitCode::from(DIFFERS))
}
