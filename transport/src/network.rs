//! This host's place in the network: the addresses of its interfaces, and the one on the route to a peer. Called by the
//! library for a worker's data address, and by the program for those of agents and drivers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

/// Addresses to which only a default route leads (RFC 5737, RFC 3849). Nothing is sent there.
const ELSEWHERE: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 9),
];

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

/// This host's address on its way to other hosts: that of its default route, or else of any interface but the loopback. None
/// for a host without either.
pub fn ip_towards_others() -> Option<IpAddr> {
    let routed = ELSEWHERE.iter().filter_map(|peer| ip_towards(*peer).ok());
    let mut of_interfaces: Vec<IpAddr> =
        interface_addresses().into_iter().map(|(_, ip)| ip).collect();
    of_interfaces.sort_by_key(IpAddr::is_ipv6);
    routed.chain(of_interfaces).find(|ip| !ip.is_loopback() && !is_link_local(ip))
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

/// Whether an address is that of all hosts of a network, as far as this host's interfaces tell.
pub fn is_broadcast(ip: IpAddr) -> bool {
    let IpAddr::V4(ip) = ip else { return false };
    let Ok(all) = getifaddrs() else { return ip.is_broadcast() };
    let v4 = |address: Option<SockaddrStorage>| Some(address?.as_sockaddr_in()?.ip());
    let networks = all.filter_map(|it| Some((v4(it.address)?, v4(it.netmask)?)));
    is_broadcast_of(ip, &networks.collect::<Vec<_>>())
}

/// Whether an address is that of all hosts of one of these networks, each an address of this host with its mask.
fn is_broadcast_of(ip: Ipv4Addr, networks: &[(Ipv4Addr, Ipv4Addr)]) -> bool {
    let is_own = networks.iter().any(|(own, _)| *own == ip);
    // A network of one or two addresses has none for all.
    let is_last = |(own, mask): &(Ipv4Addr, Ipv4Addr)| {
        mask.to_bits().count_zeros() > 1 && *own | !*mask == ip
    };
    !is_own && (ip.is_broadcast() || networks.iter().any(is_last))
}

/// Whether the host of `HOST:PORT` is a name, and not that of the loopback. Other hosts may find another address by it than
/// its own host does.
pub fn is_name_of_host(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    host != "localhost" && host.parse::<IpAddr>().is_err()
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

    #[test]
    fn names_of_hosts_are_told_from_addresses() {
        assert!(is_name_of_host("headnode:7070") && is_name_of_host("n1.example.com"));
        for address in
            ["localhost:7070", "127.0.0.1:7070", "127.0.1.1", "[::1]:7070", "192.0.2.7:1"]
        {
            assert!(!is_name_of_host(address), "{address}");
        }
    }

    #[test]
    fn the_way_to_others_is_not_the_loopback() {
        let is_usable = |ip: &IpAddr| !ip.is_loopback() && !is_link_local(ip);
        let has_one = interface_addresses().iter().any(|(_, ip)| is_usable(ip));
        assert_eq!(ip_towards_others().is_some(), has_one);
        assert!(ip_towards_others().iter().all(is_usable));
    }

    #[test]
    fn s_13_the_address_of_all_hosts_of_a_network_is_known() {
        let [ip, wide, pair] = [[192, 0, 2, 7], [198, 51, 100, 255], [203, 0, 113, 0]];
        let masks = [[255, 255, 255, 0], [255, 255, 0, 0], [255, 255, 255, 254]];
        let networks = [ip, wide, pair].into_iter().zip(masks);
        let networks: Vec<_> = networks.map(|(ip, mask)| (ip.into(), mask.into())).collect();
        let is = |ip: [u8; 4]| is_broadcast_of(ip.into(), &networks);
        assert!(is([255, 255, 255, 255]) && is([192, 0, 2, 255]) && is([198, 51, 255, 255]));
        assert!(!is(ip) && !is(wide), "a host's own");
        assert!(!is([203, 0, 113, 1]), "the other end of a link of two");
        assert!(!is([192, 0, 2, 8]) && !is([0, 0, 0, 0]));
        assert!(is_broadcast(Ipv4Addr::new(127, 255, 255, 255).into()), "that of the loopback");
        assert!(
            !is_broadcast(Ipv4Addr::LOCALHOST.into()) && !is_broadcast(Ipv6Addr::LOCALHOST.into())
        );
    }
}
