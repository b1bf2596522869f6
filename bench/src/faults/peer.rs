//! Peers under the faults that they can be put through: four workers on this machine. Used by `faults`.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::FaultsOptions;
use crate::monotonic::now_ns;
use crate::process::{now, pause};
use crate::record;
use crate::recovery::contestant::{RecoveryContestant, RecoveryPeer, WORKERS};
use crate::recovery::job::RecoveryJob;

/// A fault of a worker, or of the launcher: torchrun's agent, Horovod's driver.
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerFault {
    KillWorker,
    StopWorker,
    KillLauncher,
    StopLauncher,
}

impl PeerFault {
    pub(super) const ALL: [Self; 4] =
        [Self::KillWorker, Self::StopWorker, Self::KillLauncher, Self::StopLauncher];
}

/// Steps that all commit before a fault.
const STEPS: usize = 20;

/// One job for each strike: no peer comes back from all of them.
pub(super) fn measure(
    options: &FaultsOptions,
    peer: RecoveryPeer,
    fault: PeerFault,
) -> anyhow::Result<Vec<Option<f64>>> {
    let mut samples = Vec::new();
    for _ in 0..options.peer_strikes {
        let (mut job, _) = RecoveryJob::start(options.step_ms, |_folder| {
            Ok(RecoveryContestant::peer(peer, &options.python))
        })?;
        let pids = job.wait("four workers that train", |job| {
            let all = record::all(&job.records());
            let train: Vec<u32> =
                all.iter().filter(|(_, of)| of.len() >= STEPS).map(|(pid, _)| *pid).collect();
            (train.len() == WORKERS as usize).then_some(train)
        })?;
        let (victim, signal) = match fault {
            PeerFault::KillWorker => (pids[1], Signal::SIGKILL),
            PeerFault::StopWorker => (pids[1], Signal::SIGSTOP),
            PeerFault::KillLauncher => (job.launcher_pid(), Signal::SIGKILL),
            PeerFault::StopLauncher => (job.launcher_pid(), Signal::SIGSTOP),
        };
        let struck_ns = now_ns()?;
        kill(Pid::from_raw(i32::try_from(victim)?), signal)?;
        samples.push(observe(&job, struck_ns, Duration::from_secs(options.patience))?);
        // A stopped process cannot end in order, and workers may outlive a launcher that is killed.
        let is_killed = matches!(fault, PeerFault::KillLauncher);
        let farewell = if is_killed { Signal::SIGKILL } else { Signal::SIGCONT };
        for pid in pids.iter().chain([&victim]) {
            // It may have ended.
            let _ = kill(Pid::from_raw(i32::try_from(*pid)?), farewell);
        }
    }
    Ok(samples)
}

/// The longest time without a record of any worker, from the fault on; none if there is no more within `patience`.
fn observe(job: &RecoveryJob, struck_ns: u64, patience: Duration) -> anyhow::Result<Option<f64>> {
    let until = now() + patience;
    // A survivor may still commit the step that it is in, and one that stops there has not gone on.
    let settled_ns = struck_ns + 1_000_000_000;
    let watched = now() + super::gap::WATCHED;
    loop {
        pause(Duration::from_millis(50));
        let all = record::all(&job.records());
        let mut times: Vec<u64> = all.iter().flat_map(|(_, of)| of).map(|it| it.at_ns).collect();
        times.sort_unstable();
        let is_fresh = times
            .last()
            .is_some_and(|at| *at > settled_ns && at + 1_000_000_000 > now_ns().unwrap_or(0));
        if now() > watched && is_fresh {
            return Ok(super::gap::longest_gap_ns(&times, struck_ns).map(|gap| gap as f64 / 1e6));
        }
        if now() > until {
            return Ok(None);
        }
    }
}
