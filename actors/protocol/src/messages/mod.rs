//! Every wire message, by who speaks to whom. Encoded with postcard; `codec` bounds and checks.
//!
//! A message about a generation carries its [`Stamp`](crate::Stamp); whoever holds a newer one drops the
//! message and counts it (G-2).

mod agent;
mod client;
mod codec;
mod drivers;
mod vote;
mod worker;

pub use crate::output::OutputSettings;
pub use agent::{AgentToDriver, DriverToAgent, LiveWorker, ProcessPlace, ProgramError, StoppedBy};
pub use client::{
    ClientRequest, ClientResponse, HostStatus, PhaseMs, ResetStatus, StatusReport, WorkerStatus,
};
pub use codec::{CodecError, FRAME_BYTES_MAX, decode, encode};
pub use drivers::{DRIVERS_MAX, DriverStatus, KnownDrivers};
pub use vote::{Ballot, Vote};
pub use worker::{
    DataPlane, DriverToWorker, Formation, GroupKey, Placement, SyncPlan, Table, WorkerToDriver,
};
