//! A network namespace of this process's own, whose loopback carries nothing else, and the process's limits. Used by
//! `rendezvous`.

use std::process::Command;

use anyhow::{Context as _, ensure};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The namespace. Threads and processes that are started from here on are in it.
#[derive(Debug)]
pub(super) struct Isolation(());

/// Counters of the loopback interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    pub(super) bytes: u64,
    pub(super) packets: u64,
}

impl Isolation {
    /// Enters one; needs root.
    pub(super) fn enter() -> anyhow::Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET)
            .context("no network namespace can be made: that needs root")?;
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        ensure!(
            up.context("`ip` is not installed")?.success(),
            "the loopback cannot be brought up"
        );
        Ok(Self(()))
    }

    /// Reads the counters of the loopback interface.
    pub(super) fn traffic(&self) -> anyhow::Result<Traffic> {
        let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
        let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:"));
        let mut fields = line.context("there is no loopback")?.split_whitespace();
        let mut next = || fields.next()?.parse().ok();
        let (bytes, packets) = next().zip(next()).context("its counters cannot be read")?;
        Ok(Traffic { bytes, packets })
    }
}

/// Lets this process have as many open files as it may: an agent has a few sockets.
pub(super) fn open_files_max() -> anyhow::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// Most resident memory of this process so far.
pub(super) fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
