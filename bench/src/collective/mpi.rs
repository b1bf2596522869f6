//! An MPI as a contestant of `bench allreduce`, `broadcast` and `allgather`: the program `peers/mpi.c`, built by the `mpicc`
//! that lies beside the launcher of `--mpirun`, and started by that launcher. Called by `contestant`.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::unistd::{Uid, mkfifo};
use tempfile::TempDir;

use super::CollectiveOptions;
use super::contestant::{CollectiveContestant, PEERS, Processes, line};
use crate::process::open_pidfd;

/// Message of `peers/mpi.c` on the results' FIFO once all its ranks read commands.
const READY: &str = "ready";

/// The implementations whose launchers are known; their flags differ.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum MpiKind {
    OpenMpi,
    Mpich,
    Intel,
}

/// An installed MPI.
struct Mpi {
    kind: MpiKind,
    launcher: PathBuf,
    compiler: PathBuf,
    environment: Vec<(&'static str, OsString)>,
}

/// Starts the ranks, and waits until all of them read commands.
///
/// # Errors
/// The MPI is not installed or unknown, its program cannot be built, or it ends before all ranks are ready.
pub(super) fn start(options: &CollectiveOptions) -> anyhow::Result<CollectiveContestant> {
    let mpi = Mpi::find(&options.mpirun)?;
    let folder = TempDir::with_prefix("elastic-node-bench-mpi-")?;
    let program = mpi.build(folder.path())?;
    // Both ends at once, so that neither side waits for the other to open it.
    let fifo = |path: PathBuf| -> anyhow::Result<File> {
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        Ok(OpenOptions::new().read(true).write(true).open(path)?)
    };
    let mut commands: Vec<Box<dyn Write>> = Vec::new();
    for rank in 0..options.world {
        commands.push(Box::new(fifo(folder.path().join(rank.to_string()))?));
    }
    let results = fifo(folder.path().join("results"))?;
    let child = mpi
        .launch(options.world)
        .arg(program)
        .arg(folder.path())
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .spawn()
        .with_context(|| format!("{} cannot be started", mpi.launcher.display()))?;
    let ended = open_pidfd(child.id())?;
    let processes = Processes(vec![child]);
    let mut results = BufReader::new(ResultsFifo { fifo: results, launcher: ended });
    let first = line(&mut results).context("mpirun ended before its ranks were ready")?;
    ensure!(first == READY, "the first line of {PEERS}/mpi.c is {first:?}, not {READY:?}");
    Ok(CollectiveContestant::ranks(commands, Box::new(results), processes, Some(folder)))
}

impl Mpi {
    /// Looks at the launcher, and tells on stderr which MPI it is of.
    fn find(mpirun: &Path) -> anyhow::Result<Self> {
        let launcher = absolute(mpirun)?;
        let name = launcher.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // Debian's `mpirun.mpich` has a `mpicc.mpich`.
        let compiler = launcher.with_file_name(name.replacen("mpirun", "mpicc", 1));
        let environment = environment_of(&launcher)?;
        let version = Command::new(&launcher)
            .arg("--version")
            .envs(environment.iter().map(|(name, value)| (*name, value)))
            .output()
            .with_context(|| format!("{} cannot be started", launcher.display()))?;
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        let first = version.lines().next().unwrap_or_default();
        let kind = MpiKind::of(&version).with_context(|| {
            let launcher = launcher.display();
            format!("{launcher} is of no known MPI (Open MPI, MPICH, Intel MPI): {first:?}")
        })?;
        writeln!(std::io::stderr(), "mpi: {kind:?}, {}: {first}", launcher.display())?;
        Ok(Self { kind, launcher, compiler, environment })
    }

    /// The program, in this folder.
    fn build(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let program = folder.join("mpi");
        let built = self
            .command(&self.compiler)
            .args(["-O2", "-o"])
            .arg(&program)
            .arg(Path::new(PEERS).join("mpi.c"))
            .status()
            .with_context(|| format!("{} is not installed", self.compiler.display()))?;
        ensure!(built.success(), "mpi.c cannot be built by {}", self.compiler.display());
        Ok(program)
    }

    /// The launcher, with its flags for so many ranks on this machine.
    fn launch(&self, world: u32) -> Command {
        let mut command = self.command(&self.launcher);
        match self.kind {
            MpiKind::OpenMpi => {
                if Uid::effective().is_root() {
                    command.arg("--allow-run-as-root");
                }
                command.arg("--oversubscribe");
            }
            // Hydra starts more ranks than processors without being asked.
            MpiKind::Mpich | MpiKind::Intel => {}
        }
        command.args(["-n", &world.to_string()]);
        command
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.envs(self.environment.iter().map(|(name, value)| (*name, value)));
        command
    }
}

impl MpiKind {
    /// The implementation, from the launcher's output for `--version`.
    fn of(version: &str) -> Option<Self> {
        // MPICH's launcher is Hydra, of which Intel's is a copy under a name of its own.
        let marks = [
            ("Intel(R) MPI", Self::Intel),
            ("Open MPI", Self::OpenMpi),
            ("OpenRTE", Self::OpenMpi),
            ("HYDRA", Self::Mpich),
        ];
        marks.into_iter().find(|(mark, _)| version.contains(mark)).map(|(_, kind)| kind)
    }
}

/// The launcher's path: a bare name is looked up in `PATH`.
fn absolute(mpirun: &Path) -> anyhow::Result<PathBuf> {
    if mpirun.components().count() > 1 {
        // Links stay: Debian's `mpirun` is one to another name, and `mpicc` is found by this one.
        return Ok(std::path::absolute(mpirun)?);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(mpirun));
    let Some(found) = found.into_iter().find(|path| path.is_file()) else {
        bail!("{} is not installed\nhint: name the launcher by --mpirun", mpirun.display());
    };
    Ok(found)
}

/// The environment of an MPI outside of the system's folders, as Intel's from PyPI: its own folder first, and where its libraries are.
fn environment_of(launcher: &Path) -> anyhow::Result<Vec<(&'static str, OsString)>> {
    let bin = launcher.parent().context("a launcher lies in a folder")?;
    let root = bin.parent().context("a launcher's folder has a parent")?;
    if !bin.join("impi_info").exists() {
        return Ok(Vec::new());
    }
    let first = |folder: PathBuf, variable: &str| {
        let rest = std::env::var_os(variable).unwrap_or_default();
        let rest = std::env::split_paths(&rest).filter(|path| !path.as_os_str().is_empty());
        std::env::join_paths(std::iter::once(folder).chain(rest.collect::<Vec<_>>()))
    };
    Ok(vec![
        ("I_MPI_ROOT", root.into()),
        ("PATH", first(bin.into(), "PATH")?),
        ("LD_LIBRARY_PATH", first(root.join("lib"), "LD_LIBRARY_PATH")?),
    ])
}

/// The results' FIFO. It has a writer in this process, too, so that its end is that of the launcher.
struct ResultsFifo {
    fifo: File,
    launcher: OwnedFd,
}

impl Read for ResultsFifo {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let of = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = [of(self.fifo.as_fd()), of(self.launcher.as_fd())];
        while let Err(error) = poll(&mut fds, PollTimeout::NONE) {
            let error = std::io::Error::from(error);
            if error.kind() != ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let has_results = fds.first().is_some_and(|fifo| fifo.any() == Some(true));
        if has_results { self.fifo.read(buffer) } else { Ok(0) }
    }
}
