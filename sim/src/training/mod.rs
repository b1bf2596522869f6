//! Mode `training`: the product's run loop, State, samplers, shards, sync and checkpoints, as threads that take turns. Their
//! behaviour follows from the seed alone. A script stands for the driver; the other modes simulate the product's. Called by
//! `sim::run`.

mod attempts;
mod checks;
mod communicator;
mod driver;
mod exchange;
mod fabric;
mod faults;
mod fold;
mod job;
mod memory;
mod model;
mod nodes;
mod program;
mod seat;
mod store;
mod turnstile;
mod witness;
mod world;

pub(crate) use world::TrainingWorld;
