//! The jobs that `recovery` measures: ours, and the same training under other launchers. Used by `faults`, `detect`
//! and `rebalance`, too.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::ensure;
use clap::ValueEnum;

use crate::process::elastic_node;

/// Workers of each job.
pub(crate) const WORKERS: u32 = 4;

/// The host discovery of horovodrun, run in a shell: as many hosts as workers. It gives up the whole host of a
/// worker that failed, so each worker has a host of its own; it uses ssh for addresses that are not on this machine's
/// interfaces, so all names are spellings of 127.0.0.1.
const HOROVOD_HOSTS: &str = r"printf '%s:1\n' localhost 127.0.0.1 127.0.1 127.1";

/// Our ways to go on without a worker.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum RecoveryMode {
    /// The Rust API, in process.
    InProcess,
    /// The Python package, in process, with torch's DistributedDataParallel.
    Python,
    /// An unmodified script of torch, started again with its group.
    Restart,
}

/// Others that do this. Each is a Python package of the interpreter that `--python` names.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum RecoveryPeer {
    /// torch's own launcher, which starts the group again.
    Torchrun,
    /// torchft's managers and lighthouse, in process.
    Torchft,
    /// Horovod Elastic over gloo, in process.
    Horovod,
}

/// The behaviour of survivors when a worker is lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Survivors {
    /// They stay in the same process.
    Stay,
    /// They are restarted, with everybody else.
    Restart,
}

/// A job to be measured.
#[derive(Clone, Debug)]
pub(crate) struct RecoveryContestant {
    /// The command line; the training program's arguments are appended.
    pub(crate) command: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, &'static str)>,
    pub(crate) survivors: Survivors,
    /// Whether `elastic-node`'s event log tells more about a reset.
    pub(crate) has_events: bool,
}

impl RecoveryContestant {
    /// Ours, with its state below `folder`.
    ///
    /// # Errors
    /// `elastic-node` cannot be built.
    pub(crate) fn ours(mode: RecoveryMode, python: &Path, folder: &Path) -> anyhow::Result<Self> {
        let (by, survivors) = match mode {
            RecoveryMode::InProcess | RecoveryMode::Python => ("in-process", Survivors::Stay),
            RecoveryMode::Restart => ("restart", Survivors::Restart),
        };
        let mut command: Vec<OsString> = vec![elastic_node()?.into()];
        command.extend(["run", "--np", &WORKERS.to_string(), "--mode", by].map(Into::into));
        if survivors == Survivors::Stay {
            command.extend(["--min-np", "1"].map(Into::into));
        }
        command.extend(["--max-restarts", "1000000", "--state-dir"].map(Into::into));
        command.extend([folder.join("state").into(), "--".into()]);
        match mode {
            RecoveryMode::InProcess => {
                command.extend([std::env::current_exe()?.into(), "worker".into()])
            }
            RecoveryMode::Python => {
                command.extend([python.into(), script("python/worker.py").into()])
            }
            RecoveryMode::Restart => command.extend([python.into(), script("peers/ddp.py").into()]),
        }
        let has_events = survivors == Survivors::Stay;
        Ok(Self { command, environment: Vec::new(), survivors, has_events })
    }

    /// Another's. If there is a folder for `logs`, each worker's output goes into a file of its own there.
    ///
    /// # Errors
    /// This peer writes no such files.
    pub(crate) fn peer(
        peer: RecoveryPeer,
        python: &Path,
        logs: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let mut command: Vec<OsString> = vec![python.into()];
        let mut environment = Vec::new();
        let survivors = match peer {
            RecoveryPeer::Torchrun => {
                let workers = format!("--nproc-per-node={WORKERS}");
                command.extend(["-m", "torch.distributed.run", "--standalone"].map(Into::into));
                command.extend([workers.as_str(), "--max-restarts=1000000"].map(Into::into));
                if let Some(logs) = logs {
                    command.extend(["--redirects=3".into(), "--log-dir".into(), logs.into()]);
                }
                command.push(script("peers/ddp.py").into());
                // Else torch 2.15 shares one store among all attempts, and the next one reads addresses of dead peers
                // in it: it was not back within five minutes.
                environment.push(("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"));
                Survivors::Restart
            }
            RecoveryPeer::Torchft => {
                ensure!(logs.is_none(), "torchft has no launcher that writes log files");
                command.extend([script("peers/torchft_ddp.py").into(), "--replicas".into()]);
                command.push(WORKERS.to_string().into());
                Survivors::Stay
            }
            RecoveryPeer::Horovod => {
                let (workers, survivors) = (WORKERS.to_string(), (WORKERS - 1).to_string());
                command.extend(["-m", "horovod.runner.launch", "--gloo"].map(Into::into));
                command.extend(["-np", &workers, "--max-np", &workers].map(Into::into));
                command.extend(["--min-np", &survivors].map(Into::into));
                command.extend(["--network-interfaces", "lo"].map(Into::into));
                command.extend(["--host-discovery-script", HOROVOD_HOSTS].map(Into::into));
                // Ten seconds each time: whose host comes back while survivors still form their group is not taken in.
                command.extend(["--blacklist-cooldown-range", "5", "10"].map(Into::into));
                if let Some(logs) = logs {
                    command.extend(["--output-filename".into(), logs.into()]);
                }
                command.extend([python.into(), script("peers/horovod_ddp.py").into()]);
                Survivors::Stay
            }
        };
        Ok(Self { command, environment, survivors, has_events: false })
    }
}

impl RecoveryPeer {
    /// Its name, for a person and in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Torchrun => "torchrun",
            Self::Torchft => "torchft",
            Self::Horovod => "horovod",
        }
    }

    /// The package that must be importable, and how it is installed.
    fn package(self) -> (&'static str, &'static str) {
        match self {
            Self::Torchrun => ("torch.distributed.run", "pip install torch"),
            Self::Torchft => ("torchft", "pip install torchft-nightly"),
            Self::Horovod => ("horovod.torch", "docs/performance.md tells how it is built"),
        }
    }

    /// The reason why it cannot be measured with this interpreter, with the remedy; none if it can.
    pub(crate) fn missing(self, python: &Path) -> Option<String> {
        let (module, way_out) = self.package();
        let imported = Command::new(python)
            .args(["-c", &format!("import {module}")])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let is_there = imported.is_ok_and(|status| status.success());
        let (name, python) = (self.name(), python.display());
        (!is_there).then(|| format!("{name} is not installed for {python}: {way_out}"))
    }
}

/// A file of this package.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}
