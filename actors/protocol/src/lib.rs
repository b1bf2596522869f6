//! The words of Elastic Node as types, and every message that crosses the wire.
//!
//! No actor, no clock, no I/O: every other crate of the workspace may use this one, and it uses none of
//! them. `ids` names things, `time` is the cores' notion of time, `assignment` is the table of a
//! generation, `commit` orders snapshots, `environment` names
//! what a worker is told at its start, `messages` is what nodes tell each other.

pub mod assignment;
pub mod commit;
pub mod deadlines;
pub mod environment;
pub mod ids;
pub mod job;
pub mod messages;
pub mod output;
pub mod time;

pub use assignment::{Assignment, AssignmentDelta, BaseMismatch, Member};
pub use commit::{CommitId, Step};
pub use deadlines::{Deadlines, InvalidDeadlines};
pub use ids::{
    GenerationId, HostName, Incarnation, InvalidHostName, JobId, NodeId, NodeName, Stamp, Term,
    WorkerId,
};
pub use job::{ExitStatus, JobResult, Outcome, ProgramSpec, ResetCause, WorkerFailure};
pub use time::Time;
