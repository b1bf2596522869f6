//! [`WatchfulBoard`]: a segment whose sleepers are also woken by the death of a peer of this host, instead of
//! noticing it after a nap. Used by the session.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use elastic_robust_lock::PeerLocks;
use elastic_shm_protocol::Board;

use super::memory::SharedSegment;

/// The board of one wait.
pub(super) struct WatchfulBoard {
    segment: Arc<SharedSegment>,
    locks: Option<PeerLocks>,
    /// The number of deaths on the host before the last look at the peers.
    deaths: Cell<u32>,
}

impl WatchfulBoard {
    pub(super) fn new(segment: Arc<SharedSegment>, locks: Option<PeerLocks>) -> WatchfulBoard {
        WatchfulBoard { segment, locks, deaths: Cell::default() }
    }

    /// Notes the deaths so far, before the sleeper looks: a later one ends its sleep.
    pub(super) fn note_deaths(&self) {
        if let Some(locks) = &self.locks {
            self.deaths.set(locks.deaths());
        }
    }
}

impl Board for WatchfulBoard {
    type Word = AtomicU32;

    fn world(&self) -> u32 {
        self.segment.world()
    }

    fn step(&self, rank: u32, parity: usize) -> &AtomicU32 {
        self.segment.step(rank, parity)
    }

    fn bell(&self) -> &AtomicU32 {
        self.segment.bell()
    }

    fn sleepers(&self) -> &AtomicU32 {
        self.segment.sleepers()
    }

    fn fence(&self) {
        self.segment.fence();
    }

    fn wait(&self, seen: u32, timeout: Duration) {
        let locks = self.locks.as_ref();
        let has_waited =
            locks.is_some_and(|locks| locks.wait(self.bell(), seen, self.deaths.get(), timeout));
        if !has_waited {
            self.segment.wait(seen, timeout);
        }
    }

    fn wake_all(&self) {
        self.segment.wake_all();
    }
}
