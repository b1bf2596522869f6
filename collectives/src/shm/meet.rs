//! How ranks meet at steps: who has arrived, who sleeps, and who wakes whom. Nothing here knows of data,
//! connections or clocks; [`super::session`] drives it, and the tests of `model.rs` check it.
//!
//! A rank publishes step s by a release store in its own word, and goes on once it has seen that all have.
//! Nobody pays for a fence before it looks; so two that arrive at once may miss each other, and look again.
//! A rank that sees all there passes a fence and then asks whether anyone sleeps; a rank that is about to
//! sleep counts itself, passes a fence, and then looks once more. Of any two fences one is the later: either
//! the sleeper sees the step, or the other sees the sleeper. Where all of them are about to sleep, the one
//! whose fence is last sees all steps, and it rings.

use std::time::Duration;

use super::futex;
use super::sync::{AtomicU32, Ordering, fence};

/// The words by which ranks meet.
pub(super) trait Board {
    fn world(&self) -> u32;
    /// The last step of this parity at which `rank` has arrived; only that rank writes it. It wraps.
    fn step(&self, rank: u32, parity: usize) -> &AtomicU32;
    /// What sleepers sleep on. Who rings it changes it.
    fn bell(&self) -> &AtomicU32;
    /// How many ranks sleep, or are about to.
    fn sleepers(&self) -> &AtomicU32;
}

/// The parity of a step: which half of the double buffers it publishes.
pub(super) fn parity(step: u32) -> usize {
    step as usize & 1
}

/// Publishes all that `rank` has written before as step `step`.
pub(super) fn arrive(board: &impl Board, rank: u32, step: u32) {
    board.step(rank, parity(step)).store(step, Ordering::Release);
}

/// Whether `rank` has arrived at `step`; what it published with it may then be read.
pub(super) fn has_arrived(board: &impl Board, rank: u32, step: u32) -> bool {
    let theirs = board.step(rank, parity(step)).load(Ordering::Acquire);
    // Steps wrap; a peer is at most one step away.
    theirs.wrapping_sub(step) as i32 >= 0
}

/// Whether all ranks have arrived at `step`, `seen` of which, from 0 on, are known to have.
pub(super) fn all_arrived(board: &impl Board, seen: &mut u32, step: u32) -> bool {
    while *seen < board.world() {
        if !has_arrived(board, *seen, step) {
            return false;
        }
        *seen += 1;
    }
    true
}

/// Wakes whoever sleeps, so that it looks again at what this rank has written before.
pub(super) fn ring(board: &impl Board) {
    fence(Ordering::SeqCst);
    if board.sleepers().load(Ordering::Relaxed) > 0 {
        board.bell().fetch_add(1, Ordering::Release);
        futex::wake_all(board.bell());
    }
}

/// Sleeps until `look` has a result. It looks before it sleeps, and again after each ring and each
/// `nap`; it is told whether this is the first look.
pub(super) fn sleep<R>(
    board: &impl Board,
    nap: Duration,
    mut look: impl FnMut(bool) -> Option<R>,
) -> R {
    board.sleepers().fetch_add(1, Ordering::Relaxed);
    let mut first = true;
    let result = loop {
        let seen = board.bell().load(Ordering::Acquire);
        fence(Ordering::SeqCst);
        if let Some(result) = look(first) {
            break result;
        }
        futex::wait(board.bell(), seen, nap);
        first = false;
    };
    board.sleepers().fetch_sub(1, Ordering::Relaxed);
    if first {
        // Nobody rang, so this may be the one rank that saw all others come.
        ring(board);
    }
    result
}
