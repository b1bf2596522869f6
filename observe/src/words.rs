//! Events in words: one sentence an event, with its level. Called by the driver's process for its log, and by the page.
//! The texts contain words of workers, hosts and scripts. Each reader escapes them for its medium.

use std::collections::BTreeMap;

use elastic_driver::{EventKind, HostResetMs, ResetWay};
use elastic_protocol::messages::{PhaseMs, ProcessNamed};
use elastic_protocol::{GenerationId, HostName, counted};
use serde::Serialize;

/// The most hosts or workers that a sentence names.
const NAMES_MAX: usize = 64;

/// Importance of an event to a person.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventLevel {
    /// An event that is expected while a job starts or resets.
    Debug,
    /// An event of a job's normal operation.
    Info,
    /// An event that should not have happened.
    Warn,
}

/// An event in words.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EventWords {
    /// The level.
    pub level: EventLevel,
    /// The sentence, without a full stop.
    pub text: String,
}

/// An event in words.
pub fn describe_event(generation: GenerationId, event: &EventKind) -> EventWords {
    EventWords { level: level_of(event), text: text_of(generation, event) }
}

fn level_of(event: &EventKind) -> EventLevel {
    let warn_if = |is_warning| if is_warning { EventLevel::Warn } else { EventLevel::Info };
    match event {
        EventKind::HostRefused { .. }
        | EventKind::HostLost { .. }
        | EventKind::HostBlacklisted { .. }
        | EventKind::HostUnreachable(_)
        | EventKind::CheckpointFailed { .. }
        | EventKind::Abandoned { .. }
        | EventKind::Warning { .. }
        | EventKind::WorkerStalled { .. }
        | EventKind::WorkerFailed { .. }
        | EventKind::WorkerNotStarted { .. }
        | EventKind::StragglerFound { .. }
        | EventKind::SlowLinkFound { .. }
        | EventKind::HealthCheckFailed { .. }
        | EventKind::WorkerReplaced { .. }
        | EventKind::WorkerNotReplaced { .. }
        | EventKind::ShardsRebalanced { .. }
        | EventKind::NotRebalanced { .. }
        | EventKind::ReplicasDiffer { .. }
        | EventKind::WorkerOutOfMemory { .. }
        | EventKind::WorkerExited { expected: false, .. } => EventLevel::Warn,
        EventKind::ResetDecided { way, .. } => warn_if(*way == ResetWay::Abort),
        EventKind::StateLost { steps_lost, unseen, .. } => warn_if(*steps_lost > 0 || *unseen),
        EventKind::CheckpointLoaded { notes, .. } => warn_if(!notes.is_empty()),
        EventKind::TakeoverDone { lost, .. } => warn_if(*lost > 0),
        EventKind::WorkerStarted { .. }
        | EventKind::ProcessStarted { .. }
        | EventKind::StepsMeasured { .. }
        | EventKind::WorkerAttached { .. }
        | EventKind::WorkerExited { .. }
        | EventKind::WorkerStopped { .. }
        | EventKind::GenerationFormed { .. }
        | EventKind::GenerationTakenBack { .. }
        | EventKind::FirstSteps { .. } => EventLevel::Debug,
        EventKind::HostJoined { .. }
        | EventKind::HostsChanged { .. }
        | EventKind::HostDrained { .. }
        | EventKind::HostReadmitted { .. }
        | EventKind::GenerationRunning { .. }
        | EventKind::ResetCalledOff { .. }
        | EventKind::StallEnded { .. }
        | EventKind::StragglerRecovered { .. }
        | EventKind::SlowLinkRecovered { .. }
        | EventKind::ReplacementTook { .. }
        | EventKind::SlotRested { .. }
        | EventKind::HealthCheckPassed { .. }
        | EventKind::RebalanceTook { .. }
        | EventKind::NotCompared { .. }
        | EventKind::ResetDone { .. }
        | EventKind::CheckpointSaved { .. }
        | EventKind::TakeoverBegun { .. }
        | EventKind::StandbysChanged { .. }
        | EventKind::HandedOver { .. }
        | EventKind::Stopping { .. }
        | EventKind::JobEnded { .. } => EventLevel::Info,
    }
}

/// Calls of a native stack that a line shows: the innermost ones are those of the system, the next is the program's.
const NATIVE_CALLS_SHOWN: usize = 4;

/// Most workers that are named in the words for a deal of shards, and most numbers of shards.
const DEALT_FOR_MAX: usize = 8;
const COUNTS_SHOWN_MAX: usize = 16;

/// The number of shards of each rank.
fn dealt(counts: &[u32]) -> String {
    let shown: Vec<String> = counts.iter().take(COUNTS_SHOWN_MAX).map(u32::to_string).collect();
    let more = if counts.len() > COUNTS_SHOWN_MAX { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// Some ranks, such as `ranks 2 and 3`.
fn ranks_of(ranks: &[u32]) -> String {
    let all: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    match all.split_last() {
        Some((last, [])) => format!("rank {last}"),
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
        None => "no rank".to_owned(),
    }
}

fn text_of(generation: GenerationId, event: &EventKind) -> String {
    match event {
        EventKind::HostJoined { host, slots } => {
            format!("host {host} joined with {}", counted(*slots, "slot"))
        }
        EventKind::HostRefused { host, reason } => format!("host {host} was refused: {reason}"),
        EventKind::HostLost { host, reason } => format!("host {host} is lost: {reason}"),
        EventKind::HostBlacklisted { host, reason, for_ms } => {
            let term = match for_ms {
                Some(ms) => format!("for {:.0} s", ms / 1e3),
                None => "for good".to_owned(),
            };
            format!(
                "host {host} is BLACKLISTED {term}: {reason} (`elastic-node readmit {host}` lets it in again)"
            )
        }
        EventKind::HostDrained { host } => {
            format!("host {host} is drained, as the operator asked: its workers leave in order")
        }
        EventKind::HostReadmitted { host } => format!("host {host} may have workers again"),
        EventKind::HostUnreachable(pair) => pair.to_string(),
        EventKind::HostsChanged { hosts, .. } => format!("hosts: {}", list(hosts)),
        EventKind::WorkerStarted { worker } => format!("{worker} is started"),
        EventKind::ProcessStarted { worker, pid } => format!("{worker} runs as process {pid}"),
        EventKind::StepsMeasured { ms, data, commit, straggler, slowest } => {
            let percent = |share: f64| format!("{:.1} %", share * 100.0);
            let whom = match &slowest[..] {
                [] => String::new(),
                slowest => format!(", for {}", list(slowest)),
            };
            format!(
                "of the last {:.0} s, steps waited {} for data, {} for commits and {} for slow members{whom}",
                ms / 1e3,
                percent(*data),
                percent(*commit),
                percent(*straggler)
            )
        }
        EventKind::WorkerAttached { worker, pid } => format!("{worker} attached (pid {pid})"),
        EventKind::WorkerExited { worker, status, killed_after_grace, .. } => {
            let note = if *killed_after_grace { ", after SIGTERM was ignored" } else { "" };
            format!("{worker} ended: {status}{note}")
        }
        EventKind::WorkerFailed { worker, error } => {
            format!("{worker} failed as its generation ended: {error}")
        }
        EventKind::WorkerNotStarted { worker, reason } => {
            format!("{worker} could not start: {reason}")
        }
        EventKind::WorkerOutOfMemory { worker, detail } => format!("{worker} was {detail}"),
        EventKind::WorkerStopped { worker, reason } => format!("{worker} is to end: {reason}"),
        EventKind::GenerationFormed { members, root, step } => {
            let from = match root {
                Some(root) => format!("state from rank {root}"),
                None => "all hold the same state".to_owned(),
            };
            format!("generation {generation}: {} (step {step}, {from})", list(members))
        }
        EventKind::GenerationRunning { world_size } => {
            format!("generation {generation} runs with {}", counted(*world_size, "worker"))
        }
        EventKind::WorkerStalled {
            worker,
            rank,
            operation,
            waiting,
            late_ms,
            doing,
            stack,
            native_stack,
            grounds,
            pid,
            silent_ms,
        } => {
            let who = ProcessNamed(*pid);
            let others = if *waiting == 1 { "other has" } else { "others have" };
            let at = innermost(stack.as_deref(), native_stack.as_deref());
            if let Some(grounds) = grounds {
                return format!(
                    "{worker} (rank {rank}) HANGS: for {late_ms} ms {grounds}, and {who} {doing}{at}"
                );
            }
            if let Some(silent_ms) = silent_ms {
                let waits = match waiting {
                    0 => format!("it is awaited in {operation}"),
                    _ => {
                        format!("{waiting} {others} waited for it for {late_ms} ms in {operation}")
                    }
                };
                return format!(
                    "{worker} (rank {rank}) HANGS: it has not been heard for {silent_ms} ms, and {who} {doing}; {waits}"
                );
            }
            format!(
                "{worker} (rank {rank}) HANGS: {waiting} {others} waited for it for {late_ms} ms in {operation}, and \
                 {who} {doing}{at}"
            )
        }
        EventKind::StallEnded { worker, ms, .. } => {
            format!("{worker} goes on: others had waited for it for {ms:.0} ms")
        }
        EventKind::StragglerFound {
            worker,
            rank,
            ranks,
            is_host,
            factor,
            own_factor,
            compute_ms,
            peers_ms,
            slow_ms,
        } => {
            let who = match is_host {
                true => format!("host {} is SLOW, with {}", worker.host, ranks_of(ranks)),
                false => format!("{worker} (rank {rank}) is SLOW"),
            };
            let whose = if *is_host { format!("rank {rank}") } else { "it".to_owned() };
            let before = own_factor.map_or_else(String::new, |factor| {
                format!(", {factor:.1} times as long as before")
            });
            format!(
                "{who}: {whose} computes {compute_ms:.1} ms a step, {factor:.1} times as long as its peers ({peers_ms:.1} \
                 ms){before}, for {:.0} s; they wait for it in each step",
                slow_ms / 1e3
            )
        }
        EventKind::StragglerRecovered { worker, rank, ms } => format!(
            "{worker} (rank {rank}) is as fast as its peers again; it was slow for {:.0} s",
            ms / 1e3
        ),
        EventKind::SlowLinkFound {
            from,
            to,
            host,
            factor,
            rate_mb_per_s,
            others_mb_per_s,
            loss_ms,
            slow_ms,
        } => {
            let whose = match host {
                Some(host) if host == from => format!("; all links from {host} are slow"),
                Some(host) => format!("; all links to {host} are slow"),
                None => String::new(),
            };
            format!(
                "the link from {from} to {to} is SLOW: it carries {rate_mb_per_s:.1} MB/s, the others {others_mb_per_s:.1} MB/s \
                 ({factor:.1} times as fast), for {:.0} s; {to} loses {loss_ms:.1} ms a step{whose}",
                slow_ms / 1e3
            )
        }
        EventKind::HealthCheckPassed { host } => {
            format!("host {host} has passed its health check")
        }
        EventKind::HealthCheckFailed { host, slots, reason, output } => {
            let slots: Vec<String> = slots.iter().map(u32::to_string).collect();
            let said = match output.is_empty() {
                true => String::new(),
                false => format!("; it said: {output}"),
            };
            let slots = slots.join(", ");
            format!(
                "the health check of host {host} has FAILED: {reason}; {host}[{slots}] stays closed until it passes{said}"
            )
        }
        EventKind::SlowLinkRecovered { from, to, ms } => format!(
            "the link from {from} to {to} is as fast as the others again; it was slow for {:.0} s",
            ms / 1e3
        ),
        EventKind::WorkerReplaced { worker, rank, ranks, is_host, why, spares, rest_s } => {
            let who = match is_host {
                true => format!("host {} is replaced, with {}", worker.host, ranks_of(ranks)),
                false => format!("{worker} (rank {rank}) is replaced"),
            };
            let by = match (ranks.len(), *spares as usize) {
                (_, 0) => "no spare slot takes its place".to_owned(),
                (1, _) => "a spare slot takes its place".to_owned(),
                (all, spares) => format!("spare slots take {spares} of {all} places"),
            };
            let whose = if *is_host { "its host" } else { "it" };
            format!("{who}, since {whose} {why}: {by}; its own rests for {rest_s:.0} s")
        }
        EventKind::WorkerNotReplaced { worker, rank, why, reason } => {
            format!("{worker} (rank {rank}) {why} and is not replaced by another slot: {reason}")
        }
        EventKind::ReplacementTook {
            worker,
            by,
            world_before,
            world_size,
            before_ms,
            after_ms,
        } => {
            let by = if by.is_empty() { "nobody".to_owned() } else { list(by) };
            let before = before_ms.map_or_else(
                || "the job stood still".to_owned(),
                |ms| format!("steps took {ms:.1} ms"),
            );
            format!(
                "{worker} was replaced by {by}: {before} with {}, and steps take {after_ms:.1} ms with {}",
                counted(*world_before, "worker"),
                counted(*world_size, "worker")
            )
        }
        EventKind::SlotRested { host, slot } => {
            format!("{host}[{slot}] has rested: it may have a worker like any other slot")
        }
        EventKind::ShardsRebalanced {
            workers,
            ranks,
            factors,
            counts_before,
            shard_counts,
            before_ms,
            predicted_ms,
        } => {
            let named = workers.iter().zip(ranks).zip(factors).map(|((worker, rank), factor)| {
                let pace = match *factor > 1.0 {
                    true => format!("takes {factor:.1} times as long for a shard as its peers"),
                    false => "is as fast as its peers again".to_owned(),
                };
                format!("{worker} (rank {rank}) {pace}")
            });
            let named: Vec<String> = named.take(DEALT_FOR_MAX).collect();
            let more = match workers.len() - named.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!(
                "{}{more}: shards are dealt as {} instead of {}; steps took {before_ms:.1} ms, {predicted_ms:.1} ms are \
                 expected",
                named.join(", "),
                dealt(shard_counts),
                dealt(counts_before)
            )
        }
        EventKind::NotRebalanced { worker, rank, reason } => {
            format!("{worker} (rank {rank}) is slow and carries no fewer shards: {reason}")
        }
        EventKind::RebalanceTook { workers, shard_counts, before_ms, predicted_ms, after_ms } => {
            format!(
                "shards dealt as {} for {}: steps took {before_ms:.1} ms, and take {after_ms:.1} ms ({predicted_ms:.1} ms \
             were expected)",
                dealt(shard_counts),
                list(workers)
            )
        }
        EventKind::ReplicasDiffer { tensor, step, workers, ranks, agreeing, members } => {
            let named: Vec<String> = workers.iter().map(ToString::to_string).collect();
            let who = format!("{} ({})", ranks_of(ranks), named.join(", "));
            match agreeing * 2 > *members {
                true => format!(
                    "replicas DIFFER: {who} in {tensor} since step {step}; {agreeing} of {members} ranks agree on other content"
                ),
                false => format!(
                    "replicas DIFFER: {who} in {tensor} since step {step}; no majority agrees, so nobody knows which is right"
                ),
            }
        }
        EventKind::NotCompared { tensor, reason } if tensor.is_empty() => reason.clone(),
        EventKind::NotCompared { tensor, reason } => format!("{tensor} {reason}"),
        EventKind::ResetDecided { cause, way } => {
            format!("generation {generation} ends ({}): {cause}", way.name())
        }
        EventKind::ResetCalledOff { reason } => {
            format!("generation {generation} goes on: {reason}")
        }
        EventKind::GenerationTakenBack { worker } => format!(
            "generation {generation} is taken back: {worker} is elastic in process, every process is kept"
        ),
        EventKind::ResetDone { ms, steps_lost, lost_ms, .. } => {
            let steps = counted(*steps_lost, "step");
            let lost = match lost_ms {
                0 => steps,
                _ => format!("{steps} and {lost_ms} ms of training"),
            };
            format!("reset done: {}; {lost} lost", describe_phases(ms))
        }
        EventKind::FirstSteps { from, hosts } => match slowest_first_step(hosts) {
            Some((host, ms)) => {
                format!("first steps after generation {from}: the last on {host}, after {ms:.1} ms")
            }
            None => format!("no host has trained a step yet after generation {from}"),
        },
        EventKind::StateLost { committed, begins_at, steps_lost: 0, unseen: true } => format!(
            "STEPS MAY BE LOST: every worker is gone, step {committed} was the last that a driver knew of, and the workers may have \
             trained on without one. Training begins again at step {begins_at}, unless a later checkpoint is found."
        ),
        EventKind::StateLost { committed, begins_at, steps_lost, unseen: true } => format!(
            "STEPS ARE LOST: every worker is gone, step {committed} was the last that a driver knew of, and the workers may have \
             trained on without one. Training begins again {}, {}.",
            match begins_at {
                0 => "from the start".to_owned(),
                step => format!("at step {step}"),
            },
            lost_at_least(*steps_lost)
        ),
        EventKind::StateLost { committed, begins_at, steps_lost: 0, .. } => format!(
            "no step is lost: every worker that held committed step {committed} is gone, and training begins again at step \
             {begins_at}"
        ),
        // With --on-total-loss fail, training begins again from a checkpoint only, and never from the start.
        EventKind::StateLost { committed, begins_at: 0, steps_lost, .. } => format!(
            "STEPS ARE LOST: every worker that held committed step {committed} is gone. Training begins again from the start, \
             {}. More workers on more hosts would have kept them, and so would checkpoints \
             (--on-total-loss fail ends the job instead)",
            lost_at_least(*steps_lost)
        ),
        EventKind::StateLost { committed, begins_at, steps_lost, .. } => format!(
            "STEPS ARE LOST: every worker that held committed step {committed} is gone. Training begins again at step \
             {begins_at}, {}. More workers on more hosts would have kept them; of checkpoints that \
             are saved more often (--checkpoint-every), fewer are lost",
            lost_at_least(*steps_lost)
        ),
        EventKind::CheckpointSaved { step, bytes, ms } => {
            format!(
                "the checkpoint of step {step} is saved: {bytes} bytes, {ms:.0} ms after its order"
            )
        }
        EventKind::CheckpointFailed { step, reason } => {
            format!("the checkpoint of step {step} is not saved: {reason}")
        }
        EventKind::Stopping { reason, within_ms } => format!(
            "{reason}: the next commit is saved first, within {:.1} s; a second request ends the job at once",
            *within_ms as f64 / 1000.0
        ),
        EventKind::CheckpointLoaded { step, regained, notes } => {
            let begun = match step {
                Some(step) => format!("training goes on from the checkpoint of step {step}"),
                None => "there is no checkpoint: training begins from the start".to_owned(),
            };
            let notes = notes.iter().map(|note| format!("; checkpoints: {note}"));
            let found = match regained {
                0 => String::new(),
                _ => format!(
                    ", of which the driver had not heard: of the steps told to be lost, {} not",
                    match regained {
                        1 => "1 is".to_owned(),
                        steps => format!("{steps} are"),
                    }
                ),
            };
            begun + &found + &notes.collect::<String>()
        }
        EventKind::TakeoverBegun { hosts, workers, .. } => {
            let (hosts, workers) = (counted(*hosts, "host"), counted(*workers, "worker"));
            format!("a former driver's job goes on: {hosts} with {workers} are awaited")
        }
        EventKind::TakeoverDone { lost: 0, ms } => format!("all are back after {ms:.0} ms"),
        EventKind::TakeoverDone { lost, ms } => format!("{lost} were not back after {ms:.0} ms"),
        EventKind::StandbysChanged { standbys } => {
            format!("drivers that stand by: {}", list(standbys))
        }
        EventKind::HandedOver { to } => format!("the job is left to {}", list(to)),
        EventKind::Abandoned { reason } => format!("this driver has stopped leading: {reason}"),
        EventKind::Warning { message } => message.clone(),
        EventKind::JobEnded { result } => format!("the job ends: {}", result.reason),
    }
}

/// The host whose first step after a reset came last, and when, in milliseconds since the decision.
fn slowest_first_step(hosts: &BTreeMap<HostName, HostResetMs>) -> Option<(&HostName, f64)> {
    let known = hosts.iter().filter_map(|(host, ms)| Some((host, ms.first_step?)));
    known.max_by(|left, right| left.1.total_cmp(&right.1))
}

/// The place of a hang, as words behind the worker's activity: the innermost call of its Python stack, or, without one,
/// the innermost calls of its native stack.
fn innermost(stack: Option<&str>, native_stack: Option<&str>) -> String {
    if let Some(call) = stack.and_then(innermost_call) {
        return format!("; its innermost call: {call}");
    }
    let calls = native_stack.into_iter().flat_map(str::lines).take(NATIVE_CALLS_SHOWN);
    let calls: Vec<&str> = calls.collect();
    match calls.is_empty() {
        true => String::new(),
        false => format!("; its innermost calls: {}", calls.join(" < ")),
    }
}

/// The innermost call of a Python stack, as `faulthandler` writes it: `File "train.py", line 7 in load`.
pub fn innermost_call(stack: &str) -> Option<&str> {
    stack.lines().map(str::trim).find(|line| line.starts_with("File "))
}

/// The known phases of a reset, in milliseconds.
pub fn describe_phases(ms: &PhaseMs) -> String {
    let phases =
        [("detect", Some(ms.detect)), ("form", ms.form), ("sync", ms.sync), ("total", ms.total)];
    let known: Vec<String> =
        phases.into_iter().filter_map(|(name, ms)| Some(format!("{name} {:.1} ms", ms?))).collect();
    known.join(", ")
}

fn list(names: &[impl ToString]) -> String {
    let shown: Vec<String> = names.iter().take(NAMES_MAX).map(ToString::to_string).collect();
    match names.len() - shown.len() {
        0 if shown.is_empty() => "none".to_owned(),
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The steps that a total loss has lost. Workers tell their progress several times a second, and not each step: those that are gone may
/// have made more.
fn lost_at_least(steps: u64) -> String {
    match steps {
        1 => "at least 1 step is lost".to_owned(),
        steps => format!("at least {steps} steps are lost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l_1_steps_that_the_workers_had_not_told_may_be_lost_as_well() {
        for (begins_at, unseen, said) in [
            (0, false, "from the start, at least 1 step is lost."),
            (0, true, "from the start, at least 1 step is lost."),
            (1, false, "at step 1, at least 1 step is lost."),
        ] {
            let lost =
                EventKind::StateLost { committed: begins_at + 1, begins_at, steps_lost: 1, unseen };
            let text = describe_event(GenerationId(2), &lost).text;
            assert!(text.contains(said), "{text}");
        }
    }

    #[test]
    fn l_1_a_loss_of_no_step_is_no_alarm() {
        let lost = |begins_at| EventKind::StateLost {
            committed: 1_237,
            begins_at,
            steps_lost: 1_237 - begins_at,
            unseen: false,
        };
        let words = describe_event(GenerationId(2), &lost(1_237));
        let text = "no step is lost: every worker that held committed step 1237 is gone, and training begins again at step 1237";
        assert_eq!((words.level, words.text.as_str()), (EventLevel::Info, text));
        let words = describe_event(GenerationId(2), &lost(1_220));
        assert_eq!(words.level, EventLevel::Warn);
        assert!(words.text.starts_with("STEPS ARE LOST: "), "{}", words.text);
    }

    #[test]
    fn l_1_no_number_is_told_for_steps_that_no_driver_has_seen() {
        for (begins_at, begins, said) in [
            (0, "from the start", "at least 92 steps are lost"),
            (92, "at step 92", "STEPS MAY BE LOST"),
        ] {
            let lost = EventKind::StateLost {
                committed: 92,
                begins_at,
                steps_lost: 92 - begins_at,
                unseen: true,
            };
            let words = describe_event(GenerationId(2), &lost);
            assert_eq!(words.level, EventLevel::Warn);
            assert!(words.text.contains(begins) && words.text.contains(said), "{}", words.text);
        }
    }

    #[test]
    fn l_1_the_way_out_of_a_loss_of_steps_is_one_that_was_not_taken() {
        let text = |begins_at| {
            let unseen = false;
            let lost = EventKind::StateLost { committed: 200, begins_at, steps_lost: 46, unseen };
            describe_event(GenerationId(2), &lost).text
        };
        // A job with --on-total-loss fail goes on from a checkpoint.
        assert!(text(180).contains("(--checkpoint-every)"), "{}", text(180));
        assert!(!text(180).contains("--on-total-loss"), "{}", text(180));
        assert!(text(0).contains("from the start"), "{}", text(0));
        assert!(text(0).contains("--on-total-loss fail ends the job instead"), "{}", text(0));
    }

    #[test]
    fn l_1_a_checkpoint_of_which_no_driver_had_heard_says_how_many_steps_are_not_lost() {
        let text = |regained| {
            let loaded =
                EventKind::CheckpointLoaded { step: Some(80), regained, notes: Vec::new() };
            describe_event(GenerationId(2), &loaded).text
        };
        assert_eq!(text(0), "training goes on from the checkpoint of step 80");
        let words = "training goes on from the checkpoint of step 80, of which the driver had not heard: of the steps told to be lost, \
                     20 are not";
        assert_eq!(text(20), words);
    }

    #[test]
    fn a_sentence_names_so_many_and_counts_the_others() {
        let names: Vec<u32> = (0..66).collect();
        assert_eq!(list(&names[..0]), "none");
        assert_eq!(list(&names[..2]), "0, 1");
        assert!(list(&names[..64]).ends_with("62, 63"));
        assert!(list(&names).ends_with("62, 63 and 2 more"));
    }
}
