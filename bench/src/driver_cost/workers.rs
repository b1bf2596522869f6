//! Agents and workers that carry out every order at once. Used by `driver-cost`.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use elastic_protocol::codec::encode;
use elastic_protocol::messages::{
    AgentToDriver, Ballot, DriverToWorker, ReportedValues, StepTimes, UndoneTraining, Vote,
    WorkerToDriver,
};
use elastic_protocol::{
    Assignment, AssignmentDelta, CommitId, HostName, NodeId, Stamp, Step, WorkerId,
};
use elastic_runtime::transport::LinkEvent;

use super::cluster::Input;

/// Messages from the driver.
#[derive(Debug)]
pub(super) enum DriverMessage {
    Start { worker: WorkerId, agent: NodeId },
    Worker { to: Vec<WorkerId>, message: DriverToWorker },
}

/// All workers of the cluster.
#[derive(Debug, Default)]
pub(super) struct Workers {
    agents: BTreeMap<HostName, NodeId>,
    commits: BTreeMap<WorkerId, Option<CommitId>>,
    table: Arc<Assignment>,
}

impl Workers {
    pub(super) fn add_agent(&mut self, agent: &NodeId, host: &HostName) {
        self.agents.insert(host.clone(), agent.clone());
    }

    /// Those on a host are gone: their nodes.
    pub(super) fn lose_host(&mut self, host: &HostName) -> Vec<NodeId> {
        let of_host: Vec<WorkerId> =
            self.commits.keys().filter(|worker| worker.host == *host).cloned().collect();
        for worker in &of_host {
            self.commits.remove(worker);
        }
        self.agents.remove(host).into_iter().chain(of_host.iter().map(NodeId::worker)).collect()
    }

    /// The full table is known.
    pub(super) fn keep_table(&mut self, table: &Arc<Assignment>) {
        self.table = Arc::clone(table);
    }

    /// The table that comes of a change.
    pub(super) fn change_table(
        &mut self,
        delta: &AssignmentDelta,
    ) -> anyhow::Result<&Arc<Assignment>> {
        self.table = Arc::new(delta.apply(&self.table)?);
        Ok(&self.table)
    }

    /// The reports of all workers that they have committed this step.
    pub(super) fn progress(&self, stamp: Stamp, step: Step) -> anyhow::Result<VecDeque<Input>> {
        let note = "epoch 3".to_owned();
        let mut reported = ReportedValues::default();
        reported.set("loss", 0.0421)?;
        reported.set("accuracy", 0.9611)?;
        // Of ten messages one has step times; here all have them.
        let steps = StepTimes {
            step_us: 5_250,
            compute_us: 4_000,
            waiting_us: 1_250,
            data_us: 250,
            commit_us: 50,
            shards: 0,
        };
        let steps = Some(steps);
        let bytes = encode(&WorkerToDriver::Progress {
            stamp,
            step,
            note,
            reported,
            steps,
            links: Vec::new(),
            digests: None,
        })?;
        let workers = self.commits.keys();
        Ok(workers.map(|it| Input::FromWorker(NodeId::worker(it), bytes.clone())).collect())
    }

    pub(super) fn answer(&mut self, told: Vec<DriverMessage>) -> anyhow::Result<VecDeque<Input>> {
        let mut answers = VecDeque::new();
        for told in told {
            match told {
                DriverMessage::Start { worker, agent } => {
                    self.start(&worker, &agent, &mut answers)?
                }
                DriverMessage::Worker { to, message } => {
                    for worker in &to {
                        self.hear(worker, &message, &mut answers)?;
                    }
                }
            }
        }
        Ok(answers)
    }

    fn start(
        &mut self,
        worker: &WorkerId,
        agent: &NodeId,
        answers: &mut VecDeque<Input>,
    ) -> anyhow::Result<()> {
        let started = AgentToDriver::Started { worker: worker.clone(), pid: 4_242 };
        answers.push_back(Input::FromAgent(agent.clone(), encode(&started)?));
        let node = NodeId::worker(worker);
        answers.push_back(Input::Link(node.clone(), LinkEvent::Up));
        let number = worker.incarnation.0.to_be_bytes();
        let attach = WorkerToDriver::Attach {
            pid: 4_242,
            data_address: SocketAddr::from(([10, number[5], number[6], number[7]], 40_000)),
            stamp: Stamp::default(),
            active: false,
            commit: None,
        };
        answers.push_back(Input::FromWorker(node, encode(&attach)?));
        self.commits.insert(worker.clone(), None);
        Ok(())
    }

    fn hear(
        &mut self,
        worker: &WorkerId,
        message: &DriverToWorker,
        answers: &mut VecDeque<Input>,
    ) -> anyhow::Result<()> {
        let Some(commit) = self.commits.get_mut(worker) else { return Ok(()) };
        let node = NodeId::worker(worker);
        let undone = UndoneTraining::default();
        let arrive = |stamp, commit| WorkerToDriver::Arrived { stamp, commit, undone };
        let vote = |stamp, ballot| {
            let vote = Vote { stamp, worker: worker.clone(), ballot };
            Ok::<_, anyhow::Error>(Input::Vote(node.clone(), encode(&vote)?))
        };
        let answer = match message {
            DriverToWorker::Welcome { .. } => arrive(Stamp::default(), *commit),
            DriverToWorker::Assign(formation) => {
                answers.push_back(vote(formation.stamp, Ballot::Ready)?);
                return Ok(());
            }
            DriverToWorker::Go { stamp, .. } => {
                let step = Step(stamp.generation.0);
                *commit = Some(CommitId { generation: stamp.generation, step, digest: step.0 });
                answers.push_back(vote(*stamp, Ballot::Synced)?);
                return Ok(());
            }
            DriverToWorker::Pause { stamp } => {
                WorkerToDriver::Paused { stamp: *stamp, boundary: 7 }
            }
            DriverToWorker::StopAt { stamp, .. } | DriverToWorker::Abort { stamp, .. } => {
                arrive(*stamp, *commit)
            }
            // The measured driver has no `--checkpoint`.
            DriverToWorker::Resume { .. }
            | DriverToWorker::SaveCheckpoint(_)
            | DriverToWorker::SealCheckpoint { .. }
            | DriverToWorker::Leave { .. }
            | DriverToWorker::Finished { .. } => return Ok(()),
        };
        answers.push_back(Input::FromWorker(node, encode(&answer)?));
        Ok(())
    }
}
