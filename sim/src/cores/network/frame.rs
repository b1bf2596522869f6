//! Contents of the frames on a link, and their codes for the trace. Part of the simulated network.

use elastic_protocol::messages::{
    AgentToDriver, DriverToAgent, DriverToWorker, FormationTable, Vote, WorkerToDriver,
};

use super::super::wire::Packet;

#[derive(Clone, Debug)]
pub(in crate::cores) enum LinkFrame {
    FromAgent(AgentToDriver),
    FromWorker(WorkerToDriver),
    Vote(Vote),
    ToAgent(DriverToAgent),
    ToWorker(DriverToWorker),
    /// Any of these messages, as an actor has sent it.
    Wire(Packet),
}

impl LinkFrame {
    /// The value that goes into the trace's hash.
    pub(in crate::cores) fn code(&self) -> u64 {
        match self {
            Self::Wire(packet) => packet.code,
            Self::FromAgent(message) => {
                0x100
                    + match message {
                        AgentToDriver::Join { .. } => 0,
                        AgentToDriver::Started { .. } => 1,
                        AgentToDriver::StartFailed { .. } => 2,
                        AgentToDriver::Exited { .. } => 3,
                        AgentToDriver::Drain { .. } => 4,
                        AgentToDriver::LastWords { .. } => 5,
                        AgentToDriver::HostChanged { .. } => 6,
                        AgentToDriver::Dying { .. } => 7,
                        AgentToDriver::Inspected { .. } => 8,
                        AgentToDriver::HealthChecked { .. } => 9,
                    }
            }
            Self::FromWorker(message) => {
                0x200
                    + match message {
                        WorkerToDriver::Attach { .. } => 0,
                        WorkerToDriver::Arrived { stamp, .. } => 1 | stamp.generation.0 << 16,
                        WorkerToDriver::Paused { boundary, .. } => 2 | boundary << 16,
                        WorkerToDriver::CollectiveFailed { stamp, .. } => {
                            3 | stamp.generation.0 << 16
                        }
                        WorkerToDriver::Progress { step, .. } => 4 | step.0 << 16,
                        WorkerToDriver::Standstill { for_ms, .. } => 9 | for_ms << 16,
                        WorkerToDriver::Leaving { .. } => 5,
                        WorkerToDriver::Checkpoint { step, .. } => 7 | step.0 << 16,
                        WorkerToDriver::Warning { .. } => 10,
                        WorkerToDriver::Moves { .. } => 15,
                        WorkerToDriver::Resumed { step, .. } => {
                            8 | step.map_or(0, |step| step.0 + 1) << 16
                        }
                        WorkerToDriver::NotResumed { .. } => 16,
                        WorkerToDriver::TableWanted { stamp } => 6 | stamp.generation.0 << 16,
                    }
            }
            Self::Vote(vote) => 0x300 | vote.stamp.generation.0 << 16,
            Self::ToAgent(message) => {
                0x400
                    + match message {
                        DriverToAgent::Welcome { .. } => 0,
                        DriverToAgent::Refused { .. } => 1,
                        DriverToAgent::Start { worker, .. } => 2 | worker.incarnation.0 << 16,
                        DriverToAgent::Stop { worker, .. } => 3 | worker.incarnation.0 << 16,
                        DriverToAgent::Leave { .. } => 4,
                        DriverToAgent::CheckHealth { .. } => 6,
                        DriverToAgent::Inspect { worker, .. } => 5 | worker.incarnation.0 << 16,
                    }
            }
            Self::ToWorker(message) => {
                0x500
                    + match message {
                        DriverToWorker::Welcome { .. } => 0,
                        DriverToWorker::Assign(formation) => {
                            let table = match &formation.table {
                                FormationTable::Full(assignment) => assignment.digest() & 0xfffe,
                                FormationTable::Delta(delta) => delta.digest() & 0xfffe | 1,
                            };
                            1 | table << 16 | formation.stamp.generation.0 << 32
                        }
                        DriverToWorker::Go { stamp, .. } => 2 | stamp.generation.0 << 16,
                        DriverToWorker::Pause { stamp } => 3 | stamp.generation.0 << 16,
                        DriverToWorker::StopAt { boundary, .. } => 4 | boundary << 16,
                        DriverToWorker::Resume { stamp } => 5 | stamp.generation.0 << 16,
                        DriverToWorker::Abort { stamp, .. } => 6 | stamp.generation.0 << 16,
                        DriverToWorker::Leave { .. } => 7,
                        DriverToWorker::Finished { .. } => 8,
                        DriverToWorker::SaveCheckpoint(order) => 9 | order.step.0 << 16,
                        DriverToWorker::SealCheckpoint { step, .. } => 10 | step.0 << 16,
                    }
            }
        }
    }
}
