//! The tests that need Python: in a virtual environment below `target/`, with the package installed from its
//! wheel, and a real torch. Called by `steps`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use xshell::{Shell, cmd};

use crate::steps::root;

/// Where the tests of unmodified torch scripts find their interpreter (`tests/e2e/torch.rs`).
pub(crate) const TEST_PYTHON: &str = "ELASTIC_TEST_PYTHON";

/// Makes the environment where it is missing, and installs what is not there yet, but for the package itself; its
/// interpreter. `torch` is the release to test with: the newest, where none is named.
///
/// # Errors
/// Something cannot be installed, or there are no requirements for this torch.
pub(crate) fn environment(shell: &Shell, torch: Option<&str>) -> anyhow::Result<PathBuf> {
    let of_release = torch.map(|release| format!("-{release}")).unwrap_or_default();
    let requirements = format!("python/tests/requirements-torch{of_release}.txt");
    ensure!(
        root()?.join(&requirements).exists(),
        "there is no {requirements}\nhint: write one, after that of the newest torch"
    );
    let folder = root()?.join("target").join("python").join(format!("venv{of_release}"));
    let python = folder.join("bin").join("python");
    if !python.exists() {
        cmd!(shell, "python3 -m venv {folder}").run()?;
    }
    let pip = || cmd!(shell, "{python} -m pip install --quiet --disable-pip-version-check");
    pip().args(["--requirement", "python/tests/requirements.txt"]).run()?;
    pip().args(["--no-deps", "--requirement", &requirements]).run()?;
    Ok(python)
}

/// Builds the wheel, installs it, and runs pytest.
///
/// # Errors
/// A build or a test failed.
pub(crate) fn test_package(shell: &Shell, python: &PathBuf) -> anyhow::Result<()> {
    let wheels = root()?.join("target").join("python").join("wheels");
    shell.remove_path(&wheels)?;
    cmd!(shell, "{python} -m pip wheel --quiet --no-deps --no-build-isolation ./python")
        .args(["--wheel-dir".as_ref(), wheels.as_os_str()])
        .env("PATH", path_with(python)?)
        // What it needs of this profile, the other tests have built.
        .env("ELASTIC_BUILD_PROFILE", "dev")
        .run()?;
    let wheels = shell.read_dir(&wheels)?;
    cmd!(shell, "{python} -m pip install --quiet --force-reinstall --no-deps {wheels...}").run()?;
    let beside = ["--package", "elastic-node", "--package", "elastic-gpu-stand-in"];
    cmd!(shell, "cargo build --locked {beside...}").run()?;
    let binary = root()?.join("target").join("debug").join("elastic-node");
    let tests = cmd!(shell, "{python} -m pytest --quiet -p no:cacheprovider python/tests");
    Ok(tests.env("ELASTIC_NODE_BINARY", binary).run()?)
}

/// Where programs are looked for, those of this interpreter's environment first.
fn path_with(python: &Path) -> anyhow::Result<OsString> {
    let beside = python.parent().map(Path::to_owned);
    let others = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths(beside.into_iter().chain(std::env::split_paths(&others)))?)
}

/// Unmodified scripts of torch under the launcher.
///
/// # Errors
/// A test failed.
pub(crate) fn test_scripts(shell: &Shell, python: &PathBuf) -> anyhow::Result<()> {
    let tests = cmd!(shell, "cargo test --locked --package elastic-node --test e2e torch::");
    Ok(tests.env(TEST_PYTHON, python).run()?)
}
