//! Checks licences, bans and sources of dependencies with cargo-deny, which is built only where the lock files are not
//! those that have passed. Called by `main` and `ci`.

use std::path::PathBuf;

use xshell::{Shell, cmd};

use crate::checked::RecordedCheck;
use crate::steps::{WORKSPACES, root};

/// The release of cargo-deny that is built where no release is installed.
const CARGO_DENY_VERSION: &str = "0.20.2";

const CHECK: RecordedCheck = RecordedCheck {
    name: "licences, bans and sources of dependencies",
    task: "cargo xtask deny",
    inputs: &["Cargo.lock", "examples/candle/Cargo.lock", "deny.toml"],
    record: "deny.checked",
};

/// Checks the dependencies, unless these lock files have passed before.
///
/// # Errors
/// cargo-deny found something, or cannot be built.
pub(crate) fn check(shell: &Shell) -> anyhow::Result<()> {
    CHECK.run_if_changed(shell, run)
}

/// Checks the dependencies, and records that these lock files have passed.
///
/// # Errors
/// cargo-deny found something, or cannot be built.
pub(crate) fn check_and_note(shell: &Shell) -> anyhow::Result<()> {
    CHECK.run_and_note(shell, run)
}

fn run(shell: &Shell) -> anyhow::Result<()> {
    let deny = cargo_deny(shell)?;
    // Advisories are left out: they need a database from the network, which changes without any change here.
    for manifest in WORKSPACES {
        cmd!(shell, "{deny} --manifest-path {manifest} --config deny.toml --locked check")
            .args(["bans", "licenses", "sources"])
            .run()?;
    }
    Ok(())
}

/// The path of cargo-deny: the installed program, or one that is built below `target/` once.
fn cargo_deny(shell: &Shell) -> anyhow::Result<PathBuf> {
    let installed = cmd!(shell, "cargo deny --version").quiet().ignore_stderr().ignore_status();
    if installed.read()?.starts_with("cargo-deny") {
        return Ok(PathBuf::from("cargo-deny"));
    }
    let tools = root()?.join("target").join("tools");
    let program = tools.join("bin").join("cargo-deny");
    if !program.exists() {
        let version = CARGO_DENY_VERSION;
        // An unoptimized build: the program runs for a second, so the build time matters more.
        let _plain = shell.push_env("CARGO_PROFILE_DEV_DEBUG", "0");
        cmd!(shell, "cargo install --debug --locked --root {tools} --version {version} cargo-deny")
            .run()?;
    }
    Ok(program)
}
