//! The faults of `faults`: the way in which each strikes, and in which it is healed.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use nix::sys::signal::Signal;

use super::job::{FaultsJob, FaultsMembers};
use super::reader::OutputReader;
use crate::monotonic::now_ns;
use crate::soak::network::{self, Network};

/// Time for which a killed agent or driver stays away, as under an init system.
const AWAY: Duration = Duration::from_millis(500);

/// Host of the workers that are struck; the other one goes on.
const STRUCK: u8 = 1;

/// One fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum InjectedFault {
    KillWorker,
    KillAgent,
    KillDriver,
    KillDriverWithStandby,
    StopWorker,
    StopAgent,
    StopDriver,
    StopDriverWithStandby,
    CutData,
    CutHost,
    FrozenStateDisk,
    FullStderr,
    NoDescriptors,
    HungHostfile,
    HungLogs,
    FullStdout,
}

impl InjectedFault {
    /// Its name in the report.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether the members of a generation go on, so that the fault shows only when one of them dies.
    pub(super) const fn leaves_members_alone(self) -> bool {
        matches!(
            self,
            Self::StopDriverWithStandby
                | Self::FrozenStateDisk
                | Self::FullStderr
                | Self::NoDescriptors
                | Self::HungHostfile
                | Self::HungLogs
                | Self::FullStdout
        )
    }

    /// Whether the job keeps its journal in etcd, and other drivers stand by.
    pub(super) const fn needs_etcd(self) -> bool {
        matches!(
            self,
            Self::KillDriverWithStandby | Self::StopDriverWithStandby | Self::FrozenStateDisk
        )
    }

    pub(super) const fn needs_standby(self) -> bool {
        matches!(self, Self::KillDriverWithStandby | Self::StopDriverWithStandby)
    }

    /// Whether it strikes the output of workers, who print for that.
    pub(super) const fn needs_output(self) -> bool {
        matches!(self, Self::HungLogs | Self::FullStdout)
    }

    /// The folder that lies on a disk that can be frozen.
    pub(super) const fn disk(self) -> Option<&'static str> {
        match self {
            Self::FrozenStateDisk => Some("state"),
            Self::HungHostfile => Some("hosts"),
            Self::HungLogs => Some("logs"),
            _ => None,
        }
    }

    /// Strikes; returns when, in nanoseconds on `CLOCK_MONOTONIC`.
    pub(super) fn strike(
        self,
        job: &mut FaultsJob,
        network: &Network,
        members: &FaultsMembers,
    ) -> anyhow::Result<u64> {
        let struck_ns = now_ns()?;
        match self {
            Self::KillWorker => job.signal(members.on(STRUCK)?, Signal::SIGKILL)?,
            Self::StopWorker => job.signal(members.on(STRUCK)?, Signal::SIGSTOP)?,
            Self::KillAgent => job.kill_agent(STRUCK, AWAY)?,
            Self::StopAgent => job.signal(job.agent_pid(STRUCK)?, Signal::SIGSTOP)?,
            Self::KillDriver | Self::KillDriverWithStandby => job.kill_driver(AWAY)?,
            Self::StopDriver | Self::StopDriverWithStandby => {
                job.signal(job.driver_pid()?, Signal::SIGSTOP)?;
            }
            Self::CutData => network.silence_tcp(STRUCK)?,
            Self::CutHost => network::cut(STRUCK)?,
            Self::FrozenStateDisk | Self::HungHostfile | Self::HungLogs => job.disk()?.freeze()?,
            Self::FullStderr => job.fill_stderr()?,
            Self::FullStdout => job.readers().iter().for_each(OutputReader::stand_still),
            Self::NoDescriptors => limit_descriptors(members.on(STRUCK)?)?,
        }
        Ok(struck_ns)
    }

    /// Heals the fault, if it does not heal by itself.
    pub(super) fn heal(
        self,
        job: &mut FaultsJob,
        network: &Network,
        members: &FaultsMembers,
    ) -> anyhow::Result<()> {
        match self {
            Self::StopWorker => job.signal(members.on(STRUCK)?, Signal::SIGCONT),
            Self::StopAgent => job.signal(job.agent_pid(STRUCK)?, Signal::SIGCONT),
            Self::StopDriver | Self::StopDriverWithStandby => {
                job.signal(job.driver_pid()?, Signal::SIGCONT)
            }
            Self::CutData => network.hear_tcp(STRUCK),
            Self::CutHost => network::mend(STRUCK),
            Self::FrozenStateDisk | Self::HungHostfile | Self::HungLogs => job.disk()?.thaw(),
            Self::FullStdout => {
                job.readers().iter().for_each(OutputReader::go_on);
                Ok(())
            }
            Self::KillWorker
            | Self::KillAgent
            | Self::KillDriver
            | Self::KillDriverWithStandby
            | Self::FullStderr
            | Self::NoDescriptors => Ok(()),
        }
    }

    /// The host on which a worker dies while the fault lasts: not that of a worker which is sick itself.
    pub(super) const fn dies_on(self) -> u8 {
        match self {
            Self::NoDescriptors => 0,
            _ => STRUCK,
        }
    }
}

/// Lets a process open no descriptor more than it has.
fn limit_descriptors(pid: u32) -> anyhow::Result<()> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).context("the worker runs")?.count();
    let limit = format!("--nofile={open}:{open}");
    let status = Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status();
    ensure!(status.context("prlimit cannot be run")?.success(), "prlimit failed");
    Ok(())
}
