//! Gives workers the agent's view of the network: the addresses of the drivers that it knows, first the one at which it has
//! reached the acting driver, which works from this host even if the driver assumes another address for itself; and the
//! interface that leads to the other hosts. Used by [`agent`](super::agent).

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;

use actix::Recipient;
use elastic_agent::core::{SpawnOrder, StopSignal};
use elastic_agent::{ProcessEvent, ProcessPort};
use elastic_protocol::WorkerId;
use elastic_protocol::environment::DATA_ADDRESS;
use elastic_protocol::messages::DRIVERS_MAX;
use elastic_transport::network::{ip_towards, ip_towards_others, is_name_of_host};
use elastic_transport::{DriverAddresses, each_once};
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

/// A process port that adds the agent's addresses of the drivers, and the interface to other hosts, to the environment.
pub(crate) struct DriverAddress<P> {
    processes: P,
    route: RouteToDriver,
    meeting: Rc<MeetingPoint>,
    /// The drivers that the agent knows when a worker starts.
    drivers: Rc<DriverAddresses>,
    /// The addresses behind the names with which the agent was started: a worker that starts while no name server answers
    /// finds the driver all the same. Without those of the loopback.
    resolved: Vec<String>,
    /// Those of the names that led to the loopback.
    local_names: Vec<String>,
}

impl<P> DriverAddress<P> {
    /// `given` lists the addresses with which the agent was started, with commas between them; `drivers` has those that it
    /// has learned since, too.
    pub(crate) fn new(
        processes: P,
        given: &str,
        drivers: Rc<DriverAddresses>,
        interface: Option<String>,
    ) -> Self {
        let resolved = |name: &str| name.to_socket_addrs().into_iter().flatten();
        let all: Vec<SocketAddr> = given.split(',').flat_map(resolved).collect();
        let is_local = all.iter().any(|address| address.ip().is_loopback());
        let towards = all.first().copied().filter(|_| !is_local);
        let leads_to_loopback = |name: &str| resolved(name).any(|it| it.ip().is_loopback());
        let local_names: Vec<String> = given
            .split(',')
            .filter(|name| leads_to_loopback(name))
            .map(ToOwned::to_owned)
            .collect();
        let is_own_name = local_names.iter().any(|name| is_name_of_host(name));
        let route = RouteToDriver { towards, interface, is_own_name };
        let away = all.iter().filter(|address| !address.ip().is_loopback());
        let resolved = away.map(ToString::to_string).collect();
        let meeting = Rc::new(MeetingPoint::new(route.data_ip(None)));
        Self { processes, route, meeting, drivers, resolved, local_names }
    }

    /// The drivers' addresses for a worker that starts now, at most [`DRIVERS_MAX`], the acting driver's first: the one at which
    /// the agent has `met` it, those of the driver's own order (`told`), and the others that the agent knows. Ways through the
    /// loopback are left out where the driver itself does not name them: workers of other machines could not reach a worker
    /// that went through it.
    fn for_worker(&self, met: Option<SocketAddr>, told: &str, known: &[String]) -> String {
        let is_away = |name: &&str| !name.parse().is_ok_and(|it: SocketAddr| it.ip().is_loopback());
        let met = met.filter(|met| !met.ip().is_loopback()).map(|met| met.to_string());
        let told = told.split(',').filter(|name| met.is_none() || is_away(name));
        let known = self.resolved.iter().chain(known).map(String::as_str).filter(is_away);
        let known = known.filter(|name| !self.local_names.iter().any(|local| local == name));
        let mut all = each_once(met.as_deref().into_iter().chain(told).chain(known));
        all.retain(|name| !name.is_empty());
        all.truncate(DRIVERS_MAX);
        all.join(",")
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
        let told = order.environment.iter().rev().find(|(name, _)| name == DRIVER);
        let told = told.map_or("", |(_, addresses)| addresses);
        let addresses = self.for_worker(self.drivers.met(), told, &self.drivers.all());
        if !addresses.is_empty() {
            // The last entry for a variable wins.
            order.environment.push((DRIVER.to_owned(), addresses));
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
        DriverAddress::new((), driver, Rc::default(), None)
    }

    fn names(names: &str) -> Vec<String> {
        names.split(',').map(ToOwned::to_owned).collect()
    }

    fn address(text: &str) -> Option<SocketAddr> {
        Some(text.parse().expect("a literal"))
    }

    #[test]
    fn a_way_through_the_loopback_is_not_passed_on() {
        let (here, away) = ("127.0.0.1:7070", "192.0.2.7:7070");
        let given = told(here);
        assert_eq!(given.for_worker(address(here), away, &names(here)), away);
        assert_eq!(
            given.for_worker(address(here), here, &names(here)),
            here,
            "there is no other way"
        );
        let given = told(away);
        assert_eq!(given.for_worker(address(away), here, &names(away)), away);
        let both = [away, here].join(",");
        assert_eq!(told(&both).for_worker(address(here), away, &names(&both)), away);
    }

    #[test]
    fn d_3_a_worker_is_told_the_acting_driver_first_and_all_that_the_agent_knows() {
        let (first, second, third) = ("192.0.2.1:7070", "192.0.2.2:7070", "192.0.2.3:7070");
        let given = told(first);
        let known = names(&[first, second].join(","));
        let list = |all: &[&str]| all.join(",");
        assert_eq!(given.for_worker(address(first), first, &names(first)), first);
        let before = given.for_worker(address(first), &list(&[first, second]), &known);
        assert_eq!(before, list(&[first, second]));
        // The second leads now, and the first is gone: the agent was given no other.
        let after = given.for_worker(address(second), &list(&[second, third]), &known);
        assert_eq!(after, list(&[second, third, first]));
        // The driver assumes an address for itself that the agent does not use.
        let assumed = given.for_worker(address(second), "driver:7070", &known);
        assert_eq!(assumed, list(&[second, "driver:7070", first]));
        let many: Vec<String> = (0..100).map(|number| format!("192.0.2.9:{number}")).collect();
        let bounded = given.for_worker(address(second), second, &many);
        assert_eq!((names(&bounded).len(), bounded.starts_with(second)), (DRIVERS_MAX, true));
    }

    #[test]
    fn the_interface_is_that_of_the_way_to_the_driver_and_the_loopback_is_none() {
        let mut environment = vec![(DRIVER.to_owned(), "127.0.0.1:7070".to_owned())];
        told("127.0.0.1:7070").add_interface(&mut environment);
        assert_eq!(environment.len(), 1, "{environment:?}");
        let named = DriverAddress::new((), "127.0.0.1:7070", Rc::default(), Some("lo".to_owned()));
        named.add_interface(&mut environment);
        assert_eq!(environment[1..], [(DATA_ADDRESS.to_owned(), "127.0.0.1".to_owned())]);
    }
}
