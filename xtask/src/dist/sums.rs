//! The checksums of a release, in the form that `sha256sum --check` reads. Called by `dist` and its trials.

use std::path::Path;

use xshell::{Shell, cmd};

/// The file of the checksums.
pub(crate) const SUMS: &str = "SHA256SUMS";

/// Writes the checksums of all files in the folder.
///
/// # Errors
/// sha256sum failed.
pub(crate) fn write(shell: &Shell, folder: &Path) -> anyhow::Result<()> {
    let _there = shell.push_dir(folder);
    let mut names = Vec::new();
    for file in shell.read_dir(".")? {
        names.push(file.file_name().unwrap_or_default().to_owned());
    }
    let sums = cmd!(shell, "sha256sum {names...}").quiet().read()?;
    Ok(shell.write_file(SUMS, sums + "\n")?)
}

/// Compares the files in the folder with its checksums.
///
/// # Errors
/// A file is missing or differs.
pub(crate) fn check(shell: &Shell, folder: &Path) -> anyhow::Result<()> {
    let _there = shell.push_dir(folder);
    Ok(cmd!(shell, "sha256sum --check --strict --quiet {SUMS}").run()?)
}
