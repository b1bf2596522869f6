//! A disk that can be frozen, and filled. Used by `soak`, and by the jobs and the peers of `faults`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

/// Bytes of a disk: more than workers print in one measurement of `faults`.
const BYTES: u64 = 64 << 20;

/// A file system of the job's own: while it is frozen, writers and readers block.
pub(crate) struct FaultyDisk(PathBuf);

impl FaultyDisk {
    /// Makes the file system in `image`, and mounts it at `at`.
    pub(crate) fn mount(image: &Path, at: PathBuf) -> anyhow::Result<Self> {
        File::create(image)?.set_len(BYTES)?;
        fs::create_dir(&at)?;
        let run = |program: &str, arguments: &[&str], last: &[&Path]| -> anyhow::Result<()> {
            let done = Command::new(program).args(arguments).args(last).output();
            let done = done.with_context(|| format!("{program} cannot be run"))?;
            let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
            ensure!(done.status.success(), "{program}: {stderr}");
            Ok(())
        };
        run("mkfs.ext4", &["-q"], &[image])?;
        run("mount", &["-o", "loop"], &[image, &at])?;
        fs::remove_dir_all(at.join("lost+found"))?;
        Ok(Self(at))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn freeze(&self) -> anyhow::Result<()> {
        self.command("-f")
    }

    pub(crate) fn thaw(&self) -> anyhow::Result<()> {
        self.command("-u")
    }

    fn command(&self, flag: &str) -> anyhow::Result<()> {
        let done = Command::new("fsfreeze").arg(flag).arg(self.path()).output();
        let done = done.context("fsfreeze cannot be run")?;
        let stderr = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "fsfreeze {flag} failed: {stderr}");
        Ok(())
    }
}

impl Drop for FaultyDisk {
    fn drop(&mut self) {
        // It may not be frozen.
        let _ = self.thaw();
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
