//! [`DriverInput`]: each input of the core as a value, so that it can be recorded and given again. Called by
//! `RecordedDriver`, and by a replay.

use elastic_host_manager::HostsSnapshot;
use elastic_protocol::messages::{AgentToDriver, DriverStatus, WorkerToDriver};
use elastic_protocol::{HostName, NodeId, Stamp, Time, WorkerId};
use elastic_registry::GenerationVerdict;
use elastic_runtime::transport::LinkEvent;
use serde::{Deserialize, Serialize};

use super::DriverCore;

/// An input of the core.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum DriverInput {
    /// A message of an agent.
    Agent {
        /// The agent.
        from: NodeId,
        /// The message.
        message: AgentToDriver,
    },
    /// A message of a worker.
    Worker {
        /// The worker.
        from: NodeId,
        /// The message.
        message: WorkerToDriver,
    },
    /// A change of a session.
    Link {
        /// The node at the other end.
        peer: NodeId,
        /// The change.
        event: LinkEvent,
    },
    /// A decision of the registry.
    Verdict(GenerationVerdict),
    /// The registry's answer: the members whose votes are missing.
    Missing {
        /// The generation.
        stamp: Stamp,
        /// The members.
        missing: Vec<WorkerId>,
    },
    /// The hosts that the job may use.
    Hosts(HostsSnapshot),
    /// Something is missing that the job cannot go on without.
    Fatal {
        /// Error message that names the missing thing.
        reason: String,
        /// Remedy for the user; none if there is none.
        hint: Option<String>,
    },
    /// A signal with which the operator ends the job.
    Stop {
        /// Number of the signal.
        signal: i32,
    },
    /// A client's request to end the job.
    StopAsked,
    /// No agent can be started on a host.
    LaunchFailed {
        /// The host.
        host: HostName,
        /// The reason.
        reason: String,
    },
    /// The standby drivers.
    Standbys(Vec<DriverStatus>),
    /// This driver does not lead any more.
    Abandon {
        /// The reason.
        reason: String,
    },
    /// The time of `poll_timeout` has come.
    Timeout,
    /// All records up to a number are stored.
    Journaled {
        /// The number.
        upto: u64,
    },
    /// A batch of records could not be stored.
    JournalFailed {
        /// The reason.
        reason: String,
        /// Whether the next attempt may succeed.
        may_pass: bool,
    },
}

impl DriverCore {
    /// Takes an input.
    pub fn handle(&mut self, now: Time, input: DriverInput) {
        match input {
            DriverInput::Agent { from, message } => self.handle_agent(now, &from, message),
            DriverInput::Worker { from, message } => self.handle_worker(now, &from, message),
            DriverInput::Link { peer, event } => self.handle_link(now, &peer, &event),
            DriverInput::Verdict(verdict) => self.handle_verdict(now, verdict),
            DriverInput::Missing { stamp, missing } => self.handle_missing(now, stamp, missing),
            DriverInput::Hosts(snapshot) => self.handle_hosts(now, snapshot),
            DriverInput::Fatal { reason, hint } => {
                self.handle_fatal(now, &reason, hint.as_deref());
            }
            DriverInput::Stop { signal } => self.handle_stop(now, signal),
            DriverInput::StopAsked => self.handle_stop_asked(now),
            DriverInput::LaunchFailed { host, reason } => self.handle_launch_failed(&host, &reason),
            DriverInput::Standbys(standbys) => self.handle_standbys(now, standbys),
            DriverInput::Abandon { reason } => self.handle_abandon(&reason),
            DriverInput::Timeout => self.handle_timeout(now),
            DriverInput::Journaled { upto } => self.handle_journaled(now, upto),
            DriverInput::JournalFailed { reason, may_pass } => {
                self.handle_journal_failed(now, &reason, may_pass);
            }
        }
    }
}
