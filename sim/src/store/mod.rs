//! Mode `store`: the product's key-value store for scripts (`elastic_store`), one relay for each agent, and clients that speak torch's
//! protocol to them. Sessions break, drivers die, generations begin, clients go away, send nonsense or stand still; a reference model says what each
//! answer must be. Called by `sim::run`.

mod checks;
mod client;
mod faults;
mod model;
mod namespace;
mod script;
mod world;

pub(crate) use world::StoreWorld;
