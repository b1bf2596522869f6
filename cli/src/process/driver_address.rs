//! Gives workers the agent's view of the network: the address at which the agent reached the driver, which works from
//! this host even if the driver assumes another address for itself; and the interface that leads to the other hosts.
//! Used by [`agent`](super::agent).

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;

use actix::Recipient;
use elastic_agent::core::{SpawnOrder, StopSignal};
use elastic_agent::{ProcessEvent, ProcessPort};
use elastic_protocol::WorkerId;
use elastic_protocol::environment::DATA_ADDRESS;
use elastic_transport::each_once;
use elastic_transport::network::{ip_towards, ip_towards_others, is_name_of_host};
use elastic_worker::state::environment::DRIVER;

use super::meeting_point::MeetingPoint;
use super::network::{interface_of, ip_of};

/// The variables that name the interface for gloo and NCCL.
const OF_INTERFACE: [&str; 2] = ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"];

/// The route from this host to others.
#[derive(Clone, Debug)]
pub(crate) struct RouteToDriver {
    /// The driver's address, unless it is this machine's loopback.
    towards: Option<SocketAddr>,
    /// The interface to use, if one was named.
    interface: Option<String>,
    /// Whether the driver was given by a name that leads to the loopback here, as `127.0.1.1` in `/etc/hosts` has it. Other
    /// hosts find this one by that name.
    is_own_name: bool,
}

impl RouteToDriver {
    /// The address at which workers of other hosts reach a worker of this host.
    pub(crate) fn data_ip(&self, driver_told: Option<&str>) -> Option<IpAddr> {
        if let Some(interface) = &self.interface {
            return ip_of(interface);
        }
        // An agent that joined over the loopback is on the driver's machine, so the driver's own address gives the
        // route. A host name is skipped: it would need a look-up. But if the agent joined by one that leads to the loopback,
        // that is the driver's name for other hosts, too.
        let told = driver_told.and_then(|told| told.split(',').next()?.parse().ok());
        match self.towards.or(told) {
            Some(towards) => ip_towards(towards).ok(),
            None if self.is_own_name => ip_towards_others(),
            None => None,
        }
    }
}

/// A process port that adds the agent's address of the driver, and the interface to other hosts, to the environment.
pub(crate) struct DriverAddress<P> {
    processes: P,
    route: RouteToDriver,
    meeting: Rc<MeetingPoint>,
    /// The driver's addresses for workers, before the names that led to them: a worker that starts while no name server
    /// answers finds it all the same. `None` if it is on the loopback: workers of other machines could not reach a
    /// worker that went through the loopback.
    address: Option<String>,
}

impl<P> DriverAddress<P> {
    /// `driver` lists the addresses at which the agent looks for a driver, with commas between them.
    pub(crate) fn new(processes: P, driver: &str, interface: Option<String>) -> Self {
        let resolved = |name: &str| name.to_socket_addrs().into_iter().flatten();
        let all: Vec<SocketAddr> = driver.split(',').flat_map(resolved).collect();
        let is_local = all.iter().any(|address| address.ip().is_loopback());
        let towards = all.first().copied().filter(|_| !is_local);
        let leads_to_loopback = |name: &str| resolved(name).any(|it| it.ip().is_loopback());
        let mut named = driver.split(',').filter(|name| is_name_of_host(name));
        let route = RouteToDriver { towards, interface, is_own_name: named.any(leads_to_loopback) };
        let names = driver.split(',').map(ToOwned::to_owned);
        let addresses = each_once(all.iter().map(ToString::to_string).chain(names));
        let meeting = Rc::new(MeetingPoint::new(route.data_ip(None)));
        Self { processes, address: (!is_local).then(|| addresses.join(",")), route, meeting }
    }

    /// Where workers of other hosts meet a program of this host.
    pub(super) fn meeting(&self) -> &Rc<MeetingPoint> {
        &self.meeting
    }

    /// The route on which other hosts are reached.
    pub(crate) fn route(&self) -> &RouteToDriver {
        &self.route
    }

    fn add_interface(&self, environment: &mut Vec<(String, String)>) {
        let told = environment.iter().rev().find(|(name, _)| name == DRIVER);
        let Some(ip) = self.route.data_ip(told.map(|(_, address)| address.as_str())) else {
            return;
        };
        if self.route.interface.is_some() {
            environment.push((DATA_ADDRESS.to_owned(), ip.to_string()));
        }
        let Some(name) = interface_of(ip).filter(|_| !ip.is_loopback()) else { return };
        for variable in OF_INTERFACE {
            let is_set = std::env::var_os(variable).is_some()
                || environment.iter().any(|(name, _)| name == variable);
            if !is_set {
                environment.push((variable.to_owned(), name.clone()));
            }
        }
    }
}

impl<P: ProcessPort> ProcessPort for DriverAddress<P> {
    fn spawn(&mut self, mut order: SpawnOrder, events: Recipient<ProcessEvent>) {
        if let Some(address) = &self.address {
            // The last entry for a variable wins.
            order.environment.push((DRIVER.to_owned(), address.clone()));
        }
        self.add_interface(&mut order.environment);
        if order.place.is_some() {
            self.meeting.handle_start(&order.environment);
        }
        self.processes.spawn(order, events);
    }

    fn signal(&mut self, worker: &WorkerId, signal: StopSignal) {
        self.processes.signal(worker, signal);
    }

    fn inspect(&mut self, worker: &WorkerId, with_stack: bool, events: Recipient<ProcessEvent>) {
        self.processes.inspect(worker, with_stack, events);
    }

    fn check_health(
        &mut self,
        command: String,
        timeout: Duration,
        events: Recipient<ProcessEvent>,
    ) {
        self.processes.check_health(command, timeout, events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(driver: &str) -> DriverAddress<()> {
        DriverAddress::new((), driver, None)
    }

    #[test]
    fn a_way_through_the_loopback_is_not_passed_on() {
        assert_eq!(told("127.0.0.1:7070").address, None);
        assert_eq!(told("192.0.2.7:7070").address.as_deref(), Some("192.0.2.7:7070"));
        assert_eq!(told("192.0.2.7:7070,127.0.0.1:7070").address, None);
    }

    #[test]
    fn the_interface_is_that_of_the_way_to_the_driver_and_the_loopback_is_none() {
        let mut environment = vec![(DRIVER.to_owned(), "127.0.0.1:7070".to_owned())];
        told("127.0.0.1:7070").add_interface(&mut environment);
        assert_eq!(environment.len(), 1, "{environment:?}");
        let named = DriverAddress::new((), "127.0.0.1:7070", Some("lo".to_owned()));
        named.add_interface(&mut environment);
        assert_eq!(environment[1..], [(DATA_ADDRESS.to_owned(), "127.0.0.1".to_owned())]);
    }
}
