//! Ownership of an output folder by one job. Two jobs that run at the same time would write to the same files of
//! `--output-dir`. The agents of the first job therefore share a lock on a small file in the folder, which names the
//! job. Agents of other jobs stay out until they have ended. Used by `stored`, and by a driver when it begins.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use elastic_protocol::messages::FileUmask;

/// The file in the folder that is locked, and names the job.
const NAME: &str = ".elastic-node-job";

/// Most bytes of that file that are read: a job's id has 36.
const NAME_BYTES_MAX: u64 = 64;

/// The file in the folder that says from which byte on a file has a job's output, if a former job has written to it: a line
/// for each, `JOB BYTE NAME`.
const PARTS: &str = ".elastic-node-parts";

/// Most bytes of that file that are read.
const PARTS_BYTES_MAX: u64 = 16 << 20;

/// A folder, and the job whose output is to go there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct FolderOwner {
    pub(crate) folder: PathBuf,
    /// The job's id.
    pub(crate) job: String,
}

/// The folder holds the output of another job.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} holds the output of the job {other}, which goes on: give each job an --output-dir of its own",
    folder.display()
)]
pub struct FolderTaken {
    folder: PathBuf,
    other: String,
}

/// The share of a process in a folder: it may write there as long as it holds this.
#[derive(Debug)]
pub(super) struct FolderShare {
    /// The lock goes with the last descriptor.
    _file: File,
}

impl FolderOwner {
    /// Enters the folder, which must be there. `None` if it cannot be said whose it is.
    ///
    /// # Errors
    /// [`FolderTaken`] names the other job.
    pub(super) fn enter(&self, umask: FileUmask) -> Result<Option<FolderShare>, FolderTaken> {
        match self.try_enter(umask.of_files()) {
            Ok(Ok(file)) => Ok(Some(FolderShare { _file: file })),
            Ok(Err(other)) => Err(FolderTaken { folder: self.folder.clone(), other }),
            Err(error) => {
                let folder = self.folder.display();
                tracing::debug!(%folder, %error, "other jobs are not kept out of the folder");
                Ok(None)
            }
        }
    }

    /// Notes that this job's output begins at this byte of a file that a former job has written to. A failure costs `logs`
    /// the border between the two, and no output.
    pub(super) fn note_part(&self, path: &Path, begin: u64, umask: FileUmask) {
        let Ok(name) = path.strip_prefix(&self.folder) else { return };
        let line = format!("{} {begin} {}\n", self.job, name.display());
        let mut options = OpenOptions::new();
        // Opened like this, a pipe waits for no reader.
        options.read(true).append(true).create(true).mode(umask.of_files());
        let noted = options
            .open(self.folder.join(PARTS))
            .and_then(|mut parts| parts.write_all(line.as_bytes()));
        if let Err(error) = noted {
            tracing::debug!(path = %path.display(), %error, "the job's part is not noted");
        }
    }

    fn try_enter(&self, mode: u32) -> io::Result<Result<File, String>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(mode);
        let mut file = options.open(self.folder.join(NAME))?;
        match file.try_lock() {
            Ok(()) => {
                // No job that lives has its output there.
                file.set_len(0)?;
                file.write_all(self.job.as_bytes())?;
                file.unlock()?;
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // A process that holds the whole lock lets go as soon as it has written.
        file.lock_shared()?;
        // Another one may have come before this one had its share.
        let holder = holder(&mut file)?;
        Ok(if holder == self.job { Ok(file) } else { Err(holder) })
    }
}

/// Says whether the folder holds the output of another job than this one, whose agents live on this machine or share its file
/// system. A folder of which that cannot be said is nobody's.
///
/// # Errors
/// [`FolderTaken`] names the other job.
pub fn check_folder(folder: &Path, job: &str) -> Result<(), FolderTaken> {
    let other = || {
        // To open a pipe is to wait for its writer.
        let path = Some(folder.join(NAME)).filter(|path| path.is_file())?;
        let mut file = File::open(path).ok()?;
        let holder = holder(&mut file).ok()?;
        let is_held = || matches!(file.try_lock(), Err(TryLockError::WouldBlock));
        (holder != job && is_held()).then_some(holder)
    };
    match other() {
        Some(other) => Err(FolderTaken { folder: folder.to_owned(), other }),
        None => Ok(()),
    }
}

/// The part of a file of the folder that a job has written: its first byte, and the first of a later job's part.
pub fn part_of(folder: &Path, path: &Path, job: &str) -> (u64, Option<u64>) {
    let parts = || {
        // To open a pipe is to wait for its writer.
        let parts = Some(folder.join(PARTS)).filter(|path| path.is_file())?;
        let mut text = String::new();
        File::open(parts).ok()?.take(PARTS_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    };
    let Some((text, name)) = parts().zip(path.strip_prefix(folder).ok()) else { return (0, None) };
    let part = |line: &str| -> Option<(bool, u64)> {
        let (of, rest) = line.split_once(' ')?;
        let (begin, of_file) = rest.split_once(' ')?;
        (Path::new(of_file) == name).then_some(())?;
        Some((of == job, begin.parse().ok()?))
    };
    let parts: Vec<(bool, u64)> = text.lines().filter_map(part).collect();
    let begin = parts.iter().find(|(is_own, _)| *is_own).map_or(0, |(_, begin)| *begin);
    let later = parts.iter().filter(|(is_own, other)| !is_own && *other > begin);
    (begin, later.map(|(_, begin)| *begin).min())
}

fn holder(file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let mut named = Vec::new();
    file.take(NAME_BYTES_MAX).read_to_end(&mut named)?;
    let named = String::from_utf8_lossy(&named);
    Ok(named.chars().filter(|it| !it.is_control()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(folder: &Path, job: &str) -> FolderOwner {
        FolderOwner { folder: folder.to_owned(), job: job.to_owned() }
    }

    #[test]
    fn s_6_two_jobs_that_live_do_not_share_a_folder_and_agents_of_one_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let enter = |job| owner(path, job).enter(FileUmask::PRIVATE);
        assert!(check_folder(path, "one").is_ok(), "nobody was there");
        let first = enter("one").expect("nobody is there").expect("it can be said");
        let second = enter("one").expect("an agent of the same job").expect("it can be said");
        let refused = enter("two").expect_err("another job").to_string();
        assert!(refused.contains("the job one") && refused.contains("--output-dir"), "{refused}");
        assert!(check_folder(path, "two").is_err());
        assert!(check_folder(path, "one").is_ok(), "a driver that is started again");
        drop(first);
        assert!(enter("two").is_err(), "its other agent lives");
        drop(second);
        assert!(check_folder(path, "two").is_ok());
        let other = enter("two").expect("the first job is over").expect("it can be said");
        assert!(enter("one").is_err());
        drop(other);
    }

    #[test]
    fn x_16_each_job_has_its_part_of_a_file_that_several_have_written_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("a b/stdout.log"), folder.path().join("other"));
        assert_eq!(part_of(folder.path(), &path, "one"), (0, None));
        owner(folder.path(), "two").note_part(&path, 10, FileUmask::PRIVATE);
        owner(folder.path(), "two").note_part(&other, 5, FileUmask::PRIVATE);
        owner(folder.path(), "three").note_part(&path, 30, FileUmask::PRIVATE);
        let parts = ["one", "two", "three"].map(|job| part_of(folder.path(), &path, job));
        assert_eq!(parts, [(0, Some(10)), (10, Some(30)), (30, None)]);
        assert_eq!(part_of(folder.path(), &other, "two"), (5, None));
    }

    #[test]
    fn a_folder_that_takes_no_file_is_nobodys() {
        let nowhere = Path::new("/dev/null");
        assert!(matches!(owner(nowhere, "one").enter(FileUmask::PRIVATE), Ok(None)));
        assert!(check_folder(nowhere, "one").is_ok());
        let folder = tempfile::tempdir().expect("a folder");
        let mode = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(&folder.path().join(NAME), mode).expect("a pipe");
        assert!(check_folder(folder.path(), "one").is_ok(), "and it is not waited for");
    }
}
