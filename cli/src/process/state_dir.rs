//! A driver's state directory: `token` (mode 0600), `address`, `events.jsonl`, the journal, and a lock. Used by the
//! driver's process, and by others to find it.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use elastic_protocol::messages::FileUmask;
use elastic_transport::{JoinToken, TOKEN_FILE, write_token};

use crate::command_line::{CommandFailure, ResultExt};

/// Name of the file with the driver's real address.
pub(crate) const ADDRESS_FILE: &str = "address";
/// Name of the event log.
pub(crate) const EVENTS_FILE: &str = "events.jsonl";
/// Name of the journal.
pub(crate) const JOURNAL_FILE: &str = "journal.redb";
/// Name of the file that an attempt to renew the journal may leave.
pub(crate) const JOURNAL_DRAFT_FILE: &str = "journal.redb.draft";
/// Name of the file that the driver holds locked.
pub(crate) const LOCK_FILE: &str = "lock";

/// An open state directory, locked for one driver at a time.
#[derive(Debug)]
pub(crate) struct DriverStateDir {
    path: PathBuf,
    /// The lock, held until this is dropped.
    _lock: File,
}

impl DriverStateDir {
    /// Creates the directory, without these permissions, and locks it.
    pub(crate) fn open(path: &Path, umask: FileUmask) -> Result<Self, CommandFailure> {
        let failed =
            |doing: &str| format!("could not {doing} the state directory {}", path.display());
        DirBuilder::new()
            .recursive(true)
            .mode(umask.of_folders())
            .create(path)
            .usage(failed("make"))
            .map_err(|failure| failure.hint("give another folder with --state-dir"))?;
        let path = fs::canonicalize(path).failed(failed("find"))?;
        let lock =
            File::create(path.join(LOCK_FILE)).usage(failed("write to")).map_err(|failure| {
                failure.hint("make it writable, or give another with --state-dir")
            })?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                let message = format!("another driver uses the state directory {}", path.display());
                Err(CommandFailure::new(message)
                    .hint("stop it, or give this one another --state-dir"))
            }
            Err(TryLockError::Error(error)) => Err(error).failed(failed("lock")),
        }
    }

    /// The directory's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the token, then the driver's address: a reader of the address finds the token, too.
    pub(crate) fn publish(
        &self,
        token: &JoinToken,
        address: SocketAddr,
    ) -> Result<PathBuf, CommandFailure> {
        let token_path = write_token(&self.path, token).failed("the token cannot be stored")?;
        let draft = self.path.join(format!("{ADDRESS_FILE}.draft"));
        fs::write(&draft, format!("{address}\n"))
            .and_then(|()| fs::rename(&draft, self.path.join(ADDRESS_FILE)))
            .failed("the driver's address cannot be stored")?;
        Ok(token_path)
    }

    /// The address of a former driver that has not ended in order.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        fs::read_to_string(self.path.join(ADDRESS_FILE)).ok()?.trim().parse().ok()
    }

    /// Removes token, address and journal: the job is over, so they must let no node in and no driver continue it.
    pub(crate) fn withdraw(&self) {
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
    use std::os::unix::fs::PermissionsExt as _;

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
}
