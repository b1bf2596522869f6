//! Archives that depend on nothing but the files in them. Called by `dist`.

use std::path::Path;

use xshell::{Shell, cmd};

use super::release::Release;

/// Packs the folder's content as `NAME.tar.gz` into the release, below a folder of that name.
///
/// # Errors
/// tar failed.
pub(crate) fn pack(
    shell: &Shell,
    release: &Release,
    folder: &Path,
    name: &str,
) -> anyhow::Result<()> {
    let archive = release.folder.join(format!("{name}.tar.gz"));
    let time = release.time();
    // Order, owner, mode and time of the files are those given here; -n keeps the time of packing out.
    cmd!(shell, "tar --create --file {archive} --directory {folder} --sort=name --format=ustar")
        .args(["--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX", "--mtime", &time])
        .args(["--use-compress-program", "gzip -n -9"])
        .args(["--transform", &format!("s,^[.],{name},"), "."])
        .run()?;
    Ok(())
}
