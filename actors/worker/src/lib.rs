//! A worker: the State inside the training process, its run loop and its sampler. Used by the Rust API and by the
//! Python package.

pub mod state;
