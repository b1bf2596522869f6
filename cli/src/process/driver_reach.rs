//! Whether this host reaches a driver, and a remedy if not. Used by `doctor --join`; its advice by
//! [`agent`](super::agent), too.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::time::Duration;

use elastic_transport::ConnectError;
use nix::sys::socket::{getsockopt, sockopt};

/// Timeout for the host of a driver to say that nothing listens on its port.
const REFUSED_WITHIN: Duration = Duration::from_millis(300);

/// The way from this host to an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct NetworkRoute {
    /// The address.
    pub(crate) to: SocketAddr,
    /// This host's own address on the way.
    pub(crate) from: IpAddr,
}

/// The answer to a packet that means nothing to a driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum UdpAnswer {
    /// The host says that nothing listens on the port.
    Refused,
    /// Nothing, as a driver does, and as a firewall does.
    None,
}

/// The addresses of `HOST:PORT`.
///
/// # Errors
/// The name cannot be resolved.
pub(crate) fn addresses_of(driver: &str) -> std::io::Result<Vec<SocketAddr>> {
    driver.to_socket_addrs().map(Iterator::collect)
}

/// The route to an address. No packet is sent.
///
/// # Errors
/// There is none.
pub(crate) fn route_to(to: SocketAddr) -> std::io::Result<NetworkRoute> {
    let from = connected(to)?.local_addr()?.ip();
    Ok(NetworkRoute { to, from })
}

/// Sends a packet to an address, and waits for the host's answer that nothing listens there.
pub(crate) fn probe(to: SocketAddr) -> UdpAnswer {
    let refused = || {
        let socket = connected(to)?;
        socket.set_read_timeout(Some(REFUSED_WITHIN))?;
        socket.send(&[0])?;
        socket.recv(&mut [0])
    };
    match refused() {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => UdpAnswer::Refused,
        _ => UdpAnswer::None,
    }
}

/// Timeout for a driver to answer a packet of a version of QUIC that there is not.
const ANSWERED_WITHIN: Duration = Duration::from_millis(500);

/// Most times that such a packet is sent: one may be lost.
const PACKETS_MAX: usize = 3;

/// Shortest packet with which QUIC begins (RFC 9000, section 14.1).
const FIRST_PACKET_BYTES: usize = 1_200;

/// The outcome of a look for a driver at an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DriverLook {
    /// A driver answers.
    Answered,
    /// The host says that nothing listens on the port.
    Refused,
    /// Nothing comes back: the host is away, a firewall drops the packet, or the port's process does not serve yet.
    Silent,
}

/// Whether packets of this host's own address reach a driver's, and answers come back.
pub(crate) fn is_answered_at(from: IpAddr, to: SocketAddr) -> bool {
    look_at(from, to) == DriverLook::Answered
}

/// Looks for a driver at an address, from this host's own address: the driver is asked for its versions (RFC 9000, section
/// 6), for which it needs no token.
pub(crate) fn look_at(from: IpAddr, to: SocketAddr) -> DriverLook {
    let asked = || {
        let socket = UdpSocket::bind((from, 0))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(ANSWERED_WITHIN))?;
        let mut packet = [0; FIRST_PACKET_BYTES];
        // A long header, a reserved version (section 15), and two connection ids of eight bytes.
        packet[..6].copy_from_slice(&[0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8]);
        packet[14] = 8;
        socket.send(&packet)?;
        let mut answer = [0; FIRST_PACKET_BYTES];
        let bytes = socket.recv(&mut answer)?;
        // A long header and version 0: the list of versions.
        std::io::Result::Ok(bytes > 5 && answer[0] & 0x80 != 0 && answer[1..5] == [0; 4])
    };
    let mut seen = DriverLook::Silent;
    for _ in 0..PACKETS_MAX {
        match asked() {
            Ok(true) => return DriverLook::Answered,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                seen = DriverLook::Refused;
            }
            Ok(false) | Err(_) => {}
        }
    }
    seen
}

/// A socket whose peer is an address. No packet is sent.
fn connected(to: SocketAddr) -> std::io::Result<UdpSocket> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    Ok(socket)
}

/// Length of the packet with which QUIC begins: 1,200 bytes (RFC 9000, section 14) in a datagram over IPv4.
const PACKET_BYTES: i32 = 1_228;

/// Advice, if packets towards the driver are too short for QUIC, as far as this host knows.
pub(crate) fn short_packets_towards(driver: &str) -> Option<String> {
    let address = driver.split(',').find_map(|it| it.to_socket_addrs().ok()?.next())?;
    let socket = connected(address).ok()?;
    // The MTU of the route, or of the path if a router has told it.
    let mtu = getsockopt(&socket, sockopt::IpMtu).ok()?;
    (mtu < PACKET_BYTES).then(|| {
        format!("the way there has an MTU of {mtu}; a connection with the driver needs {PACKET_BYTES}, as QUIC does")
    })
}

/// Advice if a driver could not be joined.
pub(crate) fn advice(driver: &str, error: &ConnectError) -> String {
    match error {
        ConnectError::Unreachable { .. } => short_packets_towards(driver).unwrap_or_else(|| {
            "is the driver running, and is this its address? It listens on 127.0.0.1 only, unless it was given --bind"
                .to_owned()
        }),
        ConnectError::WrongAuthority { .. } | ConnectError::WrongSecret(_) => {
            "copy the token file of the driver that runs there now; each job has its own. Where `run` is typed on \
             every node, give all of them the same secret (ELASTIC_TOKEN, --rdzv-conf token_file=FILE)"
                .to_owned()
        }
        ConnectError::Version { .. } => "install the same release on both machines".to_owned(),
        ConnectError::Expired { .. } => {
            "set the clocks of both machines: `timedatectl set-ntp true`".to_owned()
        }
        _ => "the driver's log says more".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_at_which_nothing_listens_is_known_by_the_host_s_refusal() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let there = socket.local_addr().expect("bound");
        assert_eq!(probe(there), UdpAnswer::None, "no answer within the time");
        let nobody = SocketAddr::from((Ipv4Addr::new(127, 7, 7, 7), 7));
        assert_eq!(probe(nobody), UdpAnswer::Refused);
    }

    #[test]
    fn g_9_a_driver_that_never_answers_is_waited_for_no_longer_than_its_time() {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let there = silent.local_addr().expect("bound");
        assert!(!is_answered_at(Ipv4Addr::LOCALHOST.into(), there));
        let mut packet = [0; FIRST_PACKET_BYTES + 1];
        for _ in 0..PACKETS_MAX {
            assert_eq!(silent.recv(&mut packet).expect("it was sent"), FIRST_PACKET_BYTES);
        }
        assert_eq!(look_at(Ipv4Addr::LOCALHOST.into(), there), DriverLook::Silent);
        let nobody = SocketAddr::from((Ipv4Addr::new(127, 7, 7, 7), 7));
        assert_eq!(look_at(Ipv4Addr::LOCALHOST.into(), nobody), DriverLook::Refused);
        let elsewhere: IpAddr = Ipv4Addr::new(192, 0, 2, 1).into();
        assert!(!is_answered_at(elsewhere, there), "this host has no such address");
    }

    #[test]
    fn a_route_has_this_host_s_address() {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, 7));
        let route = route_to(to).expect("the loopback");
        assert_eq!(route, NetworkRoute { to, from: Ipv4Addr::LOCALHOST.into() });
    }
}
