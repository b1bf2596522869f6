//! Reads checkpoints: lists them, verifies each byte, and finds the newest whole one. `elastic-node checkpoint` calls
//! it. The search is also called by the worker that chooses the checkpoint for a resume.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{CheckpointLoadError, Damage};
use crate::file_system::FileSystem;
use crate::layout::CommitLayout;
use crate::manifest::{MANIFEST, MANIFEST_BYTES_MAX, Manifest};
use crate::retain::steps;
use crate::{step_directory, step_of};

/// The most looks for a checkpoint in a directory whose job removes those that are being read.
const LOOKS_MAX: u32 = 5;

/// A step's directory.
#[derive(Clone, Debug)]
pub struct CheckpointCandidate {
    /// The step that its name says.
    pub step: u64,
    /// The directory.
    pub path: PathBuf,
    /// Its manifest, or why it cannot be taken. Its files have not been looked at.
    pub manifest: Result<Manifest, Damage>,
}

/// A commit that was read, all of whose bytes are as they were written.
#[derive(Clone, Debug)]
pub struct LoadedCheckpoint {
    /// Its manifest.
    pub manifest: Manifest,
    /// Its directory.
    pub path: PathBuf,
    /// The commit.
    pub bytes: Vec<u8>,
}

/// The result of a look for the checkpoint of a step, before its files are read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CheckpointTrace {
    /// It is there, or it is damaged.
    There,
    /// It cannot be read for now.
    Unreadable,
    /// It is not there.
    None,
}

/// All steps' directories, the oldest first. A directory that does not exist holds none.
///
/// # Errors
/// [`CheckpointLoadError::List`].
pub fn list(
    files: &dyn FileSystem,
    directory: &Path,
) -> Result<Vec<CheckpointCandidate>, CheckpointLoadError> {
    let steps = match steps(files, directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        steps => steps
            .map_err(|source| CheckpointLoadError::List { path: directory.to_owned(), source })?,
    };
    let candidate = |step| {
        let path = directory.join(step_directory(step));
        let manifest = read_manifest(files, &path, step);
        CheckpointCandidate { step, path, manifest }
    };
    Ok(steps.into_iter().map(candidate).collect())
}

fn read_manifest(files: &dyn FileSystem, of_step: &Path, step: u64) -> Result<Manifest, Damage> {
    let unreadable = |error: io::Error| Damage::Unreadable {
        file: MANIFEST.to_owned(),
        reason: error.to_string(),
    };
    let file = files.open(&of_step.join(MANIFEST)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Damage::Partial,
        // It stays so: another look finds nothing else.
        io::ErrorKind::NotADirectory => Damage::Foreign {
            reason: "it is no folder: remove it, since it holds no checkpoint".to_owned(),
        },
        _ => unreadable(error),
    })?;
    let mut text = Vec::new();
    file.take(MANIFEST_BYTES_MAX).read_to_end(&mut text).map_err(unreadable)?;
    let manifest = Manifest::decode(&text)?;
    if manifest.step != step {
        let (found, named) = (manifest.step, step_directory(step));
        return Err(Damage::Foreign {
            reason: format!("it is of step {found}, and is named {named}"),
        });
    }
    Ok(manifest)
}

/// Checks a whole checkpoint: each chunk of each file, and the commit that the files make.
///
/// # Errors
/// The first [`Damage`].
pub fn verify(files: &dyn FileSystem, of_step: &Path, manifest: &Manifest) -> Result<(), Damage> {
    read_commit(files, of_step, manifest).map(|_bytes| ())
}

/// Whether a checkpoint that had a manifest has none any more: its job has removed it meanwhile, which is no damage.
pub fn is_removed(files: &dyn FileSystem, of_step: &Path) -> bool {
    let manifest = files.open(&of_step.join(MANIFEST));
    manifest.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// The search for the checkpoint that training goes on from: offers candidates, the newest first, until one is taken.
#[derive(Debug)]
pub struct CheckpointSearch {
    /// The path to search, as the caller gave it.
    path: PathBuf,
    /// Whether `path` is the one checkpoint to take, rather than the directory of all.
    is_exact: bool,
    /// The steps beside the one to take, if that has no directory.
    instead: Option<Vec<u64>>,
    /// Candidates that were not offered yet, the newest last.
    left: Vec<CheckpointCandidate>,
    passed_over: Vec<(String, Damage)>,
}

impl CheckpointSearch {
    /// Searches a directory for the newest checkpoint of a job of this name.
    ///
    /// # Errors
    /// [`CheckpointLoadError::List`].
    pub fn newest(
        files: &dyn FileSystem,
        directory: &Path,
        name: Option<&str>,
    ) -> Result<Self, CheckpointLoadError> {
        let mut left = list(files, directory)?;
        for candidate in &mut left {
            let is_ours = candidate.manifest.as_ref().ok().map(|manifest| of_job(manifest, name));
            if let Some(Err(damage)) = is_ours {
                candidate.manifest = Err(damage);
            }
        }
        let (path, passed_over) = (directory.to_owned(), Vec::new());
        Ok(Self { path, is_exact: false, instead: None, left, passed_over })
    }

    /// Looks for the checkpoint of this step in another directory, too. What the searched directory holds of the same or a
    /// later step is offered before it.
    pub fn add_from(&mut self, files: &dyn FileSystem, directory: &Path, step: u64) {
        let path = directory.join(step_directory(step));
        let manifest = read_manifest(files, &path, step);
        if manifest.as_ref().err() == Some(&Damage::Partial) {
            return;
        }
        let at = self.left.partition_point(|candidate| candidate.step < step);
        self.left.insert(at, CheckpointCandidate { step, path, manifest });
    }

    /// Whether a checkpoint is left that can be offered.
    pub fn has_candidate(&self) -> bool {
        self.left.iter().any(|candidate| candidate.manifest.is_ok())
    }

    /// The newest step that is left and can be offered.
    pub fn newest_step(&self) -> Option<u64> {
        self.left.iter().rev().find(|candidate| candidate.manifest.is_ok()).map(|it| it.step)
    }

    /// The trace of the checkpoint of a step, or of a later one.
    pub fn trace_of(&self, step: u64) -> CheckpointTrace {
        let of_step = self.left.iter().filter(|candidate| candidate.step >= step);
        let mut trace = CheckpointTrace::None;
        for CheckpointCandidate { manifest, .. } in of_step {
            match manifest {
                Err(Damage::Partial | Damage::Foreign { .. }) => {}
                Err(Damage::Unreadable { .. }) => trace = CheckpointTrace::Unreadable,
                Ok(_) | Err(_) => return CheckpointTrace::There,
            }
        }
        trace
    }

    /// The error of a manifest that could not be read, if there is one and no checkpoint is left that can be offered.
    pub fn unreadable(&self) -> Option<&Damage> {
        let mut damages = self.left.iter().rev().filter_map(|it| it.manifest.as_ref().err());
        let unreadable = damages.find(|damage| matches!(damage, Damage::Unreadable { .. }));
        unreadable.filter(|_| !self.has_candidate())
    }

    /// Takes the checkpoint in this step's directory, or none.
    pub fn exactly(files: &dyn FileSystem, of_step: &Path) -> Self {
        let step = of_step.file_name().and_then(|name| step_of(name.to_str()?));
        let foreign =
            || Damage::Foreign { reason: "its name is not that of a step's directory".to_owned() };
        let manifest =
            step.ok_or_else(foreign).and_then(|step| read_manifest(files, of_step, step));
        let is_partial = matches!(manifest, Err(Damage::Partial));
        let instead = step.filter(|_| is_partial).and_then(|step| others(files, of_step, step));
        let path = of_step.to_owned();
        let candidate = CheckpointCandidate { step: step.unwrap_or(0), path, manifest };
        let (path, left) = (of_step.to_owned(), vec![candidate]);
        Self { path, is_exact: true, instead, left, passed_over: Vec::new() }
    }

    /// The next candidate with a manifest that can be taken. None if there is no checkpoint, or only partial ones.
    ///
    /// # Errors
    /// [`CheckpointLoadError::NoneWhole`] if there are sealed ones, and none was taken: training from the beginning is nothing
    /// to begin unasked. [`CheckpointLoadError::Damaged`] if the one to take is damaged, [`CheckpointLoadError::NoSuchStep`] if
    /// it is not there.
    pub fn offer(&mut self) -> Result<Option<(PathBuf, Manifest)>, CheckpointLoadError> {
        while let Some(CheckpointCandidate { step, path, manifest }) = self.left.pop() {
            match manifest {
                Ok(manifest) => return Ok(Some((path, manifest))),
                Err(damage) => self.pass_over(step, damage),
            }
        }
        match self.passed_over.last() {
            Some((_, damage)) if self.is_exact => {
                let (path, damage) = (self.path.clone(), damage.clone());
                return Err(match self.instead.clone() {
                    Some(others) => CheckpointLoadError::NoSuchStep { path, others },
                    None => CheckpointLoadError::Damaged { path, damage },
                });
            }
            _ => {}
        }
        if self.passed_over.iter().all(|(_, damage)| *damage == Damage::Partial) {
            return Ok(None);
        }
        let damages: Vec<String> =
            self.passed_over.iter().map(|(name, damage)| format!("{name}: {damage}")).collect();
        let (path, damages) = (self.path.clone(), damages.join("; "));
        Err(CheckpointLoadError::NoneWhole { path, damages })
    }

    /// Passes the checkpoint of a step over, which was offered.
    pub fn pass_over(&mut self, step: u64, damage: Damage) {
        self.passed_over.push((step_directory(step), damage));
    }

    /// The checkpoints that were passed over, and why.
    pub fn passed_over(self) -> Vec<(String, Damage)> {
        self.passed_over
    }
}

/// The newest whole checkpoint of a job of this name, with those that were passed over on the way to it and why. None if there is
/// none at all, or only partial ones.
///
/// # Errors
/// Those of [`CheckpointSearch`].
#[expect(clippy::type_complexity, reason = "two results, and no third place that needs them")]
pub fn newest(
    files: &dyn FileSystem,
    directory: &Path,
    name: Option<&str>,
) -> Result<(Option<LoadedCheckpoint>, Vec<(String, Damage)>), CheckpointLoadError> {
    let mut looks = 1;
    loop {
        let mut search = CheckpointSearch::newest(files, directory, name)?;
        let (taken, has_removed) = take(files, &mut search);
        match taken {
            Ok(None) | Err(_) if has_removed && looks < LOOKS_MAX => looks += 1,
            taken => return Ok((taken?, search.passed_over())),
        }
    }
}

/// Reads the checkpoint in this step's directory.
///
/// # Errors
/// [`CheckpointLoadError::Damaged`], or [`CheckpointLoadError::NoSuchStep`].
pub fn load(
    files: &dyn FileSystem,
    of_step: &Path,
) -> Result<LoadedCheckpoint, CheckpointLoadError> {
    let (taken, _) = take(files, &mut CheckpointSearch::exactly(files, of_step));
    let taken = taken?;
    let (path, damage) = (of_step.to_owned(), Damage::Partial);
    taken.ok_or(CheckpointLoadError::Damaged { path, damage })
}

/// Reads the candidates that a search offers, until one is whole. Returns also whether one was removed meanwhile.
fn take(
    files: &dyn FileSystem,
    search: &mut CheckpointSearch,
) -> (Result<Option<LoadedCheckpoint>, CheckpointLoadError>, bool) {
    let mut has_removed = false;
    loop {
        let (path, manifest) = match search.offer() {
            Ok(Some(offered)) => offered,
            Ok(None) => return (Ok(None), has_removed),
            Err(error) => return (Err(error), has_removed),
        };
        match read_commit(files, &path, &manifest) {
            Ok(bytes) => {
                return (Ok(Some(LoadedCheckpoint { manifest, path, bytes })), has_removed);
            }
            Err(damage) => {
                let is_removed = is_removed(files, &path);
                has_removed |= is_removed;
                search.pass_over(manifest.step, if is_removed { Damage::Partial } else { damage });
            }
        }
    }
}

/// The steps that have a directory beside that of a step; none if it has one itself, or if that cannot be said.
fn others(files: &dyn FileSystem, of_step: &Path, step: u64) -> Option<Vec<u64>> {
    let above = of_step.parent().filter(|above| !above.as_os_str().is_empty());
    match steps(files, above.unwrap_or(Path::new("."))) {
        Ok(steps) => Some(steps).filter(|steps| !steps.contains(&step)),
        Err(error) => (error.kind() == io::ErrorKind::NotFound).then(Vec::new),
    }
}

/// Checks that a checkpoint is of a job of this name.
fn of_job(manifest: &Manifest, name: Option<&str>) -> Result<(), Damage> {
    match (name, &manifest.name) {
        (Some(ours), Some(theirs)) if ours != theirs => {
            Err(Damage::Foreign { reason: format!("it is of the job {theirs:?}, not of {ours:?}") })
        }
        _ => Ok(()),
    }
}

/// Reads a checkpoint's files, checks them, and puts the commit together.
fn read_commit(
    files: &dyn FileSystem,
    of_step: &Path,
    manifest: &Manifest,
) -> Result<Vec<u8>, Damage> {
    let layout = CommitLayout::new(manifest)?;
    let mut bytes = Vec::new();
    let too_large =
        || Damage::Manifest { reason: "its commit does not fit into memory".to_owned() };
    bytes.try_reserve_exact(layout.length()).map_err(|_| too_large())?;
    bytes.resize(layout.length(), 0);
    layout.read(files, of_step, 0..layout.chunks(), &mut bytes, &mut |_| {})?;
    manifest.check_digest(xxh3_64(&bytes))?;
    Ok(bytes)
}
