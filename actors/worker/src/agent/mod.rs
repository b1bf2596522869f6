//! The agent of a host: joins the driver, starts, watches and stops the workers of its slots. `core`
//! decides, `actor` carries it out, `process` and `output` are the processes and what they write.

mod actor;
pub mod core;
pub mod host;
pub mod output;
pub mod process;

#[cfg(test)]
mod tests;

pub use actor::{AgentActor, AgentEnd, Drain};
pub use output::{OutputSink, OutputStream, StandardStreams};
pub use process::{Leaders, ProcessEvent, ProcessPort, SystemProcesses};
