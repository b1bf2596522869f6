//! The image of `packaging/Containerfile`, built by buildah from a minimal Debian, since a trial asks no registry. Called by
//! the trials.

use xshell::{Shell, cmd};

use super::{USE_IT, root};
use crate::dist::release::Release;
use crate::steps::root as workspace;

/// Builds the image, and uses the program in a container.
///
/// # Errors
/// The image cannot be built, or the program does not work in it.
pub(crate) fn check(shell: &Shell, release: &Release) -> anyhow::Result<()> {
    let base = root::base(shell, &[])?;
    let folder = workspace()?.join("target/trial/images");
    shell.create_dir(&folder)?;
    let store = folder.join("store");
    let run = folder.join("run");
    // Plain files instead of layers, and a chroot instead of a container runtime: neither needs anything of the machine.
    let buildah = |words: &[&str]| {
        cmd!(shell, "buildah --root {store} --runroot {run} --storage-driver vfs {words...}")
    };
    let from = buildah(&["from", "scratch"]).read()?;
    buildah(&["add", "--quiet", &from]).arg(&base).arg("/").run()?;
    buildah(&["commit", "--quiet", "--rm", &from, "localhost/minimal-debian"]).run()?;
    buildah(&["build", "--isolation", "chroot", "--tag", "localhost/elastic-node"])
        .args(["--build-arg", "BASE=localhost/minimal-debian", "--timestamp", "0"])
        .args(["--file", "packaging/Containerfile"])
        .arg(&release.folder)
        .run()?;
    let container = buildah(&["from", "localhost/elastic-node"]).read()?;
    let script = format!("set -eux\n{USE_IT}");
    let used =
        buildah(&["run", "--isolation", "chroot", &container, "--", "sh", "-c", &script]).run();
    buildah(&["images"]).run()?;
    shell.remove_path(&folder)?;
    Ok(used?)
}
