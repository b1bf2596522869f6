//! The event log: one JSON object a line, `{t, term, generation, kind, …}`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use elastic_driver::Event;
use serde::Serialize;

/// Writes `events.jsonl`: the lines of later jobs follow those of earlier ones.
#[derive(Debug)]
pub(crate) struct EventLog {
    path: PathBuf,
    file: File,
    /// Since a line could not be written, which may have left a part of it.
    is_failing: bool,
}

/// One line.
#[derive(Serialize)]
struct Line<'a> {
    /// RFC 3339, with milliseconds.
    t: String,
    #[serde(flatten)]
    event: &'a Event,
}

/// The first line of a job.
#[derive(Serialize)]
struct Start<'a> {
    t: String,
    term: u64,
    generation: u64,
    kind: &'static str,
    job: &'a str,
    address: &'a str,
    version: &'static str,
    pid: u32,
}

impl EventLog {
    /// Opens the log and says whose job begins.
    pub(crate) fn open(
        path: PathBuf,
        at: SystemTime,
        term: u64,
        job: &str,
        address: &str,
    ) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let mut log = Self { path, file, is_failing: false };
        let version = env!("CARGO_PKG_VERSION");
        let kind = "driver_started";
        let pid = std::process::id();
        let start =
            Start { t: rfc_3339(at), term, generation: 0, kind, job, address, version, pid };
        log.write(&start);
        Ok(log)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line. What cannot be written is left out, which is said once; the job goes on, and the log with it once
    /// there is room.
    pub(crate) fn add(&mut self, at: SystemTime, event: &Event) {
        self.write(&Line { t: rfc_3339(at), event });
    }

    fn write(&mut self, line: &impl Serialize) {
        // One write, so that a reader of the growing file sees whole lines.
        let written = serde_json::to_vec(line).map_err(io::Error::from).and_then(|mut bytes| {
            if self.is_failing {
                bytes.insert(0, b'\n');
            }
            bytes.push(b'\n');
            self.file.write_all(&bytes)
        });
        let was_failing = std::mem::replace(&mut self.is_failing, written.is_err());
        let path = self.path.display();
        match written {
            Err(error) if !was_failing => {
                tracing::error!(%path, %error, "the event log cannot be written");
            }
            Ok(()) if was_failing => tracing::info!(%path, "the event log is written again"),
            _ => {}
        }
    }
}

fn rfc_3339(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

#[cfg(test)]
mod tests {
    use elastic_driver::EventKind;

    use super::*;

    #[test]
    fn a_line_has_its_time_term_generation_and_kind() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        let at = SystemTime::UNIX_EPOCH;
        let mut log = EventLog::open(path.clone(), at, 1, "j", "127.0.0.1:1").expect("made");
        let kind = EventKind::Warning { message: "m".to_owned() };
        log.add(at, &Event { term: 1, generation: 2, kind });
        let text = std::fs::read_to_string(path).expect("written");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        assert_eq!(lines[0]["kind"], "driver_started");
        let expected = serde_json::json!({
            "t": "1970-01-01T00:00:00.000Z", "term": 1, "generation": 2,
            "kind": "warning", "message": "m",
        });
        assert_eq!(lines[1], expected);
    }
}
