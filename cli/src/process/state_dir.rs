//! A driver's state directory: `token` (mode 0600), `address`, `events.jsonl`, the journal, and a lock. Used by the
//! driver's process, and by others to find it.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use elastic_protocol::messages::FileUmask;
use elastic_transport::{JoinToken, TOKEN_FILE, write_token};

use super::network::reached_here;
use super::plain_file;
use crate::command_line::{CommandFailure, ResultExt};

/// Name of the file with the driver's real address.
pub(crate) const ADDRESS_FILE: &str = "address";
/// Name of the file in which the address is written before it is put in place.
pub(crate) const ADDRESS_DRAFT_FILE: &str = "address.draft";
/// Name of the event log.
pub(crate) const EVENTS_FILE: &str = "events.jsonl";
/// Name of the journal.
pub(crate) const JOURNAL_FILE: &str = "journal.redb";
/// Name of the file that an attempt to renew the journal may leave.
pub(crate) const JOURNAL_DRAFT_FILE: &str = "journal.redb.draft";

/// The files of a job, but for those with a number in their names.
pub(super) const JOB_FILES: [&str; 6] =
    [TOKEN_FILE, ADDRESS_FILE, ADDRESS_DRAFT_FILE, EVENTS_FILE, JOURNAL_FILE, JOURNAL_DRAFT_FILE];
/// Bytes that are read at most of a file that others find.
const PUBLISHED_BYTES_MAX: u64 = 4096;
/// Name of the file that the driver holds locked.
pub(crate) const LOCK_FILE: &str = "lock";
/// Permissions of the lock, whatever `--umask` says: who may open it, only to read it, can hold it.
const LOCK_MODE: u32 = 0o600;
/// Bytes of the kernel's list of locks that are read at most.
const LOCKS_BYTES_MAX: u64 = 1 << 20;

/// An open state directory, locked for one driver at a time.
#[derive(Debug)]
pub(crate) struct DriverStateDir {
    path: PathBuf,
    umask: FileUmask,
    held: Mutex<Held>,
}

/// The parts of a state directory that its driver owns.
#[derive(Debug)]
struct Held {
    /// The lock; none once it was given back.
    lock: Option<File>,
    /// The token and the address that others find there, from the start of the job to its end.
    published: Option<(JoinToken, SocketAddr)>,
}

/// Damage of a state directory: something in it is not as this driver wrote it.
#[derive(Debug)]
pub(crate) enum StateDamage {
    /// It, or a file in it, is not there.
    Removed,
    /// The system does not let it be read.
    Unreadable(io::Error),
    /// A file in it holds something else, or is another one.
    Overwritten,
}

impl StateDamage {
    fn of(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Removed,
            // Bytes that are no text were not written by this driver, either.
            io::ErrorKind::InvalidData => Self::Overwritten,
            _ => Self::Unreadable(error),
        }
    }
}

/// A state directory that cannot be written anew.
#[derive(Debug)]
pub(crate) struct NotRestored {
    /// The damage that a look has found.
    pub(crate) found: StateDamage,
    /// The reason why it stays so.
    pub(crate) failure: CommandFailure,
}

impl DriverStateDir {
    /// Creates the directory, without these permissions, and locks it.
    pub(crate) fn open(path: &Path, umask: FileUmask) -> Result<Self, CommandFailure> {
        // The journal's store takes no other names.
        if path.to_str().is_none() {
            let message =
                format!("the name of the state directory {} is not UTF-8", path.display());
            return Err(CommandFailure::usage(message).hint("give another one with --state-dir"));
        }
        made(path, umask)?;
        let path = fs::canonicalize(path).failed(failure_text("find", path))?;
        let held = Mutex::new(Held { lock: Some(locked(&path)?), published: None });
        Ok(Self { path, umask, held })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses folders in the places of the files that the driver of a new job writes here: no file takes such a place.
    pub(crate) fn refuse_folders(&self) -> Result<(), CommandFailure> {
        let paths = JOB_FILES.map(|name| self.path.join(name));
        let Some(folder) = paths.iter().find(|path| path.is_dir()) else { return Ok(()) };
        let message =
            format!("a folder stands in the place of the driver's file {}", folder.display());
        Err(CommandFailure::usage(message)
            .hint("remove it, or give another state directory with --state-dir"))
    }

    /// Writes the token, then the driver's address: a reader of the address finds the token, too. A job that `goes_on`
    /// does so without them: a standby leads even if the directory was removed meanwhile, or its disk became full, and
    /// they are written once they can be ([`Self::restore_if_removed`]).
    pub(crate) fn publish(
        &self,
        token: &JoinToken,
        address: SocketAddr,
        goes_on: bool,
    ) -> Result<PathBuf, CommandFailure> {
        self.held().published = Some((token.clone(), address));
        match write_published(&self.path, token, address) {
            Err(failure) if goes_on => {
                let (reason, _) = failure.finding();
                tracing::warn!(
                    folder = %self.path.display(),
                    reason,
                    "the job goes on although its state directory cannot be written; that is tried again"
                );
                Ok(self.path.join(TOKEN_FILE))
            }
            written => written,
        }
    }

    /// Makes the directory anew, with the lock, the token and the address, if any of them was removed or overwritten
    /// while the job runs. A temporary folder is cleaned of old files, and a person may take the folder for a leftover.
    /// Returns whether anything was restored.
    pub(crate) fn restore_if_removed(&self) -> Result<bool, NotRestored> {
        // Not held while the disk is used, which may hang.
        let (ours, published) = {
            let held = self.held();
            (
                held.lock.as_ref().and_then(|lock| Some(identity(&lock.metadata().ok()?))),
                held.published.clone(),
            )
        };
        let Some((token, address)) = published else { return Ok(false) };
        let holds = |name, text: String| {
            let mut found = String::new();
            let file = plain_file::open(&self.path.join(name)).map_err(StateDamage::of)?;
            file.take(PUBLISHED_BYTES_MAX).read_to_string(&mut found).map_err(StateDamage::of)?;
            if found.trim() == text { Ok(()) } else { Err(StateDamage::Overwritten) }
        };
        let locked = match fs::metadata(self.path.join(LOCK_FILE)) {
            Ok(found) if ours == Some(identity(&found)) => Ok(()),
            Ok(_) => Err(StateDamage::Overwritten),
            Err(error) => Err(StateDamage::of(error)),
        };
        let is_locked = locked.is_ok();
        let looked = locked
            .and_then(|()| holds(TOKEN_FILE, token.to_line()))
            .and_then(|()| holds(ADDRESS_FILE, address.to_string()));
        let Err(found) = looked else { return Ok(false) };
        match self.write_anew(is_locked, &token, address) {
            Ok(is_written) => Ok(is_written),
            Err(failure) => Err(NotRestored { found, failure }),
        }
    }

    fn write_anew(
        &self,
        is_locked: bool,
        token: &JoinToken,
        address: SocketAddr,
    ) -> Result<bool, CommandFailure> {
        made(&self.path, self.umask)?;
        let lock = if is_locked { None } else { Some(locked(&self.path)?) };
        let mut held = self.held();
        if held.published.is_none() {
            return Ok(false);
        }
        held.lock = lock.or_else(|| held.lock.take());
        write_published(&self.path, token, address)?;
        Ok(true)
    }

    /// Gives the lock back: tasks that still run here write nothing any more.
    pub(crate) fn release(&self) {
        *self.held() = Held { lock: None, published: None };
    }

    /// The address of a former driver that has not ended in order.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        bound_address(&self.path)
    }

    /// Removes token, address and journal: the job is over, so they must let no node in and no driver continue it.
    pub(crate) fn withdraw(&self) {
        self.held().published = None;
        for name in [ADDRESS_FILE, TOKEN_FILE, JOURNAL_FILE, JOURNAL_DRAFT_FILE] {
            let path = self.path.join(name);
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(path = %path.display(), %error, "not removed"),
            }
        }
    }
}

/// Device and inode of a file.
fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Makes a state directory, without these permissions.
fn made(path: &Path, umask: FileUmask) -> Result<(), CommandFailure> {
    DirBuilder::new()
        .recursive(true)
        .mode(umask.of_folders())
        .create(path)
        .usage(failure_text("make", path))
        .map_err(|failure| failure.hint("give another folder with --state-dir"))
}

/// The lock of a state directory, which excludes other drivers.
fn locked(path: &Path) -> Result<File, CommandFailure> {
    let file = path.join(LOCK_FILE);
    if let Err(error) = plain_file::refuse_other(&file) {
        let message = format!("the lock {} cannot be opened", file.display());
        let failure = CommandFailure::usage(message).source(error);
        return Err(failure.hint("remove it, or give another state directory with --state-dir"));
    }
    let lock = opened_lock(&file)
        .usage(failure_text("write to", path))
        .map_err(|failure| failure.hint("make it writable, or give another with --state-dir"))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            let or = holder(&lock).map(|it| format!(", or another process holds its lock: {it}"));
            let or = or.unwrap_or_default();
            let message = format!("another driver uses the state directory {}{or}", path.display());
            Err(CommandFailure::new(message).hint("stop it, or give this one another --state-dir"))
        }
        Err(TryLockError::Error(error)) => Err(not_locked(path, error)),
    }
}

/// Opens the lock, and makes it its owner's alone: an earlier version left other permissions.
fn opened_lock(file: &Path) -> io::Result<File> {
    let lock =
        OpenOptions::new().write(true).create(true).truncate(true).mode(LOCK_MODE).open(file)?;
    let found = lock.metadata()?;
    let is_ours = found.uid() == nix::unistd::geteuid().as_raw();
    if is_ours && found.mode() & 0o7777 != LOCK_MODE {
        // Some file systems have no permissions; their locks work all the same.
        if let Err(error) = lock.set_permissions(Permissions::from_mode(LOCK_MODE)) {
            tracing::debug!(path = %file.display(), %error, "others may open the lock");
        }
    }
    Ok(lock)
}

/// The process that holds a lock, with its name, where the kernel tells it: it tells nothing of processes outside this container,
/// nor on file systems whose devices have another number there.
fn holder(lock: &File) -> Option<String> {
    let found = lock.metadata().ok()?;
    let mut locks = String::new();
    File::open("/proc/locks").ok()?.take(LOCKS_BYTES_MAX).read_to_string(&mut locks).ok()?;
    let pid = locks.lines().find_map(|line| holder_in(line, &found))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("process {pid} ({})", name.trim()))
}

/// The holder of a file's lock, if a line of `/proc/locks` is about it: `1: FLOCK  ADVISORY  WRITE 32202 fe:00:10020183 0 EOF`.
fn holder_in(line: &str, file: &Metadata) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_number, "FLOCK", _advisory, _kind, pid, place, ..] = words[..] else { return None };
    let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
    let is_it = place == format!("{major:02x}:{minor:02x}:{}", file.ino());
    pid.parse().ok().filter(|pid| is_it && *pid > 0)
}

/// Hint if a file system has no locks.
const WITH_LOCKS: &str = "its file system has no locks (flock): give a --state-dir on a local disk, with --store etcd://HOST:PORT/NAME if the job is \
     to outlive this machine; or mount it with locks";

/// The system does not lock a state directory.
fn not_locked(path: &Path, error: io::Error) -> CommandFailure {
    let has_no_locks =
        matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::ENOLCK | libc::EOPNOTSUPP));
    let failure = CommandFailure::new(failure_text("lock", path)).source(error);
    if has_no_locks { failure.hint(WITH_LOCKS) } else { failure }
}

/// Writes the token, then the driver's address; returns the path of the token.
fn write_published(
    path: &Path,
    token: &JoinToken,
    address: SocketAddr,
) -> Result<PathBuf, CommandFailure> {
    let token_path = write_token(path, token).failed("the token cannot be stored")?;
    let draft = path.join(ADDRESS_DRAFT_FILE);
    fs::write(&draft, format!("{address}\n"))
        .and_then(|()| fs::rename(&draft, path.join(ADDRESS_FILE)))
        .failed("the driver's address cannot be stored")?;
    Ok(token_path)
}

/// The address that the driver of a state directory is bound to.
fn bound_address(path: &Path) -> Option<SocketAddr> {
    let found = plain_file::read(&path.join(ADDRESS_FILE), PUBLISHED_BYTES_MAX).ok()?;
    String::from_utf8(found).ok()?.trim().parse().ok()
}

/// The address at which the driver of a state directory is reached from its own machine.
pub(crate) fn address_on_this_machine(path: &Path) -> Option<SocketAddr> {
    bound_address(path).map(reached_here)
}

fn failure_text(doing: &str, path: &Path) -> String {
    format!("could not {doing} the state directory {}", path.display())
}

/// The state directory of the driver at an address, below `$XDG_STATE_HOME` or `~/.local/state`.
pub(crate) fn default_state_dir(address: SocketAddr) -> Option<PathBuf> {
    Some(state_root()?.join(address.to_string()))
}

/// The folder below which this user's drivers keep their state by default.
pub(crate) fn state_root() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let root = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(root.join("elastic-node"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use elastic_protocol::{Incarnation, JobId};
    use elastic_transport::JobSecrets;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn one_driver_has_it_at_a_time_and_only_its_user_reads_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/b");
        let first = DriverStateDir::open(&path, FileUmask::PRIVATE).expect("made");
        let mode = fs::metadata(&path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o700);
        let error = DriverStateDir::open(&path, FileUmask::PRIVATE).expect_err("taken");
        assert!(error.to_string().contains("another driver"), "{error}");
        drop(first);
        DriverStateDir::open(&path, FileUmask::PRIVATE).expect("free again");
    }

    #[test]
    fn s_2_nobody_else_may_open_the_lock_and_who_holds_it_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let lock = folder.path().join(LOCK_FILE);
        let mode = || fs::metadata(&lock).expect("there").permissions().mode() & 0o7777;
        let open_to_all = FileUmask::try_from(0o022).expect("a literal");
        for before in [None, Some(0o644), Some(0o666)] {
            if let Some(before) = before {
                fs::set_permissions(&lock, Permissions::from_mode(before)).expect("ours");
            }
            let state = DriverStateDir::open(folder.path(), open_to_all).expect("free");
            assert_eq!(mode(), 0o600, "{before:?}");
            drop(state);
        }
        let stranger = File::open(&lock).expect("ours");
        stranger.lock_shared().expect("free");
        let refused = DriverStateDir::open(folder.path(), open_to_all).expect_err("held");
        let (text, _) = refused.finding();
        let here = std::process::id();
        if fs::read_to_string("/proc/locks").is_ok_and(|it| it.contains(&format!(" {here} "))) {
            assert!(text.contains(&format!("holds its lock: process {here} (")), "{text}");
        }
    }

    #[test]
    fn a_line_of_the_kernel_s_list_is_about_one_file() {
        let file = tempfile::tempfile().expect("a file").metadata().expect("open");
        let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
        let line = |kind: &str, pid: &str, inode: u64| {
            format!("7: {kind}  ADVISORY  WRITE {pid} {major:02x}:{minor:02x}:{inode} 0 EOF")
        };
        assert_eq!(holder_in(&line("FLOCK", "32202", file.ino()), &file), Some(32202));
        assert_eq!(holder_in(&line("FLOCK", "32202", file.ino() + 1), &file), None);
        assert_eq!(holder_in(&line("POSIX", "32202", file.ino()), &file), None);
        assert_eq!(holder_in(&line("FLOCK", "0", file.ino()), &file), None, "of another container");
        assert_eq!(holder_in("7: -> FLOCK", &file), None);
    }

    #[test]
    fn s_13_a_file_system_without_locks_is_told_with_the_way_out() {
        for code in [libc::ENOSYS, libc::ENOLCK, libc::EOPNOTSUPP] {
            let failure = not_locked(Path::new("/s"), io::Error::from_raw_os_error(code));
            assert_eq!(failure.system_code(), Some(code));
            let (text, way_out) = failure.finding();
            assert!(text.starts_with("could not lock the state directory /s"), "{text}");
            assert!(way_out.contains("--state-dir on a local disk"), "{way_out}");
        }
        let failure = not_locked(Path::new("/s"), io::Error::from_raw_os_error(libc::EIO));
        assert!(!failure.finding().1.contains("local disk"), "it has locks");
    }

    #[test]
    fn s_13_a_name_that_is_not_utf_8_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(OsStr::from_bytes(b"st\xff"));
        let error = DriverStateDir::open(&path, FileUmask::PRIVATE).expect_err("not UTF-8");
        assert!(error.to_string().contains("not UTF-8"), "{error}");
        assert!(!path.exists(), "nothing is left behind");
    }

    #[test]
    fn s_13_a_folder_in_the_place_of_a_file_is_refused_with_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = DriverStateDir::open(folder.path(), FileUmask::PRIVATE).expect("made");
        state.refuse_folders().expect("nothing is in the way");
        for name in [TOKEN_FILE, ADDRESS_FILE, EVENTS_FILE, JOURNAL_FILE] {
            let path = state.path().join(name);
            fs::write(&path, "left by a job before").expect("ours");
            state.refuse_folders().expect("a file");
            fs::remove_file(&path).expect("ours");
            fs::create_dir(&path).expect("ours");
            let refused = state.refuse_folders().expect_err("a folder");
            let (text, way_out) = refused.finding();
            assert!(text.ends_with(&path.display().to_string()), "{text}");
            assert!(way_out.contains("--state-dir"), "{way_out}");
            assert_eq!(refused.code(), 2);
            fs::remove_dir(&path).expect("ours");
        }
    }

    /// The token of a job.
    fn token() -> JoinToken {
        let secrets = JobSecrets::new(JobId(Uuid::nil())).expect("made");
        let authority = secrets.authority().expect("made");
        secrets.credentials(&authority, Incarnation(1)).join_token()
    }

    #[test]
    fn s_12_what_was_removed_under_a_driver_is_there_again_until_its_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/b");
        let state = DriverStateDir::open(&path, FileUmask::PRIVATE).expect("made");
        let token = token();
        let address = SocketAddr::from(([127, 0, 0, 1], 7070));
        assert!(!state.restore_if_removed().expect("nothing is published yet"));
        state.publish(&token, address, false).expect("written");
        assert!(!state.restore_if_removed().expect("all is there"));
        fs::remove_file(path.join(TOKEN_FILE)).expect("removed");
        assert!(state.restore_if_removed().expect("written"));
        fs::write(path.join(TOKEN_FILE), "another's").expect("overwritten");
        assert!(state.restore_if_removed().expect("written"));
        let found = fs::read_to_string(path.join(TOKEN_FILE)).expect("there");
        assert_eq!(found.trim(), token.to_line());
        fs::remove_dir_all(folder.path().join("a")).expect("removed");
        assert!(state.restore_if_removed().expect("written"));
        assert_eq!(state.address(), Some(address));
        assert!(path.join(TOKEN_FILE).exists());
        DriverStateDir::open(&path, FileUmask::PRIVATE).expect_err("it is locked again");
        fs::remove_file(path.join(LOCK_FILE)).expect("removed");
        let other = DriverStateDir::open(&path, FileUmask::PRIVATE).expect("free");
        let NotRestored { found, failure } =
            state.restore_if_removed().expect_err("another has it");
        assert!(matches!(found, StateDamage::Overwritten), "{found:?}");
        assert!(failure.to_string().contains("another driver"), "{failure}");
        drop(other);
        state.withdraw();
        assert!(!state.restore_if_removed().expect("the job is over"));
        assert!(!path.join(TOKEN_FILE).exists());
    }

    #[test]
    fn s_12_what_cannot_be_read_or_written_anew_is_told_with_the_system_s_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/b");
        let state = DriverStateDir::open(&path, FileUmask::PRIVATE).expect("made");
        let token = token();
        state.publish(&token, SocketAddr::from(([127, 0, 0, 1], 7070)), false).expect("written");
        // A folder has the token's name: neither is it read, nor is it replaced by a file.
        fs::remove_file(path.join(TOKEN_FILE)).expect("removed");
        fs::create_dir(path.join(TOKEN_FILE)).expect("made");
        let NotRestored { found, failure } = state.restore_if_removed().expect_err("a folder");
        let StateDamage::Unreadable(error) = found else { panic!("{found:?}") };
        assert!(error.to_string().contains("no plain file"), "{error}");
        let (text, _) = failure.finding();
        assert!(text.contains("the token cannot be stored: "), "{text}");
        assert!(text.contains("Is a directory"), "{text}");
        fs::remove_dir_all(folder.path().join("a")).expect("removed");
        fs::write(folder.path().join("a"), "in the way").expect("written");
        let NotRestored { found, .. } = state.restore_if_removed().expect_err("a file");
        assert!(matches!(found, StateDamage::Unreadable(_)), "{found:?}");
        fs::remove_file(folder.path().join("a")).expect("removed");
        std::os::unix::fs::symlink("/proc/nothing", folder.path().join("a")).expect("a link");
        let NotRestored { found, failure } = state.restore_if_removed().expect_err("no folder");
        assert!(matches!(found, StateDamage::Removed), "{found:?}");
        let (text, _) = failure.finding();
        assert!(text.contains("os error"), "{text}");
    }
}
