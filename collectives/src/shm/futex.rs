//! Sleeping on a word of shared memory, and waking the sleepers: futex(2), which needs `unsafe`. Called by the
//! segment for the protocol of `elastic_shm_protocol`, whose tests have a model of it.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` is `seen`, at most `timeout`. May return early, for any reason.
#[expect(unsafe_code, reason = "futex(2) has no safe wrapper")]
pub(super) fn wait(word: &AtomicU32, seen: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(timeout.subsec_nanos() as i32),
    };
    // SAFETY: `word` and `timeout` live through the call, which writes to neither. The result tells
    // apart reasons to return; the caller looks at its condition again after each.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            seen,
            &raw const timeout,
            std::ptr::null::<u32>(),
            0u32,
        );
    }
}

/// Wakes all sleepers on `word`, in every process.
#[expect(unsafe_code, reason = "futex(2) has no safe wrapper")]
pub(super) fn wake_all(word: &AtomicU32) {
    // SAFETY: `word` lives through the call, which takes its address as a name only.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}
