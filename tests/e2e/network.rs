//! A network of the test's own: the test, with all that it starts, is in one network namespace, and each place in
//! another, wired to one bridge. A place can be cut off, as by a switch. Needs root; used by the tests of drivers.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sched::{CloneFlags, unshare};

/// The address of the test's own processes.
pub(crate) const HERE: Ipv4Addr = Ipv4Addr::new(10, 231, 78, 1);

/// The network; taken away when dropped.
pub(crate) struct Network {
    places: Vec<Place>,
}

/// A machine in the network.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) address: Ipv4Addr,
    /// Its namespace.
    name: String,
    /// The bridge's end of its cable.
    port: String,
}

impl Network {
    /// Moves this thread into a namespace with so many places around it. None where that is not allowed: without root.
    #[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
    pub(crate) fn enter(places: u8) -> Option<Self> {
        let made = unshare(CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string());
        let made = made.and_then(|()| Self::wire(places));
        if let Err(error) = &made {
            let hint =
                format!("no network can be made ({error}): that needs root and Debian's iproute2");
            assert!(std::env::var_os("ELASTIC_REQUIRE_NETWORK").is_none(), "{hint}");
            eprintln!("not shown: {hint}");
        }
        made.ok()
    }

    fn wire(count: u8) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        ip("link set lo up")?;
        // Left alone it would take the least address of its ports, and another one when a port is cut: whoever knows
        // the old one would reach nobody until that is forgotten.
        ip("link add bridge address 02:00:00:00:00:01 type bridge")?;
        ip(&format!("address add {HERE}/24 dev bridge"))?;
        ip("link set bridge up")?;
        let mut network = Self { places: Vec::new() };
        for number in 1..=count {
            let unique = NUMBER.fetch_add(1, Ordering::SeqCst);
            let name = format!("elastic-test-{}-{unique}", std::process::id());
            let address = Ipv4Addr::new(10, 231, 78, 10 + number);
            let port = format!("port{number}");
            ip(&format!("netns add {name}"))?;
            network.places.push(Place { address, name: name.clone(), port: port.clone() });
            ip(&format!("link add {port} type veth peer name cable netns {name}"))?;
            ip(&format!("link set {port} master bridge up"))?;
            ip(&format!("-n {name} address add {address}/24 dev cable"))?;
            ip(&format!("-n {name} link set cable up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(network)
    }

    pub(crate) fn place(&self, number: usize) -> &Place {
        &self.places[number]
    }
}

impl Place {
    /// What stands before a command that is to run there.
    pub(crate) fn wrapper(&self) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net=/run/netns/{}", self.name)]
    }

    /// Nothing that is sent from there or to there arrives any more, and nobody is told.
    pub(crate) fn cut(&self) {
        ip(&format!("link set {} nomaster", self.port)).expect("the port is on the bridge");
    }

    pub(crate) fn mend(&self) {
        ip(&format!("link set {} master bridge", self.port)).expect("the bridge is there");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for place in &self.places {
            // It is not there where making it failed.
            let _ = ip(&format!("netns delete {}", place.name));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let mut command = Command::new("ip");
    let output = command.args(arguments.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("`ip` cannot be run: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    output.status.success().then_some(()).ok_or_else(|| format!("`ip {arguments}`: {stderr}"))
}
