//! The trial of the Debian package's services: a system with systemd is booted in a container, where a driver and an
//! agent run a job, and the driver is killed. Called by the trials.

use anyhow::ensure;
use xshell::Shell;

use super::root::TrialRoot;
use crate::dist::release::Release;

/// Script of the trial in the booted system.
const TRIAL: &str = include_str!("services.sh");

/// The unit that runs it.
const UNIT: &str = "[Service]
Type=oneshot
ExecStart=/trial.sh
[Install]
WantedBy=multi-user.target
";

/// Installs the package beside systemd, has systemd judge its units, and runs a job with them.
///
/// # Errors
/// A unit is wrong, the package does not create the services' user, or the job did not end as it must.
pub(crate) fn check(shell: &Shell, release: &Release) -> anyhow::Result<()> {
    let trial = TrialRoot::new(shell, release, "services", &["systemd", "systemd-sysv"])?;
    trial.run(
        "dpkg --install /dist/elastic-node_*.deb
        id elastic-node
        systemd-analyze verify --man=no elastic-node-agent.service elastic-node-driver.service
        for name in agent driver; do
            systemd-analyze security --offline=true --no-pager elastic-node-$name.service | tail -n 1
            test \"$(systemctl is-enabled elastic-node-$name.service)\" = disabled
        done",
    )?;
    trial.write("trial.sh", TRIAL)?;
    trial.write("etc/systemd/system/trial.service", UNIT)?;
    trial.run(
        "chmod +x /trial.sh
        systemctl enable trial.service
        systemctl mask systemd-networkd-wait-online.service
        systemd-machine-id-setup",
    )?;
    trial.boot()?;
    ensure!(
        trial.changed("passed").exists(),
        "the services did not run a job\n{}",
        shell.read_file(trial.changed("trial.log")).unwrap_or_default()
    );
    Ok(())
}
