//! The Debian package, by cargo-deb after the table in cli/Cargo.toml. Called by `dist`.

use xshell::{Shell, cmd};

use super::release::{PROFILE, Platform, Release};

/// Packs the laid-out files of the program.
///
/// # Errors
/// cargo-deb failed.
pub(crate) fn make(shell: &Shell, release: &Release) -> anyhow::Result<()> {
    let time = release.time();
    let date = cmd!(shell, "date --utc --rfc-email --date {time}").quiet().read()?;
    let version = &release.version;
    let changelog = format!(
        "elastic-node ({version}-1) unstable; urgency=medium\n\n  \
         * Release {version}: /usr/share/doc/elastic-node/changelog.gz says what changed.\n\n \
         -- The Elastic Node contributors <contributors@elastic-node.invalid>  {date}\n"
    );
    shell.write_file(release.drafts.join("changelog"), changelog)?;
    let target = Platform::Glibc.triple();
    let folder = &release.folder;
    cmd!(shell, "cargo deb --quiet --no-build --no-strip --no-dbgsym --package elastic-node-cli")
        .args(["--profile", PROFILE, "--target", &target, "--output"])
        .arg(folder)
        .run()?;
    Ok(())
}
