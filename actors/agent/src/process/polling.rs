//! Waits for descriptors on threads that may block. Used by `cgroup` and `guard`.

use std::io;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};

/// Polls descriptors for as long as `within`, also where signals interrupt the call. Returns how many have an event.
///
/// # Errors
/// The system refuses the call.
#[expect(clippy::disallowed_methods, reason = "this thread may wait, and no actor sees it")]
pub(super) fn poll_within(polled: &mut [PollFd<'_>], within: Duration) -> io::Result<i32> {
    let deadline = Instant::now() + within;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // In whole milliseconds, rounded up: not a moment too short.
        let left_ms = i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
        let timeout = PollTimeout::try_from(left_ms).unwrap_or(PollTimeout::MAX);
        match poll(polled, timeout) {
            Err(Errno::EINTR) => {}
            found => return Ok(found?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use nix::libc::{pthread_kill, pthread_self};
    use nix::poll::PollFlags;
    use nix::sys::signal::{SigHandler, Signal, signal};

    use super::*;

    extern "C" fn nothing(_signal: i32) {}

    /// A signal with a handler interrupts `poll`, whatever `SA_RESTART` says.
    #[test]
    #[expect(unsafe_code, reason = "signals for one thread")]
    fn a_signal_does_not_end_the_wait() {
        // SAFETY: the handler does nothing.
        unsafe { signal(Signal::SIGUSR2, SigHandler::Handler(nothing)) }.expect("it is set");
        let (silent, _writer) = io::pipe().expect("a pipe");
        // SAFETY: it has no precondition.
        let waiter = unsafe { pthread_self() };
        let has_ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Ordering::Acquire) {
                    // SAFETY: the thread waits for this one to end.
                    unsafe { pthread_kill(waiter, Signal::SIGUSR2 as i32) };
                    thread::yield_now();
                }
            });
            let mut polled = [PollFd::new(silent.as_fd(), PollFlags::POLLIN)];
            let found = poll_within(&mut polled, Duration::from_millis(50));
            has_ended.store(true, Ordering::Release);
            assert_eq!(found.expect("no signal ends it"), 0, "nothing has come");
        });
    }
}
