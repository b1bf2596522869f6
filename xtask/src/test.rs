//! `cargo xtask test`: the tier for a fresh checkout. It needs no root and installs nothing: a test whose real
//! component is missing says so and passes, and the last lines name all that are missing. Called by `main`.

use xshell::{Shell, cmd};

use crate::check::check;
use crate::debian;
use crate::lane::{self, StepLane};
use crate::simulation;
use crate::step_times;
use crate::steps::{seed_of_commit, shell, skip, step};

/// Tests at a time for each processor, where cargo-nextest runs each as a process of its own.
const TESTS_PER_PROCESSOR: usize = 2;

/// Runs the format check, the lints, the tests of the workspace, and simulated clusters.
///
/// # Errors
/// A step failed.
pub(crate) fn test() -> anyhow::Result<()> {
    check()?;
    let shell = shell()?;
    step("build", || build(&shell))?;
    let simulation = StepLane::start(lane::SIMULATION)?;
    step("tests", || workspace(&shell))?;
    simulation.end()?;
    for component in debian::ALL {
        if !component.is_present(&shell) {
            skip(component.tests, "what it tests against is not installed")?;
        }
    }
    skip("the tests in Python, candle, mutants, licences", "`cargo xtask ci` has them")?;
    step_times::print()
}

/// Runs the simulation briefly, as `test` does beside its tests.
///
/// # Errors
/// A seed failed.
pub(crate) fn simulation() -> anyhow::Result<()> {
    let shell = shell()?;
    step("simulation", || simulation::sweep_briefly(&shell))
}

/// Builds all programs and libraries. The tests run some of them, and a build of the workspace as a whole gives all of
/// them one set of features.
pub(crate) fn build(shell: &Shell) -> anyhow::Result<()> {
    Ok(cmd!(shell, "cargo build --locked --workspace --lib --bins --examples").run()?)
}

/// Runs the tests of every package, several at a time: most of them wait for processes. Their random input changes with
/// every commit, and is the same for everyone with that commit.
pub(crate) fn workspace(shell: &Shell) -> anyhow::Result<()> {
    let seed = seed_of_commit(shell).map(|seed| seed.to_string());
    let _seed = seed.map(|seed| shell.push_env("PROPTEST_RNG_SEED", seed));
    let nextest = cmd!(shell, "cargo nextest --version").quiet().ignore_stdout().ignore_stderr();
    if nextest.run().is_ok() {
        let processors = std::thread::available_parallelism()?.get();
        let threads = (processors * TESTS_PER_PROCESSOR).to_string();
        cmd!(shell, "cargo nextest run --locked --workspace --test-threads {threads}").run()?;
        return Ok(cmd!(shell, "cargo test --quiet --locked --workspace --doc").run()?);
    }
    Ok(cmd!(shell, "cargo test --locked --workspace --no-fail-fast").run()?)
}
