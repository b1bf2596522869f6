//! Sleeping on a word of shared memory, and waking those who do: futex(2), which needs `unsafe`. Under
//! `cfg(model_checked)` its meaning, without the time-out: so the model checker finds any wake-up that is missing.

#[cfg(model_checked)]
pub(super) use model::{wait, wake_all};
#[cfg(not(model_checked))]
pub(super) use system::{wait, wake_all};

#[cfg(not(model_checked))]
mod system {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// Sleeps while `word` is `seen`, at most `timeout`. May return early, for any reason.
    #[expect(unsafe_code, reason = "futex(2) has no safe wrapper")]
    pub(in super::super) fn wait(word: &AtomicU32, seen: u32, timeout: Duration) {
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

    /// Wakes all who sleep on `word`, in every process.
    #[expect(unsafe_code, reason = "futex(2) has no safe wrapper")]
    pub(in super::super) fn wake_all(word: &AtomicU32) {
        // SAFETY: `word` lives through the call, which takes its address as a name only.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
        }
    }
}

#[cfg(model_checked)]
mod model {
    use std::time::Duration;

    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    loom::lazy_static! {
        /// The kernel's queue. One for all words: who is woken for nothing looks again.
        static ref QUEUE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    pub(in super::super) fn wait(word: &AtomicU32, seen: u32, _timeout: Duration) {
        let (queue, woken) = &*QUEUE;
        let queue = queue.lock().unwrap();
        // The kernel compares under its queue's lock, so that no wake-up comes between.
        if word.load(Ordering::Relaxed) == seen {
            drop(woken.wait(queue).unwrap());
        }
    }

    pub(in super::super) fn wake_all(_word: &AtomicU32) {
        let (queue, woken) = &*QUEUE;
        let _queue = queue.lock().unwrap();
        woken.notify_all();
    }
}
