//! The address and ports that workers of this host would have for data, and whether the other hosts of the job reach them. Called by
//! `join`.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use serde::Serialize;

use crate::process::{ReachCut, ReachReport, interface_of, is_answered_at};

/// The address for data, and the results of its trials.
#[derive(Debug, Serialize)]
pub(super) struct DataPortsReport {
    /// The address that an agent would give other hosts.
    address: IpAddr,
    /// Its interface.
    interface: Option<String>,
    /// The first and the last port of the range from which the system gives workers one, for TCP and UDP.
    ports: Option<(u16, u16)>,
    /// Whether a worker could open one.
    can_listen: bool,
    /// Whether the driver's host answers packets that come from this address.
    is_answered: bool,
    /// Trials between this host and the job's others; `None` if they could not be made.
    hosts: Option<ReachReport>,
}

impl DataPortsReport {
    /// Tries this address, with a driver at one of these.
    pub(super) fn examine(
        address: IpAddr,
        drivers: &[SocketAddr],
        hosts: Option<ReachReport>,
    ) -> Self {
        let of_address = |it: &&SocketAddr| it.is_ipv4() == address.is_ipv4();
        Self {
            address,
            interface: interface_of(address),
            ports: ephemeral_ports(),
            can_listen: can_listen(address),
            is_answered: drivers.iter().filter(of_address).any(|to| is_answered_at(address, *to)),
            hosts,
        }
    }

    /// Problems, each with a remedy.
    pub(super) fn faults(&self) -> Vec<(String, String)> {
        let Self { address, .. } = self;
        let mut faults = Vec::new();
        if !self.can_listen {
            faults.push((
                format!("no port of {address} can be opened for data"),
                "name another interface: --interface NAME".to_owned(),
            ));
        } else if !self.is_answered {
            faults.push((
                format!("the driver's host does not answer {address}, which other hosts would be told for data"),
                "name the interface by which hosts reach each other: --interface NAME".to_owned(),
            ));
        }
        let cuts = self.hosts.iter().flat_map(|hosts| &hosts.cut);
        faults.extend(cuts.map(|ReachCut { from, to, protocol, error }| {
            (
                format!("{from} does not reach {to} over {protocol} at the address for data: {error}"),
                format!(
                    "let {protocol} pass from {from} to the ports of {to} that the system chooses of \
                     (net.ipv4.ip_local_port_range), or name another interface on it: --interface NAME"
                ),
            )
        }));
        faults
    }

    /// One line.
    pub(super) fn describe(&self) -> String {
        let Self { address, .. } = self;
        let interface = self.interface.as_ref().map(|it| format!(" ({it})")).unwrap_or_default();
        let ports =
            self.ports.map(|(low, high)| format!(", ports {low}-{high}")).unwrap_or_default();
        let answer = if self.is_answered { "the driver's host answers" } else { "no answer" };
        let hosts = match &self.hosts {
            None => "; not tested: whether other hosts reach these ports".to_owned(),
            Some(hosts) => describe_hosts(hosts),
        };
        format!("data           {address}{interface}{ports}: {answer}{hosts}")
    }
}

/// Results of the trials with other hosts, in words that follow.
fn describe_hosts(hosts: &ReachReport) -> String {
    let ReachReport { reached, cut, silent } = hosts;
    let mut text = match (reached.len(), cut.is_empty()) {
        (0, true) => "; the job has no other hosts to try the ports with".to_owned(),
        (0, false) => String::new(),
        _ => format!("; TCP and UDP pass both ways with {}", reached.join(", ")),
    };
    if !silent.is_empty() {
        text.push_str(&format!("; not tried with {}", silent.join(", ")));
    }
    text
}

/// Whether a port can be had for TCP and for UDP, as the library asks for one.
fn can_listen(address: IpAddr) -> bool {
    let listener = TcpListener::bind((address, 0)).and_then(|it| it.local_addr());
    listener
        .is_ok_and(|bound| UdpSocket::bind(bound).is_ok() || UdpSocket::bind((address, 0)).is_ok())
}

/// The range of the ports that the system chooses of.
fn ephemeral_ports() -> Option<(u16, u16)> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut ports = text.split_whitespace().filter_map(|it| it.parse().ok());
    Some((ports.next()?, ports.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_this_host_lacks_or_that_nobody_answers_is_named() {
        let silent = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let drivers = [silent.local_addr().expect("bound")];
        let faults_of = |address: &str| {
            let address = address.parse().expect("a literal");
            let report = DataPortsReport::examine(address, &drivers, None);
            let text = report.describe();
            assert!(text.contains("not tested: whether other hosts reach"), "{text}");
            report.faults().into_iter().map(|(what, _)| what).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(faults_of("192.0.2.1"), "no port of 192.0.2.1 can be opened for data");
        assert!(faults_of("127.0.0.1").starts_with("the driver's host does not answer 127.0.0.1"));
    }
}
