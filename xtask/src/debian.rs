//! Real components that tests run against, from Debian's packages. Called by `test` and `ci`.

use std::io::Write as _;

use anyhow::ensure;
use xshell::{PushEnv, Shell, cmd};

/// A program, with the Debian packages that it comes with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Component {
    program: &'static str,
    /// The arguments of a call that shows whether the program is installed.
    check: &'static [&'static str],
    packages: &'static [&'static str],
    /// The tests that run against the program.
    pub(crate) tests: &'static str,
    /// The variable that makes the tests fail where the program is missing; none where another step passes it to the
    /// tests.
    required_by: Option<&'static str>,
}

impl Component {
    /// Whether the program can be called here.
    pub(crate) fn is_present(&self, shell: &Shell) -> bool {
        let Component { program, check, .. } = *self;
        let called = cmd!(shell, "{program} {check...}").quiet();
        called.ignore_stdout().ignore_stderr().run().is_ok()
    }

    /// Makes the tests fail where the program is missing, until the guard is dropped.
    pub(crate) fn require<'a>(&self, shell: &'a Shell) -> Option<PushEnv<'a>> {
        self.required_by.map(|variable| shell.push_env(variable, "1"))
    }
}

/// All components.
pub(crate) const ALL: [Component; 10] =
    [ETCD, SSHD, DNSMASQ, FAKETIME, IPROUTE, IPTABLES, PROMETHEUS, CHROMIUM, NODE, PYTHON];

/// etcd, the store of several drivers.
pub(crate) const ETCD: Component = Component {
    program: "etcd",
    check: &["--version"],
    packages: &["etcd-server", "etcd-client"],
    tests: "several drivers, over etcd",
    required_by: Some("ELASTIC_REQUIRE_ETCD"),
};

/// sshd, the server that `--launcher ssh` logs in to.
pub(crate) const SSHD: Component = Component {
    program: "/usr/sbin/sshd",
    check: &["-V"],
    packages: &["openssh-server", "openssh-client"],
    tests: "agents over ssh",
    required_by: Some("ELASTIC_REQUIRE_SSHD"),
};

/// dnsmasq, a name server.
pub(crate) const DNSMASQ: Component = Component {
    program: "dnsmasq",
    check: &["--version"],
    packages: &["dnsmasq-base"],
    tests: "discovery by DNS",
    required_by: Some("ELASTIC_REQUIRE_DNSMASQ"),
};

/// faketime, for wall clocks that jump.
pub(crate) const FAKETIME: Component = Component {
    program: "faketime",
    check: &["--version"],
    packages: &["faketime"],
    tests: "clocks that jump",
    required_by: Some("ELASTIC_REQUIRE_FAKETIME"),
};

/// iproute2, for networks of a test's own.
pub(crate) const IPROUTE: Component = Component {
    program: "ip",
    check: &["-V"],
    packages: &["iproute2"],
    tests: "hosts as network namespaces",
    required_by: None,
};

/// iptables, for firewalls between them. Many machines have `ip` alone.
pub(crate) const IPTABLES: Component = Component {
    program: "iptables",
    check: &["-V"],
    packages: &["iptables"],
    tests: "firewalls between hosts",
    required_by: None,
};

/// Prometheus, which scrapes the driver's metrics, with promtool.
pub(crate) const PROMETHEUS: Component = Component {
    program: "prometheus",
    check: &["--version"],
    packages: &["prometheus"],
    tests: "metrics, read by Prometheus",
    required_by: Some("ELASTIC_REQUIRE_PROMETHEUS"),
};

/// Chromium, which shows the job's page, with its WebDriver.
pub(crate) const CHROMIUM: Component = Component {
    program: "chromedriver",
    check: &["--version"],
    packages: &["chromium", "chromium-driver"],
    tests: "the page, in a browser",
    required_by: Some("ELASTIC_REQUIRE_CHROMIUM"),
};

/// Node.js, which runs Perfetto's trace processor.
pub(crate) const NODE: Component = Component {
    program: "node",
    check: &["--version"],
    packages: &["nodejs"],
    tests: "the timeline, in Perfetto's trace processor",
    required_by: None,
};

/// Python, with the module for virtual environments.
pub(crate) const PYTHON: Component = Component {
    program: "python3",
    check: &["-c", "import ensurepip, venv"],
    packages: &["python3", "python3-venv"],
    tests: "programs in Python",
    required_by: None,
};

/// debootstrap, which makes a minimal Debian.
pub(crate) const DEBOOTSTRAP: Component = Component {
    program: "debootstrap",
    check: &["--version"],
    packages: &["debootstrap"],
    tests: "a release, where nothing else is installed",
    required_by: None,
};

/// lintian, which checks Debian packages.
pub(crate) const LINTIAN: Component = Component {
    program: "lintian",
    check: &["--version"],
    packages: &["lintian"],
    tests: "the Debian package of a release",
    required_by: None,
};

/// systemd-nspawn, which boots a system in a container.
pub(crate) const NSPAWN: Component = Component {
    program: "systemd-nspawn",
    check: &["--version"],
    packages: &["systemd-container"],
    tests: "the services of a release",
    required_by: None,
};

/// buildah, which builds images of containers.
pub(crate) const BUILDAH: Component = Component {
    program: "buildah",
    check: &["--version"],
    packages: &["buildah"],
    tests: "the image of a release",
    required_by: None,
};

/// Installs a component if it is missing.
///
/// # Errors
/// The component is missing and cannot be installed here; the error says how to install it by hand.
pub(crate) fn install(shell: &Shell, component: Component) -> anyhow::Result<()> {
    let Component { program, packages, .. } = component;
    let by_hand = format!("as root: apt-get install {}", packages.join(" "));
    if component.is_present(shell) {
        return Ok(());
    }
    let root = cmd!(shell, "id -u").quiet().read()? == "0";
    ensure!(
        root,
        "the tests need {program}, which is not installed, or not whole\nhint: {by_hand}"
    );
    writeln!(std::io::stderr(), "installing {} (apt-get)", packages.join(", "))?;
    cmd!(shell, "apt-get update -q").ignore_stdout().run()?;
    let install = cmd!(shell, "apt-get install -q -y --no-install-recommends {packages...}");
    install.env("DEBIAN_FRONTEND", "noninteractive").ignore_stdout().run()?;
    ensure!(
        component.is_present(shell),
        "{program} was installed and still cannot be run\nhint: {by_hand}"
    );
    Ok(())
}
