//! The system calls that wait for words and wake who waits: futex(2) and futex_waitv(2). Used by both sides.

use std::io;
use std::sync::atomic::AtomicU32;

/// Most words that one call waits for (`FUTEX_WAITV_MAX`).
pub(crate) const WORDS_MAX: usize = 128;

/// `FUTEX2_SIZE_U32`: words of 32 bits, here always in shared memory.
const SIZE_U32: u32 = 2;

/// `struct futex_waitv`.
#[repr(C)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// Sleeps while all words have these values. May return early, for any reason.
///
/// # Errors
/// The system has no such call (Linux 5.16), or does not permit it.
#[expect(unsafe_code, reason = "futex_waitv(2) has no safe wrapper")]
pub(crate) fn wait_any(words: &[(&AtomicU32, u32)]) -> io::Result<()> {
    debug_assert!(words.len() <= WORDS_MAX, "the kernel refuses more");
    let waiters: Vec<Waiter> = words
        .iter()
        .map(|(word, seen)| Waiter {
            value: u64::from(*seen),
            address: word.as_ptr() as u64,
            flags: SIZE_U32,
            reserved: 0,
        })
        .collect();
    let (flags, timeout, clock) = (0, std::ptr::null::<libc::timespec>(), libc::CLOCK_MONOTONIC);
    // SAFETY: waiters and words live through the call, which writes to neither.
    let woken = unsafe {
        libc::syscall(libc::SYS_futex_waitv, waiters.as_ptr(), waiters.len(), flags, timeout, clock)
    };
    if woken >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // A word had another value already, or a signal came.
        Some(libc::EAGAIN | libc::EINTR) => Ok(()),
        _ => Err(error),
    }
}

/// Wakes whoever waits for the word, in any process.
#[expect(unsafe_code, reason = "futex(2) has no safe wrapper")]
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word lives through the call, which does not read it.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
