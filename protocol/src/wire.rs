//! The traits of messages to actors on other nodes: a [`WireMessage`] is told, a [`WireRequest`] is asked. The
//! table of kinds of this workspace's own messages is here, so that each number is used once.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::messages::{
    AgentToDriver, ClientRequest, ClientResponse, DriverToAgent, DriverToWorker, KnownDrivers,
    ReachAnswer, ReachRequest, Vote, WorkerToDriver,
};

/// A message that is told: it has no answer. Actors handle it as the runtime's `Delivery<Self>`.
pub trait WireMessage: Serialize + DeserializeOwned + Send + 'static {
    /// Number of its kind in a frame's header; unique among the messages of one actor. Numbers below
    /// [`FREE_KINDS_FROM`] belong to the table in this file.
    const KIND: u16;
}

/// A message that is asked: it has an answer. Actors handle it as the runtime's `Question<Self>`.
pub trait WireRequest: Serialize + DeserializeOwned + Send + 'static {
    /// Number of its kind in a frame's header; unique among the questions of one actor. Numbers below
    /// [`FREE_KINDS_FROM`] belong to the table in this file.
    const KIND: u16;
    /// The type of its answer.
    type Reply: Serialize + DeserializeOwned + Send + 'static;
}

/// First kind that the table of this file never assigns: tests and programs may use it and those above.
pub const FREE_KINDS_FROM: u16 = 1024;

impl WireMessage for AgentToDriver {
    const KIND: u16 = 1;
}

impl WireMessage for DriverToAgent {
    const KIND: u16 = 2;
}

impl WireMessage for WorkerToDriver {
    const KIND: u16 = 3;
}

impl WireMessage for DriverToWorker {
    const KIND: u16 = 4;
}

impl WireMessage for Vote {
    const KIND: u16 = 6;
}

impl WireMessage for KnownDrivers {
    const KIND: u16 = 7;
}

impl WireRequest for ReachRequest {
    const KIND: u16 = 8;
    type Reply = ReachAnswer;
}

impl WireRequest for ClientRequest {
    const KIND: u16 = 5;
    type Reply = ClientResponse;
}
