//! A trial of the way between hosts: whether one host's ports for data are reached from the others, and theirs from it.
//! Asked by `doctor --join`: the driver's process passes the question on to the agents.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::ids::HostName;

/// The ports that are to be tried.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ReachRequest {
    /// The address for data of the host that asks.
    pub address: IpAddr,
    /// A port there that accepts connections over TCP.
    pub tcp: u16,
    /// A port there that returns each UDP packet.
    pub udp: u16,
}

/// One host's findings.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ReachFinding {
    /// The host.
    pub host: HostName,
    /// The reason why it does not reach the TCP port; `None`: it does.
    pub tcp: Option<String>,
    /// The reason why it does not reach the UDP port; `None`: it does.
    pub udp: Option<String>,
    /// Its own ports of the same kinds, which are open for some seconds; none if it has no address for data.
    pub own: Option<(SocketAddr, SocketAddr)>,
}

/// The findings of all hosts that answered.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ReachAnswer {
    /// By host.
    pub findings: Vec<ReachFinding>,
    /// Hosts that did not answer, or were not asked since they are too many.
    pub silent: Vec<HostName>,
}

impl ReachRequest {
    /// Most hosts that are asked.
    pub const HOSTS_MAX: usize = 16;
}
