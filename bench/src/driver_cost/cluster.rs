//! The driver's cores, with counters of their work, and their simulated time. Used by `driver-cost`.

use std::collections::VecDeque;

use anyhow::{Context as _, ensure};
use elastic_driver::journal::{Founding, JobSecretsBytes, Tenure};
use elastic_driver::{DriverConfig, DriverCore, DriverOutput, ElasticMode, EventKind};
use elastic_host_manager::{HostEntry, HostState, HostsSnapshot};
use elastic_journal::{FileJournal, Journal as _};
use elastic_protocol::codec::{decode, encode};
use elastic_protocol::messages::{
    AgentToDriver, DriverToAgent, DriverToWorker, FormationTable, Vote, WorkerToDriver,
};
use elastic_protocol::{
    ActorName, HostName, Incarnation, JobId, NodeId, NodeName, ProgramSpec, Stamp, Step, Term,
    Time, WireMessage,
};
use elastic_registry::RegistryCore;
use elastic_runtime::envelope::{Header, frame};
use elastic_runtime::transport::{LinkEvent, LossReason};
use nix::time::{ClockId, clock_gettime};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Serialize;
use tempfile::TempDir;

use super::workers::{DriverMessage, Workers};

/// Inputs of the driver's node; messages as they are in their frames.
#[derive(Debug)]
pub(super) enum Input {
    Hosts(HostsSnapshot),
    Link(NodeId, LinkEvent),
    FromAgent(NodeId, Vec<u8>),
    FromWorker(NodeId, Vec<u8>),
    Vote(NodeId, Vec<u8>),
}

/// The cost of a reset.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InputCost {
    pub(super) cpu_ns: u64,
    pub(super) messages_in: u64,
    pub(super) messages_out: u64,
    pub(super) bytes_out: u64,
    pub(super) table_bytes: u64,
    pub(super) full_table_bytes: u64,
    /// Bytes given to the journal, if there is one.
    pub(super) journal_bytes: u64,
}

/// The embedded journal, in a folder of its own.
struct Journalled {
    journal: FileJournal,
    _folder: TempDir,
}

/// A job's driver, and all its hosts.
pub(super) struct CostCluster {
    core: DriverCore,
    /// The store of its records, if there is one.
    journal: Option<Journalled>,
    stamp: Stamp,
    registry: RegistryCore,
    now: Time,
    hosts: Vec<HostName>,
    slots: u32,
    agents: u64,
    workers: Workers,
    cost: InputCost,
    /// Time spent by the bench itself.
    uncounted_ns: u64,
    /// The world size that trains.
    running: Option<u32>,
}

impl CostCluster {
    pub(super) fn new(hosts: u32, slots: u32, keeps_journal: bool) -> anyhow::Result<Self> {
        let program = ProgramSpec { argv: vec!["train".to_owned()], environment: Vec::new() };
        let config = DriverConfig {
            np: Some(hosts * slots),
            min_np: Some(1),
            mode: ElasticMode::InProcess,
            hosts_join: false,
            driver_address: "10.0.0.1:7070".to_owned(),
            ..DriverConfig::new(program)
        };
        let config = config.validate()?;
        let job = JobId(uuid::Uuid::from_u128(1));
        let rng = ChaCha8Rng::seed_from_u64(1);
        let name = |number| HostName::new(&format!("node-{number:05}.cluster.example"));
        let (core, journal) = if keeps_journal {
            let folder = TempDir::with_prefix("elastic-node-bench-")?;
            let mut journal = FileJournal::open(&folder.path().join("journal.redb"))?;
            let secrets = JobSecretsBytes::default();
            let founding = || Ok::<_, std::io::Error>(Founding { job, secrets });
            let tenure = Tenure::begin(&mut journal, &config.program, founding)?;
            let journalled = Journalled { journal, _folder: folder };
            (DriverCore::with_journal(config, tenure, rng, Time::ZERO), Some(journalled))
        } else {
            (DriverCore::new(config, job, Term(1), rng, Time::ZERO), None)
        };
        Ok(Self {
            core,
            journal,
            stamp: Stamp::default(),
            registry: RegistryCore::new(),
            now: Time::ZERO,
            hosts: (0..hosts).map(name).collect::<Result<_, _>>()?,
            slots,
            agents: 0,
            workers: Workers::default(),
            cost: InputCost::default(),
            uncounted_ns: 0,
            running: None,
        })
    }

    /// Lists all hosts and lets their agents join.
    pub(super) fn start(&mut self, workers: u32) -> anyhow::Result<InputCost> {
        let entry = |name: &HostName| HostEntry {
            name: name.clone(),
            slots: self.slots,
            state: HostState::Listed,
        };
        let hosts = self.hosts.iter().map(entry).collect();
        let mut inputs =
            VecDeque::from([Input::Hosts(HostsSnapshot { hosts, ..HostsSnapshot::default() })]);
        for host in 0..self.hosts.len() {
            inputs.extend(self.join(host)?);
        }
        self.until_running(inputs, workers)
    }

    /// A host's power fails: the sessions of its agent and its workers are lost.
    pub(super) fn lose(&mut self, host: u32, left: u32) -> anyhow::Result<InputCost> {
        let host = &self.hosts[host as usize];
        let lost = |peer| {
            let reason = LossReason::Silence { silent_ms: 2_000 };
            Input::Link(peer, LinkEvent::Lost { reason, silent_ms: 2_000 })
        };
        let inputs = self.workers.lose_host(host).into_iter().map(lost).collect();
        self.until_running(inputs, left)
    }

    /// The host is there again, with a new agent.
    pub(super) fn come_back(&mut self, host: u32, workers: u32) -> anyhow::Result<InputCost> {
        let inputs = self.join(host as usize)?.into();
        self.until_running(inputs, workers)
    }

    /// Lets all members report a commit while they train: no generation begins or ends.
    pub(super) fn commit(&mut self, step: u64) -> anyhow::Result<InputCost> {
        self.cost = InputCost::default();
        let inputs = self.workers.progress(self.stamp, Step(step))?;
        let told = self.work(inputs)?;
        ensure!(told.is_empty(), "a commit asks nothing of anybody, but {told:?} was said");
        Ok(self.cost)
    }

    fn join(&mut self, host: usize) -> anyhow::Result<[Input; 2]> {
        self.agents += 1;
        let host = self.hosts[host].clone();
        let node =
            NodeId { name: NodeName::Agent(host.clone()), incarnation: Incarnation(self.agents) };
        self.workers.add_agent(&node, &host);
        let join = AgentToDriver::Join {
            host,
            slots: self.slots,
            role: "default".to_owned(),
            meeting: None,
            run_id: None,
            nodes: None,
            live: Vec::new(),
        };
        Ok([Input::Link(node.clone(), LinkEvent::Up), Input::FromAgent(node, encode(&join)?)])
    }

    /// The driver and the others talk until a generation of this size trains.
    fn until_running(
        &mut self,
        mut inputs: VecDeque<Input>,
        world_size: u32,
    ) -> anyhow::Result<InputCost> {
        self.cost = InputCost::default();
        self.running = None;
        let patience = self.now + std::time::Duration::from_secs(30);
        while self.running != Some(world_size) {
            let told = self.work(inputs)?;
            inputs = self.workers.answer(told)?;
            if inputs.is_empty() && self.running != Some(world_size) {
                let next = self.core.poll_timeout().context("the driver waits for nothing")?;
                ensure!(next < patience, "no generation of {world_size} workers trains");
                self.now = self.now.max(next);
            }
        }
        // Messages still to be sent belong to this reset as well.
        let told = self.work(inputs)?;
        self.workers.answer(told)?;
        Ok(self.cost)
    }

    /// The driver's node processes its input. The benchmark counts this work.
    fn work(&mut self, inputs: VecDeque<Input>) -> anyhow::Result<Vec<DriverMessage>> {
        let mut told = Vec::new();
        let began = cpu_ns()?;
        self.cost.messages_in += inputs.len() as u64;
        if inputs.is_empty() {
            self.core.handle_timeout(self.now);
            self.drain(&mut told)?;
        }
        for input in inputs {
            match input {
                Input::Hosts(snapshot) => self.core.handle_hosts(self.now, snapshot),
                Input::Link(peer, event) => self.core.handle_link(self.now, &peer, &event),
                Input::FromAgent(from, bytes) => {
                    self.core.handle_agent(self.now, &from, decode(&bytes)?);
                }
                Input::FromWorker(from, bytes) => {
                    self.core.handle_worker(self.now, &from, decode::<WorkerToDriver>(&bytes)?);
                }
                Input::Vote(from, bytes) => {
                    let vote: Vote = decode(&bytes)?;
                    self.registry.handle_vote_from(self.now, &from, &vote);
                }
            }
            self.drain(&mut told)?;
        }
        self.cost.cpu_ns += cpu_ns()? - began - std::mem::take(&mut self.uncounted_ns);
        Ok(told)
    }

    fn drain(&mut self, told: &mut Vec<DriverMessage>) -> anyhow::Result<()> {
        loop {
            self.store()?;
            if let Some(verdict) = self.registry.poll_output() {
                self.core.handle_verdict(self.now, verdict);
            } else if let Some(output) = self.core.poll_output() {
                self.carry_out(output, told)?;
            } else {
                return Ok(());
            }
        }
    }

    /// Stores what the core has recorded. In a driver another thread does so: its time does not count.
    fn store(&mut self) -> anyhow::Result<()> {
        let Some(Journalled { journal, .. }) = &mut self.journal else { return Ok(()) };
        while let Some(batch) = self.core.poll_batch() {
            let snapshot = batch.snapshot.iter().map(|snapshot| snapshot.bytes.len());
            let bytes: usize = batch.records.iter().map(Vec::len).chain(snapshot).sum();
            self.cost.journal_bytes += bytes as u64;
            let began = cpu_ns()?;
            journal.append(&batch)?;
            self.uncounted_ns += cpu_ns()? - began;
            self.core.handle_journaled(self.now, batch.last());
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        output: DriverOutput,
        told: &mut Vec<DriverMessage>,
    ) -> anyhow::Result<()> {
        match output {
            DriverOutput::ToAgent { message, .. } => {
                self.count(&message, ActorName::AGENT, 1)?;
            }
            DriverOutput::StartWorker { worker, environment, agent, place } => {
                // A token of the length that the transport gives out.
                let credential = "x".repeat(128);
                let message =
                    DriverToAgent::Start { worker: worker.clone(), environment, place, credential };
                self.count(&message, ActorName::AGENT, 1)?;
                told.push(DriverMessage::Start { worker, agent });
            }
            DriverOutput::ToWorker { to, message } => {
                self.count_to_workers(&message, 1)?;
                told.push(DriverMessage::Worker { to: vec![to], message });
            }
            DriverOutput::ToWorkers { to, message } => {
                self.count_to_workers(&message, to.len() as u64)?;
                told.push(DriverMessage::Worker { to, message });
            }
            DriverOutput::OpenGeneration { stamp, members, budget } => {
                self.stamp = stamp;
                self.registry.open(self.now, stamp, members, budget)?;
            }
            DriverOutput::Event(event) => {
                if let EventKind::GenerationRunning { world_size } = event.kind {
                    self.running = Some(world_size);
                }
            }
            DriverOutput::NameMissing { stamp } => {
                let missing = self.registry.missing();
                self.core.handle_missing(self.now, stamp, missing);
            }
            DriverOutput::Incident(incident) => {
                self.registry.handle_incident(self.now, incident);
            }
            DriverOutput::Vote(vote) => {
                self.registry.handle_vote(self.now, &vote);
            }
            DriverOutput::HostJoined { .. }
            | DriverOutput::HostLeft { .. }
            | DriverOutput::HostFailed { .. } => {}
            DriverOutput::Ended(result) => anyhow::bail!("the job has ended: {}", result.reason),
            DriverOutput::Abandoned { reason, .. } => {
                anyhow::bail!("the driver has given up: {reason}")
            }
            DriverOutput::KnownDrivers { .. } | DriverOutput::HandedOver => {
                anyhow::bail!("the driver has standbys that nobody gave it")
            }
        }
        Ok(())
    }

    fn count_to_workers(&mut self, message: &DriverToWorker, to: u64) -> anyhow::Result<()> {
        let bytes = self.count(message, ActorName::STATE, to)?;
        if let DriverToWorker::Assign(formation) = message {
            self.cost.table_bytes += bytes * to;
            // This is not the driver's work, so its time does not count.
            let began = cpu_ns()?;
            let full_bytes = match &formation.table {
                FormationTable::Full(assignment) => {
                    self.workers.keep_table(assignment);
                    bytes
                }
                FormationTable::Delta(delta) => {
                    let table = self.workers.change_table(delta)?;
                    let table_bytes = encode(table.as_ref())?.len() as u64;
                    bytes - encode(delta.as_ref())?.len() as u64 + table_bytes
                }
            };
            self.cost.full_table_bytes += full_bytes * to;
            self.uncounted_ns += cpu_ns()? - began;
        }
        Ok(())
    }

    /// Encodes a message once; each receiver's transport gets the same bytes.
    fn count<M: WireMessage + Serialize>(
        &mut self,
        message: &M,
        actor: ActorName,
        to: u64,
    ) -> anyhow::Result<u64> {
        let header = Header::Tell { actor, kind: M::KIND, returns: 0 };
        let bytes = frame(&header, &encode(message)?).len() as u64;
        self.cost.messages_out += to;
        self.cost.bytes_out += bytes * to;
        Ok(bytes)
    }
}

/// CPU time of this thread.
fn cpu_ns() -> anyhow::Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(u64::try_from(time.tv_sec())? * 1_000_000_000 + u64::try_from(time.tv_nsec())?)
}
