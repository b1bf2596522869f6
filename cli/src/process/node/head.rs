//! Whether the driver is on this node: at the head's address, unless another `run` of this machine has bound it. Called
//! by `node`.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use elastic_runtime::system;
use elastic_transport::network::{ip_towards, is_name_of_host};

use super::taken_port::once_settled;
use super::{Bound, ELSEWHERE, resolve};
use crate::command_line::{CommandFailure, NodePlan, ResultExt};
use crate::process::driver_reach::{is_answered_at, route_to};
use crate::process::network::is_own;

/// The head's port, as this node finds it.
pub(super) enum HeadPort<T> {
    /// This node has bound it.
    Bound(T),
    /// It is this node's, and another process has it.
    Taken,
    /// It is another node's.
    Elsewhere,
}

/// The driver's address, bound, if the driver is on this node.
pub(super) fn bind_head(plan: &NodePlan) -> Result<Option<Bound>, CommandFailure> {
    let head = plan.head.as_deref().unwrap_or_default();
    if plan.rank.is_some_and(|rank| rank > 0) {
        return Ok(None);
    }
    let addresses = resolve(head)?;
    let port = || head_port(head, plan.rank, &addresses);
    let is_answered = || addresses.iter().any(|address| answers(*address));
    let settled = once_settled(head, plan.patience, port, is_answered);
    system::run(settled).failed("the system refuses what the node needs")?
}

/// Binds the first of the head's addresses that is this node's.
fn head_port(
    head: &str,
    rank: Option<u32>,
    addresses: &[SocketAddr],
) -> Result<HeadPort<Bound>, CommandFailure> {
    let mut is_refused = None;
    for address in addresses {
        // The name of a machine often resolves to its own loopback, which no other machine reaches.
        let is_own_name = address.ip().is_loopback() && is_name_of_host(head);
        let bind = match is_own_name {
            true => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()),
            false => *address,
        };
        match bind_own(bind) {
            Ok(socket) => {
                let own = ip_towards(ELSEWHERE).ok();
                let own = own.map(|ip| SocketAddr::new(ip, address.port()));
                let advertised = own.filter(|_| is_own_name).map(|own| own.to_string());
                let socket = Some(socket);
                return Ok(HeadPort::Bound(Bound { address: bind, socket, advertised }));
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(HeadPort::Taken),
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                is_refused = Some((address, error));
            }
            Err(error) => {
                return Err(error).failed(format!("the driver cannot listen at {bind}"));
            }
        }
    }
    match (rank, is_refused) {
        (Some(_), Some((address, error))) => {
            let message = format!("node 0 is to be at {address}, which is no address of this host");
            Err(CommandFailure::new(message)
                .source(error)
                .hint("give every node the address of the one with --node-rank 0"))
        }
        _ => Ok(HeadPort::Elsewhere),
    }
}

/// Binds an address of this host. With the kernel's `ip_nonlocal_bind`, each address can be bound, or is in use, that of
/// another host, too.
fn bind_own(address: SocketAddr) -> io::Result<UdpSocket> {
    let bound = UdpSocket::bind(address);
    let error = bound.as_ref().err().map(io::Error::kind);
    if matches!(error, None | Some(ErrorKind::AddrInUse)) && !is_own(address.ip()) {
        return Err(ErrorKind::AddrNotAvailable.into());
    }
    bound
}

/// Whether a driver answers at an address.
fn answers(address: SocketAddr) -> bool {
    route_to(address).is_ok_and(|route| is_answered_at(route.from, route.to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port_of(addresses: &[SocketAddr], rank: Option<u32>) -> HeadPort<Bound> {
        let head = addresses[0].to_string();
        head_port(&head, rank, addresses).expect("nothing to refuse")
    }

    #[test]
    fn t_2_the_first_to_bind_the_head_s_port_has_the_driver() {
        let any = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let head = any.local_addr().expect("bound");
        assert!(matches!(port_of(&[head], None), HeadPort::Taken));
        drop(any);
        let HeadPort::Bound(first) = port_of(&[head], None) else { panic!("it is free") };
        assert_eq!((first.address, &first.advertised), (head, &None));
        assert!(matches!(port_of(&[head], Some(0)), HeadPort::Taken), "the second");
    }

    #[test]
    fn t_2_an_address_of_another_node_is_bound_by_none_but_that_node() {
        let (other, own) = ((ELSEWHERE.ip(), 0).into(), (Ipv4Addr::LOCALHOST, 0).into());
        assert!(matches!(port_of(&[other], None), HeadPort::Elsewhere));
        assert!(matches!(port_of(&[other, own], None), HeadPort::Bound(_)));
        let refused = head_port("192.0.2.1:9", Some(0), &[other]).err().expect("not its address");
        assert!(refused.to_string().contains("no address of this host"), "{refused}");
    }

    #[test]
    fn a_port_at_which_no_driver_listens_does_not_answer() {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        assert!(!answers(silent.local_addr().expect("bound")));
    }
}
