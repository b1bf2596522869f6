//! The wheel of the Python package, for manylinux2014: the native module, the program, and the program's documents.
//! Called by `dist`.

use anyhow::ensure;
use xshell::{Shell, cmd};

use super::release::{PROFILE, Platform, Release};
use super::tools::Tools;

/// The platform tag that the wheel must deserve: glibc 2.17.
const TAG: &str = "manylinux_2_17";

/// Builds the wheel through `python/build_backend.py`, as pip does, with the program that is built already.
///
/// # Errors
/// The build failed, or auditwheel finds that the wheel needs a newer system.
pub(crate) fn make(shell: &Shell, release: &Release, tools: &Tools) -> anyhow::Result<()> {
    let python = tools.python();
    let target = Platform::Glibc.triple();
    cmd!(shell, "{python} -m pip wheel --quiet --disable-pip-version-check --no-deps")
        .args(["--no-build-isolation", "./python", "--wheel-dir"])
        .arg(&release.folder)
        .env("ELASTIC_BUILD_PROFILE", PROFILE)
        .env("ELASTIC_BUILD_PROGRAM", release.package_of(Platform::Glibc))
        .env(
            "MATURIN_PEP517_ARGS",
            format!("--zig --compatibility manylinux2014 --target {target}"),
        )
        .run()?;
    let wheel = release.file("elastic_node-", ".whl")?;
    let report = cmd!(shell, "{python} -m auditwheel show {wheel}").read()?;
    let words = report.split_whitespace().collect::<Vec<_>>().join(" ");
    ensure!(
        words.contains(&format!("consistent with the following platform tag: \"{TAG}")),
        "auditwheel does not find the wheel fit for {TAG}\n{report}"
    );
    Ok(())
}
