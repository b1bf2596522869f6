//! The `WorkerStateRegistry`: each worker's state in the present generation, and the barrier.
//!
//! `core` decides: votes in, verdicts out, no I/O. `actor` is its shell in the driver's process: the driver
//! opens a generation, workers (and the driver, for processes that ended) vote, and the driver carries the
//! verdicts out.

pub mod actor;
pub mod core;

pub use crate::actor::{
    AskMissing, CloseGeneration, MemberLost, OpenGeneration, Registry, RegistryReport,
};
pub use crate::core::{
    Decision, DropReason, IgnoreReason, MemberResult, MemberState, OpenError, Progress,
    RegistryCore, Verdict, VoteDecision,
};
