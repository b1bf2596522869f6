//! The drivers that a node knows: those that it was given, and those that the driver tells it of ([`KnownDrivers`]).
//! The dialer tries them all. [`join`](crate::join()) has a node of an agent listen, and a worker's process its own.

use std::cell::RefCell;
use std::rc::Rc;

use actix::{Actor, Context, Handler};
use elastic_protocol::messages::{DRIVERS_MAX, KnownDrivers};
use elastic_protocol::{Incarnation, NodeName};
use elastic_runtime::{ActorName, Delivery, NodeHandle, Routes, spawn_child};

/// Addresses of drivers, as `HOST:PORT`.
#[derive(Debug, Default)]
pub(crate) struct DriverAddresses {
    /// Those that the node was started with.
    given: Vec<String>,
    /// Those that the driver of the highest term told it last.
    told: RefCell<(Incarnation, Vec<String>)>,
}

impl DriverAddresses {
    /// From `HOST:PORT`, or several with commas between them.
    pub(crate) fn new(given: &str) -> Rc<Self> {
        let given = given.split(',').map(|name| name.trim().to_owned()).collect();
        Rc::new(Self { given, told: RefCell::default() })
    }

    /// All of them, each once: those that were told first, for they are newer.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut all = self.told.borrow().1.clone();
        for name in &self.given {
            if !all.contains(name) {
                all.push(name.clone());
            }
        }
        all
    }

    /// What a driver of this term tells; one of an earlier term is not listened to (G-2).
    fn handle_told(&self, term: Incarnation, mut addresses: Vec<String>) {
        let mut told = self.told.borrow_mut();
        if term >= told.0 {
            addresses.truncate(DRIVERS_MAX);
            *told = (term, addresses);
        }
    }
}

/// Takes what the driver tells. Published as [`ActorName::DRIVERS`].
pub(crate) struct KnownDriversActor(Rc<DriverAddresses>);

impl KnownDriversActor {
    pub(crate) fn start(node: &NodeHandle, addresses: Rc<DriverAddresses>) {
        let ended = |exit| tracing::error!("no driver is learned of any more: {exit}");
        let actor = spawn_child(|_| Self(addresses), ended);
        node.register(ActorName::DRIVERS, Routes::new().tell::<KnownDrivers>(actor.recipient()));
    }
}

impl Actor for KnownDriversActor {
    type Context = Context<Self>;
}

impl Handler<Delivery<KnownDrivers>> for KnownDriversActor {
    type Result = ();

    fn handle(&mut self, delivery: Delivery<KnownDrivers>, _: &mut Context<Self>) {
        let Delivery { from, message, .. } = delivery;
        if from.name == NodeName::Driver {
            tracing::debug!(drivers = ?message.addresses, "told of drivers");
            self.0.handle_told(from.incarnation, message.addresses);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_never_forgotten_and_a_former_driver_not_listened_to() {
        let addresses = DriverAddresses::new("a:1, b:1");
        assert_eq!(addresses.all(), ["a:1", "b:1"]);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        addresses.handle_told(Incarnation(2), names(&["c:1", "b:1"]));
        assert_eq!(addresses.all(), ["c:1", "b:1", "a:1"]);
        addresses.handle_told(Incarnation(1), names(&["d:1"]));
        assert_eq!(addresses.all(), ["c:1", "b:1", "a:1"], "G-2");
        addresses.handle_told(Incarnation(3), vec!["x:1".to_owned(); 1000]);
        assert_eq!(addresses.all().len(), DRIVERS_MAX + 2);
    }
}
