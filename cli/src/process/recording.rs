//! The recording of `--record` on disk: a ring of files in the state directory, the oldest of which are dropped. Written in
//! a lane of words of its own, so that a slow disk costs the recording and never the job. Written by the driver's
//! process, read by `replay`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use elastic_driver::recording::{DriverRecorder, HEAD_PREFIX, RecordingSink};
use elastic_runtime::{DroppingWriter, DroppingWriterLane};
use elastic_transport::{PROTOCOL_VERSION, alpn};

use super::event_log::LAST_LINES_WITHIN;

/// Name of the folder in the state directory.
pub(crate) const RECORDING_FOLDER: &str = "recording";

/// Most bytes of a segment (16 MiB); the recorder begins the next one before.
const SEGMENT_BYTES_MAX: u64 = 16 << 20;

/// Most segments that are kept: 64 MiB in all.
const SEGMENTS_MAX: usize = 4;

/// The version of the protocol, with the digest of its messages.
pub(crate) fn messages_known() -> String {
    String::from_utf8_lossy(&alpn(PROTOCOL_VERSION)).into_owned()
}

/// The lane of the recording.
#[derive(Debug)]
pub(crate) struct RecordingLane {
    words: DroppingWriter,
    has_lost: Arc<AtomicBool>,
}

impl RecordingLane {
    /// Opens the ring in a state directory, and its lane.
    pub(crate) fn open(state_dir: &Path) -> io::Result<Self> {
        let has_lost = Arc::new(AtomicBool::new(false));
        let ring = SegmentRing::open(state_dir.join(RECORDING_FOLDER), Arc::clone(&has_lost))?;
        let lane = DroppingWriterLane::kept("recording");
        // The next head says how many steps are missing.
        let words = DroppingWriter::new(lane, Box::new(ring), Box::new(|_| String::new()))?;
        Ok(Self { words, has_lost })
    }

    /// The lane, for the watchdog.
    pub(crate) fn words(&self) -> DroppingWriter {
        self.words.clone()
    }

    /// The recorder that writes to the lane.
    pub(crate) fn recorder(self) -> DriverRecorder {
        DriverRecorder::new(Box::new(self), &messages_known())
    }
}

impl RecordingSink for RecordingLane {
    fn keep(&mut self, line: &str) -> bool {
        !self.has_lost.swap(false, Ordering::Relaxed)
            && self.words.push_patiently(&[line.as_bytes(), b"\n"], Duration::ZERO)
    }
}

impl Drop for RecordingLane {
    fn drop(&mut self) {
        if !self.words.flush(LAST_LINES_WITHIN) {
            tracing::warn!("the last lines of the recording were not written in time");
        }
    }
}

/// The files, used on the lane's thread. No error of the disk ends the lane.
#[derive(Debug)]
struct SegmentRing {
    folder: PathBuf,
    /// Number of the next segment.
    next: u64,
    /// The segment that is written; none after a failure, until a head comes.
    segment: Option<(File, u64)>,
    /// Tells the recorder that lines were lost.
    has_lost: Arc<AtomicBool>,
    is_failing: bool,
}

impl SegmentRing {
    fn open(folder: PathBuf, has_lost: Arc<AtomicBool>) -> io::Result<Self> {
        made(&folder)?;
        let next = segments(&folder)?.last().map_or(1, |(number, _)| number + 1);
        Ok(Self { folder, next, segment: None, has_lost, is_failing: false })
    }

    /// Begins a segment, and drops the oldest ones.
    fn begin(&mut self) -> io::Result<()> {
        self.segment = None;
        made(&self.folder)?;
        let kept = segments(&self.folder)?;
        for (_, path) in kept.iter().rev().skip(SEGMENTS_MAX - 1) {
            fs::remove_file(path)?;
        }
        let path = self.path(self.next);
        let file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(path)?;
        self.next += 1;
        self.segment = Some((file, 0));
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:08}.jsonl"))
    }

    /// Gives up a segment that was removed, moved away or cut short, such as by a cleaner of temporary folders: the next one
    /// begins with the next head.
    fn give_up_if_taken(&mut self) {
        let Some((file, bytes)) = &self.segment else { return };
        let number = |found: &fs::Metadata| (found.dev(), found.ino());
        let is_there = match (file.metadata(), fs::metadata(self.path(self.next - 1))) {
            (Ok(ours), Ok(found)) => number(&ours) == number(&found) && found.len() >= *bytes,
            (_, Err(error)) => error.kind() != io::ErrorKind::NotFound,
            (Err(_), _) => true,
        };
        if !is_there {
            let folder = self.folder.display();
            tracing::warn!(%folder, "the recording was removed: it begins anew");
            self.segment = None;
            self.has_lost.store(true, Ordering::Relaxed);
        }
    }

    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if line.starts_with(HEAD_PREFIX) {
            self.begin()?;
        }
        let Some((file, bytes)) = &mut self.segment else { return Ok(()) };
        *bytes += line.len() as u64;
        if *bytes > SEGMENT_BYTES_MAX {
            return Err(io::Error::other("a segment has no room for the state of this job"));
        }
        file.write_all(line)
    }
}

impl Write for SegmentRing {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.give_up_if_taken();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let written = self.write_line(line);
            let was_failing = self.is_failing;
            let folder = self.folder.display();
            if let Err(error) = written {
                self.segment = None;
                self.is_failing = true;
                self.has_lost.store(true, Ordering::Relaxed);
                if !was_failing {
                    tracing::error!(%folder, %error, "the recording cannot be written");
                }
            } else if was_failing && self.segment.is_some() {
                self.is_failing = false;
                tracing::info!(%folder, "the recording is written again");
            }
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn made(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// The segments of a folder with their numbers, the oldest first.
fn segments(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if let Some(number) = segment_number(&path) {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The number of a segment, if a file's name is that of one.
fn segment_number(path: &Path) -> Option<u64> {
    path.extension().filter(|extension| *extension == "jsonl")?;
    path.file_stem()?.to_str()?.parse().ok()
}

/// Whether a file of the recording's folder is part of a recording, by its name.
pub(super) fn is_segment(path: &Path) -> bool {
    segment_number(path).is_some()
}

/// Reads the recording of a state directory, or a file that `replay --export` wrote.
pub(crate) fn read_recording(path: &Path) -> io::Result<Vec<String>> {
    if path.is_file() {
        return Ok(vec![fs::read_to_string(path)?]);
    }
    let found = segments(&path.join(RECORDING_FOLDER))?;
    found.iter().map(|(_, path)| fs::read_to_string(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(number: usize) -> String {
        format!("{{\"head\":{number}}}\n")
    }

    #[test]
    fn a_ring_keeps_the_last_segments_and_goes_on_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        for life in 0..2 {
            let lost = Arc::default();
            let path = folder.path().join(RECORDING_FOLDER);
            let mut ring = SegmentRing::open(path, lost).expect("made");
            let lines: String = (0..5).map(|it| head(life * 5 + it) + "a step\n").collect();
            ring.write_all(lines.as_bytes()).expect("never fails");
        }
        let kept = read_recording(folder.path()).expect("there");
        let expected: Vec<String> = (6..10).map(|number| head(number) + "a step\n").collect();
        assert_eq!(kept, expected);
    }

    #[test]
    fn s_12_a_recording_that_is_removed_or_cut_short_begins_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let lost = Arc::new(AtomicBool::new(false));
        let path = folder.path().join(RECORDING_FOLDER);
        let mut ring = SegmentRing::open(path.clone(), Arc::clone(&lost)).expect("made");
        let remove_folder = || fs::remove_dir_all(&path).expect("it is there");
        let remove_file =
            || fs::remove_file(path.join("00000002.jsonl")).expect("it has this number");
        let cut = || drop(File::create(path.join("00000003.jsonl")).expect("it is there"));
        let takes: [&dyn Fn(); 3] = [&remove_folder, &remove_file, &cut];
        for (number, take) in takes.into_iter().enumerate() {
            ring.write_all((head(number) + "a step\n").as_bytes()).expect("never fails");
            assert!(!lost.load(Ordering::Relaxed));
            take();
            ring.write_all(b"a step\n").expect("never fails");
            assert!(lost.swap(false, Ordering::Relaxed), "the recorder is told: a head comes");
        }
        ring.write_all((head(3) + "a step\n").as_bytes()).expect("never fails");
        let kept = read_recording(folder.path()).expect("there");
        assert_eq!(kept, [String::new(), head(3) + "a step\n"], "no step without its head");
    }

    #[test]
    fn s_12_a_segment_that_is_full_loses_lines_until_the_next_one_begins() {
        let folder = tempfile::tempdir().expect("a folder");
        let lost = Arc::new(AtomicBool::new(false));
        let path = folder.path().join(RECORDING_FOLDER);
        let mut ring = SegmentRing::open(path, Arc::clone(&lost)).expect("made");
        let line = [vec![b'x'; (SEGMENT_BYTES_MAX / 4) as usize - 1], vec![b'\n']].concat();
        ring.write_all(head(0).as_bytes()).expect("never fails");
        for _ in 0..3 {
            ring.write_all(&line).expect("never fails");
        }
        assert!(!lost.swap(false, Ordering::Relaxed));
        for _ in 0..3 {
            ring.write_all(&line).expect("never fails");
        }
        assert!(lost.load(Ordering::Relaxed), "the recorder is told");
        ring.write_all(head(1).as_bytes()).expect("never fails");
        let kept = read_recording(folder.path()).expect("there");
        let lengths: Vec<usize> = kept.iter().map(String::len).collect();
        assert_eq!(lengths, [head(0).len() + 3 * line.len(), head(1).len()]);
    }
}
