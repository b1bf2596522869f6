//! All wire messages, by sender and receiver. Encoded by `codec`.
//!
//! A message about a generation carries its [`Stamp`](crate::Stamp). A node that holds a newer one drops the message
//! and counts it (G-2).

mod agent;
mod checkpoint;
mod client;
mod condition;
mod digests;
mod divergence;
mod drivers;
mod link;
mod moved;
mod reach;
mod reported;
mod standstill;
mod step_times;
mod straggler;
mod vote;
mod worker;

pub use crate::output::{FileUmask, OutputSettings};
pub use agent::{
    AgentToDriver, DriverToAgent, HealthFailure, JobCommand, LibraryTrace, LiveWorker, NodeCount,
    ProcessPlace, ProgramError, StoppedBy,
};
pub use checkpoint::{CheckpointOrder, CheckpointReport, CheckpointSource, LastCheckpoint};
pub use client::{
    CheckpointStatus, ClientRequest, ClientResponse, GatherStatus, GoodputStatus, HostStatus,
    LaneStatus, PhaseMs, ResetStatus, StatusReport, UnreachableHost, WorkerStatus,
};
pub use condition::{HealthCondition, HostCondition, JobPhase, WorkerCondition};
pub use digests::{StateDigests, TensorDigest, TensorName};
pub use divergence::{DivergentReplica, UncomparedTensor};
pub use drivers::{DRIVERS_MAX, DriverStatus, KnownDrivers};
pub use link::{LinkPace, SlowLink};
pub use moved::{BulkWork, MovedBytes};
pub use reach::{ReachAnswer, ReachFinding, ReachRequest};
pub use reported::{InvalidReport, ReportedValues};
pub use standstill::{
    AwaitedWorker, CollectivePosition, CurrentCollective, HangGrounds, HangSureness,
    ProcessActivity, ProcessCounters, ProcessNamed, ProcessSight, RecordedCollectives,
    StalledWorker, TrainingSection,
};
pub use step_times::StepTimes;
pub use straggler::StragglingWorker;
pub use vote::{Ballot, Vote};
pub use worker::{
    DriverToWorker, Formation, FormationTable, GroupKey, JobShards, Placement, SyncPlan,
    UndoneTraining, WorkerToDriver,
};
