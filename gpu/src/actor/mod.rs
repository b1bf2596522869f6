//! The GPU actor: one in each worker that has a GPU, a child of the worker's State. It owns the communicators and the
//! thread in which calls may block; the training thread asks it for a generation's communicator (`port`), the
//! State tells it of aborts. `core` decides, `shell` carries out, `jobs` is what runs in the thread.

pub mod core;
mod jobs;
pub mod port;
#[cfg(test)]
mod property_tests;
mod shell;
mod thread;

pub use port::{GpuPort, GpuRequest};
pub use shell::{GpuActor, GpuConfig};
