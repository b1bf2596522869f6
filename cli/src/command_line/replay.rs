//! `replay`: gives a recording to the driver's core again and says whether it decides the same; or exports it. Called by
//! `main`.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use elastic_driver::recording::redact::redact;
use elastic_driver::recording::replay::{ReplayDifference, ReplayError, ReplayReport, replay};
use serde_json::Value;

use super::failure::{CommandFailure, ResultExt};
use super::printable::printable;
use super::stdout::print;
use crate::process::{messages_known, read_recording};

/// Most characters of a decision that are shown to people.
const DECISION_CHARACTERS_MAX: usize = 2000;

/// Flags of `replay`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReplayFlags {
    /// The driver's state directory, or a file that `--export` wrote
    #[arg(value_name = "STATE_DIR")]
    state_dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the recording to this file instead, with mode 0600
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
    /// Replace the names of hosts, addresses and texts of programs in the exported file, each by the same everywhere
    #[arg(long, requires = "export")]
    redact: bool,
}

/// Replays a recording and prints the result. A decision that differs is a failure.
pub(crate) fn run_replay(flags: &ReplayFlags) -> Result<(), CommandFailure> {
    let path = flags.state_dir.display();
    let segments = read_recording(&flags.state_dir)
        .usage(format!("there is no recording in {path}"))
        .map_err(|failure| failure.hint("give the state directory of a driver with --record"))?;
    let unusable = |error: ReplayError| {
        let hint = match &error {
            ReplayError::Empty => "give the state directory of a driver with --record",
            ReplayError::OtherMessages { .. } | ReplayError::State { .. } => {
                "replay it with the version that has recorded it"
            }
            ReplayError::Line { .. } => "the file is damaged; remove it to replay the others",
        };
        let failure = CommandFailure::usage(format!("the recording in {path} cannot be replayed"));
        failure.source(error).hint(hint)
    };
    if let Some(file) = &flags.export {
        let text = match flags.redact {
            true => redact(&segments, &messages_known()).map_err(unusable)?,
            false => segments.concat(),
        };
        return export(file, &text);
    }
    let report = replay(&segments, &messages_known()).map_err(unusable)?;
    let text = match flags.json {
        true => serde_json::to_string(&report).failed("the report is no JSON")? + "\n",
        false => describe(&report),
    };
    print(&text)?;
    match &report.difference {
        None => Ok(()),
        Some(difference) => {
            let step = difference.step;
            let message = format!("the driver decides differently at step {step} of its recording");
            Err(CommandFailure::new(message)
                .hint("with the version that has recorded it, this is a bug: please report it"))
        }
    }
}

fn export(file: &Path, text: &str) -> Result<(), CommandFailure> {
    let path = file.display();
    let mut options = OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).mode(0o600).open(file);
    let mut opened = opened.usage(format!("{path} cannot be written"))?;
    opened.write_all(text.as_bytes()).failed(format!("{path} cannot be written"))
}

fn describe(report: &ReplayReport) -> String {
    let ReplayReport { segments, lives, inputs, outputs, steps_missing, .. } = report;
    let verdict = if report.is_same { "the same" } else { "not the same" };
    let mut text = format!(
        "{verdict}: {inputs} inputs and {outputs} outputs, in {segments} segments of {lives} drivers\n"
    );
    if *steps_missing > 0 {
        text.push_str(&format!("{steps_missing} steps are missing, or stand behind a missing one: they were not replayed\n"));
    }
    if let Some(difference) = &report.difference {
        text.push_str(&describe_difference(difference));
    }
    text
}

fn describe_difference(difference: &ReplayDifference) -> String {
    let ReplayDifference { step, term, wall_ms, kind, segment, inputs_needed, .. } = difference;
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(*wall_ms);
    let at = humantime::format_rfc3339_millis(at);
    let mut text = format!("first difference: {kind} of step {step}, term {term}, at {at}\n");
    for (_, input) in &difference.inputs {
        text.push_str(&format!("  input    {}\n", short(Some(input))));
    }
    text.push_str(&format!("  recorded {}\n", short(difference.recorded.as_ref())));
    text.push_str(&format!("  replayed {}\n", short(difference.replayed.as_ref())));
    text + &format!("the first {inputs_needed} inputs of segment {segment} show it, fewer do not\n")
}

fn short(value: Option<&Value>) -> String {
    let Some(value) = value else { return "nothing".to_owned() };
    let text = printable(&value.to_string()).to_string();
    match text.char_indices().nth(DECISION_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
