//! The abort word: lets any thread end blocked calls of a generation, within milliseconds (G-12).
//!
//! The worker's actor thread holds an [`AbortHandle`] and calls [`AbortHandle::abort`]; forming and collectives on
//! the training thread watch it. A blocked collective holds no lock: it sleeps on descriptors, among them the
//! handle's eventfd, and looks at the record once it wakes. A sleeper on a word of shared memory cannot watch a
//! descriptor, so the handle wakes it explicitly: [`AbortHandle::wakes`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use elastic_robust_lock::PeerLocks;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// An abort of a generation, with the reason of its first writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The driver's term.
    pub term: u64,
    /// The generation that ended.
    pub generation: u64,
    /// The reason, for people.
    pub reason: Arc<str>,
}

/// Aborts generations from any thread. Clones share one state; one handle may serve any number of
/// fabrics and communicators of a process.
#[derive(Clone, Debug)]
pub struct AbortHandle {
    shared: Arc<AbortState>,
}

/// Waits that do not watch the handle's event.
pub(crate) trait Sleepers: std::fmt::Debug + Send + Sync {
    /// Wakes them, so that they look at the record.
    fn wake(&self);
}

#[derive(Debug)]
struct AbortState {
    /// Number of accepted aborts: lets a collective see by one load that there is no new abort.
    version: AtomicU64,
    /// The newest abort. The lock is held for a few instructions, by a writer or by a reader that was woken.
    newest: Mutex<Option<Abort>>,
    /// Written on each abort and never read. The waiters watch it edge-triggered, so that each of them wakes and none
    /// takes the wake-up from another.
    event: EventFd,
    /// Waiters that are woken explicitly; at most one for each live communicator.
    sleepers: Mutex<Vec<Weak<dyn Sleepers>>>,
    /// The robust locks of this host's workers, if this process has one.
    peer_locks: OnceLock<PeerLocks>,
}

impl AbortHandle {
    /// A handle without any abort.
    ///
    /// # Errors
    ///
    /// The process or the system is out of file descriptors.
    pub fn new() -> io::Result<AbortHandle> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let shared = AbortState {
            version: AtomicU64::new(0),
            newest: Mutex::new(None),
            event,
            sleepers: Mutex::default(),
            peer_locks: OnceLock::new(),
        };
        Ok(AbortHandle { shared: Arc::new(shared) })
    }

    /// Ends `generation` of `term` and every older one. Blocked calls in them return
    /// [`crate::CollectiveError::Aborted`], and a later `form` of them fails at once. Returns whether this call set
    /// the reason: false where this generation or a newer one was aborted before (G-2).
    pub fn abort(&self, term: u64, generation: u64, reason: impl Into<Arc<str>>) -> bool {
        {
            let mut newest = self.shared.newest.lock().unwrap_or_else(PoisonError::into_inner);
            let old = newest.as_ref().map(|abort| (abort.term, abort.generation));
            if old.is_some_and(|old| old >= (term, generation)) {
                return false;
            }
            *newest = Some(Abort { term, generation, reason: reason.into() });
            self.shared.version.fetch_add(1, Ordering::Release);
        }
        // The write fails only when the counter would overflow, after 2^64 aborts: then it is readable anyway.
        let _ = self.shared.event.write(1);
        let sleepers: Vec<_> = self.sleepers().iter().filter_map(Weak::upgrade).collect();
        sleepers.iter().for_each(|sleepers| sleepers.wake());
        true
    }

    /// Has ranks that wait in shared memory look at the robust locks of the others. Only the first call counts; groups
    /// that were formed before it go without.
    pub fn watch_locks(&self, locks: PeerLocks) {
        let _ = self.shared.peer_locks.set(locks);
    }

    /// The robust locks of this host's workers, where this process has one.
    pub(crate) fn peer_locks(&self) -> Option<&PeerLocks> {
        self.shared.peer_locks.get()
    }

    /// Has an abort wake these sleepers, for as long as they are there.
    pub(crate) fn wakes(&self, sleepers: Weak<dyn Sleepers>) {
        let mut all = self.sleepers();
        all.retain(|known| known.strong_count() > 0);
        all.push(sleepers);
    }

    fn sleepers(&self) -> std::sync::MutexGuard<'_, Vec<Weak<dyn Sleepers>>> {
        self.shared.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The abort that ended `generation` of `term`, if one did. The record may be that of a newer
    /// generation, which ends the older ones too.
    pub fn aborted(&self, term: u64, generation: u64) -> Option<Abort> {
        let newest = self.shared.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest
            .as_ref()
            .filter(|abort| (abort.term, abort.generation) >= (term, generation))
            .cloned()
    }

    /// A number that changes with each accepted abort.
    pub(crate) fn version(&self) -> u64 {
        self.shared.version.load(Ordering::Acquire)
    }

    /// The event that becomes readable with each accepted abort; to be watched edge-triggered.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Counted(AtomicU64);

    impl Sleepers for Counted {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn g_12_each_abort_wakes_those_who_sleep_elsewhere() {
        let (handle, counted) = (AbortHandle::new().unwrap(), Arc::new(Counted::default()));
        let weak: Weak<Counted> = Arc::downgrade(&counted);
        handle.wakes(weak);
        assert!(handle.abort(1, 3, "told"));
        assert!(!handle.abort(1, 3, "again"));
        assert_eq!(counted.0.load(Ordering::Relaxed), 1);
        drop(counted);
        assert!(handle.abort(1, 4, "nobody is left"));
    }

    #[test]
    fn the_first_writer_sets_the_reason() {
        let handle = AbortHandle::new().unwrap();
        assert!(handle.abort(1, 3, "rank 2 died"));
        assert!(!handle.abort(1, 3, "later"));
        assert_eq!(&*handle.aborted(1, 3).unwrap().reason, "rank 2 died");
    }

    #[test]
    fn g2_an_older_abort_leaves_a_newer_generation_alone() {
        let handle = AbortHandle::new().unwrap();
        assert!(handle.abort(1, 3, "old"));
        assert_eq!(handle.aborted(1, 4), None);
        assert_eq!(handle.aborted(2, 0), None);
        assert!(handle.abort(2, 0, "new"));
        assert!(!handle.abort(1, 9, "older term"));
        assert_eq!(&*handle.aborted(1, 9).unwrap().reason, "new");
    }
}
