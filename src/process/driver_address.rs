//! Tells workers the address at which their agent reached the driver: that one works from this host, whatever
//! the driver believes its own to be.

use std::net::{SocketAddr, ToSocketAddrs};

use actix::Recipient;
use elastic_protocol::WorkerId;
use elastic_worker::agent::core::{SpawnOrder, StopSignal};
use elastic_worker::agent::{ProcessEvent, ProcessPort};
use elastic_worker::state::environment::DRIVER;

/// Processes whose environment names the agent's address of the driver.
pub(crate) struct DriverAddress<P> {
    processes: P,
    /// None where it is this machine's own: workers of other machines could not reach a worker that took
    /// the way through the loopback.
    address: Option<String>,
}

impl<P> DriverAddress<P> {
    /// `driver` is where the agent looks for a driver: one address, or several with commas between them.
    pub(crate) fn new(processes: P, driver: &str) -> Self {
        let is_loopback = |address: SocketAddr| address.ip().is_loopback();
        let is_local =
            |name: &str| name.to_socket_addrs().is_ok_and(|mut all| all.any(is_loopback));
        let is_local = driver.split(',').any(is_local);
        Self { processes, address: (!is_local).then(|| driver.to_owned()) }
    }
}

impl<P: ProcessPort> ProcessPort for DriverAddress<P> {
    fn spawn(&mut self, mut order: SpawnOrder, events: Recipient<ProcessEvent>) {
        if let Some(address) = &self.address {
            // Later entries win.
            order.environment.push((DRIVER.to_owned(), address.clone()));
        }
        self.processes.spawn(order, events);
    }

    fn signal(&mut self, worker: &WorkerId, signal: StopSignal) {
        self.processes.signal(worker, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_through_the_loopback_is_not_passed_on() {
        assert_eq!(DriverAddress::new((), "127.0.0.1:7070").address, None);
        let address = DriverAddress::new((), "192.0.2.7:7070").address;
        assert_eq!(address.as_deref(), Some("192.0.2.7:7070"));
        assert_eq!(DriverAddress::new((), "192.0.2.7:7070,127.0.0.1:7070").address, None);
    }
}
