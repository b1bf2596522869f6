//! [`PassingWant`]: what the system refuses for want of something that is free again soon, such as a port, is asked for
//! again. Logic without I/O. Used at the start of a worker and of an agent, and by the dialer.

use std::io::{self, ErrorKind};
use std::time::Duration;

use nix::errno::Errno;

/// The wait for one thing that a process needs at its start, in pauses that grow.
#[derive(Clone, Copy, Debug)]
pub struct PassingWant {
    waited: Duration,
    next: Duration,
}

impl PassingWant {
    /// Time limit of the wait.
    pub const WITHIN: Duration = Duration::from_secs(30);
    /// The first pause.
    pub const FIRST: Duration = Duration::from_millis(50);
    /// The longest pause.
    pub const MOST: Duration = Duration::from_secs(1);

    /// A wait that has not begun.
    pub const fn new() -> Self {
        Self { waited: Duration::ZERO, next: Self::FIRST }
    }

    /// Whether an error tells of a want that passes: no port is free, the address is not there yet, or the system has no
    /// descriptor, buffer or memory left. A process's own limit (`EMFILE`) does not pass by itself.
    pub fn tells_of(error: &io::Error) -> bool {
        let is_port = matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable);
        let code = error.raw_os_error().map(Errno::from_raw);
        let is_of_system =
            matches!(code, Some(Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM | Errno::EAGAIN));
        is_port || is_of_system
    }

    /// Whether the first attempt has failed.
    pub const fn has_begun(&self) -> bool {
        !self.waited.is_zero()
    }

    /// The pause before the next attempt, after one that has failed so; `None` if the error does not pass, or has not
    /// within [`Self::WITHIN`].
    pub fn handle_failure(&mut self, error: &io::Error) -> Option<Duration> {
        if !Self::tells_of(error) || self.waited >= Self::WITHIN {
            return None;
        }
        let pause = self.next.min(Self::WITHIN.saturating_sub(self.waited));
        self.waited += pause;
        self.next = (self.next * 2).min(Self::MOST);
        Some(pause)
    }
}

impl Default for PassingWant {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g_9_a_want_is_waited_for_in_growing_pauses_and_no_longer_than_its_time() {
        let taken = io::Error::from_raw_os_error(libc_code(Errno::EADDRINUSE));
        let mut want = PassingWant::new();
        assert!(!want.has_begun());
        let pauses: Vec<Duration> =
            std::iter::from_fn(|| want.handle_failure(&taken)).take(1_000).collect();
        assert!(want.has_begun());
        assert_eq!(pauses.iter().sum::<Duration>(), PassingWant::WITHIN);
        assert_eq!(pauses[0], PassingWant::FIRST);
        let (_, but_last) = pauses.split_last().expect("there are some");
        assert!(but_last.is_sorted() && but_last.contains(&PassingWant::MOST), "{pauses:?}");
    }

    #[test]
    fn s_14_what_does_not_pass_is_not_waited_for() {
        let of = |code: Errno| io::Error::from_raw_os_error(libc_code(code));
        for code in [Errno::EADDRINUSE, Errno::EADDRNOTAVAIL, Errno::ENFILE, Errno::ENOBUFS] {
            assert!(PassingWant::new().handle_failure(&of(code)).is_some(), "{code}");
        }
        for code in [Errno::EACCES, Errno::EMFILE, Errno::EAFNOSUPPORT, Errno::ENETUNREACH] {
            assert_eq!(PassingWant::new().handle_failure(&of(code)), None, "{code}");
        }
    }

    const fn libc_code(code: Errno) -> i32 {
        code as i32
    }
}
