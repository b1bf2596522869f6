//! A minimal Debian in which a trial runs: made once by debootstrap, and covered by an overlay for each trial, so that each
//! begins with the same files. Used by the trials.

use std::path::PathBuf;

use xshell::{Shell, cmd};

use crate::dist::release::Release;
use crate::steps::root;

/// The release of Debian.
const SUITE: &str = "bookworm";

/// The time that a booted system has, in seconds.
const BOOTED_S_MAX: &str = "300";

/// A minimal Debian with the changes of one trial.
#[derive(Debug)]
pub(crate) struct TrialRoot<'a> {
    shell: &'a Shell,
    /// The minimal Debian, which stays as it is.
    base: PathBuf,
    /// The trial's folder: what it changed, and where the merged files are mounted.
    folder: PathBuf,
    dist: PathBuf,
}

impl<'a> TrialRoot<'a> {
    /// A root for the trial with this name, with these packages installed. The release is in its `/dist`.
    ///
    /// # Errors
    /// debootstrap failed.
    pub(crate) fn new(
        shell: &'a Shell,
        release: &Release,
        name: &str,
        packages: &[&str],
    ) -> anyhow::Result<Self> {
        let base = base(shell, packages)?;
        let folder = root()?.join("target/trial").join(name);
        shell.remove_path(&folder)?;
        for part in ["changes", "work", "root"] {
            shell.create_dir(folder.join(part))?;
        }
        Ok(Self { shell, base, folder, dist: release.folder.clone() })
    }

    /// Runs a shell script as root in it, with mounts and processes of its own, and the machine's network.
    ///
    /// # Errors
    /// The script failed.
    pub(crate) fn run(&self, script: &str) -> anyhow::Result<()> {
        let enter = "mkdir -p $root/dist
            mount --bind -o ro $3 $root/dist
            mount -t proc proc $root/proc
            mount -t sysfs sysfs $root/sys
            mount --rbind /dev $root/dev
            exec chroot $root env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c \"set -eux
$4\"";
        self.enter(enter, script)
    }

    /// Boots systemd in it, with a network of its own, and waits until the system powers itself off.
    ///
    /// # Errors
    /// The system does not boot, or does not end within [`BOOTED_S_MAX`] seconds.
    pub(crate) fn boot(&self) -> anyhow::Result<()> {
        let enter = "exec timeout $4 systemd-nspawn --quiet --register=no --keep-unit --private-network \
            --directory=$root --console=pipe --boot";
        self.enter(enter, BOOTED_S_MAX)
    }

    /// The path of a file that the trial has written or changed.
    pub(crate) fn changed(&self, path: &str) -> PathBuf {
        self.folder.join("changes").join(path)
    }

    /// Writes a file into it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, path: &str, text: &str) -> anyhow::Result<()> {
        Ok(self.shell.write_file(self.changed(path), text)?)
    }

    /// Mounts the merged files where nobody else sees them, and runs a command of the shell there: `$root` is their folder, $3
    /// that of the release, and $4 the argument.
    fn enter(&self, command: &str, argument: &str) -> anyhow::Result<()> {
        let Self { shell, base, folder, dist } = self;
        let mount = "set -eu
            base=$1 folder=$2 root=$2/root
            mount -t overlay overlay -o lowerdir=$base,upperdir=$folder/changes,workdir=$folder/work $root
            ";
        let script = format!("{mount}{command}");
        cmd!(shell, "unshare --mount --pid --fork --kill-child --mount-proc sh -c {script} sh")
            .args([base, folder, dist])
            .arg(argument)
            .quiet()
            .run()?;
        Ok(())
    }
}

/// The minimal Debian with these packages, made if it is not there.
pub(crate) fn base(shell: &Shell, packages: &[&str]) -> anyhow::Result<PathBuf> {
    let name: String =
        std::iter::once(SUITE).chain(packages.iter().copied()).collect::<Vec<_>>().join("-");
    let roots = root()?.join("target/trial/roots");
    let folder = roots.join(&name);
    if folder.exists() {
        return Ok(folder);
    }
    let draft = roots.join(format!("{name}.draft"));
    shell.remove_path(&draft)?;
    shell.create_dir(&roots)?;
    let include = packages.join(",");
    let include = (!packages.is_empty()).then(|| format!("--include={include}"));
    cmd!(shell, "debootstrap --variant=minbase {include...} {SUITE} {draft}")
        .ignore_stdout()
        .run()?;
    std::fs::rename(&draft, &folder)?;
    Ok(folder)
}
