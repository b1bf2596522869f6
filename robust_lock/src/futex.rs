//! The system calls that wait for words and wake waiting threads: futex(2) and futex_waitv(2). Used by both sides.

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

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

/// Sleeps while all words have these values, at most `timeout`; without one, until a word changes. May return early, for
/// any reason.
///
/// # Errors
/// The system has no such call (Linux 5.16), or does not permit it.
#[expect(unsafe_code, reason = "futex_waitv(2) has no safe wrapper")]
pub(crate) fn wait_any(words: &[(&AtomicU32, u32)], timeout: Option<Duration>) -> io::Result<()> {
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
    let (flags, clock) = (0, libc::CLOCK_MONOTONIC);
    let until = timeout.map(deadline).transpose()?;
    let until = until.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: waiters, words and the deadline live through the call, which writes to none of them.
    let woken = unsafe {
        libc::syscall(libc::SYS_futex_waitv, waiters.as_ptr(), waiters.len(), flags, until, clock)
    };
    if woken >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // A word had another value already, the time has passed, or a signal came.
        Some(libc::EAGAIN | libc::ETIMEDOUT | libc::EINTR) => Ok(()),
        _ => Err(error),
    }
}

/// The time, on the clock of [`wait_any`], at which a wait that begins now ends.
fn deadline(timeout: Duration) -> io::Result<libc::timespec> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    let until = now.saturating_add(timeout);
    Ok(libc::timespec {
        tv_sec: libc::time_t::try_from(until.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(until.subsec_nanos() as i32),
    })
}

/// Wakes all threads that wait for the word, in any process.
#[expect(unsafe_code, reason = "futex(2) has no safe wrapper")]
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word lives through the call, which does not read it.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
