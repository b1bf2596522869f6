//! The network of `soak` and `faults`. This process is moved into a network namespace and a mount
//! namespace; each host is in another network namespace, wired to one bridge. Needs root and iproute2.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use nix::sched::{CloneFlags, unshare};

/// The driver's address.
pub(crate) const HERE: Ipv4Addr = Ipv4Addr::new(10, 231, 79, 1);

/// The network; removed when dropped.
pub(crate) struct Network {
    names: Vec<String>,
}

impl Network {
    /// Makes the network, and moves this process into it.
    pub(crate) fn enter(hosts: u8) -> anyhow::Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).context("that needs root")?;
        command("mount", "--make-rprivate /")?;
        command("ip", "link set lo up")?;
        // The bridge has a fixed address. By default it would be the least of its ports', and change when one
        // is cut.
        command("ip", "link add bridge address 02:00:00:00:00:01 type bridge")?;
        command("ip", &format!("address add {HERE}/24 dev bridge"))?;
        command("ip", "link set bridge up")?;
        let mut network = Self { names: Vec::new() };
        for host in 0..hosts {
            let name = format!("elastic-soak-{}-{host}", std::process::id());
            command("ip", &format!("netns add {name}"))?;
            network.names.push(name.clone());
            command("ip", &format!("link add port{host} type veth peer name cable netns {name}"))?;
            command("ip", &format!("link set port{host} master bridge up"))?;
            let address = Ipv4Addr::new(10, 231, 79, 10 + host);
            command("ip", &format!("-n {name} address add {address}/24 dev cable"))?;
            command("ip", &format!("-n {name} link set cable up"))?;
            command("ip", &format!("-n {name} link set lo up"))?;
        }
        Ok(network)
    }

    /// The prefix of a command that is to run on a host.
    pub(crate) fn wrapper(&self, host: u8) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/run/netns/{}", self.names[usize::from(host)])]
    }

    /// Drops TCP packets from a host without notice; all others pass.
    pub(crate) fn silence_tcp(&self, host: u8) -> anyhow::Result<()> {
        let name = &self.names[usize::from(host)];
        command("ip", &format!("-n {name} rule add ipproto tcp blackhole"))
    }

    /// Ends that.
    pub(crate) fn hear_tcp(&self, host: u8) -> anyhow::Result<()> {
        let name = &self.names[usize::from(host)];
        command("ip", &format!("-n {name} rule delete ipproto tcp blackhole"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            // The namespace does not exist if making it failed.
            let _ = command("ip", &format!("netns delete {name}"));
        }
    }
}

/// Cuts a host off: packets from it and to it are lost without notice.
pub(crate) fn cut(host: u8) -> anyhow::Result<()> {
    command("ip", &format!("link set port{host} nomaster"))
}

/// Ends a cut.
pub(crate) fn mend(host: u8) -> anyhow::Result<()> {
    command("ip", &format!("link set port{host} master bridge"))
}

fn command(program: &str, arguments: &str) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    let output = command.args(arguments.split(' ')).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("`{program}` cannot be run"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{program} {arguments}`: {}", stderr.trim());
    Ok(())
}
