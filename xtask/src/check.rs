//! `cargo xtask check`: the checks that need no test to run. Called by `main`, and first by the two tiers of tests.

use xshell::cmd;

use crate::steps::{WORKSPACES, shell, step};
use crate::{direction, docs, features, homonyms, messages, unused};

/// Checks the format, the dependencies, the names of types, and the lints.
///
/// # Errors
/// A check failed, and has printed its findings.
pub(crate) fn check() -> anyhow::Result<()> {
    let shell = shell()?;
    step("format", || Ok(cmd!(shell, "cargo fmt --all --check").run()?))?;
    step("direction of dependencies", direction::check)?;
    step("unused dependencies", unused::check)?;
    step("lock files", || {
        for manifest in WORKSPACES {
            let metadata = cmd!(shell, "cargo metadata --locked --format-version 1");
            metadata.args(["--manifest-path", manifest]).ignore_stdout().run()?;
        }
        Ok(())
    })?;
    step("one set of features", features::check)?;
    step("one name, one type", homonyms::check)?;
    step("links of the documents", docs::check)?;
    step("messages", || messages::messages(false))?;
    step("lints", || {
        let clippy = cmd!(shell, "cargo clippy --locked --workspace --all-targets -- -D warnings");
        Ok(clippy.run()?)
    })
}
