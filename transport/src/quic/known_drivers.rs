//! The actor that takes the addresses of drivers from the driver ([`KnownDrivers`]). [`join`](crate::join())
//! publishes it at an agent's node, and a worker's process at its own.

use std::rc::Rc;

use actix::{Actor, Context, Handler};
use elastic_protocol::messages::KnownDrivers;
use elastic_protocol::{ActorName, NodeName};
use elastic_runtime::{Delivery, NodeHandle, Routes, spawn_child};

use crate::peers::addresses::DriverAddresses;

/// Takes the addresses that the driver sends. Published as [`ActorName::DRIVERS`].
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
    use elastic_protocol::{Incarnation, NodeId};

    use super::*;
    use crate::peers::addresses::FoundDrivers;

    #[test]
    fn d_2_drivers_are_learned_from_the_driver_and_from_nobody_else() {
        let told = |name: NodeName, address: &str| Delivery {
            from: NodeId { name, incarnation: Incarnation(1) },
            message: KnownDrivers { addresses: vec![address.to_owned()] },
        };
        let addresses = DriverAddresses::new("a:1", FoundDrivers::default());
        elastic_runtime::system::run({
            let addresses = Rc::clone(&addresses);
            async move {
                let actor = spawn_child(|_| KnownDriversActor(addresses), |_| {});
                actor.send(told(NodeName::Driver, "b:1")).await.expect("it runs");
                let host = "h".parse().expect("a name");
                actor.send(told(NodeName::Agent(host), "c:1")).await.expect("it runs");
            }
        })
        .expect("a runtime");
        assert_eq!(addresses.all(), ["b:1", "a:1"]);
    }
}
