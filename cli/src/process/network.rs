//! This host's interface to other hosts and its own addresses, and a free port for workers' own listeners. Called by
//! [`agent`](super::agent), [`driver_address`](super::driver_address), [`node`](super::node) and `doctor --join`.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::Range;

use elastic_transport::network::{interface_addresses, ip_towards, is_link_local};
use rand::Rng;

use crate::command_line::CommandFailure;

/// Ports for workers' own listeners: below the system's default range of ephemeral ports.
const PORTS: Range<u16> = 20_000..32_768;

/// Most ports that are tried.
const TRIES_MAX: u32 = 64;

/// The port to which a route is looked up; nothing is sent there.
const DISCARD: u16 = 9;

/// The address of an interface: its IPv4 address if it has one.
pub(crate) fn ip_of(interface: &str) -> Option<IpAddr> {
    let of_interface = interface_addresses().into_iter().filter(|(name, _)| name == interface);
    let mut all: Vec<IpAddr> = of_interface.map(|(_, ip)| ip).collect();
    all.retain(|ip| !is_link_local(ip));
    all.sort_by_key(IpAddr::is_ipv6);
    all.first().copied()
}

/// The interface that has this address.
pub(crate) fn interface_of(ip: IpAddr) -> Option<String> {
    interface_addresses().into_iter().find(|(_, it)| *it == ip).map(|(name, _)| name)
}

/// Whether an address is one of this host's, at which others reach it. A socket that could be bound there does not say
/// so: the kernel's `ip_nonlocal_bind` lets a socket have any address.
pub(super) fn is_own(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    // The loopback's interface shows one of its addresses. An address of no interface is this host's, too, where a route
    // makes it one: a packet to it comes from the same address.
    ip.is_loopback()
        || ip.is_unspecified()
        || interface_of(ip).is_some()
        || ip_towards((ip, DISCARD).into()).is_ok_and(|own| own == ip)
}

/// The address at which this host reaches a socket of its own: the loopback's for one that is bound to all addresses.
pub(super) fn reached_here(bound_to: SocketAddr) -> SocketAddr {
    let ip = match bound_to.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => return bound_to,
    };
    SocketAddr::new(ip, bound_to.port())
}

/// Refuses an interface that has no usable address.
pub(crate) fn check_interface(name: &str) -> Result<(), CommandFailure> {
    if ip_of(name).is_some() {
        return Ok(());
    }
    let known: BTreeSet<String> = interface_addresses().into_iter().map(|(name, _)| name).collect();
    let known: Vec<String> = known.into_iter().collect();
    Err(CommandFailure::usage(format!(
        "--interface {name}: this host has no address of that interface"
    ))
    .hint(format!("it has {}", known.join(", "))))
}

/// A free port of this address, outside the system's range of ephemeral ports if possible.
pub(super) fn free_port(ip: IpAddr, rng: &mut impl Rng) -> Option<u16> {
    let given_by_chance = ports_of_the_system();
    let candidates = PORTS.start..PORTS.end.min(given_by_chance).max(PORTS.start + 1);
    let is_free = |port: &u16| TcpListener::bind((ip, *port)).is_ok();
    let mut tried = (0..TRIES_MAX).map(|_| rng.random_range(candidates.clone()));
    tried.find(is_free).or_else(|| {
        let any = TcpListener::bind((ip, 0)).ok()?;
        Some(any.local_addr().ok()?.port())
    })
}

/// The lowest ephemeral port of the system.
fn ports_of_the_system() -> u16 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    text.split_whitespace().next().and_then(|it| it.parse().ok()).unwrap_or(PORTS.end)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn the_loopback_has_an_interface() {
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        let name = interface_of(loopback).expect("a machine has a loopback");
        assert_eq!(ip_of(&name), Some(loopback));
        assert!(check_interface(&name).is_ok());
    }

    #[test]
    fn t_2_a_host_s_own_addresses_are_those_of_its_interfaces_and_every_loopback() {
        let own = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"];
        let own = own.iter().map(|text| text.parse().expect("an address"));
        let all = interface_addresses().into_iter().map(|(_, ip)| ip);
        assert!(own.chain(all).all(is_own));
        let documented = ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"];
        assert!(!documented.iter().any(|text| is_own(text.parse().expect("an address"))));
    }

    #[test]
    fn an_interface_that_is_not_there_is_refused_with_those_that_are() {
        let refused = check_interface("nowhere7").expect_err("no such interface");
        assert!(refused.to_string().contains("nowhere7"), "{refused}");
    }

    #[test]
    fn a_port_is_free_and_none_that_the_system_gives_out() {
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let port = free_port(loopback, &mut rng).expect("a port");
        assert!(PORTS.contains(&port));
        let held = TcpListener::bind((loopback, port)).expect("it is free");
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let other = free_port(loopback, &mut rng).expect("another port");
        assert_ne!(held.local_addr().expect("bound").port(), other);
    }
}
