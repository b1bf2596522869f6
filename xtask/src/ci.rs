//! `cargo xtask ci`: all checks of the project. It installs the real components that tests run against, and says so
//! beforehand. Called by `main`, and through it by the project's continuous integration.

use xshell::{Shell, cmd};

use crate::check::check;
use crate::lane::{self, StepLane};
use crate::steps::{root, seed_of_commit, shell, step};
use crate::{book, debian, deny, disk, mutants, python, simulation, step_times, test};

/// Size of the sample of mutants, which is drawn from the commit's hash, beside those on lines that the commit has
/// changed; and the minutes for all of them. A busy machine gets through 26 in that time, whose shares scatter by 10
/// points: the floors are nearly three times that below what `docs/mutants.md` reports, so that they show what broke and not
/// the draw. They are not applied to fewer than 20.
const MUTANTS: usize = 60;
const MUTANTS_MINUTES: f64 = 3.0;
const MUTANTS_SIMULATION_FLOOR: f64 = 30.0;
const MUTANTS_FLOOR: f64 = 45.0;

/// Duration of the soak test on real processes, in minutes.
const SOAK_MINUTES: &str = "2";

/// Runs all checks, each with its real components.
///
/// # Errors
/// A step failed, or a component cannot be installed.
pub(crate) fn ci() -> anyhow::Result<()> {
    let shell = shell()?;
    disk::warn_if_short()?;
    // Downloads wait for the network, and the lints for processors.
    let components = StepLane::start(lane::COMPONENTS)?;
    check()?;
    step("documentation", || documentation(&shell))?;
    step("build", || test::build(&shell))?;
    components.end()?;
    let interpreter = python::interpreter(None)?;
    // Before the tests: some of them run programs that import the package.
    let binary = step("the Python package", || python::install_package(&shell, &interpreter))?;
    let computing = StepLane::start(lane::COMPUTING)?;
    step("tests", || {
        let _required: Vec<_> =
            debian::ALL.iter().filter_map(|component| component.require(&shell)).collect();
        let _network =
            may_make_networks(&shell).then(|| shell.push_env("ELASTIC_REQUIRE_NETWORK", "1"));
        let _python = shell.push_env(python::TEST_PYTHON, &interpreter);
        let _stacks = shell.push_env(python::STACKS, "1");
        test::workspace(&shell)
    })?;
    step("tests in Python", || python::test_package(&shell, &interpreter, &binary))?;
    step("soak on real processes", || {
        let seed = seed_of_commit(&shell).unwrap_or(1).to_string();
        let soak = ["soak", "--minutes", SOAK_MINUTES, "--seed", &seed];
        Ok(cmd!(shell, "cargo run --locked --package bench -- {soak...}").run()?)
    })?;
    computing.end()?;
    deny::check(&shell)?;
    step_times::print()
}

/// Runs the checks that compute and measure no time, as `ci` does beside its tests.
///
/// # Errors
/// A step failed.
pub(crate) fn computing() -> anyhow::Result<()> {
    let shell = shell()?;
    simulation::sweep_all(&shell)?;
    book::build_if_changed(&shell)?;
    step("the example with candle", || candle(&shell))?;
    sample_of_mutants(&shell)
}

/// Installs the components that the tests run against, as `ci` does beside its lints.
///
/// # Errors
/// A component cannot be installed.
pub(crate) fn components() -> anyhow::Result<()> {
    let shell = shell()?;
    step("what the tests run against", || {
        for component in debian::ALL {
            debian::install(&shell, component)?;
        }
        python::environment(&shell, None)?;
        Ok(())
    })
}

fn documentation(shell: &Shell) -> anyhow::Result<()> {
    let _warnings = shell.push_env("RUSTDOCFLAGS", "-D warnings");
    let doc = cmd!(shell, "cargo doc --locked --workspace --no-deps --document-private-items");
    Ok(doc.run()?)
}

/// Runs the tests that need Python, with this release of torch.
///
/// # Errors
/// A component cannot be installed, or a test failed.
pub(crate) fn python(torch: Option<&str>) -> anyhow::Result<()> {
    let shell = shell()?;
    debian::install(&shell, debian::PYTHON)?;
    let interpreter = python::environment(&shell, torch)?;
    let binary = python::install_package(&shell, &interpreter)?;
    python::test_package(&shell, &interpreter, &binary)?;
    python::test_scripts(&shell, &interpreter)
}

/// Runs the test suites of peer projects on the package, each on these numbers of ranks.
///
/// # Errors
/// A component cannot be installed, or a suite cannot be run.
pub(crate) fn suites(ranks: &[u32], horovod: Option<&str>) -> anyhow::Result<()> {
    let shell = shell()?;
    debian::install(&shell, debian::PYTHON)?;
    let interpreter = python::environment(&shell, None)?;
    python::install_package(&shell, &interpreter)?;
    python::run_suites(&shell, &interpreter, ranks, horovod)
}

/// Runs a sample of mutants, and those on lines of the commit. A survivor is reported; only a share below its floor
/// fails.
fn sample_of_mutants(shell: &Shell) -> anyhow::Result<()> {
    let parent = cmd!(shell, "git rev-parse --quiet --verify HEAD^").quiet().ignore_stdout();
    let has_parent = parent.ignore_stderr().run().is_ok();
    mutants::run(&mutants::MutantsOptions {
        sample: Some(MUTANTS),
        seed: seed_of_commit(shell).unwrap_or(1),
        changed_since: has_parent.then(|| "HEAD^".to_owned()),
        minutes: Some(MUTANTS_MINUTES),
        first: true,
        simulation_floor: MUTANTS_SIMULATION_FLOOR,
        floor: MUTANTS_FLOOR,
        ..mutants::MutantsOptions::default()
    })
}

/// Checks and runs the example with candle, as a job of the `elastic-node` that the tests in Python have built. Its
/// lints are in its manifest. It shares the target directory, so that dependencies of both workspaces are compiled
/// once.
fn candle(shell: &Shell) -> anyhow::Result<()> {
    let manifest = ["--manifest-path", "examples/candle/Cargo.toml"];
    cmd!(shell, "cargo fmt {manifest...} --check").run()?;
    let target = root()?.join("target");
    let tests = cmd!(shell, "cargo test --locked {manifest...}")
        .env("CARGO_TARGET_DIR", &target)
        .env("ELASTIC_NODE_BINARY", target.join("debug").join("elastic-node"));
    Ok(tests.run()?)
}

/// Whether tests can make networks here: that needs root, and a machine that permits it.
fn may_make_networks(shell: &Shell) -> bool {
    cmd!(shell, "unshare --net true").quiet().ignore_stderr().run().is_ok()
}
