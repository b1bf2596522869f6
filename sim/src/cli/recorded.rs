//! Recordings of real drivers (`--record`), as commands take them: a state directory or an exported file. Called for `--from` and
//! by `sim recording`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use elastic_driver::recording::moment::{RecordedMoment, moment};
use elastic_transport::{PROTOCOL_VERSION, alpn};

/// Folder of the recording in a state directory.
const RECORDING_FOLDER: &str = "recording";

/// The digest of the messages that the product's programs know.
pub(super) fn messages_known() -> String {
    String::from_utf8_lossy(&alpn(PROTOCOL_VERSION)).into_owned()
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

/// The segments of a recording: a state directory's, or those of an exported file.
pub(super) fn segments(path: &Path) -> anyhow::Result<Vec<String>> {
    if !path.is_dir() {
        return Ok(vec![read(path)?]);
    }
    let folder = path.join(RECORDING_FOLDER);
    let entries = std::fs::read_dir(&folder).with_context(|| {
        format!("{} has no recording: was the job run with --record?", path.display())
    })?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

/// The recorded job after a record of its journal, or after the last one.
pub(super) fn moment_of(path: &Path, record: Option<u64>) -> anyhow::Result<RecordedMoment> {
    moment(&segments(path)?, &messages_known(), record)
        .with_context(|| format!("no run can go on from {}", path.display()))
}
