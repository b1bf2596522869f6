//! Decisions in words: the content of each message, command, verdict and event of the nodes, for the recorded decisions. Called
//! when the world carries an output out.
//!
//! The words are written here, and not taken from `Debug` or the codec: a renamed field or another encoding is no other
//! decision. Ids of sessions, keys, digests and credentials are left out.

use std::fmt::Display;

use elastic_agent::core::SpawnOrder;
use elastic_driver::{EventKind, HostResetMs};
use elastic_host_manager::{HostEntry, HostState, HostUpdate, HostsSnapshot};
use elastic_protocol::messages::{
    AgentToDriver, Ballot, DriverToAgent, DriverToWorker, Formation, FormationTable, JobShards,
    LibraryTrace, LiveWorker, Placement, ProcessPlace, StatusReport, StoppedBy, SyncPlan, Vote,
    WorkerToDriver,
};
use elastic_protocol::{Assignment, CommitId, JobOutcome, JobResult, Stamp};
use elastic_registry::{GenerationVerdict, Incident, RestartBudget};
use elastic_runtime::transport::LinkEvent;
use elastic_worker::state::core::{RunExit, TrainingCommand};

/// A generation with its term.
pub(crate) fn stamp(stamp: Stamp) -> String {
    format!("{}.{}", stamp.term, stamp.generation)
}

pub(super) fn or_none<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

/// Names in their order.
pub(crate) fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let names: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

fn commit(commit: Option<CommitId>) -> String {
    or_none(commit)
}

fn place(place: Option<ProcessPlace>) -> String {
    match place {
        None => "for any generation".to_owned(),
        Some(ProcessPlace { stamp: of, rank, local_rank }) => {
            format!("rank {rank} (local {local_rank}) of {}", stamp(of))
        }
    }
}

fn sync(plan: SyncPlan) -> String {
    match plan {
        SyncPlan::Skip => "without a sync".to_owned(),
        SyncPlan::FromRoot { root } => format!("synced from rank {root}"),
    }
}

fn table(assignment: &Assignment) -> String {
    list(
        assignment
            .members()
            .map(|member| format!("{}:{}:{}", member.worker, member.local_rank, member.cross_rank)),
    )
}

fn formation(formation: &Formation) -> String {
    let Formation { stamp: of, table: told, sync: plan, step, encrypts, shards, .. } = formation;
    let told = match told {
        FormationTable::Full(assignment) => format!("table {}", table(assignment)),
        FormationTable::Delta(delta) => {
            format!("a change of the table that names {}", delta.members_named())
        }
    };
    let encrypts = if *encrypts { ", encrypted" } else { "" };
    let dealt = match shards {
        JobShards::Counted(counts) => format!(", dealt as {counts:?}"),
        JobShards::Unsaid | JobShards::Even(_) => String::new(),
    };
    format!("assign {} at step {step}, {}{encrypts}{dealt}, {told}", stamp(*of), sync(*plan))
}

fn placement(placement: &Placement) -> String {
    let Placement { stamp: of, assignment, rank, sync: plan, step, .. } = placement;
    let size = assignment.world_size();
    format!("form {} as rank {rank} of {size} at step {step}, {}", stamp(*of), sync(*plan))
}

fn result(result: &JobResult) -> String {
    let outcome = match result.outcome {
        JobOutcome::Succeeded => "succeeded",
        JobOutcome::Failed => "failed",
        JobOutcome::Stopped => "stopped",
    };
    let first = result.first_failure.as_ref().map(|failure| {
        let (rank, status) = (or_none(failure.rank), or_none(failure.status));
        format!("{} of rank {rank} ended with {status}: {}", failure.worker, failure.message)
    });
    format!(
        "{outcome} with code {} in generation {}: {}; first failure: {}; hint: {}",
        result.code,
        result.generation,
        result.reason,
        or_none(first),
        or_none(result.hint.as_deref())
    )
}

/// A job's result.
pub(crate) fn ended(of: &JobResult) -> String {
    format!("the job {}", result(of))
}

/// An agent's message to the driver.
pub(crate) fn from_agent(message: &AgentToDriver) -> String {
    match message {
        AgentToDriver::Join { slots, live, .. } => {
            let live = list(live.iter().map(|LiveWorker { worker, pid, is_being_stopped }| {
                let stopped = if *is_being_stopped { " (being stopped)" } else { "" };
                format!("{worker}:{pid}{stopped}")
            }));
            format!("join with {slots} slots, alive: {live}")
        }
        AgentToDriver::Started { worker, pid } => format!("{worker} has started as process {pid}"),
        AgentToDriver::StartFailed { worker, reason, .. } => {
            format!("{worker} was not started: {reason}")
        }
        AgentToDriver::Dying { worker } => format!("{worker} has died"),
        AgentToDriver::Exited { worker, status, stopped_by, killed_after_grace, library } => {
            let by = stopped_by.map(|by| match by {
                StoppedBy::Driver(term) => format!("the driver of term {term}"),
                StoppedBy::Agent => "the agent".to_owned(),
            });
            let killed = if *killed_after_grace { ", killed after its grace" } else { "" };
            let refused = match library {
                LibraryTrace::Refused(release) => format!(", refused as {release}"),
                LibraryTrace::Used => ", has used the library".to_owned(),
                LibraryTrace::Unseen => String::new(),
            };
            format!("{worker} has ended: {status}, stopped by {}{killed}{refused}", or_none(by))
        }
        AgentToDriver::Drain { reason } => format!("the host leaves: {reason}"),
        AgentToDriver::LastWords { worker, tail, error, .. } => {
            let error = error.as_ref().map(|error| error.message.as_str());
            format!("last words of {worker}: {tail:?}, error {}", or_none(error))
        }
        AgentToDriver::HealthChecked { number, failure } => match failure {
            Some(failure) => format!("health check {number} has failed: {failure}"),
            None => format!("health check {number} has passed"),
        },
        AgentToDriver::Inspected { worker, sight } => format!("{worker} {sight}"),
        AgentToDriver::HostChanged { meeting, hanging } => {
            let lanes = list(hanging.iter().map(|lane| &lane.name));
            format!("the host changed: met at {}, hanging: {lanes}", or_none(*meeting))
        }
    }
}

/// A worker's message to the driver.
pub(crate) fn from_worker(message: &WorkerToDriver) -> String {
    match message {
        WorkerToDriver::Attach { pid, stamp: of, active, commit: held, .. } => {
            let active = if *active { "active" } else { "not active" };
            format!("attach process {pid}, {active} in {}, holds {}", stamp(*of), commit(*held))
        }
        WorkerToDriver::Arrived { stamp: of, commit: held, undone } => {
            let steps = undone.steps;
            format!("arrived from {} with {}, {steps} steps lost", stamp(*of), commit(*held))
        }
        WorkerToDriver::Paused { stamp: of, boundary } => {
            format!("paused in {} at boundary {boundary}", stamp(*of))
        }
        WorkerToDriver::CollectiveFailed { stamp: of, peer, told_by, error } => {
            let told = told_by.map_or_else(String::new, |by| format!(", as rank {by} reports"));
            let peer = or_none(*peer);
            format!("a collective of {} failed with rank {peer}{told}: {error}", stamp(*of))
        }
        WorkerToDriver::Moves { stamp: of, bytes } => {
            format!("{} in {}: {} of {} bytes", bytes.work, stamp(*of), bytes.done, bytes.total)
        }
        WorkerToDriver::Warning { text } => format!("warns: {text}"),
        WorkerToDriver::Progress { stamp: of, step, note, reported, .. } => {
            let said = format!("{PROGRESS} {} is at step {step} {note} {reported}", stamp(*of));
            said.trim_end().to_owned()
        }
        WorkerToDriver::Standstill { stamp: of, position: Some(position), for_ms } => {
            let inside = position.inside.as_ref().map(|inside| &inside.kind);
            let call = position.entered;
            format!(
                "stands still in {} for {for_ms} ms: call {call}, in {}",
                stamp(*of),
                or_none(inside)
            )
        }
        WorkerToDriver::Standstill { stamp: of, position: None, for_ms } => {
            format!("goes on in {} after {for_ms} ms", stamp(*of))
        }
        WorkerToDriver::Checkpoint { stamp: of, step, report } => {
            format!("step {step} of {}: {report:?}", stamp(*of))
        }
        WorkerToDriver::Resumed { stamp: of, step, .. } => {
            format!("{} begins from the checkpoint of step {}", stamp(*of), or_none(*step))
        }
        WorkerToDriver::NotResumed { stamp: of, reason, hint } => {
            let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("{} cannot begin from a checkpoint: {reason}{hint}", stamp(*of))
        }
        WorkerToDriver::Leaving { reason } => format!("wants to leave: {reason}"),
        WorkerToDriver::TableWanted { stamp: of } => {
            format!("wants the whole table of {}", stamp(*of))
        }
    }
}

/// Prefix of the lines that report progress. They are hashed, and left out of logs that are kept whole.
pub(crate) const PROGRESS: &str = "progress:";

/// A vote.
pub(crate) fn vote(vote: &Vote) -> String {
    let ballot = match &vote.ballot {
        Ballot::Ready => "READY".to_owned(),
        Ballot::Synced => "SYNCED".to_owned(),
        Ballot::Success => "success".to_owned(),
        Ballot::Failure { status, message } => {
            format!("failure with {}: {message}", or_none(*status))
        }
    };
    format!("vote of {} in {}: {ballot}", vote.worker, stamp(vote.stamp))
}

fn environment(variables: &[(String, String)]) -> String {
    list(variables.iter().map(|(name, value)| format!("{name}={value}")))
}

/// The driver's message to an agent.
pub(crate) fn to_agent(message: &DriverToAgent) -> String {
    match message {
        DriverToAgent::Welcome { term, .. } => format!("welcome by term {term}"),
        DriverToAgent::Refused { reason } => format!("refused: {reason}"),
        DriverToAgent::Start { worker, environment: variables, place: at, .. } => {
            format!("start {worker}, {}, {}", place(*at), environment(variables))
        }
        DriverToAgent::Stop { worker, grace_ms, reason } => {
            format!("stop {worker} with {grace_ms} ms of grace: {reason}")
        }
        DriverToAgent::Inspect { worker, with_stack } => {
            format!("look at {worker}{}", if *with_stack { " and its stack" } else { "" })
        }
        DriverToAgent::CheckHealth { number, .. } => format!("health check {number}"),
        DriverToAgent::Leave { code, reason } => format!("leave with code {code}: {reason}"),
    }
}

/// The driver's message to a worker.
pub(crate) fn to_worker(message: &DriverToWorker) -> String {
    match message {
        DriverToWorker::Welcome { term, .. } => format!("welcome by term {term}"),
        DriverToWorker::Assign(told) => formation(told),
        DriverToWorker::Go { stamp: of, source: None } => format!("go with {}", stamp(*of)),
        DriverToWorker::Go { stamp: of, source: Some(source) } => {
            format!("go with {} from a checkpoint in {}", stamp(*of), source.directory)
        }
        DriverToWorker::SaveCheckpoint(order) => {
            format!("save step {} of {}", order.step, stamp(order.stamp))
        }
        DriverToWorker::SealCheckpoint { stamp: of, step, keep, spared } => {
            let spared = spared.map(|step| format!(" and step {step}")).unwrap_or_default();
            format!("make step {step} of {} whole, keep {keep}{spared}", stamp(*of))
        }
        DriverToWorker::Pause { stamp: of } => format!("pause {}", stamp(*of)),
        DriverToWorker::StopAt { stamp: of, boundary } => {
            format!("stop {} at boundary {boundary}", stamp(*of))
        }
        DriverToWorker::Resume { stamp: of } => format!("resume {}", stamp(*of)),
        DriverToWorker::Abort { stamp: of, cause } => format!("abort {}: {cause}", stamp(*of)),
        DriverToWorker::Leave { reason } => format!("leave: {reason}"),
        DriverToWorker::Finished { result: of } => format!("finished: {}", result(of)),
    }
}

/// The State's command to the training thread.
pub(crate) fn training(command: &TrainingCommand) -> String {
    match command {
        TrainingCommand::Form(told) => placement(told),
        TrainingCommand::Sync { stamp: of, plan, .. } => {
            format!("sync {}, {}", stamp(*of), sync(*plan))
        }
        TrainingCommand::Pass => "pass the boundary".to_owned(),
        TrainingCommand::Stop => "stop at the boundary".to_owned(),
        TrainingCommand::End => "end the generation".to_owned(),
        TrainingCommand::SaveLast(part) => {
            format!("save the last commit, of step {}", part.order.step)
        }
        TrainingCommand::Exit(exit) => match exit {
            RunExit::Left { reason } => format!("exit: {reason}"),
            RunExit::Finished { result: of } => format!("exit: {}", result(of)),
            RunExit::Failed => "exit with the program's own error".to_owned(),
            RunExit::Orphaned { gone_ms } => format!("exit: the driver was gone for {gone_ms} ms"),
            RunExit::WrongJob { .. } => "exit: the driver runs another job".to_owned(),
        },
    }
}

/// The agent starts a process.
pub(crate) fn spawn(order: &SpawnOrder) -> String {
    format!("spawn {}, {}", order.worker, place(order.place))
}

/// An event of a session, at one of its ends.
pub(crate) fn link(end: &str, event: &LinkEvent) -> String {
    match event {
        LinkEvent::Up => format!("session up at the {end}"),
        LinkEvent::Silent { silent_ms } => {
            format!("session silent at the {end} for {silent_ms} ms")
        }
        LinkEvent::Heard => format!("session heard again at the {end}"),
        LinkEvent::Lost { reason, silent_ms } => {
            format!("session lost at the {end} after {silent_ms} ms of silence: {reason}")
        }
    }
}

/// The restart budget of a generation.
pub(crate) fn budget(budget: &RestartBudget) -> String {
    let RestartBudget { resets, resets_max, restarts, restarts_max, .. } = budget;
    let (resets_max, restarts_max) = (or_none(*resets_max), or_none(*restarts_max));
    format!("{resets} of {resets_max} resets, {restarts} of {restarts_max} restarts")
}

/// The driver's report of a loss to its registry.
pub(crate) fn incident(incident: &Incident) -> String {
    let Incident { stamp: of, lost, failure, cause, evidence } = incident;
    let (lost, failure) = (or_none(lost.as_ref()), or_none(*failure));
    format!("incident in {}: lost {lost}, failure {failure}, since {evidence}: {cause}", stamp(*of))
}

/// The registry's verdict.
pub(crate) fn verdict(verdict: &GenerationVerdict) -> String {
    match verdict {
        GenerationVerdict::AllReady { stamp: of } => format!("all are READY in {}", stamp(*of)),
        GenerationVerdict::AllSynced { stamp: of, .. } => {
            format!("all are SYNCED in {}", stamp(*of))
        }
        GenerationVerdict::Failed { stamp: of, failure } => {
            format!("{} failed in {}: {}", failure.worker, stamp(*of), failure.message)
        }
        GenerationVerdict::Succeeded { stamp: of, worker } => {
            format!("{worker} succeeded in {}", stamp(*of))
        }
        GenerationVerdict::Broken { stamp: of, cause, evidence, spent } => {
            let spent = or_none(spent.as_ref());
            format!("{} is broken since {evidence}, budget spent: {spent}: {cause}", stamp(*of))
        }
        GenerationVerdict::CauseKnown { stamp: of, cause } => {
            format!("the cause in {} is {cause}", stamp(*of))
        }
        GenerationVerdict::AllSucceeded { stamp: of } => {
            format!("all have succeeded in {}", stamp(*of))
        }
        GenerationVerdict::AllFailed { stamp: of, first } => {
            format!("all have failed in {}, {} first: {}", stamp(*of), first.worker, first.message)
        }
    }
}

/// The hosts as the host manager sees them.
pub(crate) fn hosts(snapshot: &HostsSnapshot) -> String {
    let update = match snapshot.update {
        HostUpdate::None => "none",
        HostUpdate::Added => "added",
        HostUpdate::Removed => "removed",
        HostUpdate::Mixed => "mixed",
    };
    let entry = |HostEntry { name, slots, state }: &HostEntry| match state {
        HostState::Listed => format!("{name}:{slots}"),
        HostState::Drained => format!("({name}:{slots} drained)"),
        HostState::Blacklisted { until } => format!("({name}:{slots} until {})", or_none(*until)),
    };
    let hosts = list(snapshot.hosts.iter().map(entry));
    let unlisted = match snapshot.unlisted.is_empty() {
        true => String::new(),
        false => format!("; off the list: {}", list(snapshot.unlisted.iter().map(entry))),
    };
    format!("hosts, update {update}: {hosts}{unlisted}; warnings: {}", list(&snapshot.warnings))
}

/// An event of the driver; none if another line says the same.
pub(crate) fn event(kind: &EventKind) -> Option<String> {
    Some(match kind {
        EventKind::HostJoined { host, slots } => format!("host {host} joined with {slots} slots"),
        EventKind::HostRefused { host, reason } => format!("host {host} is refused: {reason}"),
        EventKind::HostLost { host, reason } => format!("host {host} is lost: {reason}"),
        EventKind::HostsChanged { hosts, .. } => format!("hosts changed: {}", list(hosts)),
        // A member's message says so.
        EventKind::HostUnreachable(_) => return None,
        // The host manager's list says so.
        EventKind::HostBlacklisted { .. }
        | EventKind::HostDrained { .. }
        | EventKind::HostReadmitted { .. } => return None,
        EventKind::WorkerStarted { .. } => return None,
        EventKind::ProcessStarted { worker, pid } => format!("{worker} runs as process {pid}"),
        EventKind::StepsMeasured { ms, data, commit, straggler, slowest } => format!(
            "steps of {ms:.0} ms: {data:.4} data, {commit:.4} commits, {straggler:.4} for {}",
            list(slowest)
        ),
        EventKind::WorkerAttached { worker, pid } => format!("{worker} attached as process {pid}"),
        EventKind::WorkerExited { worker, status, expected, killed_after_grace } => {
            let expected = if *expected { "expected" } else { "not expected" };
            let killed = if *killed_after_grace { ", killed after its grace" } else { "" };
            format!("{worker} ended: {status}, {expected}{killed}")
        }
        EventKind::WorkerFailed { worker, error } => {
            format!("{worker} failed as its generation ended: {error}")
        }
        EventKind::WorkerNotStarted { worker, reason } => {
            format!("{worker} could not start: {reason}")
        }
        EventKind::WorkerOutOfMemory { worker, detail } => format!("{worker} was {detail}"),
        EventKind::WorkerStopped { worker, reason } => format!("{worker} is stopped: {reason}"),
        EventKind::GenerationFormed { members, root, step } => {
            format!("formed of {} at step {step}, root {}", list(members), or_none(*root))
        }
        EventKind::GenerationRunning { world_size } => format!("{world_size} train"),
        EventKind::WorkerStalled { worker, operation, waiting, late_ms, doing, .. } => format!(
            "{worker} hangs: {waiting} have waited for {late_ms} ms in {operation}, and it {doing}"
        ),
        EventKind::StallEnded { worker, ms, .. } => format!("{worker} goes on after {ms:.3} ms"),
        EventKind::StragglerFound { worker, ranks, is_host, factor, .. } => {
            let whole = if *is_host { ", its host" } else { "" };
            format!("{worker} is slow{whole}: {} ranks, {factor:.2} times", ranks.len())
        }
        EventKind::ReplicasDiffer { tensor, step, workers, agreeing, members, .. } => {
            let who: Vec<String> = workers.iter().map(ToString::to_string).collect();
            let who = who.join(", ");
            format!("{tensor} of {who} differs at step {step}: {agreeing} of {members} agree")
        }
        EventKind::NotCompared { tensor, reason } => format!("{tensor} {reason}"),
        EventKind::StragglerRecovered { worker, .. } => format!("{worker} is slow no more"),
        EventKind::SlowLinkFound { from, to, host, factor, .. } => {
            let whose = host.as_ref().map_or_else(String::new, |host| format!(", all of {host}"));
            format!("the link from {from} to {to} is slow{whose}: {factor:.2} times")
        }
        EventKind::HealthCheckPassed { host } => format!("{host} has passed its health check"),
        EventKind::HealthCheckFailed { host, slots, reason, .. } => {
            format!("{host} has failed its health check: {reason}; {slots:?} stay closed")
        }
        EventKind::SlowLinkRecovered { from, to, .. } => {
            format!("the link from {from} to {to} is slow no more")
        }
        EventKind::WorkerReplaced { worker, ranks, is_host, why, spares, .. } => {
            let whole = if *is_host { ", its host" } else { "" };
            format!("{worker} is replaced{whole}, {why}: {} ranks, {spares} spare", ranks.len())
        }
        EventKind::WorkerNotReplaced { worker, why, reason, .. } => {
            format!("{worker} {why}, not replaced: {reason}")
        }
        EventKind::ReplacementTook { worker, by, world_size, .. } => {
            format!("{worker} was replaced by {}, {world_size} train", list(by))
        }
        EventKind::SlotRested { host, slot } => format!("{host}[{slot}] has rested"),
        EventKind::ShardsRebalanced { workers, counts_before, shard_counts, .. } => {
            format!("{}: dealt as {shard_counts:?}, not {counts_before:?}", list(workers))
        }
        EventKind::NotRebalanced { worker, reason, .. } => {
            format!("{worker} carries no fewer shards: {reason}")
        }
        EventKind::RebalanceTook { workers, shard_counts, .. } => {
            format!("dealt as {shard_counts:?} for {}", list(workers))
        }
        EventKind::ResetDecided { cause, way } => format!("reset by {}: {cause}", way.name()),
        EventKind::CheckpointSaved { step, .. } => format!("step {step} is saved"),
        EventKind::CheckpointFailed { step, reason } => {
            format!("step {step} is not saved: {reason}")
        }
        EventKind::Stopping { reason, .. } => format!("stopping after a save: {reason}"),
        EventKind::CheckpointLoaded { step, .. } => {
            format!("the checkpoint of step {} is loaded", or_none(*step))
        }
        EventKind::ResetCalledOff { reason } => format!("reset called off: {reason}"),
        EventKind::GenerationTakenBack { worker } => format!("taken back: {worker} attached"),
        EventKind::ResetDone { cause, from, ms, steps_lost, .. } => format!(
            "reset done in {:.3} ms (form {}, sync {}, all {}) from generation {from}, {steps_lost} steps lost: {cause}",
            ms.detect,
            or_none(ms.form.map(|ms| format!("{ms:.3}"))),
            or_none(ms.sync.map(|ms| format!("{ms:.3}"))),
            or_none(ms.total.map(|ms| format!("{ms:.3}")))
        ),
        EventKind::FirstSteps { from, hosts } => {
            let last = |of: fn(&HostResetMs) -> Option<f64>| {
                or_none(
                    hosts
                        .values()
                        .filter_map(of)
                        .max_by(f64::total_cmp)
                        .map(|ms| format!("{ms:.3}")),
                )
            };
            format!(
                "first steps after generation {from} on {} hosts: ready {} ms, synced {} ms, stepped {} ms",
                hosts.len(),
                last(|host| Some(host.ready)),
                last(|host| Some(host.synced)),
                last(|host| host.first_step)
            )
        }
        EventKind::StateLost { committed, begins_at, steps_lost, .. } => format!(
            "steps lost: {committed} was committed, training begins at {begins_at}, {steps_lost} are lost"
        ),
        EventKind::TakeoverBegun { hosts, workers, .. } => {
            format!("takeover begun with {hosts} hosts and {workers} workers")
        }
        EventKind::TakeoverDone { lost, ms } => format!("takeover done in {ms:.3} ms, {lost} lost"),
        EventKind::StandbysChanged { standbys } => format!("standbys: {}", list(standbys)),
        EventKind::HandedOver { to } => format!("handed over to {}", list(to)),
        EventKind::Abandoned { reason } => format!("abandoned: {reason}"),
        EventKind::Warning { message } => format!("warning: {message}"),
        EventKind::JobEnded { result: of } => format!("ended: the job {}", result(of)),
    })
}

/// The driver's answer to `status`: the object of `status --json`, which is part of the outer contract, without the program's version.
pub(crate) fn status(mut report: StatusReport) -> String {
    for driver in std::iter::once(&mut report.driver).chain(&mut report.standbys) {
        driver.version.clear();
    }
    serde_json::to_string(&report)
        .map_or_else(|error| error.to_string(), |json| format!("status: {json}"))
}
