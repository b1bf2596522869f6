//! A lane: steps that compute, beside steps that mostly wait for processes and clocks. The lane is a process of its own
//! with a lower priority, so that the tests beside it keep their time; its output is printed once it has ended. Used by
//! `test` and `ci`.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::steps::root;

/// The lane's niceness: it gets about a tenth of a processor that something else wants.
const NICENESS: &str = "10";

/// The variable by which a lane knows that its standard input is a pipe from the process that started it.
const IS_LANE: &str = "ELASTIC_XTASK_LANE";

/// A lane that runs. Dropping it kills it, with all that it has started.
#[derive(Debug)]
pub(crate) struct StepLane {
    task: &'static str,
    child: Child,
    log: PathBuf,
}

impl StepLane {
    /// Starts a task of this program as a lane.
    ///
    /// # Errors
    /// No process, or no file for its output.
    pub(crate) fn start(task: &'static str) -> anyhow::Result<StepLane> {
        let folder = root()?.join("target").join("xtask");
        std::fs::create_dir_all(&folder)?;
        let log = folder.join(format!("{task}.log"));
        let output = File::create(&log)?;
        writeln!(std::io::stderr(), "\n== beside it: cargo xtask {task} > {}", log.display())?;
        // Not this program's own file: a build of the workspace may have replaced it meanwhile.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let child = Command::new("nice")
            .args(["-n", NICENESS])
            .arg(cargo)
            .args(["run", "--quiet", "--locked", "--package", "xtask", "--", task])
            .current_dir(root()?)
            .env(IS_LANE, "1")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("nice cannot be started")?;
        Ok(StepLane { task, child, log })
    }

    /// Waits for the lane's end, and prints its output.
    ///
    /// # Errors
    /// A step of the lane failed.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        let pipe = self.child.stdin.take();
        let status = self.child.wait()?;
        drop(pipe);
        let output = std::fs::read(&self.log)?;
        std::io::stderr().write_all(&output)?;
        ensure!(status.success(), "cargo xtask {} failed", self.task);
        Ok(())
    }
}

impl Drop for StepLane {
    fn drop(&mut self) {
        // The pipe closes, here or with the end of this process.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Runs the steps of a lane. Where the process that started the lane is gone, the lane's process group is killed.
///
/// # Errors
/// A step failed.
pub(crate) fn run(steps: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    if std::env::var_os(IS_LANE).is_some() {
        let group = format!("-{}", std::process::id());
        std::thread::Builder::new().spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        })?;
    }
    steps()
}
