//! Checks licences, bans and sources of dependencies with cargo-deny. The result changes only with the lock files.
//! `deny.checked` names those that have passed, so that cargo-deny is built only for changed ones. Called by `main`
//! and `ci`.

use std::path::PathBuf;

use xshell::{Shell, cmd};

use crate::steps::{WORKSPACES, root, skip, step};

/// The release of cargo-deny that is built where no release is installed.
const CARGO_DENY_VERSION: &str = "0.20.2";

/// The files that determine the result.
const INPUTS: [&str; 3] = ["Cargo.lock", "examples/candle/Cargo.lock", "deny.toml"];

/// The file with the hashes of the inputs that have passed.
const CHECKED: &str = "deny.checked";

/// Checks the dependencies, unless these lock files have passed before.
///
/// # Errors
/// cargo-deny found something, or cannot be built.
pub(crate) fn check(shell: &Shell) -> anyhow::Result<()> {
    let name = "licences, bans and sources of dependencies";
    if shell.read_file(CHECKED).is_ok_and(|checked| hashes(shell).is_ok_and(|now| now == checked)) {
        return skip(name, "these lock files have passed before (`cargo xtask deny`)");
    }
    step(name, || run(shell))
}

/// Checks the dependencies, and records that these lock files have passed.
///
/// # Errors
/// cargo-deny found something, or cannot be built.
pub(crate) fn check_and_note(shell: &Shell) -> anyhow::Result<()> {
    run(shell)?;
    Ok(shell.write_file(CHECKED, hashes(shell)?)?)
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

fn hashes(shell: &Shell) -> anyhow::Result<String> {
    Ok(cmd!(shell, "git hash-object {INPUTS...}").quiet().read()? + "\n")
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
