//! The agent of a host: joins the driver, starts, watches and stops the workers of its slots. `core` decides,
//! `actor` carries its outputs out, `process` has the workers' processes, `output` stores and shows their
//! output.

mod actor;
pub mod core;
pub mod host;
pub mod output;
pub mod process;

#[cfg(test)]
mod tests;

pub use actor::{AgentActor, AgentExit, Drain, HostChange};
pub use output::{OutputSink, OutputStream, StandardStreams};
pub use process::{Leaders, ProcessEvent, ProcessPort, SystemProcesses, control_group_id};
