//! Events as text, for the log of the driver's process. Called by `observer`.

use elastic_driver::{EventKind, ResetWay};
use elastic_protocol::GenerationId;
use elastic_protocol::messages::UnreachableHost;
use tracing::{info, warn};

use crate::command_line::{describe_phases, printable};

/// Logs an event.
pub(crate) fn log_event(generation: GenerationId, event: &EventKind) {
    match event {
        EventKind::HostJoined { host, .. } => info!("host {host} joined"),
        EventKind::HostRefused { host, reason } => {
            warn!("host {host} was refused: {}", printable(reason))
        }
        EventKind::HostLost { host, reason } => warn!("host {host} is lost: {}", printable(reason)),
        EventKind::HostUnreachable(UnreachableHost { from, to, breaks, error }) => {
            let error = printable(error);
            warn!("host {from} does not reach host {to} ({breaks} generations in a row): {error}");
        }
        EventKind::HostsChanged { hosts } => info!("hosts: {}", list(hosts)),
        EventKind::WorkerStarted { worker } => info!("{worker} is started"),
        EventKind::WorkerAttached { worker, pid } => info!("{worker} attached (pid {pid})"),
        EventKind::WorkerExited { worker, status, expected, killed_after_grace } => {
            let note = if *killed_after_grace { ", after SIGTERM was ignored" } else { "" };
            if *expected {
                info!("{worker} ended: {status}{note}");
            } else {
                warn!("{worker} ended: {status}{note}");
            }
        }
        EventKind::WorkerStopped { worker, reason } => {
            info!("{worker} is to end: {}", printable(reason))
        }
        EventKind::GenerationFormed { members, root, step } => {
            let from = match root {
                Some(root) => format!("state from rank {root}"),
                None => "all hold the same state".to_owned(),
            };
            info!("generation {generation}: {} (step {step}, {from})", list(members));
        }
        EventKind::GenerationRunning { world_size } => {
            info!("generation {generation} trains with {world_size} workers");
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
            info!(
                "generation {generation} is taken back: {worker} is elastic in process, every process is kept"
            );
        }
        EventKind::ResetDone { ms, steps_lost, .. } => {
            info!("reset done: {}; {steps_lost} steps lost", describe_phases(ms));
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
                "a former driver's job goes on: {hosts} hosts with {workers} workers are awaited"
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

fn list(names: &[impl ToString]) -> String {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
