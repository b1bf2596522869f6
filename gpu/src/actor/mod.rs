//! The GPU actor: one in each worker that has a GPU, a child of the worker's State. It owns the communicators and the
//! thread in which calls may block. The training thread asks it for a generation's communicator (`port`), and the
//! State tells it of aborts. `core` decides, `shell` carries out the decisions, and `jobs` holds the work of the
//! thread.

pub mod core;
mod jobs;
pub mod port;
#[cfg(test)]
mod property_tests;
mod shell;
mod thread;

pub use port::{GpuPort, GpuRequest};
pub use shell::{GpuActor, GpuConfig};
