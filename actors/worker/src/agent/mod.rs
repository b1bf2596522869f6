//! The agent of a host: joins the driver, starts, watches and stops the workers of its slots. `core`
//! decides, the rest carries it out.

pub mod core;
