//! A lane: steps that run beside those of the task. The lane is a process of its own. Beside tests it has a lower
//! priority, so that the tests keep their time. Its output is printed once it has ended, and the times of its steps
//! become the task's. Used by `test` and `ci`.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::step_times;
use crate::steps::root;

/// A task of this program that runs in a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneTask {
    /// The task's name on the command line.
    name: &'static str,
    /// With 10 it gets about a tenth of a processor that something else wants.
    niceness: &'static str,
}

/// The installation of the components that tests run against. It mostly waits for the network.
pub(crate) const COMPONENTS: LaneTask = LaneTask { name: "components", niceness: "0" };

/// The computing steps of `ci` beside its tests.
pub(crate) const COMPUTING: LaneTask = LaneTask { name: "computing", niceness: "10" };

/// The computing steps of `test` beside its tests.
pub(crate) const SIMULATION: LaneTask = LaneTask { name: "simulation", niceness: "10" };

impl LaneTask {
    /// The file of this task with the times of its steps, or its output.
    fn file(self, ending: &str) -> anyhow::Result<PathBuf> {
        let folder = root()?.join("target").join("xtask");
        std::fs::create_dir_all(&folder)?;
        Ok(folder.join(format!("{}.{ending}", self.name)))
    }
}

/// The variable by which a lane knows that its standard input is a pipe from the process that started it.
const IS_LANE: &str = "ELASTIC_XTASK_LANE";

/// A lane that runs. Dropping it kills it, with all that it has started.
#[derive(Debug)]
pub(crate) struct StepLane {
    task: LaneTask,
    child: Child,
}

impl StepLane {
    /// Starts a task of this program as a lane.
    ///
    /// # Errors
    /// No process, or no file for its output.
    pub(crate) fn start(task: LaneTask) -> anyhow::Result<StepLane> {
        let LaneTask { name, niceness } = task;
        let log = task.file("log")?;
        let output = File::create(&log)?;
        writeln!(std::io::stderr(), "\n== beside it: cargo xtask {name} > {}", log.display())?;
        // Not this program's own file: a build of the workspace may have replaced it meanwhile.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let child = Command::new("nice")
            .args(["-n", niceness])
            .arg(cargo)
            .args(["run", "--quiet", "--locked", "--package", "xtask", "--", name])
            .current_dir(root()?)
            .env(IS_LANE, "1")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("nice cannot be started")?;
        Ok(StepLane { task, child })
    }

    /// Waits for the lane's end, prints its output, and takes over the times of its steps.
    ///
    /// # Errors
    /// A step of the lane failed.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        let pipe = self.child.stdin.take();
        let status = self.child.wait()?;
        drop(pipe);
        let output = std::fs::read(self.task.file("log")?)?;
        std::io::stderr().write_all(&output)?;
        ensure!(status.success(), "cargo xtask {} failed", self.task.name);
        step_times::add_stored(&self.task.file("times.json")?)
    }
}

impl Drop for StepLane {
    fn drop(&mut self) {
        // The pipe closes, here or with the end of this process.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Runs the steps of a lane, and writes their times for the process that has started it. If that process is gone, the
/// lane's process group is killed.
///
/// # Errors
/// A step failed.
pub(crate) fn run(
    task: LaneTask,
    steps: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if std::env::var_os(IS_LANE).is_some() {
        let group = format!("-{}", std::process::id());
        std::thread::Builder::new().spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        })?;
    }
    steps()?;
    step_times::store(&task.file("times.json")?)
}
