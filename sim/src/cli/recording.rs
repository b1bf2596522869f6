//! `sim recording`: replays the recording of a real driver (`--record`) with each planted bug of the driver, and prints whether
//! the replay finds the bug.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use elastic_driver::recording::replay::{ReplayReport, replay};
use sim::{Bug, plant};

use super::recorded::{messages_known, segments};
use super::say;

#[derive(Args, Debug)]
pub(crate) struct RecordingArguments {
    /// A state directory, or a file that `elastic-node replay --export` wrote.
    file: PathBuf,
    /// Only bugs of the driver whose name has this in it.
    #[arg(long)]
    only: Option<String>,
}

/// Replays without a bug, and then with each bug of the driver.
pub(crate) fn recording(arguments: &RecordingArguments) -> anyhow::Result<ExitCode> {
    let path = arguments.file.display();
    let (segments, messages) = (segments(&arguments.file)?, messages_known());
    let with = |bug: Option<Bug>| -> anyhow::Result<ReplayReport> {
        plant(bug);
        let report = replay(&segments, &messages);
        plant(None);
        report.with_context(|| format!("{path} cannot be replayed"))
    };
    let report = with(None)?;
    if let Some(difference) = report.difference {
        bail!("the core decides differently without a bug: {difference:?}");
    }
    say(format!("the same: {} inputs and {} outputs", report.inputs, report.outputs));
    let is_wanted = |bug: &&Bug| {
        let only = arguments.only.as_ref();
        bug.room() == "driver" && only.is_none_or(|only| bug.name().contains(only.as_str()))
    };
    for bug in Bug::ALL.iter().filter(is_wanted) {
        match with(Some(*bug))?.difference {
            Some(difference) => say(format!(
                "found    {}: {} of step {}, after {} inputs",
                bug.name(),
                difference.kind,
                difference.step,
                difference.inputs_needed
            )),
            None => say(format!("not here {}", bug.name())),
        }
    }
    Ok(ExitCode::SUCCESS)
}
