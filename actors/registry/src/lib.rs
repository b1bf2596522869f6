//! The `WorkerStateRegistry`: each worker's state in the present generation, and the barrier.
//!
//! `core` decides: votes and incidents in, verdicts out, no I/O. `actor` is its shell in the driver's process. The
//! driver opens generations, reports losses, votes for processes that cannot, and carries the verdicts out. Workers
//! vote.

pub mod actor;
pub mod core;

pub use crate::actor::{AskMissing, OpenGeneration, Registry, RegistryReport};
pub use crate::core::{
    BudgetSpent, DropReason, GenerationVerdict, IgnoreReason, Incident, MemberProgress,
    MemberResult, MemberState, MemberVotes, OpenError, RegistryCore, RestartBudget, VoteDecision,
    VoteEffect,
};
