//! A node's name, unique within its job: that of Slurm or of the operator, else of the host and its address, since
//! containers often share one host name. A second `run` on a machine gets a number behind its name. Called by `node`.

use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use elastic_agent::host;
use elastic_protocol::HostName;

use crate::command_line::{CommandFailure, ResultExt};

/// Most `run`s of one job on a machine.
const RUNS_MAX: u32 = 64;

/// The name, with a socket that reserves it on this machine while it is held.
pub(super) fn unique_name(
    given: Option<&HostName>,
    ip: IpAddr,
    meeting_point: &str,
) -> Result<(HostName, UnixListener), CommandFailure> {
    let name = match given {
        Some(name) => name.as_str().to_owned(),
        None => {
            let host = host::host_name().usage("this host has no name")?;
            if ip.is_loopback() {
                host.as_str().to_owned()
            } else {
                format!("{}-{ip}", host.as_str())
            }
        }
    };
    let user = nix::unistd::getuid();
    for number in 1..=RUNS_MAX {
        let name = if number == 1 { name.clone() } else { format!("{name}.{number}") };
        // A name in the abstract namespace disappears with its holder, however that ends.
        let place = format!("elastic-node/{user}/{meeting_point}/{name}");
        let digest = elastic_transport::Fingerprint::of(place.as_bytes());
        let place = SocketAddr::from_abstract_name(format!("elastic-node/{digest}"));
        let place = place.failed("the node's name cannot be held")?;
        if let Ok(held) = UnixListener::bind_addr(&place) {
            return Ok((HostName::new(&name).usage("this host's name")?, held));
        }
    }
    Err(CommandFailure::new(format!("this host has {RUNS_MAX} nodes of the job already")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_node_of_a_machine_has_another_name() {
        let (ip, point) = (IpAddr::from([192, 0, 2, 7]), format!("test:{}", std::process::id()));
        let given = HostName::new("n3").expect("a literal");
        let (first, held) = unique_name(Some(&given), ip, &point).expect("free");
        let (second, _held) = unique_name(Some(&given), ip, &point).expect("another");
        assert_eq!((first.as_str(), second.as_str()), ("n3", "n3.2"));
        drop(held);
        let (again, _held) = unique_name(Some(&given), ip, &point).expect("free again");
        assert_eq!(again.as_str(), "n3");
        let (of_host, _held) = unique_name(None, ip, &point).expect("free");
        assert!(of_host.as_str().ends_with("-192.0.2.7"), "{of_host}");
    }
}
