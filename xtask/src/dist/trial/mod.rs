//! Trials of the files in `dist/` on systems with nothing else installed: in a minimal Debian, in an empty virtual
//! environment and in a container. Called by `dist --check`.

mod image;
mod root;
mod services;

use std::path::Path;

use anyhow::Context as _;
use xshell::{Shell, cmd};

use self::root::TrialRoot;
use super::release::{Platform, Release};
use super::{print_sizes, sums};
use crate::debian;
use crate::steps::{root, skip, step};

/// Commands that every installed program must pass: print its version, judge the machine, and run a job with two
/// workers.
const USE_IT: &str = "elastic-node --version
elastic-node doctor
elastic-node run -n 2 -- true";

/// A job of two workers through the Python package, which finds no other package.
const PYTHON_JOB: &str = "import elastic_node as en
en.init()
assert en.size() == 2
assert en.allreduce(en.rank() + 1, op=en.Sum) == 3
";

/// Tries each file of the release.
///
/// # Errors
/// A file is missing, differs from its checksum, or fails its trial.
pub(crate) fn check(shell: &Shell, release: &Release) -> anyhow::Result<()> {
    step("checksums", || sums::check(shell, &release.folder))?;
    for component in [debian::DEBOOTSTRAP, debian::LINTIAN, debian::NSPAWN] {
        debian::install(shell, component)?;
    }
    step("program in a minimal Debian", || program(shell, release, Platform::Glibc))?;
    let musl = format!("{}-{}.tar.gz", release.name(), Platform::Musl.name());
    if release.folder.join(musl).exists() {
        step("static program in a minimal Debian", || program(shell, release, Platform::Musl))?;
    }
    step("lintian", || lintian(shell, release))?;
    step("Debian package in a minimal Debian", || package(shell, release))?;
    step("services", || services::check(shell, release))?;
    step("wheel in an empty environment", || wheel(shell, release))?;
    match debian::install(shell, debian::BUILDAH) {
        Ok(()) => step("image", || image::check(shell, release))?,
        Err(_) => skip("image", "buildah cannot be installed here")?,
    }
    print_sizes(release)
}

/// Unpacks the archive of the program below /usr/local, and uses the program.
fn program(shell: &Shell, release: &Release, platform: Platform) -> anyhow::Result<()> {
    let trial = TrialRoot::new(shell, release, "program", &[])?;
    let archive = format!("/dist/{}-{}.tar.gz", release.name(), platform.name());
    trial.run(&format!("tar -xzf {archive} --strip-components=1 -C /usr/local"))?;
    trial.run(USE_IT)?;
    trial.run("test -s /usr/local/share/man/man1/elastic-node.1")
}

/// Installs the package, uses the program, runs the demo, and removes the package without a trace.
fn package(shell: &Shell, release: &Release) -> anyhow::Result<()> {
    let trial = TrialRoot::new(shell, release, "package", &[])?;
    trial.run("dpkg --install /dist/elastic-node_*.deb")?;
    trial.run(USE_IT)?;
    trial.run("elastic-node demo")?;
    trial.run(
        "dpkg --purge elastic-node
        ! find / -xdev -path /proc -prune -o -path /dev -prune -o -path /dist -prune -o \
            -path /root -prune -o -path /tmp -prune -o -name '*elastic-node*' -print | grep .",
    )
}

/// Fails if lintian, Debian's checker of packages, reports an error or a warning.
fn lintian(shell: &Shell, release: &Release) -> anyhow::Result<()> {
    let package = release.file("elastic-node_", ".deb")?;
    let tags = ["--fail-on", "error,warning", "--display-info", "--tag-display-limit", "0"];
    let suppressed = "--suppress-tags-from-file=packaging/debian/lintian-suppressed";
    Ok(cmd!(shell, "lintian --allow-root --profile debian {tags...} {suppressed} {package}")
        .run()?)
}

/// Installs the wheel without an index, and runs a job through the package.
fn wheel(shell: &Shell, release: &Release) -> anyhow::Result<()> {
    let environment = root()?.join("target/trial/venv");
    shell.remove_path(&environment)?;
    cmd!(shell, "python3 -m venv {environment}").run()?;
    let bin = environment.join("bin");
    let wheel = release.file("elastic_node-", ".whl")?;
    let pip = bin.join("pip");
    cmd!(shell, "{pip} install --quiet --disable-pip-version-check --no-index {wheel}").run()?;
    let script = environment.join("job.py");
    shell.write_file(&script, PYTHON_JOB)?;
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let use_it = format!("set -eux\n{USE_IT}\nelastic-node run -n 2 {}", script.display());
    let home = Path::new(&environment);
    cmd!(shell, "env --ignore-environment HOME={home} PATH={path} sh -c {use_it}")
        .run()
        .context("the installed wheel does not work")?;
    Ok(cmd!(shell, "{pip} uninstall --quiet --yes elastic-node").run()?)
}
