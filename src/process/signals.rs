//! Signals that ask a process to end: Ctrl-C (SIGINT), SIGTERM, and SIGHUP of a terminal that is closed.

use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Hears the signals; from its making on they do not end the process by themselves.
pub(crate) struct Signals {
    heard: [(i32, &'static str, Signal); 3],
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
        let hear =
            |kind: SignalKind, name| Ok::<_, io::Error>((kind.as_raw_value(), name, signal(kind)?));
        Ok(Self {
            heard: [
                hear(SignalKind::interrupt(), "SIGINT")?,
                hear(SignalKind::terminate(), "SIGTERM")?,
                hear(SignalKind::hangup(), "SIGHUP")?,
            ],
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
