//! Signals and waits, as the benchmarks with real processes need them.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// `kill -9`.
pub(crate) fn kill_9(pid: u32) -> anyhow::Result<()> {
    send(pid, Signal::SIGKILL)
}

/// Asks a process to end.
pub(crate) fn terminate(pid: u32) -> anyhow::Result<()> {
    send(pid, Signal::SIGTERM)
}

fn send(pid: u32, signal: Signal) -> anyhow::Result<()> {
    Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
}

#[expect(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
