//! [`PeerLocks`]: the locks of a host's workers, as one of them sees them. A rank that waits for others in shared memory looks
//! at theirs, and goes to sleep for a word that the agent changes at a death. Used by `collectives`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use elastic_shm_protocol::owner::{self, OwnerSight};

use crate::futex;
use crate::table::LockTable;

/// Bits of a mark for the seat's number, plus one.
const SEAT_BITS: u32 = 8;
const SEAT_MASK: u32 = (1 << SEAT_BITS) - 1;

/// The name of a worker's lock, for others of its host: its seat, and which agent's table that is in. Zero names none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LockMark(pub u32);

/// The locks of the workers of one agent. Clones are the same table.
#[derive(Clone, Debug)]
pub struct PeerLocks {
    table: Arc<LockTable>,
    own: LockMark,
}

impl PeerLocks {
    pub(crate) fn new(table: Arc<LockTable>, seat: u32) -> Self {
        let own = LockMark(tag_of(&table) | (seat + 1) & SEAT_MASK);
        Self { table, own }
    }

    /// The mark of this worker's own lock.
    pub fn own(&self) -> LockMark {
        self.own
    }

    /// Whether the owner of the marked lock has died. False for a lock of another agent's table, and for one that was given
    /// back.
    pub fn has_died(&self, mark: LockMark) -> bool {
        let Some(number) = (mark.0 & SEAT_MASK).checked_sub(1) else { return false };
        if mark.0 & !SEAT_MASK != tag_of(&self.table) {
            return false;
        }
        let seat = self.table.seat(number);
        seat.is_some_and(|seat| matches!(owner::look(seat), OwnerSight::Died))
    }

    /// The number of deaths that the agent has seen, wrapping: to be read before [`PeerLocks::has_died`], and given to
    /// [`PeerLocks::wait`].
    pub fn deaths(&self) -> u32 {
        self.table.deaths().load(Ordering::Acquire)
    }

    /// Sleeps while `word` is `seen` and the agent has seen no other deaths, at most `timeout`. May return early, for
    /// any reason. False if the system cannot wait for two words (Linux before 5.16): nothing was waited for then.
    pub fn wait(&self, word: &AtomicU32, seen: u32, deaths: u32, timeout: Duration) -> bool {
        futex::wait_any(&[(word, seen), (self.table.deaths(), deaths)], Some(timeout)).is_ok()
    }
}

/// The part of a table's token that is in its marks. Marks of two agents' tables seldom agree. If they do, a worker may
/// take a stranger's death for that of a peer.
fn tag_of(table: &LockTable) -> u32 {
    (table.tag() as u32) & !SEAT_MASK
}
