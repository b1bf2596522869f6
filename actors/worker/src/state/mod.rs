//! The per-worker State: a worker's part in generations (`core`), what it is told at its start
//! (`environment`), the order in which samples are handed out (`sampler`), the blocking side that the
//! user's thread runs (`training`), and the thread beside it (`actor`).

pub mod actor;
pub mod core;
pub mod environment;
pub mod sampler;
pub mod training;
