//! Outputs of the driver's core. `actor.rs` carries them out, and so does the simulation.

use elastic_host_manager::HostFault;
use elastic_protocol::messages::{DriverToAgent, DriverToWorker, KnownDrivers, ProcessPlace, Vote};
use elastic_protocol::{HostName, JobResult, NodeId, Stamp, WorkerId};
use elastic_registry::{Incident, RestartBudget};
use serde::Serialize;

use super::event::{DriverEvent, EventKind};

/// Outputs of the core. They are carried out in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum DriverOutput {
    /// Send a message to an agent.
    ToAgent {
        /// The agent.
        to: NodeId,
        /// The message.
        #[serde(serialize_with = "crate::recording::readable::to_agent::serialize")]
        message: DriverToAgent,
    },
    /// Tell an agent to start a worker. The shell adds the worker's credential.
    StartWorker {
        /// The agent.
        agent: NodeId,
        /// The worker.
        worker: WorkerId,
        /// Environment variables of the process, beside the program's own and the credential.
        environment: Vec<(String, String)>,
        /// Rank and generation of a process that lives for one generation; none for other processes.
        place: Option<ProcessPlace>,
    },
    /// Send a message to a worker.
    ToWorker {
        /// The worker.
        to: WorkerId,
        /// The message.
        #[serde(serialize_with = "crate::recording::readable::to_worker::serialize")]
        message: DriverToWorker,
    },
    /// Send the same message to many workers, in this order. It is encoded once.
    ToWorkers {
        /// The workers.
        to: Vec<WorkerId>,
        /// The message.
        #[serde(serialize_with = "crate::recording::readable::to_worker::serialize")]
        message: DriverToWorker,
    },
    /// Tell agents and workers the addresses of all drivers.
    KnownDrivers {
        /// The agents and workers.
        to: Vec<NodeId>,
        /// The message.
        message: KnownDrivers,
    },
    /// Tell the registry that a generation begins.
    OpenGeneration {
        /// The generation.
        stamp: Stamp,
        /// The members by rank.
        members: Vec<WorkerId>,
        /// The rest of the restart budget.
        budget: RestartBudget,
    },
    /// Vote for a member whose process does not vote itself.
    Vote(Vote),
    /// Tell the registry that a member is lost, or that a member has given the generation up.
    Incident(Incident),
    /// Ask the registry for the members whose READY or SYNCED is missing. `handle_missing` takes the answer.
    NameMissing {
        /// The generation.
        stamp: Stamp,
    },
    /// Tell the host manager that a host's agent has joined.
    HostJoined {
        /// The host.
        host: HostName,
        /// Number of its slots.
        slots: u32,
    },
    /// Tell the host manager that a host's agent has gone.
    HostLeft {
        /// The host.
        host: HostName,
    },
    /// Tell the host manager that a host is to be blacklisted.
    HostFailed {
        /// The host.
        host: HostName,
        /// The fault.
        fault: HostFault,
        /// The reason.
        reason: String,
    },
    /// Write to the event log.
    Event(DriverEvent),
    /// End the driver with this result. The job is over, and all processes have left or had the time to.
    Ended(JobResult),
    /// End the driver at once, without a message to anyone. The journal is lost to this driver, or another driver
    /// leads. The job goes on without this one.
    Abandoned {
        /// The reason.
        reason: String,
        /// Whether the journal is older than the job: the next driver that leads from it would abandon the job again.
        is_outdated: bool,
    },
    /// End the driver at once, as it was asked to. A standby goes on with the job.
    HandedOver,
}

impl DriverOutput {
    /// Whether it gives out the number of a worker or of a generation, or tells of one that may just have been given out. The
    /// end of a generation tells its number also to members that were never told of its beginning.
    pub(crate) const fn gives_a_number_out(&self) -> bool {
        match self {
            Self::StartWorker { .. } | Self::OpenGeneration { .. } => true,
            Self::ToWorker { message, .. } | Self::ToWorkers { message, .. } => {
                matches!(
                    message,
                    DriverToWorker::Assign(_)
                        | DriverToWorker::Go { .. }
                        | DriverToWorker::Pause { .. }
                        | DriverToWorker::StopAt { .. }
                        | DriverToWorker::Resume { .. }
                        | DriverToWorker::Abort { .. }
                )
            }
            Self::Event(event) => matches!(
                event.kind,
                EventKind::GenerationFormed { .. } | EventKind::WorkerStarted { .. }
            ),
            _ => false,
        }
    }
}
