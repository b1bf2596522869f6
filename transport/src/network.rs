//! This host's place in the network: the addresses of its interfaces, and the one on the route to a peer. Called by the
//! library for a worker's data address, and by the program for those of agents and drivers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

/// This host's address on the route to a peer.
///
/// # Errors
/// There is no route.
pub fn ip_towards(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket sends nothing: it only looks up the route.
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

/// The addresses of this host, each with the name of its interface.
pub fn interface_addresses() -> Vec<(String, IpAddr)> {
    let ip = |address: SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
    };
    let Ok(all) = getifaddrs() else { return Vec::new() };
    all.filter_map(|it| Some((it.interface_name, ip(it.address?)?))).collect()
}

/// Whether an address is link-local: it needs its scope with it, which other nodes are not told.
pub const fn is_link_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_oneself_is_the_loopback() {
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_eq!(ip_towards((loopback, 9).into()).ok(), Some(loopback));
        assert!(interface_addresses().iter().any(|(_, ip)| *ip == loopback));
    }
}
