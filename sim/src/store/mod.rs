//! Mode `store`: the product's key-value store for scripts (`elastic_store`), one relay for each agent, and clients that speak
//! torch's protocol to them. Sessions break, drivers die, generations begin, and clients go away, send nonsense or stand still.
//! A reference model gives the required answers. Called by `sim::run`.

mod checks;
mod client;
mod faults;
mod model;
mod namespace;
mod script;
mod world;

pub(crate) use world::StoreWorld;
