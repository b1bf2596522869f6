//! The protocol by which the ranks of a segment of shared memory meet at steps: arriving, sleeping and waking. It is
//! independent of data, connections, clocks and system calls. The shared-memory backend of `collectives` runs it on
//! the machine's atomics and futex(2); `tests/interleavings.rs` checks it on loom's.
//!
//! A rank publishes step s by a release store in its own word, and goes on once it has seen that all ranks have. No
//! rank runs a fence before its first look, to save the cost. So two ranks that arrive at once may miss each other,
//! and look again. A rank that sees all others there runs a fence and then checks whether any rank sleeps. A rank
//! that is about to sleep counts itself, runs a fence, and then looks once more. Of any two fences one is the later:
//! either the sleeper sees the step, or the other rank sees the sleeper. If all of them are about to sleep, the one
//! whose fence is last sees all steps, and it rings.

pub mod owner;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// An atomic word of 32 bits: the machine's, or a model checker's.
pub trait AtomicWord {
    /// Reads the word.
    fn load(&self, order: Ordering) -> u32;
    /// Writes the word.
    fn store(&self, value: u32, order: Ordering);
    /// Adds to the word, wrapping.
    fn fetch_add(&self, value: u32, order: Ordering);
    /// Subtracts from the word, wrapping.
    fn fetch_sub(&self, value: u32, order: Ordering);
}

impl AtomicWord for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn fetch_add(&self, value: u32, order: Ordering) {
        self.fetch_add(value, order);
    }

    #[inline]
    fn fetch_sub(&self, value: u32, order: Ordering) {
        self.fetch_sub(value, order);
    }
}

/// The shared words by which ranks meet, and the operations on them that atomics do not have.
pub trait Board {
    /// The type of the shared words.
    type Word: AtomicWord;

    /// The number of ranks.
    fn world(&self) -> u32;
    /// The last step of this parity at which `rank` has arrived; only that rank writes it. It wraps.
    fn step(&self, rank: u32, parity: usize) -> &Self::Word;
    /// The word on which sleepers sleep. A ring changes it.
    fn bell(&self) -> &Self::Word;
    /// The number of ranks that sleep, or are about to.
    fn sleepers(&self) -> &Self::Word;
    /// A sequentially consistent fence.
    fn fence(&self);
    /// Sleeps while the bell is `seen`, at most `timeout`. May return early, for any reason. The comparison and
    /// the start of the sleep are one step for [`Board::wake_all`], as with futex(2).
    fn wait(&self, seen: u32, timeout: Duration);
    /// Wakes all that sleep on the bell.
    fn wake_all(&self);
}

/// The parity of a step: which half of the double buffers it publishes.
#[inline]
pub fn parity(step: u32) -> usize {
    step as usize & 1
}

/// Arrives at `step`: publishes all that `rank` has written before.
#[inline]
pub fn arrive(board: &impl Board, rank: u32, step: u32) {
    board.step(rank, parity(step)).store(step, Ordering::Release);
}

/// Whether `rank` has arrived at `step`; its data of that step may then be read.
#[inline]
pub fn has_arrived(board: &impl Board, rank: u32, step: u32) -> bool {
    let theirs = board.step(rank, parity(step)).load(Ordering::Acquire);
    // Steps wrap; a peer is at most one step away.
    theirs.wrapping_sub(step) as i32 >= 0
}

/// Whether all ranks have arrived at `step`; the first `seen` of them are known to have.
#[inline]
pub fn all_arrived(board: &impl Board, seen: &mut u32, step: u32) -> bool {
    while *seen < board.world() {
        if !has_arrived(board, *seen, step) {
            return false;
        }
        *seen += 1;
    }
    true
}

/// Wakes all sleepers, so that they look again at what this rank has written before.
#[inline]
pub fn ring(board: &impl Board) {
    board.fence();
    if board.sleepers().load(Ordering::Relaxed) > 0 {
        board.bell().fetch_add(1, Ordering::Release);
        board.wake_all();
    }
}

/// Sleeps until `look` has a result. It looks before it sleeps, and again after each ring and each `nap`; `look` is
/// told whether this is the first look.
pub fn sleep<R>(board: &impl Board, nap: Duration, mut look: impl FnMut(bool) -> Option<R>) -> R {
    board.sleepers().fetch_add(1, Ordering::Relaxed);
    let mut first = true;
    let result = loop {
        let seen = board.bell().load(Ordering::Acquire);
        board.fence();
        if let Some(result) = look(first) {
            break result;
        }
        board.wait(seen, nap);
        first = false;
    };
    board.sleepers().fetch_sub(1, Ordering::Relaxed);
    if first {
        // The sleep ended without a ring, so this may be the only rank that saw all others arrive.
        ring(board);
    }
    result
}
