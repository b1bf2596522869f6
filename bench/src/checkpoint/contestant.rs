//! The libraries that `checkpoint` measures, and their command lines. Used by `job`.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::ValueEnum;

use crate::process::elastic_node;

/// Others that do this. Each is a Python package of the interpreter that `--python` names.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum CheckpointPeer {
    /// torch's `async_save`, with a thread that writes, and with a process.
    Dcp,
    /// Meta's torch_checkpointing.
    #[value(name = "torch_checkpointing")]
    TorchCheckpointing,
}

/// A library in one of its ways.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum CheckpointContestant {
    Ours,
    DcpThread,
    DcpProcess,
    TorchCheckpointing,
}

impl CheckpointPeer {
    pub(crate) fn contestants(self) -> Vec<CheckpointContestant> {
        match self {
            Self::Dcp => vec![CheckpointContestant::DcpThread, CheckpointContestant::DcpProcess],
            Self::TorchCheckpointing => vec![CheckpointContestant::TorchCheckpointing],
        }
    }

    /// The reason why it cannot be measured with this interpreter, with the remedy; none if it can.
    pub(crate) fn missing(self, python: &Path) -> Option<String> {
        let (name, module) = match self {
            Self::Dcp => ("torch", "torch.distributed.checkpoint"),
            Self::TorchCheckpointing => ("torch_checkpointing", "torch_checkpointing"),
        };
        let imported = Command::new(python)
            .args(["-c", &format!("import {module}")])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let is_there = imported.is_ok_and(|status| status.success());
        let python = python.display();
        (!is_there).then(|| format!("{name} is not installed for {python}: pip install {name}"))
    }
}

impl CheckpointContestant {
    /// Its name for the program, a person and the report.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::DcpThread => "dcp-thread",
            Self::DcpProcess => "dcp-process",
            Self::TorchCheckpointing => "torch-checkpointing",
        }
    }

    /// The command line of a job of so many ranks with its files below `folder`; the program's arguments are appended.
    pub(crate) fn launcher(
        self,
        python: &Path,
        folder: &Path,
        ranks: u32,
        every: u64,
    ) -> anyhow::Result<Vec<OsString>> {
        let (ranks, every) = (ranks.to_string(), every.to_string());
        let mut command: Vec<OsString> = Vec::new();
        if self == Self::Ours {
            command.push(elastic_node()?.into());
            command.extend(["run", "--mode", "in-process", "--np", &ranks].map(Into::into));
            command
                .extend(["--checkpoint-every", &every, "--checkpoint-keep", "1"].map(Into::into));
            command.extend(["--checkpoint".into(), folder.join("checkpoints").into()]);
            command.extend(["--state-dir".into(), folder.join("state").into(), "--".into()]);
            command.push(python.into());
        } else {
            command.push(python.into());
            command.extend(["-m", "torch.distributed.run", "--standalone"].map(Into::into));
            command.push(format!("--nproc-per-node={ranks}").into());
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/checkpoint.py");
        command.extend([script.into(), "--library".into(), self.name().into()]);
        Ok(command)
    }
}
