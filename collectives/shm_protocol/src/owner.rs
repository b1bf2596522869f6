//! Liveness of the owner of a robust lock, as the one process that watches the lock's seat reads it from the seat's
//! words. `robust_lock` runs it on shared memory, a lock of the C library and futex(2). `tests/owner.rs` checks it on
//! loom's words, with a model of the kernel.
//!
//! The owner takes the lock, marks it as waited for, and only then *claims* the seat by naming the lock's place in it.
//! From then on the lock's word changes once: the owner releases it, or the kernel sets [`OWNER_DIED`] because the
//! thread has ended without doing so. The kernel wakes one waiter, so there is one. The watcher reads a word, and sleeps
//! only as long as the word is what it has read.

use std::sync::atomic::Ordering;

use crate::AtomicWord;

/// The bits of a lock's word that name the thread that holds it (futex(2), robust futexes).
pub const HOLDER: u32 = 0x3fff_ffff;
/// The bit that the kernel sets when a thread ends that holds the lock.
pub const OWNER_DIED: u32 = 0x4000_0000;
/// The bit that demands a wake-up when the lock's word changes.
pub const WAITED_FOR: u32 = 0x8000_0000;

/// A place in shared memory for one lock. Only its owner writes to it, and the kernel.
pub trait Seat {
    /// The type of the shared words.
    type Word: AtomicWord;

    /// Zero until the owner claims the seat; then one more than the lock's place.
    fn claim(&self) -> &Self::Word;
    /// The word of the lock at a place; `None` if no lock can be there.
    fn lock(&self, place: u32) -> Option<&Self::Word>;
}

/// The fate of a seat's owner, as its watcher sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OwnerSight<W> {
    /// Nothing has happened. The watcher sleeps while this word has this value, and looks again.
    Wait(W, u32),
    /// The owner has given the lock back: it is not watched any more.
    Released,
    /// The owner's thread has ended with the lock in its hand.
    Died,
    /// The claim names a place where no lock can be.
    Malformed,
}

/// Claims the seat for the lock at `place`, which the caller holds and has marked with [`WAITED_FOR`]. The caller wakes
/// the watcher after that.
pub fn claim<S: Seat>(seat: &S, place: u32) {
    seat.claim().store(place.wrapping_add(1), Ordering::Release);
}

/// Looks at a seat.
pub fn look<S: Seat>(seat: &S) -> OwnerSight<&S::Word> {
    let claimed = seat.claim().load(Ordering::Acquire);
    let Some(place) = claimed.checked_sub(1) else {
        return OwnerSight::Wait(seat.claim(), claimed);
    };
    let Some(lock) = seat.lock(place) else { return OwnerSight::Malformed };
    let word = lock.load(Ordering::Acquire);
    if word & OWNER_DIED != 0 {
        OwnerSight::Died
    } else if word & HOLDER == 0 {
        OwnerSight::Released
    } else {
        OwnerSight::Wait(lock, word)
    }
}
