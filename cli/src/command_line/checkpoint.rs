//! `checkpoint list|show|verify|export`: durable checkpoints, looked at without their job. Called by `main`.

use elastic_protocol::counted;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use clap::{Args, Subcommand};
use elastic_checkpoint::{
    CheckpointCandidate, Damage, LoadedCheckpoint, Manifest, export, is_removed, list, load,
    newest, store_of, verify,
};
use serde_json::{Value, json};

use super::failure::{CommandFailure, ResultExt};
use super::printable::printable;
use super::stdout::print;
use super::tables::{lines_of, plain_table};

/// The most looks at a folder whose job removes the checkpoints that are being read.
const LOOKS_MAX: u32 = 5;

/// Flags of `checkpoint`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CheckpointFlags {
    #[command(subcommand)]
    command: CheckpointSubcommand,
}

#[derive(Clone, Debug, Subcommand)]
enum CheckpointSubcommand {
    /// List the checkpoints of a folder, the oldest first.
    List(FolderFlags),
    /// Show what one consists of: the place in the data, and the arrays with their names.
    Show(FolderFlags),
    /// Read every byte and compare it with what was written. Exit code 1 if one is damaged, or none is whole.
    Verify(FolderFlags),
    /// Write all arrays of one into a single file of the format safetensors.
    Export(ExportFlags),
}

#[derive(Args, Clone, Debug)]
struct FolderFlags {
    /// The folder that --checkpoint names; or, except for `list`, that of one step in it
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Print JSON on stdout.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug)]
struct ExportFlags {
    #[command(flatten)]
    from: FolderFlags,
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "model.safetensors")]
    into: PathBuf,
}

/// Runs `checkpoint`.
pub(crate) fn run_checkpoint(flags: &CheckpointFlags) -> Result<(), CommandFailure> {
    match &flags.command {
        CheckpointSubcommand::List(flags) => run_list(flags),
        CheckpointSubcommand::Show(flags) => run_show(flags),
        CheckpointSubcommand::Verify(flags) => run_verify(flags),
        CheckpointSubcommand::Export(flags) => run_export(flags),
    }
}

fn run_list(flags: &FolderFlags) -> Result<(), CommandFailure> {
    let all = candidates(&flags.folder)?;
    if flags.json {
        let rows: Vec<Value> = all.iter().map(row).collect();
        return print(&format!("{}\n", Value::from(rows)));
    }
    let mut table = plain_table(["STEP", "WORKERS", "BYTES", "SAVED AT", "STATE"]);
    for candidate in &all {
        let step = candidate.step.to_string();
        match &candidate.manifest {
            Ok(manifest) => table.add_row([
                step,
                manifest.world_size.to_string(),
                bytes_of(manifest).to_string(),
                at(manifest),
                "complete".to_owned(),
            ]),
            Err(damage) => table.add_row([
                step,
                String::new(),
                String::new(),
                String::new(),
                printable(&damage.to_string()).into_owned(),
            ]),
        };
    }
    print(&format!("{}\n", lines_of(&table)))
}

fn run_show(flags: &FolderFlags) -> Result<(), CommandFailure> {
    let loaded = one(&flags.folder)?;
    let manifest = &loaded.manifest;
    if flags.json {
        let whole = serde_json::to_value(manifest).failed("the manifest cannot be printed")?;
        return print(&format!("{whole}\n"));
    }
    let mut text = format!(
        "{}\nstep {}, saved at {} by {} in generation {}, {} bytes\nplace in the data: {}\n",
        printable(&loaded.path.display().to_string()),
        manifest.step,
        at(manifest),
        counted(manifest.world_size, "worker"),
        manifest.generation,
        bytes_of(manifest),
        printable(&manifest.position.to_string()),
    );
    let mut table = plain_table(["ARRAY", "TYPE", "SHAPE", "BYTES"]);
    for tensor in &manifest.tensors {
        table.add_row([
            printable(&tensor.name).into_owned(),
            format!("{:?}", tensor.dtype),
            format!("{:?}", tensor.shape),
            tensor.bytes.to_string(),
        ]);
    }
    text.push_str(&format!("{}\n", lines_of(&table)));
    print(&text)
}

fn run_verify(flags: &FolderFlags) -> Result<(), CommandFailure> {
    let mut looks = 1;
    let checked = loop {
        let (checked, has_removed) = checked(&flags.folder)?;
        let has_whole = checked.iter().any(|(_, damage)| damage.is_none());
        if has_whole || !has_removed || looks == LOOKS_MAX {
            break checked;
        }
        looks += 1;
    };
    if checked.is_empty() {
        return Err(no_checkpoint(&flags.folder));
    }
    if flags.json {
        let rows = checked.iter().map(|(candidate, damage)| {
            let damage = damage.as_ref().map(ToString::to_string);
            json!({ "step": candidate.step, "complete": damage.is_none(), "damage": damage })
        });
        print(&format!("{}\n", Value::from(rows.collect::<Vec<_>>())))?;
    } else {
        let lines = checked.iter().map(|(candidate, damage)| {
            let state = damage.as_ref().map_or_else(|| "whole".to_owned(), ToString::to_string);
            format!("step {}: {}\n", candidate.step, printable(&state))
        });
        print(&lines.collect::<String>())?;
    }
    let steps_of = |is_meant: &dyn Fn(&Damage) -> bool| -> Vec<String> {
        let meant = checked.iter().filter(|(_, damage)| damage.as_ref().is_some_and(is_meant));
        meant.map(|(candidate, _)| candidate.step.to_string()).collect()
    };
    let damaged = steps_of(&|damage| *damage != Damage::Partial);
    if !damaged.is_empty() {
        let message = format!("damaged checkpoints: of step {}", damaged.join(", "));
        return Err(CommandFailure::new(message)
            .hint("a job that resumes passes them over for the newest whole one"));
    }
    // A partial one beside whole ones is a save under way, or one that did not end.
    let partial = steps_of(&|damage| *damage == Damage::Partial);
    if partial.len() == checked.len() {
        let message =
            format!("no checkpoint is whole: partial are those of step {}", partial.join(", "));
        return Err(CommandFailure::new(message).hint(
            "a job that resumes from here begins from the start, unless a save is just under way",
        ));
    }
    Ok(())
}

/// The checkpoints that a folder names, each with its damage, without those that their job has removed meanwhile; and whether
/// there were such.
#[expect(clippy::type_complexity, reason = "two results, and no third place that needs them")]
fn checked(
    folder: &Path,
) -> Result<(Vec<(CheckpointCandidate, Option<Damage>)>, bool), CommandFailure> {
    let all = match step_folder(folder) {
        Some((root, step)) => {
            let mut all = candidates(root)?;
            all.retain(|candidate| candidate.step == step);
            all
        }
        None => candidates(folder)?,
    };
    let (mut checked, mut has_removed) = (Vec::new(), false);
    for candidate in all {
        let damage = damage_of(&candidate);
        let is_read = candidate.manifest.is_ok() && damage.is_some();
        if is_read && is_removed(store_of(&candidate.path), &candidate.path) {
            has_removed = true;
        } else {
            checked.push((candidate, damage));
        }
    }
    Ok((checked, has_removed))
}

fn run_export(flags: &ExportFlags) -> Result<(), CommandFailure> {
    let loaded = one(&flags.from.folder)?;
    let files = store_of(&flags.from.folder);
    // A link leads to the same file afterwards.
    let target = fs::canonicalize(&flags.into).unwrap_or_else(|_new| flags.into.clone());
    let count = export(files, &loaded, &target).failed("the arrays cannot be exported")?;
    let (step, into) = (loaded.manifest.step, flags.into.display().to_string());
    if flags.from.json {
        return print(&format!("{}\n", json!({ "step": step, "arrays": count, "file": into })));
    }
    print(&format!("{count} arrays of step {step} are in {}\n", printable(&into)))
}

/// The checkpoint that a folder names: that of its step, or the newest whole one in it.
fn one(folder: &Path) -> Result<LoadedCheckpoint, CommandFailure> {
    if step_folder(folder).is_some() {
        return load(store_of(folder), folder).map_err(|error| {
            let hint = error.hint();
            let failure = CommandFailure::new("the checkpoint cannot be read").source(error);
            hint.into_iter().fold(failure, CommandFailure::hint)
        });
    }
    let (found, _) =
        newest(store_of(folder), folder, None).failed("the checkpoints cannot be read")?;
    found.ok_or_else(|| no_checkpoint(folder))
}

/// The folder of all checkpoints and the step, if this is the folder of one step.
fn step_folder(folder: &Path) -> Option<(&Path, u64)> {
    let step = folder.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()?;
    let root = folder.parent().filter(|root| !root.as_os_str().is_empty());
    Some((root.unwrap_or(Path::new(".")), step))
}

fn candidates(folder: &Path) -> Result<Vec<CheckpointCandidate>, CommandFailure> {
    if !folder.is_dir() {
        let message = format!("there is no folder {}", folder.display());
        return Err(CommandFailure::usage(message).hint("give the folder that --checkpoint names"));
    }
    list(store_of(folder), folder).failed("the checkpoints cannot be listed")
}

fn no_checkpoint(folder: &Path) -> CommandFailure {
    CommandFailure::new(format!("there is no checkpoint in {}", folder.display()))
        .hint("`elastic-node checkpoint list FOLDER` shows what is there")
}

fn damage_of(candidate: &CheckpointCandidate) -> Option<Damage> {
    match &candidate.manifest {
        Ok(manifest) => verify(store_of(&candidate.path), &candidate.path, manifest).err(),
        Err(damage) => Some(damage.clone()),
    }
}

fn row(candidate: &CheckpointCandidate) -> Value {
    let manifest = candidate.manifest.as_ref().ok();
    json!({
        "step": candidate.step,
        "world_size": manifest.map(|manifest| manifest.world_size),
        "bytes": manifest.map(bytes_of),
        "complete": manifest.is_some(),
        "at": manifest.map(at),
    })
}

fn bytes_of(manifest: &Manifest) -> u64 {
    manifest.files.iter().map(|file| file.bytes).sum()
}

/// Time of the checkpoint; empty if the file's value is no time.
fn at(manifest: &Manifest) -> String {
    time_text(manifest.saved_at_ms)
}

fn time_text(unix_ms: u64) -> String {
    if unix_ms >= SAVED_AT_MS_END {
        return String::new();
    }
    let at = UNIX_EPOCH + Duration::from_millis(unix_ms);
    humantime::format_rfc3339_millis(at).to_string()
}

/// The year 10000, which no text of RFC 3339 shows, in milliseconds since 1970.
const SAVED_AT_MS_END: u64 = 253_402_300_800_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_no_text_shows_is_left_empty() {
        assert_eq!(time_text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(time_text(SAVED_AT_MS_END - 1), "9999-12-31T23:59:59.999Z");
        assert_eq!([SAVED_AT_MS_END, u64::MAX].map(time_text), ["", ""]);
    }
}
