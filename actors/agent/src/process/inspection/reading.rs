//! A reading of a process from `/proc` and its control groups; two of them make a [`ProcessSight`]. Called by
//! `inspection`.

use std::net::SocketAddr;

use elastic_protocol::messages::{ProcessActivity, ProcessCounters, ProcessSight};
use tokio::time::Instant;

use super::activity::{activity, is_work};
use super::descendants::descendants;
use super::findings::findings;
use super::recorded::recorded_collectives;
use super::waits_in::{waits_for, waits_in};
use crate::process::control_groups::ControlGroups;
use crate::process::proc_files::{ProcessStat, ProcessStatus, kept_waiting_ns, moved_bytes};

/// Ticks in a second of the CPU times in `/proc`: on every processor that Linux calls `x86_64` or `aarch64`.
const TICKS_PER_SECOND: u64 = 100;

/// A process and its descendants at one moment.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) pid: i32,
    at: Instant,
    pub(super) stat: ProcessStat,
    pub(super) status: ProcessStatus,
    /// Number of times that the main thread has given its processor up, or lost it.
    pub(super) switches: u64,
    pub(super) descendants: Vec<(i32, ProcessStat)>,
    cpu_ticks: u64,
    moved_bytes: u64,
    pub(super) groups: ControlGroups,
    pub(super) is_frozen: bool,
    pub(super) held_back_us: u64,
    /// Time that the main thread has waited for a processor, ready to run, in nanoseconds.
    pub(super) kept_waiting_ns: u64,
    /// The socket that the main thread waits for, by its descriptor, and its other end.
    pub(super) waits_for: Option<(u64, SocketAddr)>,
}

impl Reading {
    /// Reads a process; `None` if it is gone.
    pub(super) fn take(pid: i32) -> Option<Self> {
        let (stat, status) = (ProcessStat::of(pid)?, ProcessStatus::of(pid)?);
        let descendants = descendants(pid);
        let at = Instant::now();
        // A child that is waited for leaves its times and its bytes to its parent, so the sums do not lose them.
        let stats = descendants.iter().map(|(_, stat)| stat);
        let cpu_ticks = stat.cpu_ticks + stats.map(|it| it.cpu_ticks).sum::<u64>();
        let of_descendants = descendants.iter().map(|(pid, _)| moved_bytes(*pid));
        let moved_bytes = moved_bytes(pid) + of_descendants.sum::<u64>();
        let groups = ControlGroups::of(pid);
        let switches =
            status.number("voluntary_ctxt_switches") + status.number("nonvoluntary_ctxt_switches");
        Some(Self {
            pid,
            at,
            stat,
            status,
            switches,
            descendants,
            cpu_ticks,
            moved_bytes,
            is_frozen: groups.is_frozen(),
            held_back_us: groups.held_back_us(),
            groups,
            kept_waiting_ns: kept_waiting_ns(pid),
            waits_for: waits_for(pid),
        })
    }

    /// The sight of a process that is stopped, frozen or has ended: one reading shows that. A silent worker is given up
    /// soon, so its agent does not wait for a second reading.
    pub(super) fn at_once(&self) -> Option<ProcessSight> {
        let is_clear = self.stat.state == 'T' || self.is_frozen || self.stat.has_ended();
        is_clear.then(|| self.since(self)).flatten()
    }

    /// The sight of the process from an earlier reading until this one, without its stack; `None` if the process id
    /// has passed to another process meanwhile.
    pub(super) fn since(&self, first: &Self) -> Option<ProcessSight> {
        if self.stat.started != first.stat.started {
            return None;
        }
        let watched = self.at.saturating_duration_since(first.at).as_millis();
        let watched_ms = u64::try_from(watched).unwrap_or(u64::MAX);
        let cpu_ms = self.cpu_ticks.saturating_sub(first.cpu_ticks) * 1_000 / TICKS_PER_SECOND;
        let moved_bytes = self.moved_bytes.saturating_sub(first.moved_bytes);
        let activity = activity(first, self, is_work(watched_ms, cpu_ms, moved_bytes));
        let may_wait = !matches!(
            activity,
            ProcessActivity::Stopped | ProcessActivity::Frozen | ProcessActivity::Ended
        );
        Some(ProcessSight {
            cpu_ms,
            moved_bytes,
            waits_in: may_wait.then(|| waits_in(self.pid)).flatten(),
            findings: findings(first, self, watched_ms),
            counters: ProcessCounters {
                cpu_ms: self.cpu_ticks * 1_000 / TICKS_PER_SECOND,
                moved_bytes: self.moved_bytes,
                switches: self.switches,
            },
            collectives: recorded_collectives(self.pid),
            ..ProcessSight::new(activity, watched_ms)
        })
    }
}
