//! Names of actors, and ids that say where an actor is. An [`ActorId`] travels in messages; a node turns it
//! into an `ActorRef` of the runtime.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::NodeId;

/// The name under which a node publishes an actor: one number in a frame's header.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ActorName(pub u16);

impl ActorName {
    /// The driver's Driver actor.
    pub const DRIVER: Self = Self(1);
    /// The driver's HostManager.
    pub const HOST_MANAGER: Self = Self(2);
    /// The driver's WorkerStateRegistry.
    pub const REGISTRY: Self = Self(3);
    /// A host's agent.
    pub const AGENT: Self = Self(4);
    /// A worker's State.
    pub const STATE: Self = Self(5);
    /// A worker's communicator.
    pub const COMMUNICATOR: Self = Self(6);
    /// The actor at the driver that answers status questions.
    pub const STATUS: Self = Self(7);
    /// The one actor of a client.
    pub const CLIENT: Self = Self(8);
    /// The driver's key-value store, for scripts with collectives of their own.
    pub const STORE: Self = Self(9);
    /// The relay at an agent, which connects the scripts of its host with that store.
    pub const STORE_RELAY: Self = Self(10);
    /// The actor of a node that keeps the addresses of drivers.
    pub const DRIVERS: Self = Self(11);
    /// The actor of a node that tries the ports of other hosts, or has them tried.
    pub const REACH: Self = Self(12);
    /// First number that this table never assigns: tests and programs may use it and those above.
    pub const FREE_FROM: u16 = 1024;
}

impl fmt::Display for ActorName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match *self {
            Self::DRIVER => "driver",
            Self::HOST_MANAGER => "host manager",
            Self::REGISTRY => "registry",
            Self::AGENT => "agent",
            Self::STATE => "state",
            Self::COMMUNICATOR => "communicator",
            Self::STATUS => "status",
            Self::CLIENT => "client",
            Self::STORE => "store",
            Self::STORE_RELAY => "store relay",
            Self::DRIVERS => "drivers",
            Self::REACH => "reach",
            Self(number) => return write!(formatter, "actor {number}"),
        })
    }
}

/// An actor of the cluster: a name, on one life of a node.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ActorId {
    /// Its node, with the node's incarnation.
    pub node: NodeId,
    /// Its name on that node.
    pub name: ActorName,
}

impl ActorId {
    /// The actor `name` of `node`.
    pub const fn new(node: NodeId, name: ActorName) -> Self {
        Self { node, name }
    }
}

impl fmt::Display for ActorId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {}", self.name, self.node)
    }
}
