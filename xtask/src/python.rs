//! The tests of the Python package: in a virtual environment below `target/`, with the package installed from its
//! wheel, and a real torch. Called by `steps`.

use std::path::PathBuf;

use xshell::{Shell, cmd};

use crate::steps::root;

/// Makes the environment where it is missing, installs what is not there yet, builds the wheel, and runs pytest.
pub(crate) fn test(shell: &Shell) -> anyhow::Result<()> {
    let python = environment(shell)?;
    let wheels = root()?.join("target").join("python").join("wheels");
    shell.remove_path(&wheels)?;
    // Of the development profile, whose dependencies the other tests have built.
    cmd!(shell, "{python} -m maturin build --quiet --locked --profile dev --out {wheels}")
        .args(["--manifest-path", "python/Cargo.toml"])
        .run()?;
    let wheels = shell.read_dir(&wheels)?;
    cmd!(shell, "{python} -m pip install --quiet --force-reinstall --no-deps {wheels...}").run()?;
    cmd!(shell, "cargo build --locked --package elastic-node --bin elastic-node").run()?;
    let binary = root()?.join("target").join("debug").join("elastic-node");
    let tests = cmd!(shell, "{python} -m pytest --quiet -p no:cacheprovider python/tests");
    Ok(tests.env("ELASTIC_NODE_BINARY", binary).run()?)
}

/// The environment's interpreter.
fn environment(shell: &Shell) -> anyhow::Result<PathBuf> {
    let folder = root()?.join("target").join("python").join("venv");
    let python = folder.join("bin").join("python");
    if !python.exists() {
        cmd!(shell, "python3 -m venv {folder}").run()?;
    }
    let pip = || cmd!(shell, "{python} -m pip install --quiet --disable-pip-version-check");
    pip().args(["--requirement", "python/tests/requirements.txt"]).run()?;
    pip().args(["--no-deps", "--requirement", "python/tests/requirements-torch.txt"]).run()?;
    Ok(python)
}
