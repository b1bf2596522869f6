//! Reads the content of a support bundle: the job's entry, events, journal, recording, the last output of workers,
//! status, and facts about this host. Nothing is changed, and missing parts are noted. Called by `report`.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use elastic_agent::OutputStream;
use elastic_driver::journal::Image;
use elastic_journal::{FileJournal, JournalError};
use elastic_observe::{OutputRequest, WorkerOutputs};
use elastic_runtime::system;
use serde_json::{Value, json};

use super::bundle::{RECORDING_PREFIX, SupportBundle, TextForm};
use crate::command_line::doctor::host_findings;
use crate::command_line::event_log::read_event_log;
use crate::command_line::explain::ask_driver;
use crate::command_line::failure::{CommandFailure, ResultExt as _};
use crate::process::{
    EVENTS_FILE, JOURNAL_FILE, JobEntry, RECORDING_FOLDER, file_of, messages_known, read_recording,
};

/// Most bytes of each event log, its last ones (16 MiB).
const EVENTS_BYTES_MAX: u64 = 16 << 20;

/// Most bytes of each stream of a worker, its last ones (64 KiB).
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// Most bytes of all workers' output (8 MiB).
const OUTPUTS_BYTES_MAX: usize = 8 << 20;

/// Reads everything that is there.
pub(super) fn gather(
    folder: &Path,
    entry: Option<&JobEntry>,
) -> Result<SupportBundle, CommandFailure> {
    let mut bundle = SupportBundle::default();
    add_versions(&mut bundle, entry);
    add_entry(&mut bundle, entry);
    let status = system::run(ask_driver(folder)).failed("the system refuses a client")?;
    let running = status.and_then(|status| serde_json::to_value(status).ok());
    add_status(&mut bundle, running, entry);
    for (name, why) in [
        (EVENTS_FILE.to_owned(), "what happened in the job"),
        (format!("{EVENTS_FILE}.1"), "what happened before that"),
    ] {
        match read_end(&folder.join(&name), EVENTS_BYTES_MAX) {
            Ok(end) => bundle.add(&name, end.describe(why), TextForm::JsonLines, &end.text),
            // A log is put aside only when it has become too long.
            Err(error) if error.kind() == ErrorKind::NotFound && name != EVENTS_FILE => {}
            Err(error) => bundle.leave_out(&name, error.to_string()),
        }
    }
    add_journal(&mut bundle, folder);
    add_recording(&mut bundle, folder);
    add_outputs(&mut bundle, folder);
    match host_findings() {
        Ok(found) => bundle.add_json("doctor.json", "what this host has, as `doctor` says", &found),
        Err(error) => bundle.leave_out("doctor.json", error.to_string()),
    }
    Ok(bundle)
}

fn add_versions(bundle: &mut SupportBundle, entry: Option<&JobEntry>) {
    let line = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let system = line("/etc/os-release");
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let versions = json!({
        "program": env!("CARGO_PKG_VERSION"),
        "protocol": messages_known(),
        "driver": entry.map(|entry| &entry.version),
        "kernel": line("/proc/sys/kernel/osrelease"),
        "system": system.map(|name| name.trim_matches('"')),
        "machine": std::env::consts::ARCH,
    });
    bundle.add_json(
        "versions.json",
        "versions of this program, the driver and the system",
        &versions,
    );
}

fn add_entry(bundle: &mut SupportBundle, entry: Option<&JobEntry>) {
    let Some(entry) = entry else {
        bundle.leave_out(
            "job.json",
            "the job is not in the list of this user's jobs on this machine",
        );
        return;
    };
    // The status has a file of its own.
    let mut entry = entry.clone();
    entry.ended.iter_mut().for_each(|end| end.status = None);
    match serde_json::to_value(entry) {
        Ok(entry) => {
            bundle.add_json(
                "job.json",
                "the driver's flags, the program, how the job ended",
                &entry,
            );
        }
        Err(error) => bundle.leave_out("job.json", error.to_string()),
    }
}

fn add_status(bundle: &mut SupportBundle, running: Option<Value>, entry: Option<&JobEntry>) {
    let last = || serde_json::to_value(entry?.ended.as_ref()?.status.as_ref()?).ok();
    match (running, last()) {
        (Some(status), _) => bundle.add_json("status.json", "how the job stands now", &status),
        (None, Some(status)) => {
            bundle.add_json("status.json", "how the job stood at its end", &status)
        }
        (None, None) => {
            bundle.leave_out("status.json", "no driver answers, and none has left its last status")
        }
    }
}

fn add_journal(bundle: &mut SupportBundle, folder: &Path) {
    let path = "journal.json";
    let image = FileJournal::read_beside_driver(&folder.join(JOURNAL_FILE))
        .and_then(|loaded| loaded.map(|loaded| Image::of(&loaded)).transpose());
    // As JSON the image has no secrets, no keys, and neither arguments nor environment of the program.
    let value = image.map(|image| image.map(serde_json::to_value));
    match value {
        Ok(Some(Ok(value))) => {
            bundle.add_json(
                path,
                "the driver's journal, without the job's secrets and keys",
                &value,
            );
        }
        Ok(None) => {
            bundle.leave_out(path, "there is none: the job is over, or it is kept in a store")
        }
        Ok(Some(Err(error))) => bundle.leave_out(path, error.to_string()),
        Err(error @ JournalError::Corrupt(_)) => {
            bundle.leave_out(path, format!("it cannot be read: {error}"));
        }
        Err(error) => bundle.leave_out(path, error.to_string()),
    }
}

fn add_recording(bundle: &mut SupportBundle, folder: &Path) {
    if !folder.join(RECORDING_FOLDER).exists() {
        bundle.leave_out("recording", "the job is not recorded (--record)");
        return;
    }
    match read_recording(folder) {
        Ok(segments) => {
            for (number, segment) in (1..).zip(segments) {
                let path = format!("{RECORDING_PREFIX}{number:08}.jsonl");
                let why = "what the driver was told and decided, for `replay`";
                bundle.add(&path, why, TextForm::JsonLines, &segment);
            }
        }
        Err(error) => bundle.leave_out("recording", error.to_string()),
    }
}

fn add_outputs(bundle: &mut SupportBundle, folder: &Path) {
    let outputs = read_event_log(folder, "report", |lines| WorkerOutputs::of_lines(lines, None));
    let Ok(outputs) = outputs else {
        bundle.leave_out("outputs", "the event log names no job");
        return;
    };
    let Some(stored_in) = outputs.output_dir.as_ref().map(PathBuf::from) else {
        bundle.leave_out("outputs", "the job does not store what its workers write (--output-dir)");
        return;
    };
    let workers = match outputs.select(&OutputRequest::default()) {
        Ok(workers) => workers,
        Err(error) => return bundle.leave_out("outputs", error.to_string()),
    };
    let (mut bytes, mut missing) = (0, 0);
    for output in workers {
        let mut is_there = false;
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let file = file_of(&stored_in, output, stream).filter(|path| path.is_file());
            let room = bytes < OUTPUTS_BYTES_MAX;
            let read = file.filter(|_| room).map(|path| read_end(&path, OUTPUT_BYTES_MAX));
            let Some(Ok(end)) = read else { continue };
            is_there = true;
            bytes += end.text.len();
            let path = format!("outputs/rank-{}.{}.log", output.rank, stream.name());
            let (host, slot) = (&output.worker.host, output.worker.slot);
            let why = end.describe(&format!("{} of worker {host}:{slot}", stream.name()));
            bundle.add(&path, why, TextForm::Plain, &end.text);
        }
        missing += u32::from(!is_there);
    }
    if missing > 0 {
        let mib = OUTPUTS_BYTES_MAX >> 20;
        let why = format!("of {missing} workers: on other hosts, or more than {mib} MiB in all");
        bundle.leave_out("outputs", why);
    }
}

/// The last lines of a file.
struct FileEnd {
    text: String,
    /// Bytes of the whole file, if it is longer.
    cut_from: Option<u64>,
}

impl FileEnd {
    fn describe(&self, what: &str) -> String {
        match self.cut_from {
            Some(bytes) => format!("{what}: the last part of {bytes} bytes"),
            None => what.to_owned(),
        }
    }
}

/// Reads the last bytes of a file, from the begin of a line on. Bytes that are no text are replaced.
fn read_end(path: &Path, bytes_max: u64) -> io::Result<FileEnd> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let skipped = length.saturating_sub(bytes_max);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    // The file may be growing.
    file.take(bytes_max).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // Part of a word might be part of a secret.
    let begin = match skipped {
        0 => 0,
        _ => text.find('\n').or_else(|| text.find(' ')).map_or(text.len(), |at| at + 1),
    };
    let cut_from = (skipped > 0).then_some(length);
    Ok(FileEnd { text: text[begin..].to_owned(), cut_from })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_file_the_last_whole_lines_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "first\nsecond\nthird\n").expect("written");
        let read = |bytes_max| {
            let end = read_end(&path, bytes_max).expect("there");
            (end.describe("it"), end.text)
        };
        assert_eq!(read(19), ("it".to_owned(), "first\nsecond\nthird\n".to_owned()));
        let cut = "it: the last part of 19 bytes".to_owned();
        assert_eq!(read(18), (cut.clone(), "second\nthird\n".to_owned()));
        assert_eq!(read(4), (cut, String::new()), "one line is longer than that");
    }

    #[test]
    fn what_is_not_there_is_noted() {
        let folder = tempfile::tempdir().expect("a folder");
        let bundle = gather(folder.path(), None).expect("no fault of ours");
        let paths: Vec<&str> = bundle.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["versions.json", "doctor.json"]);
        let text = bundle.describe("x");
        for name in ["job.json", "status.json", EVENTS_FILE, "journal.json", "recording", "outputs"]
        {
            assert!(text.contains(&format!("without {name}: ")), "{name}: {text}");
        }
    }
}
