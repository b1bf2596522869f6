//! [`MeetingPoint`]: where workers of all hosts meet a program of this one (`MASTER_ADDR:MASTER_PORT`), if rank 0 is here. Held
//! by [`driver_address`](super::driver_address), which sees each start, and by [`host_watch`](super::host_watch), which tells
//! the driver.

use std::cell::Cell;
use std::iter::repeat_with;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tokio::sync::Notify;

use super::network::free_port;
use super::random::system_rng;

/// Most ports that are looked for until one differs from the last.
const TRIES_MAX: usize = 8;

/// An address of this host with a free port, another port for each generation of processes: the one before may still be
/// held (by a process that ends, by the kernel after it), and a process of a former generation that dials it must meet
/// nobody.
#[derive(Debug)]
pub(super) struct MeetingPoint {
    address: Cell<Option<SocketAddr>>,
    changed: Notify,
}

impl MeetingPoint {
    /// A meeting point at this address; at the loopback if none is known.
    pub(super) fn new(ip: Option<IpAddr>) -> Self {
        let address = meeting_at(ip.unwrap_or(Ipv4Addr::LOCALHOST.into()), None);
        Self { address: Cell::new(address), changed: Notify::new() }
    }

    /// The address for the next generation; `None` if no port is free.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address.get()
    }

    /// Waits until the port has changed because it was used.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// A process of one generation starts with this environment: if it meets others here, the next generation's will do so at
    /// another port.
    pub(super) fn handle_start(&self, environment: &[(String, String)]) {
        let Some(address) = self.address.get() else { return };
        let port = environment.iter().rev().find(|(name, _)| name == "MASTER_PORT");
        if port.is_none_or(|(_, port)| *port != address.port().to_string()) {
            return;
        }
        if let Some(next) = meeting_at(address.ip(), Some(address.port())) {
            self.address.set(Some(next));
            self.changed.notify_one();
        }
    }

    /// Takes the host's new address; also its former one if no port was free there before. Returns whether that is a change.
    pub(super) fn move_to(&self, ip: IpAddr) -> bool {
        let old = self.address.get().map(|old| old.ip());
        if old == Some(ip) || ip.is_loopback() {
            return false;
        }
        let Some(new) = meeting_at(ip, None) else { return false };
        if let Some(old) = old {
            tracing::warn!(%old, new = %ip, "this host has another address");
        }
        self.address.set(Some(new));
        true
    }
}

/// An address with a free port that is not `last`.
fn meeting_at(ip: IpAddr, last: Option<u16>) -> Option<SocketAddr> {
    let mut rng = system_rng();
    let mut free = repeat_with(|| free_port(ip, &mut rng)).take(TRIES_MAX).flatten();
    free.find(|port| Some(*port) != last).map(|port| SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(meeting: &MeetingPoint, port: u16) -> bool {
        let before = meeting.address();
        meeting.handle_start(&[("MASTER_PORT".to_owned(), port.to_string())]);
        meeting.address() != before
    }

    #[test]
    fn x_15_each_generation_meets_at_another_port() {
        let meeting = MeetingPoint::new(None);
        let first = meeting.address().expect("a free port").port();
        assert!(!started(&meeting, first ^ 1), "another host's");
        assert!(started(&meeting, first));
        let second = meeting.address().expect("a free port");
        assert!(second.ip().is_loopback() && second.port() != first);
        assert!(!started(&meeting, first), "a second process of that generation");
    }

    #[test]
    fn a_host_between_two_addresses_keeps_its_meeting_point() {
        let meeting = MeetingPoint::new(None);
        assert!(!meeting.move_to(Ipv4Addr::LOCALHOST.into()));
        assert!(!meeting.move_to(Ipv4Addr::new(127, 0, 0, 9).into()));
        assert!(meeting.move_to(Ipv4Addr::UNSPECIFIED.into()));
    }

    #[test]
    fn s_14_a_host_without_a_free_port_has_a_meeting_point_once_one_is_free() {
        let meeting = MeetingPoint { address: Cell::new(None), changed: Notify::new() };
        assert!(!meeting.move_to(Ipv4Addr::LOCALHOST.into()));
        assert!(meeting.move_to(Ipv4Addr::UNSPECIFIED.into()));
        assert!(meeting.address().is_some());
    }
}
