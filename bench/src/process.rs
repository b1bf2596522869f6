//! Helpers of the benchmarks for real processes, signals and waits.

use std::collections::BTreeSet;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Builds `elastic-node` where it is missing or old, in the profile that this program is of.
pub(crate) fn elastic_node() -> anyhow::Result<PathBuf> {
    build("elastic-node-cli", ["--bin", "elastic-node"], "elastic-node")
}

/// The same with one of its examples.
pub(crate) fn example(name: &str) -> anyhow::Result<PathBuf> {
    build("elastic-node", ["--example", name], &format!("examples/{name}"))
}

/// Programs that were built already: each is built once, and not between two measurements.
static BUILT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn build(package: &str, part: [&str; 2], file: &str) -> anyhow::Result<PathBuf> {
    let here = std::env::current_exe()?;
    let program = here.parent().context("this program lies in a folder")?.join(file);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if !built.contains(&program) {
        run_cargo(package, part, file)?;
        built.insert(program.clone());
    }
    Ok(program)
}

fn run_cargo(package: &str, part: [&str; 2], file: &str) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Programs that are measured are built as they ship; for tests the build of the workspace is enough.
    let (profile, of): (_, &[&str]) = match cfg!(debug_assertions) {
        true => ("dev", &["--workspace"]),
        false => ("release", &["--package", package]),
    };
    let built = Command::new(cargo)
        .arg("build")
        .args(of)
        .args(part)
        .args(["--profile", profile, "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"))
        .status()
        .context("cargo cannot be started")?;
    ensure!(built.success(), "{file} cannot be built");
    Ok(())
}

/// `kill -9`.
pub(crate) fn kill_9(pid: u32) -> anyhow::Result<()> {
    send(pid, Signal::SIGKILL)
}

/// Asks a process to end.
pub(crate) fn terminate(pid: u32) -> anyhow::Result<()> {
    send(pid, Signal::SIGTERM)
}

fn send(pid: u32, signal: Signal) -> anyhow::Result<()> {
    Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
}

/// A descriptor that becomes readable when the process ends.
#[expect(unsafe_code, reason = "neither the standard library nor nix offers pidfd_open")]
pub(crate) fn open_pidfd(pid: u32) -> anyhow::Result<OwnedFd> {
    // SAFETY: pidfd_open takes a process id and flags, and touches no memory of this process.
    let fd = unsafe { nix::libc::syscall(nix::libc::SYS_pidfd_open, pid, 0) };
    ensure!(fd >= 0, "no pidfd: {}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just opened this descriptor, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) })
}

#[expect(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
