//! Signals that ask a process to end: Ctrl-C (SIGINT), SIGTERM, and SIGHUP of a terminal that is closed.

use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Hears the signals; from its making on they do not end the process by themselves.
pub(crate) struct Signals {
    /// A file that may not grow is to be an error of the write like a full disk, and not the end of the process.
    _file_size: Signal,
    heard: Vec<(i32, &'static str, Signal)>,
}

/// One signal that came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Heard {
    /// Its number.
    pub(crate) number: i32,
    /// Its name.
    pub(crate) name: &'static str,
}

impl Heard {
    /// The exit code that a shell gives for it.
    pub(crate) const fn code(self) -> i32 {
        128 + self.number
    }
}

impl Signals {
    /// Starts to hear.
    pub(crate) fn new() -> io::Result<Self> {
        let mut kinds =
            vec![(SignalKind::interrupt(), "SIGINT"), (SignalKind::terminate(), "SIGTERM")];
        if !is_ignored(SignalKind::hangup()) {
            kinds.push((SignalKind::hangup(), "SIGHUP"));
        }
        let hear = |(kind, name): (SignalKind, &'static str)| {
            Ok((kind.as_raw_value(), name, signal(kind)?))
        };
        let file_size = signal(SignalKind::from_raw(nix::sys::signal::Signal::SIGXFSZ as i32))?;
        Ok(Self {
            _file_size: file_size,
            heard: kinds.into_iter().map(hear).collect::<io::Result<_>>()?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> Heard {
        std::future::poll_fn(|context| {
            for (number, name, signal) in &mut self.heard {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(Heard { number: *number, name });
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Whether a signal was ignored when this process started, as `nohup` has SIGHUP.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & 1 << (kind.as_raw_value() - 1) != 0
}
