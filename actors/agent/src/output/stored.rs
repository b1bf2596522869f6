//! A worker's output in a file. Used by `pump`. A `DroppingWriter` lane opens and writes the file, so that a folder that
//! hangs holds up neither the worker nor the agent. Output that does not fit into the lane is dropped, and the
//! file says how much.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use elastic_protocol::messages::FileUmask;
use elastic_runtime::{
    DroppingWriter, DroppingWriterLane, DroppingWriterTrouble, WeakDroppingWriter,
    is_for_want_of_room,
};

use super::owner::{FolderOwner, FolderShare, FolderTaken};
use super::plan::OutputPlan;
use super::pump::AttachError;

/// Timeout for opening a worker's files at its start. Output whose file cannot be made, or whose folder does not answer, holds up
/// no start.
const OPENED_WITHIN: Duration = Duration::from_secs(1);

/// Timeout for output that waits for its file to be written; after it the output is dropped.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// The most bytes of one stream that wait for its file.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// The output files of an agent's workers. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputFiles(Arc<Files>);

#[derive(Debug, Default)]
struct Files {
    /// The number of files that are being opened. While some hang, the next start does not wait for its own.
    opening: AtomicUsize,
    /// The lanes of the files that are open; ended ones leave with the next file.
    lanes: Mutex<Vec<WeakDroppingWriter>>,
    /// The shares in folders that this agent's workers write to, kept as long as the agent lives.
    shares: Mutex<BTreeMap<PathBuf, FolderShare>>,
}

impl OutputFiles {
    fn add(&self, words: &DroppingWriter) {
        let mut lanes = self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|lane| lane.upgrade().is_some());
        lanes.push(words.downgrade());
    }

    /// Enters the folder of stored files, once for all.
    fn enter(&self, owner: &FolderOwner, umask: FileUmask) -> Result<(), FolderTaken> {
        let mut shares = self.0.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if !shares.contains_key(&owner.folder)
            && let Some(share) = owner.enter(umask)?
        {
            shares.insert(owner.folder.clone(), share);
        }
        Ok(())
    }

    /// The trouble of the file that has not been written for longest, if one hangs.
    pub(crate) fn hanging(&self) -> Option<DroppingWriterTrouble> {
        let lanes = self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let troubled = lanes.iter().filter_map(|lane| lane.upgrade()?.trouble());
        troubled.filter(|trouble| trouble.hanging.is_some()).max_by_key(|trouble| trouble.hanging)
    }
}

/// The file of a stream.
#[derive(Debug)]
pub(super) struct StoredFile {
    path: PathBuf,
    words: DroppingWriter,
    opened: Option<Receiver<Result<(), AttachError>>>,
    is_dropping: bool,
}

impl StoredFile {
    /// Begins to open the file, as the plan of its process says.
    pub(super) fn begin(path: &Path, plan: &OutputPlan, files: &OutputFiles) -> io::Result<Self> {
        let (told, opened) = sync_channel(1);
        let opening = Some((files.clone(), told));
        let (umask, owner) = (plan.umask, plan.owner.clone());
        let (path, file, is_failing) = (path.to_owned(), None, false);
        let file = LateFile { path: path.clone(), umask, owner, file, opening, is_failing };
        let lane = DroppingWriterLane {
            waiting_bytes_max: WAITING_BYTES_MAX,
            answers_within: WRITTEN_WITHIN,
            ..DroppingWriterLane::kept("output file")
        };
        let words = DroppingWriter::new(lane, Box::new(file), Box::new(missing))?;
        files.add(&words);
        Ok(Self { path, words, opened: Some(opened), is_dropping: false })
    }

    /// Waits until the file is open, at most until `deadline`.
    pub(super) fn wait(&mut self, deadline: Instant) -> Result<(), AttachError> {
        let Some(opened) = self.opened.take() else { return Ok(()) };
        #[expect(clippy::disallowed_methods, reason = "this thread may wait, and no actor sees it")]
        let left = deadline.saturating_duration_since(Instant::now());
        match opened.recv_timeout(left) {
            Ok(opened) => opened,
            Err(_late) => {
                let path = self.path.display();
                tracing::warn!(%path, "the output file is not open yet: its folder does not answer");
                Ok(())
            }
        }
    }

    /// Appends bytes that were read from the stream.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let is_taken = self.words.push_patiently(&[bytes], WRITTEN_WITHIN);
        let was_dropping = std::mem::replace(&mut self.is_dropping, !is_taken);
        let path = self.path.display();
        match (is_taken, was_dropping) {
            (false, false) => tracing::warn!(%path, "not written in time: output is dropped"),
            (true, true) => tracing::info!(%path, "output is stored again"),
            _ => {}
        }
    }

    /// Waits until all bytes were written, for `within` at most.
    pub(super) fn flush(&self, within: Duration) {
        if !self.words.flush(within) {
            tracing::warn!(path = %self.path.display(), "the last output was not stored in time");
        }
    }
}

/// The deadline of a start for opening its files.
pub(super) fn deadline(files: &OutputFiles) -> Instant {
    let is_stuck = files.0.opening.load(Ordering::Acquire) > 0;
    let patience = if is_stuck { Duration::ZERO } else { OPENED_WITHIN };
    #[expect(clippy::disallowed_methods, reason = "this thread may wait, and no actor sees it")]
    let now = Instant::now();
    now + patience
}

/// The line that the file holds in place of missing output.
fn missing(lines: u64) -> String {
    format!("\n[elastic-node] {lines} lines are missing here: this file was not written in time\n")
}

/// Opens a file to append to. A new one gets exactly this mode, regardless of the umask that the process inherited.
fn open_with_mode(path: &Path, mode: u32) -> io::Result<File> {
    let mut append = OpenOptions::new();
    append.append(true);
    match append.clone().create_new(true).mode(mode & 0o600).open(path) {
        Ok(file) => file.set_permissions(Permissions::from_mode(mode)).map(|()| file),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => append.open(path),
        Err(error) => Err(error),
    }
}

/// The file on its lane's thread, which opens it first. A write that fails is tried again by the lane.
struct LateFile {
    path: PathBuf,
    umask: FileUmask,
    owner: Option<FolderOwner>,
    /// The open file; none before it is opened, and after a failure that may be the descriptor's own.
    file: Option<File>,
    opening: Option<(OutputFiles, SyncSender<Result<(), AttachError>>)>,
    is_failing: bool,
}

impl LateFile {
    fn open(&mut self, files: &OutputFiles) -> Result<(), AttachError> {
        let path = self.path.clone();
        if let Some(folder) = path.parent() {
            let mode = self.umask.of_folders();
            let made = DirBuilder::new().recursive(true).mode(mode).create(folder);
            made.map_err(|source| AttachError::Folder { path: folder.to_owned(), source })?;
        }
        if let Some(owner) = &self.owner {
            files.enter(owner, self.umask)?;
        }
        let file = open_with_mode(&path, self.umask.of_files())
            .map_err(|source| AttachError::File { path: path.clone(), source })?;
        // Files of one job are never opened twice: no two of its processes have the same name.
        if let Some(owner) = &self.owner
            && let Ok(found) = file.metadata()
            && found.is_file()
            && found.len() > 0
        {
            owner.note_part(&path, found.len(), self.umask);
        }
        self.file = Some(file);
        Ok(())
    }

    /// Writes to the file of that name. A server that was gone knows no descriptor of before.
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(open_with_mode(&self.path, self.umask.of_files())?),
        };
        file.write(bytes)
    }
}

impl Write for LateFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.append(bytes);
        let was_failing = std::mem::replace(&mut self.is_failing, written.is_err());
        let path = self.path.display();
        match &written {
            Err(error) if !was_failing => {
                tracing::error!(%path, %error, "output is not stored; it is tried again");
            }
            Ok(_) if was_failing => tracing::info!(%path, "output is stored again"),
            _ => {}
        }
        written.inspect_err(|error| {
            if !is_for_want_of_room(error) {
                self.file = None;
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some((files, told)) = self.opening.take() else { return Ok(()) };
        files.0.opening.fetch_add(1, Ordering::AcqRel);
        let opened = self.open(&files);
        files.0.opening.fetch_sub(1, Ordering::AcqRel);
        let failed = opened.as_ref().err().map(ToString::to_string);
        // The start did not wait this long, so the error can only be logged.
        if told.send(opened).is_err()
            && let Some(error) = &failed
        {
            tracing::error!("{error}: output is not stored");
        }
        // A file that could not be made is not tried again: its worker may have another one by then.
        failed.map_or(Ok(()), |error| Err(io::Error::new(io::ErrorKind::BrokenPipe, error)))
    }
}
