//! A driver's state directory: `token` (mode 0600), `address`, `events.jsonl`, the journal, and a lock.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use elastic_transport::{TOKEN_FILE, Token, write_token};

use crate::cli::{Failure, ResultExt};

/// Name of the file with the driver's real address.
pub(crate) const ADDRESS_FILE: &str = "address";
/// Name of the event log.
pub(crate) const EVENTS_FILE: &str = "events.jsonl";
/// Name of the journal.
pub(crate) const JOURNAL_FILE: &str = "journal.redb";
const LOCK_FILE: &str = "lock";

/// An open state directory; one driver has it at a time.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    /// Held until this is dropped.
    _lock: File,
}

impl StateDir {
    /// Makes it, for this user only, and takes it.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let failed =
            |doing: &str| format!("could not {doing} the state directory {}", path.display());
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .failed(failed("make"))
            .map_err(|failure| failure.hint("give another folder with --state-dir"))?;
        let path = fs::canonicalize(path).failed(failed("find"))?;
        let lock =
            File::create(path.join(LOCK_FILE)).failed(failed("write to")).map_err(|failure| {
                failure.hint("make it writable, or give another with --state-dir")
            })?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                let message = format!("another driver uses the state directory {}", path.display());
                Err(Failure::new(message).hint("stop it, or give this one another --state-dir"))
            }
            Err(TryLockError::Error(error)) => Err(error).failed(failed("lock")),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the token and where the driver listens, the address last: whoever reads it finds the token.
    pub(crate) fn publish(&self, token: &Token, address: SocketAddr) -> Result<PathBuf, Failure> {
        let token_path = write_token(&self.path, token).failed("the token cannot be stored")?;
        let draft = self.path.join(format!("{ADDRESS_FILE}.draft"));
        fs::write(&draft, format!("{address}\n"))
            .and_then(|()| fs::rename(&draft, self.path.join(ADDRESS_FILE)))
            .failed("the driver's address cannot be stored")?;
        Ok(token_path)
    }

    /// Where a former driver listened that has not ended in order.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        fs::read_to_string(self.path.join(ADDRESS_FILE)).ok()?.trim().parse().ok()
    }

    /// Takes token, address and journal away: the job is over, so they let nobody in, and nobody goes on with it.
    pub(crate) fn withdraw(&self) {
        for name in [ADDRESS_FILE, TOKEN_FILE, JOURNAL_FILE] {
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
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let root = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(root.join("elastic-node").join(address.to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn one_driver_has_it_at_a_time_and_only_its_user_reads_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/b");
        let first = StateDir::open(&path).expect("made");
        let mode = fs::metadata(&path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o700);
        let error = StateDir::open(&path).expect_err("taken");
        assert!(error.to_string().contains("another driver"), "{error}");
        drop(first);
        StateDir::open(&path).expect("free again");
    }
}
