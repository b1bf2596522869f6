//! Peers under the faults that apply to them: four workers on this machine. Used by `faults`.

use std::time::Duration;

use clap::ValueEnum;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::FaultsOptions;
use super::job::LINE_BYTES;
use super::reader::OutputReader;
use crate::disk::FaultyDisk;
use crate::monotonic::now_ns;
use crate::process::{now, pause};
use crate::record;
use crate::recovery::contestant::{RecoveryContestant, RecoveryPeer, WORKERS};
use crate::recovery::job::RecoveryJob;

/// A fault of a worker, of the launcher (torchrun's agent, Horovod's driver), or of where the workers' output goes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum PeerFault {
    KillWorker,
    StopWorker,
    KillLauncher,
    StopLauncher,
    /// The folder of log files is on a disk that hangs.
    HungLogs,
    /// Nobody reads the launcher's stdout.
    FullStdout,
}

impl PeerFault {
    /// Its name in the report.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// Steps that all commit before a fault.
const STEPS: usize = 20;

/// One job for each strike: no peer comes back from all of them.
pub(super) fn measure(
    options: &FaultsOptions,
    peer: RecoveryPeer,
    fault: PeerFault,
) -> anyhow::Result<Vec<Option<f64>>> {
    (0..options.peer_strikes).map(|_| measure_one(options, peer, fault)).collect()
}

/// Receivers of the workers' output, each of which can have a fault.
struct PeerOutput {
    disk: Option<FaultyDisk>,
    reader: Option<OutputReader>,
}

impl PeerOutput {
    fn heal(&self) -> anyhow::Result<()> {
        self.reader.iter().for_each(OutputReader::go_on);
        self.disk.as_ref().map_or(Ok(()), FaultyDisk::thaw)
    }
}

fn measure_one(
    options: &FaultsOptions,
    peer: RecoveryPeer,
    fault: PeerFault,
) -> anyhow::Result<Option<f64>> {
    let folder = TempDir::with_prefix("elastic-node-faults-")?;
    let mut output = PeerOutput { disk: None, reader: None };
    let mut stdout = None;
    match fault {
        PeerFault::HungLogs => {
            let (image, at) = (folder.path().join("image"), folder.path().join("disk"));
            output.disk = Some(FaultyDisk::mount(&image, at)?);
        }
        PeerFault::FullStdout => {
            let (reader, writer) = OutputReader::start()?;
            (output.reader, stdout) = (Some(reader), Some(writer));
        }
        PeerFault::KillWorker
        | PeerFault::StopWorker
        | PeerFault::KillLauncher
        | PeerFault::StopLauncher => {}
    }
    let prints = output.disk.is_some() || output.reader.is_some();
    let logs = output.disk.as_ref().map(FaultyDisk::path);
    let (mut job, _) = RecoveryJob::start_to(stdout, options.step_ms, |_folder| {
        let mut contestant = RecoveryContestant::peer(peer, &options.python, logs)?;
        if prints {
            let flag = format!("--line-bytes={LINE_BYTES}");
            contestant.command.push(flag.into());
        }
        Ok(contestant)
    })?;
    let pids = job.wait("four workers that train", |job| {
        let all = record::all(&job.records());
        let train: Vec<u32> =
            all.iter().filter(|(_, of)| of.len() >= STEPS).map(|(pid, _)| *pid).collect();
        (train.len() == WORKERS as usize).then_some(train)
    })?;
    let send = |pid: u32, signal: Signal| kill(Pid::from_raw(pid.cast_signed()), signal);
    let launcher = job.launcher_pid();
    let struck_ns = now_ns()?;
    match fault {
        PeerFault::KillWorker => send(pids[1], Signal::SIGKILL)?,
        PeerFault::StopWorker => send(pids[1], Signal::SIGSTOP)?,
        PeerFault::KillLauncher => send(launcher, Signal::SIGKILL)?,
        PeerFault::StopLauncher => send(launcher, Signal::SIGSTOP)?,
        PeerFault::HungLogs => output.disk.iter().try_for_each(FaultyDisk::freeze)?,
        PeerFault::FullStdout => output.reader.iter().for_each(OutputReader::stand_still),
    }
    let sample = observe(&job, struck_ns, Duration::from_secs(options.patience));
    // A process that writes to a frozen disk, or is stopped, cannot end; workers may outlive a launcher that is killed.
    output.heal()?;
    let is_killed = matches!(fault, PeerFault::KillLauncher);
    let farewell = if is_killed { Signal::SIGKILL } else { Signal::SIGCONT };
    for pid in pids.iter().chain([&launcher]) {
        // It may have ended.
        let _ = send(*pid, farewell);
    }
    sample
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
