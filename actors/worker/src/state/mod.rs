//! The per-worker State: a worker's part in generations (`core`), its environment variables (`environment`),
//! the order in which samples are handed out (`sampler`), the blocking side that the user's thread runs
//! (`training`), and the actor beside that thread (`actor`).

pub mod actor;
pub mod core;
pub mod environment;
pub mod sampler;
pub mod training;
