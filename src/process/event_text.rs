//! Events in words, for the log of the driver's process.

use elastic_driver::EventKind;
use tracing::{info, warn};

use crate::cli::describe_phases;

/// Logs an event.
pub(crate) fn log_event(generation: u64, event: &EventKind) {
    match event {
        EventKind::HostJoined { host, .. } => info!("host {host} joined"),
        EventKind::HostRefused { host, reason } => warn!("host {host} was refused: {reason}"),
        EventKind::HostLost { host, reason } => warn!("host {host} is lost: {reason}"),
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
        EventKind::WorkerStopped { worker, reason } => info!("{worker} is to end: {reason}"),
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
            if *way == "abort" {
                warn!("generation {generation} ends ({way}): {cause}");
            } else {
                info!("generation {generation} ends ({way}): {cause}");
            }
        }
        EventKind::ResetCalledOff { reason } => {
            info!("generation {generation} goes on: {reason}");
        }
        EventKind::GenerationTakenBack { worker } => {
            info!(
                "generation {generation} is taken back: {worker} is elastic in process, every process is kept"
            );
        }
        EventKind::ResetDone { ms, steps_lost, .. } => {
            info!("reset done: {}; {steps_lost} steps lost", describe_phases(ms));
        }
        EventKind::TakeoverBegun { hosts, workers } => {
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
        EventKind::Abandoned { reason } => warn!("this driver acts no more: {reason}"),
        EventKind::Warning { message } => warn!("{message}"),
        EventKind::JobEnded { result } => info!("the job ends: {}", result.reason),
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
