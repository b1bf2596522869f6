//! The `WorkerStateRegistry`: each worker's state in the present generation, and the barrier.
//!
//! `core` decides: votes in, verdicts out, no I/O. The driver opens a generation, workers (and the
//! driver, for processes that ended) vote, and the driver carries the verdicts out.

pub mod core;

pub use crate::core::{
    Decision, DropReason, IgnoreReason, MemberResult, MemberState, OpenError, Progress,
    RegistryCore, Verdict, VoteDecision,
};
