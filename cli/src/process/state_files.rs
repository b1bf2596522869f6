//! The files of a state directory once its job is over: which of them a driver has written, and their removal. Used by the
//! list of jobs, which forgets some. A user may keep checkpoints, output and anything else there: such files stay.

use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use elastic_transport::is_token_draft;

use super::event_log::number_aside;
use super::recording::{RECORDING_FOLDER, is_segment};
use super::state_dir::{JOB_FILES, LOCK_FILE};

/// Whether a driver writes files of this name into its state directory.
fn is_state_file(name: &str) -> bool {
    let is_plain = name == LOCK_FILE || JOB_FILES.contains(&name);
    is_plain || number_aside(name).is_some() || is_token_draft(name)
}

/// The content of a state directory.
#[derive(Debug, Default)]
pub(super) struct StateFiles {
    /// The files that a driver has written.
    own: Vec<PathBuf>,
    /// The folder of the recording, if it holds nothing but a recording.
    recording: Option<PathBuf>,
    /// The names of everything else, sorted.
    foreign: Vec<String>,
}

impl StateFiles {
    /// Looks at a state directory; one that is not there has no files.
    pub(super) fn of(folder: &Path) -> io::Result<Self> {
        let mut files = Self::default();
        for entry in entries(folder)? {
            let name = entry.file_name().to_string_lossy().into_owned();
            // A link is removed as itself; what it leads to stays.
            let is_folder = entry.file_type()?.is_dir();
            if is_folder && name == RECORDING_FOLDER {
                files.add_recording(entry.path())?;
            } else if !is_folder && is_state_file(&name) {
                files.own.push(entry.path());
            } else {
                files.foreign.push(name);
            }
        }
        files.foreign.sort();
        Ok(files)
    }

    fn add_recording(&mut self, folder: PathBuf) -> io::Result<()> {
        let mut has_foreign = false;
        for entry in entries(&folder)? {
            let is_own = !entry.file_type()?.is_dir() && is_segment(&entry.path());
            match is_own {
                true => self.own.push(entry.path()),
                false => has_foreign = true,
            }
        }
        match has_foreign {
            true => self.foreign.push(RECORDING_FOLDER.to_owned()),
            false => self.recording = Some(folder),
        }
        Ok(())
    }

    /// The names of what no driver has written.
    pub(super) fn foreign(&self) -> &[String] {
        &self.foreign
    }

    /// Removes what a driver has written, and then the directory if nothing else is in it.
    pub(super) fn remove(&self, folder: &Path) -> io::Result<()> {
        for file in &self.own {
            unless_missing(fs::remove_file(file))?;
        }
        if let Some(recording) = &self.recording {
            unless_missing(fs::remove_dir(recording))?;
        }
        match fs::remove_dir(folder) {
            // The names of what is in it are told; a file may also have come since the look.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => unless_missing(removed),
        }
    }
}

/// The entries of a folder; none if it is not there.
fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        found => found?.collect(),
    }
}

/// Another process may have removed it at the same time.
fn unless_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::super::state_dir::{ADDRESS_FILE, EVENTS_FILE};
    use super::*;

    #[test]
    fn of_a_state_directory_only_what_a_driver_writes_is_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("127.0.0.1:7070");
        let recording = folder.join(RECORDING_FOLDER);
        let file = |path: PathBuf| fs::write(path, "text").expect("written");
        let fill = || {
            fs::create_dir_all(&recording).expect("made");
            JOB_FILES.iter().chain([&LOCK_FILE]).for_each(|name| file(folder.join(name)));
            for name in ["events.jsonl.1", "events.jsonl.12", "token.77.draft"] {
                file(folder.join(name));
            }
            file(recording.join("00000001.jsonl"));
        };
        fill();
        let files = StateFiles::of(&folder).expect("there");
        assert!(files.foreign().is_empty(), "{files:?}");
        files.remove(&folder).expect("ours");
        assert!(!folder.exists());
        files.remove(&folder).expect("nothing is left to do");

        fill();
        let theirs = ["events.jsonl.old", "lock.txt", "model.pt", "token.draft"];
        theirs.iter().for_each(|name| file(folder.join(name)));
        file(recording.join("notes.jsonl"));
        // A folder of the user in the place of a file of the driver.
        fs::remove_file(folder.join(ADDRESS_FILE)).expect("there");
        fs::create_dir_all(folder.join(ADDRESS_FILE)).expect("made");
        fs::create_dir_all(folder.join("checkpoints/step-0000000005")).expect("made");
        let files = StateFiles::of(&folder).expect("there");
        let names = ["address", "checkpoints", "events.jsonl.old", "lock.txt", "model.pt"];
        assert_eq!(files.foreign(), [&names[..], &["recording", "token.draft"]].concat());
        files.remove(&folder).expect("ours");
        let left = StateFiles::of(&folder).expect("there");
        assert_eq!((left.foreign(), left.own.len()), (files.foreign(), 0));
        assert!(recording.join("notes.jsonl").exists());
        assert!(!recording.join("00000001.jsonl").exists());
    }

    #[test]
    fn a_link_in_a_state_directory_is_removed_without_what_it_leads_to() {
        let root = tempfile::tempdir().expect("a folder");
        let (folder, elsewhere) = (root.path().join("state"), root.path().join("log"));
        fs::create_dir(&folder).expect("made");
        fs::write(&elsewhere, "lines").expect("written");
        std::os::unix::fs::symlink(&elsewhere, folder.join(EVENTS_FILE)).expect("a link");
        StateFiles::of(&folder).expect("there").remove(&folder).expect("ours");
        assert!(elsewhere.exists() && !folder.exists());
    }
}
