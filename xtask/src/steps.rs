//! Helpers that all tasks share: a step with its name, the shell at the workspace's root, and the commit's seed.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use xshell::{Shell, cmd};

use crate::step_times::{self, Stopwatch};

/// The manifests of the workspaces.
pub(crate) const WORKSPACES: [&str; 2] = ["Cargo.toml", "examples/candle/Cargo.toml"];

/// Runs one step, and prints its name and its times to stderr.
///
/// # Errors
/// The step failed; the error names it.
pub(crate) fn step<T>(name: &str, run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut stderr = std::io::stderr();
    writeln!(stderr, "\n== {name}")?;
    let stopwatch = Stopwatch::start()?;
    let result = run().with_context(|| format!("{name} failed"))?;
    let time = stopwatch.stop(name)?;
    writeln!(stderr, "== {name}: passed in {:.0} s", time.clock_s)?;
    step_times::add(time);
    Ok(result)
}

/// Prints to stderr that a step is left out, and why.
pub(crate) fn skip(name: &str, why: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stderr(), "\n== {name}: skipped, {why}")?)
}

/// A shell at the workspace's root.
pub(crate) fn shell() -> anyhow::Result<Shell> {
    let shell = Shell::new()?;
    shell.change_dir(root()?);
    Ok(shell)
}

/// The workspace's root: the parent of this package.
pub(crate) fn root() -> anyhow::Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("this package stands in the workspace")?.to_owned())
}

/// The first 12 hexadecimal digits of the commit's hash; `None` outside a checkout.
pub(crate) fn seed_of_commit(shell: &Shell) -> Option<u64> {
    let commit = cmd!(shell, "git rev-parse HEAD").quiet().ignore_stderr().read().ok()?;
    u64::from_str_radix(commit.get(..12)?, 16).ok()
}
