//! Whether systemd takes the units of the Debian package. Called by the trials.

use xshell::Shell;

use super::root::TrialRoot;
use crate::dist::release::Release;

/// Installs the package beside systemd, and has systemd judge its units.
///
/// # Errors
/// A unit is wrong, or the package does not create the services' user.
pub(crate) fn check(shell: &Shell, release: &Release) -> anyhow::Result<()> {
    let trial = TrialRoot::new(shell, release, "services", &["systemd"])?;
    trial.run(
        "dpkg --install /dist/elastic-node_*.deb
        id elastic-node
        systemd-analyze verify elastic-node-agent.service elastic-node-driver.service
        systemd-analyze security --offline=true --no-pager elastic-node-agent.service | tail -n 1
        systemd-analyze security --offline=true --no-pager elastic-node-driver.service | tail -n 1
        test ! -e /etc/systemd/system/multi-user.target.wants/elastic-node-agent.service",
    )
}
