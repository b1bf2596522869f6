//! Ports of the actors beside the transport: processes, the training program, discovery, disk, observer. The world
//! stands behind all of them. Given to the actors by `boot`.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use actix::Recipient;
use elastic_agent::core::{SpawnOrder, StopSignal};
use elastic_agent::{ProcessEvent, ProcessPort};
use elastic_driver::{DriverEvent, DriverObserver, WorkerCredentials};
use elastic_host_manager::{Discovery, DiscoveryError, DiscoveryRun, HostsSnapshot};
use elastic_protocol::{Deadlines, JobResult, Stamp, WorkerId};
use elastic_runtime::offload::{BlockingJob, Offload};
use elastic_worker::state::actor::TrainingPort;
use elastic_worker::state::core::{
    CheckpointCommand, CheckpointOutcome, TrainingCommand, TrainingProgress,
};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::hub::Port;
use crate::cores::World;

/// An agent's processes. The world has the agent's address, so it needs no recipient of events.
pub(super) struct SimProcesses {
    pub(super) port: Port,
    pub(super) host: u32,
}

impl ProcessPort for SimProcesses {
    fn spawn(&mut self, order: SpawnOrder, _: Recipient<ProcessEvent>) {
        self.port.call(|world| world.agent_spawns(self.host, order));
    }

    fn signal(&mut self, worker: &WorkerId, signal: StopSignal) {
        self.port.call(|world| world.agent_signals(self.host, worker, signal));
    }

    fn inspect(&mut self, worker: &WorkerId, with_stack: bool, _: Recipient<ProcessEvent>) {
        self.port.call(|world| world.agent_inspects(self.host, worker, with_stack));
    }

    fn check_health(&mut self, _: String, timeout: Duration, _: Recipient<ProcessEvent>) {
        self.port.call(|world| world.agent_checks_health(self.host, timeout));
    }
}

/// A worker's training program.
pub(super) struct SimTraining {
    pub(super) port: Port,
    pub(super) process: u32,
}

impl TrainingPort for SimTraining {
    fn command(&mut self, command: TrainingCommand) -> Result<(), String> {
        let given = self.port.call(|world| world.state_commands(self.process, command));
        given.unwrap_or(Ok(()))
    }

    fn abort(&mut self, stamp: Stamp, _reason: String) {
        self.port.call(|world| world.abort(self.process, stamp));
    }

    fn pause(&mut self) -> u64 {
        self.port.call(|world| world.set_pause_flag(self.process, true)).unwrap_or_default()
    }

    fn unpause(&mut self) {
        self.port.call(|world| world.set_pause_flag(self.process, false));
    }

    fn begin_generation(&mut self) {
        self.port.call(|world| world.clear_boundary(self.process));
    }

    fn progress(&self) -> TrainingProgress {
        self.port.call(|world| world.progress_of(self.process)).unwrap_or_default()
    }

    fn checkpoint(&mut self, command: CheckpointCommand) -> Option<CheckpointOutcome> {
        self.port.call(|world| world.checkpoint_ordered(self.process, command)).flatten()
    }

    fn set_deadlines(&mut self, _deadlines: &Deadlines) {}

    fn release(&mut self) {}
}

/// The discovery script.
pub(super) struct SimDiscovery {
    pub(super) port: Port,
    pub(super) life: u32,
}

impl Discovery for SimDiscovery {
    fn run(&mut self, limit: Duration) -> DiscoveryRun {
        let (answer, answered) = oneshot::channel();
        let life = self.life;
        let begin =
            |world: &mut World| world.in_life(life, |world| world.discovery_begins(limit, answer));
        self.port.call(begin);
        Box::pin(async move {
            answered.await.unwrap_or_else(|_dropped| {
                let (command, message) = ("discover".to_owned(), "simulated".to_owned());
                Err(DiscoveryError::CannotStart { command, message })
            })
        })
    }
}

/// The disk of the driver's machine, with its delay.
pub(super) struct SimDisk {
    pub(super) port: Port,
    pub(super) life: u32,
}

impl Offload for SimDisk {
    fn start(&self, _label: &'static str, job: BlockingJob) -> Pin<Box<dyn Future<Output = ()>>> {
        let begin = |world: &mut World| world.in_life(self.life, World::journal_begins);
        let begun = self.port.call(begin).flatten();
        Box::pin(async move {
            // A driver that dies meanwhile has stored the batch, or not.
            let Some((ns, is_stored_first)) = begun else { return };
            let wait = sleep(Duration::from_nanos(ns));
            if is_stored_first {
                job();
                wait.await;
            } else {
                wait.await;
                job();
            }
        })
    }
}

/// Unused secrets: the world itself knows every node's identity.
pub(super) struct NoCredentials;

impl WorkerCredentials for NoCredentials {
    fn issue(&self, _worker: &WorkerId) -> Result<String, String> {
        Ok(String::new())
    }
}

/// Reports the driver's acts to the world.
pub(super) struct SimObserver {
    pub(super) port: Port,
    pub(super) life: u32,
}

impl SimObserver {
    fn tell(&self, what: impl FnOnce(&mut World)) {
        self.port.call(|world| world.in_life(self.life, what));
    }
}

impl DriverObserver for SimObserver {
    fn event(&mut self, _at: SystemTime, event: &DriverEvent) {
        self.tell(|world| world.driver_event(event.clone()));
    }

    fn hosts(&mut self, hosts: &HostsSnapshot) {
        self.tell(|world| world.hosts_changed(hosts));
    }

    fn ended(&mut self, result: &JobResult) {
        self.tell(|world| world.driver_ended(result.clone()));
    }

    fn abandoned(&mut self, reason: &str, _: bool) {
        let reason = reason.to_owned();
        self.tell(|world| world.abandon(&reason));
    }

    fn handed_over(&mut self) {
        self.tell(|world| world.fail_safety("there is nobody to hand over to".to_owned()));
    }
}
