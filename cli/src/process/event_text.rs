//! Events as text, for the log of the driver's process. Called by `observer`.
//!
//! Each line of the default level is worth a reader's time: what is expected while a job starts or resets (processes that
//! start, attach and stop) is said at `debug`, and stands in the event log.

use std::fmt::Display;

use elastic_driver::{EventKind, ResetWay};
use elastic_protocol::GenerationId;
use elastic_protocol::messages::UnreachableHost;
use tracing::{debug, info, warn};

use crate::command_line::{describe_phases, printable};

/// What decides at which level an event is said.
#[derive(Debug, Default)]
pub(super) struct EventText {
    /// Whether agents are started by this driver: that they join is expected then.
    starts_agents: bool,
    /// Whether a generation has run.
    has_run: bool,
}

impl EventText {
    /// The text of a driver that starts its agents itself, or is joined by them.
    pub(super) fn new(starts_agents: bool) -> Self {
        Self { starts_agents, has_run: false }
    }

    /// Logs an event.
    pub(super) fn log(&mut self, generation: GenerationId, event: &EventKind) {
        let is_expected = match event {
            EventKind::HostJoined { .. } => self.starts_agents && !self.has_run,
            EventKind::HostsChanged { .. } => !self.has_run,
            _ => false,
        };
        self.has_run |= matches!(event, EventKind::GenerationRunning { .. });
        match event {
            EventKind::HostJoined { host, .. } if is_expected => debug!("host {host} joined"),
            EventKind::HostsChanged { hosts } if is_expected => debug!("hosts: {}", list(hosts)),
            _ => log_event(generation, event),
        }
    }
}

fn log_event(generation: GenerationId, event: &EventKind) {
    match event {
        EventKind::HostJoined { host, slots } => {
            info!("host {host} joined with {}", count(*slots, "slot"));
        }
        EventKind::HostRefused { host, reason } => {
            warn!("host {host} was refused: {}", printable(reason))
        }
        EventKind::HostLost { host, reason } => warn!("host {host} is lost: {}", printable(reason)),
        EventKind::HostUnreachable(UnreachableHost { from, to, breaks, error }) => {
            let error = printable(error);
            warn!("host {from} does not reach host {to} ({breaks} generations in a row): {error}");
        }
        EventKind::HostsChanged { hosts } => info!("hosts: {}", list(hosts)),
        EventKind::WorkerStarted { worker } => debug!("{worker} is started"),
        EventKind::WorkerAttached { worker, pid } => debug!("{worker} attached (pid {pid})"),
        EventKind::WorkerExited { worker, status, expected, killed_after_grace } => {
            let note = if *killed_after_grace { ", after SIGTERM was ignored" } else { "" };
            if *expected {
                debug!("{worker} ended: {status}{note}");
            } else {
                warn!("{worker} ended: {status}{note}");
            }
        }
        EventKind::WorkerStopped { worker, reason } => {
            debug!("{worker} is to end: {}", printable(reason))
        }
        EventKind::GenerationFormed { members, root, step } => {
            let from = match root {
                Some(root) => format!("state from rank {root}"),
                None => "all hold the same state".to_owned(),
            };
            debug!("generation {generation}: {} (step {step}, {from})", list(members));
        }
        EventKind::GenerationRunning { world_size } => {
            info!("generation {generation} runs with {}", count(*world_size, "worker"));
        }
        EventKind::ResetDecided { cause, way } => {
            let (name, cause) = (way.name(), cause.to_string());
            if *way == ResetWay::Abort {
                warn!("generation {generation} ends ({name}): {}", printable(&cause));
            } else {
                info!("generation {generation} ends ({name}): {}", printable(&cause));
            }
        }
        EventKind::ResetCalledOff { reason } => {
            info!("generation {generation} goes on: {}", printable(reason));
        }
        EventKind::GenerationTakenBack { worker } => {
            // The next generation, with the same processes, says that it runs.
            debug!(
                "generation {generation} is taken back: {worker} is elastic in process, every process is kept"
            );
        }
        EventKind::ResetDone { ms, steps_lost, .. } => {
            let lost = count(*steps_lost, "step");
            info!("reset done: {}; {lost} lost", describe_phases(ms));
        }
        EventKind::StateLost { committed, begins_at, steps_lost } => warn!(
            "STEPS ARE LOST: every worker that held committed step {committed} is gone. Training begins again at step \
             {begins_at}, {steps_lost} steps are lost. More workers on more hosts would have kept them \
             (--on-total-loss fail ends the job instead)"
        ),
        EventKind::CheckpointSaved { step, bytes, ms } => {
            info!(
                "the checkpoint of step {step} is saved: {bytes} bytes, {ms:.0} ms after its order"
            );
        }
        EventKind::CheckpointFailed { step, reason } => {
            warn!(
                "the checkpoint of step {step} is not saved, and training goes on: {}",
                printable(reason)
            );
        }
        EventKind::CheckpointLoaded { step, notes } => {
            match step {
                Some(step) => info!("training goes on from the checkpoint of step {step}"),
                None => info!("there is no checkpoint: training begins from the start"),
            }
            notes.iter().for_each(|note| warn!("checkpoints: {}", printable(note)));
        }
        EventKind::TakeoverBegun { hosts, workers, .. } => {
            info!(
                "a former driver's job goes on: {} with {} are awaited",
                count(*hosts, "host"),
                count(*workers, "worker")
            );
        }
        EventKind::TakeoverDone { lost: 0, ms } => info!("all are back after {ms:.0} ms"),
        EventKind::TakeoverDone { lost, ms } => warn!("{lost} were not back after {ms:.0} ms"),
        EventKind::StandbysChanged { standbys } => {
            info!("drivers that stand by: {}", list(standbys))
        }
        EventKind::HandedOver { to } => info!("the job is left to {}", list(to)),
        EventKind::Abandoned { reason } => {
            warn!("this driver has stopped leading: {}", printable(reason))
        }
        EventKind::Warning { message } => warn!("{}", printable(message)),
        EventKind::JobEnded { result } => info!("the job ends: {}", printable(&result.reason)),
    }
}

/// A number with its noun, singular or plural.
fn count<N: Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    format!("{number} {noun}{}", if number == N::from(1) { "" } else { "s" })
}

fn list(names: &[impl ToString]) -> String {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
