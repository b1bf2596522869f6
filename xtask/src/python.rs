//! The tests that need Python: in a virtual environment below `target/`, with the package installed from its
//! wheel, and a real torch. Called by `ci`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use xshell::{Shell, cmd};

use crate::steps::root;

/// The variable that names the interpreter for tests of unmodified torch scripts (`tests/e2e/torch.rs`).
pub(crate) const TEST_PYTHON: &str = "ELASTIC_TEST_PYTHON";

/// The variable with which an interpreter that a signal ends prints the stacks of its threads.
pub(crate) const STACKS: &str = "PYTHONFAULTHANDLER";

/// The path of the interpreter for this release of torch, once [`environment`] has made it.
///
/// # Errors
/// This package does not stand in the workspace.
pub(crate) fn interpreter(torch: Option<&str>) -> anyhow::Result<PathBuf> {
    Ok(folder(torch)?.join("bin").join("python"))
}

/// The folder of the virtual environment for this release of torch.
fn folder(torch: Option<&str>) -> anyhow::Result<PathBuf> {
    Ok(root()?.join("target").join("python").join(format!("venv{}", of_release(torch))))
}

/// Suffix of file names for this release of torch alone; empty for the newest.
fn of_release(torch: Option<&str>) -> String {
    torch.map(|release| format!("-{release}")).unwrap_or_default()
}

/// Creates the virtual environment if it is missing, and installs the missing packages there, except for the package
/// itself. Returns the path of its interpreter. `torch` is the release to test with: the newest, if none is named.
///
/// # Errors
/// A package cannot be installed, or there are no requirements for this torch.
pub(crate) fn environment(shell: &Shell, torch: Option<&str>) -> anyhow::Result<PathBuf> {
    let requirements = format!("python/tests/requirements-torch{}.txt", of_release(torch));
    ensure!(
        root()?.join(&requirements).exists(),
        "there is no {requirements}\nhint: write one, after that of the newest torch"
    );
    let python = interpreter(torch)?;
    if !python.exists() {
        let folder = folder(torch)?;
        cmd!(shell, "python3 -m venv {folder}").run()?;
    }
    let pip = || cmd!(shell, "{python} -m pip install --quiet --disable-pip-version-check");
    pip().args(["--requirement", "python/tests/requirements.txt"]).run()?;
    pip().args(["--no-deps", "--requirement", &requirements]).run()?;
    if torch.is_none() {
        let frameworks = "python/tests/requirements-frameworks.txt";
        pip().args(["--no-deps", "--requirement", frameworks]).run()?;
    }
    Ok(python)
}

/// Builds and installs the wheel, beside a build of the workspace. Returns the path of that build's `elastic-node`.
///
/// # Errors
/// A build failed.
pub(crate) fn install_package(shell: &Shell, python: &PathBuf) -> anyhow::Result<PathBuf> {
    let wheels = root()?.join("target").join("python").join("wheels");
    shell.remove_path(&wheels)?;
    cmd!(shell, "{python} -m pip wheel --quiet --no-deps --no-build-isolation ./python")
        .args(["--wheel-dir".as_ref(), wheels.as_os_str()])
        .env("PATH", path_with(python)?)
        // The parts that the wheel needs in this profile are already built for the other tests.
        .env("ELASTIC_BUILD_PROFILE", "dev")
        .run()?;
    let wheels = shell.read_dir(&wheels)?;
    cmd!(shell, "{python} -m pip install --quiet --force-reinstall --no-deps {wheels...}").run()?;
    Ok(root()?.join("target").join("debug").join("elastic-node"))
}

/// Runs the test suites of peer projects, each on these numbers of ranks, and real frameworks that lose a rank.
///
/// # Errors
/// A suite could not be run, or a framework did not go on with the same losses. Failing tests are printed.
pub(crate) fn run_suites(
    shell: &Shell,
    python: &PathBuf,
    ranks: &[u32],
    horovod: Option<&str>,
) -> anyhow::Result<()> {
    let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
    let source = horovod.map(|folder| ["--source", folder]);
    let run = |suite| cmd!(shell, "{python} python/suites/run.py {suite} --ranks").args(&ranks);
    run("horovod").args(source.into_iter().flatten()).run()?;
    run("torch").run()?;
    Ok(cmd!(shell, "{python} python/suites/matrix.py").run()?)
}

/// Runs pytest on the installed package; `binary` is the launcher.
///
/// # Errors
/// A test failed.
pub(crate) fn test_package(shell: &Shell, python: &PathBuf, binary: &Path) -> anyhow::Result<()> {
    let tests = cmd!(shell, "{python} -m pytest --quiet -p no:cacheprovider python/tests");
    Ok(tests.env("ELASTIC_NODE_BINARY", binary).env(STACKS, "1").run()?)
}

/// PATH with the programs of this interpreter's environment first.
fn path_with(python: &Path) -> anyhow::Result<OsString> {
    let beside = python.parent().map(Path::to_owned);
    let others = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths(beside.into_iter().chain(std::env::split_paths(&others)))?)
}

/// Runs the tests of unmodified torch scripts under the launcher, and those that ask Perfetto about timelines.
///
/// # Errors
/// A test failed.
pub(crate) fn test_scripts(shell: &Shell, python: &PathBuf) -> anyhow::Result<()> {
    let tests = cmd!(
        shell,
        "cargo test --locked --package elastic-node-cli --test e2e -- torch:: perfetto::"
    );
    Ok(tests.env(TEST_PYTHON, python).run()?)
}
