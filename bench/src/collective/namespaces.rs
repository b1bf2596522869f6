//! Two network namespaces joined by a veth pair: two hosts on one machine. Needs root and iproute2. Used for
//! `--netns`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

/// The namespaces; taken away when dropped, and the pair with them.
pub(super) struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    /// The interface inside each.
    pub(super) const INTERFACE: &'static str = "veth-bench";

    /// Makes them.
    pub(super) fn create() -> anyhow::Result<Namespaces> {
        let name = |side: u32| format!("elastic-bench-{}-{side}", std::process::id());
        let namespaces = Namespaces { names: [name(0), name(1)] };
        let [first, second] = &namespaces.names;
        for name in [first, second] {
            ip(&["netns", "add", name])?;
        }
        let interface = Namespaces::INTERFACE;
        let pair = ["link", "add", interface, "netns", first, "type", "veth", "peer", "name"];
        ip(&[&pair[..], &[interface, "netns", second]].concat())?;
        for (side, name) in (0..).zip([first, second]) {
            let address = format!("{}/24", Namespaces::address(side));
            ip(&["-n", name, "address", "add", &address, "dev", interface])?;
            ip(&["-n", name, "link", "set", interface, "up"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        Ok(namespaces)
    }

    /// On which side a rank is: the first half of them on side 0.
    pub(super) fn side(rank: u32, world: u32) -> u32 {
        u32::from(rank >= world.div_ceil(2))
    }

    /// The address of a side.
    pub(super) fn address(side: u32) -> IpAddr {
        Ipv4Addr::new(10, 231, 77, if side == 0 { 1 } else { 2 }).into()
    }

    /// A command on a side.
    pub(super) fn command(&self, side: u32, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side as usize]]).arg(program);
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // Not there where making them failed.
            let _ =
                Command::new("ip").args(["netns", "delete", name]).stderr(Stdio::null()).status();
        }
    }
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("ip").args(arguments).status().context("ip is not installed")?;
    ensure!(status.success(), "`ip {}` failed; --netns needs root", arguments.join(" "));
    Ok(())
}
