//! The words of Elastic Node as types, and every message that crosses the wire.
//!
//! No actor, no clock, no I/O: every other crate of the workspace may use this one, and it uses none of them. `ids`
//! names things, `time` is the cores' notion of time, `assignment` is the table of a generation, `codec` turns messages
//! into bytes, `commit` orders snapshots, `environment` names the variables that a worker gets at its start, `messages`
//! are the messages between nodes, `name` and `wire` are the names of actors and the numbers of messages, `planted`
//! lists the bugs that the simulation plants, `words` puts numbers into texts.

pub mod assignment;
pub mod codec;
pub mod commit;
mod data_plane;
pub mod deadlines;
pub mod environment;
pub mod ids;
pub mod job;
pub mod messages;
mod name;
pub mod output;
pub mod planted;
pub mod time;
mod wire;
mod words;

pub use assignment::{Assignment, AssignmentDelta, BaseMismatch, Member};
pub use commit::{CommitId, Step};
pub use data_plane::DataPlane;
pub use deadlines::{Deadlines, InvalidDeadlines};
pub use ids::{
    GenerationId, HostName, Incarnation, InvalidHostName, JobId, NodeId, NodeName, Stamp, Term,
    WorkerId,
};
pub use job::{ExitStatus, JobOutcome, JobResult, ProgramSpec, ResetCause, WorkerFailure};
pub use name::{ActorId, ActorName};
pub use time::Time;
pub use wire::{FREE_KINDS_FROM, WireMessage, WireRequest};
pub use words::counted;
