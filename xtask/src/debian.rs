//! Real components that tests run against, from Debian's packages. Called by `steps`.

use anyhow::ensure;
use xshell::{Shell, cmd};

/// A program, and the packages that it comes with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Component {
    program: &'static str,
    /// What it is called with, to see whether it is there.
    check: &'static [&'static str],
    packages: &'static [&'static str],
}

/// The store of several drivers.
pub(crate) const ETCD: Component =
    Component { program: "etcd", check: &["--version"], packages: &["etcd-server", "etcd-client"] };

/// What `--launcher ssh` gets in by.
pub(crate) const SSHD: Component = Component {
    program: "/usr/sbin/sshd",
    check: &["-V"],
    packages: &["openssh-server", "openssh-client"],
};

/// A name server.
pub(crate) const DNSMASQ: Component =
    Component { program: "dnsmasq", check: &["--version"], packages: &["dnsmasq-base"] };

/// Wall clocks that jump.
pub(crate) const FAKETIME: Component =
    Component { program: "faketime", check: &["--version"], packages: &["faketime"] };

/// Networks of a test's own.
pub(crate) const IPROUTE: Component =
    Component { program: "ip", check: &["-V"], packages: &["iproute2"] };

/// The interpreter, with what makes virtual environments.
pub(crate) const PYTHON: Component = Component {
    program: "python3",
    check: &["-c", "import ensurepip, venv"],
    packages: &["python3", "python3-venv"],
};

/// Installs a component if it is not there.
///
/// # Errors
/// It is not there and cannot be installed here; says how to do it by hand.
pub(crate) fn install(shell: &Shell, component: Component) -> anyhow::Result<()> {
    let Component { program, check, packages } = component;
    let by_hand = format!("as root: apt-get install {}", packages.join(" "));
    let present = || {
        let called = cmd!(shell, "{program} {check...}").quiet();
        called.ignore_stdout().ignore_stderr().run().is_ok()
    };
    if present() {
        return Ok(());
    }
    let root = cmd!(shell, "id -u").quiet().read()? == "0";
    ensure!(
        root,
        "the tests need {program}, which is not installed, or not whole\nhint: {by_hand}"
    );
    cmd!(shell, "apt-get update -q").ignore_stdout().run()?;
    let install = cmd!(shell, "apt-get install -q -y --no-install-recommends {packages...}");
    install.env("DEBIAN_FRONTEND", "noninteractive").ignore_stdout().run()?;
    ensure!(present(), "{program} was installed and still cannot be run\nhint: {by_hand}");
    Ok(())
}
