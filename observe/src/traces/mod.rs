//! Traces: one reset is one trace of spans with explicit times, made of the driver's events. Called by the driver's process,
//! which sends them where `OTEL_EXPORTER_OTLP_ENDPOINT` says.
//!
//! The phases of a reset follow one another without a gap: `detect`, `form`, `sync` and `first step` add up to the root
//! span `reset`. Each but `detect` has a span for every host. Ids are derived from the job, the ended generation and
//! the time of the decision, so that all drivers give the same reset the same trace id.

mod ids;
mod span;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_driver::{DriverEvent, EventKind, HostResetMs, ResetWay};
use elastic_protocol::messages::PhaseMs;
use elastic_protocol::{GenerationId, HostName, JobResult, ResetCause, Time, WorkerId};

use self::span::SpanTree;
pub use self::span::{ResetTrace, SpanValue, TraceSpan};
use crate::explain::who;

/// Most hosts that a trace has spans for (three each): those whose first steps came last.
pub const HOSTS_TRACED_MAX: usize = 1024;

/// The traces of a job's resets, while the job runs.
#[derive(Clone, Debug)]
pub struct ResetTraces {
    job: String,
    /// Members of the generation formed last, by rank, and of the one before.
    members: Vec<WorkerId>,
    members_before: Vec<WorkerId>,
    /// The generation that trains, or trained last.
    running: Option<TracedGeneration>,
    /// The reset under way: its first decision.
    decided: Option<DecidedReset>,
    /// The reset that is over, until its first steps are told.
    done: Option<DoneReset>,
}

#[derive(Clone, Copy, Debug)]
struct TracedGeneration {
    generation: GenerationId,
    since: Time,
    world_size: u32,
}

#[derive(Clone, Debug)]
struct DecidedReset {
    at: Time,
    from: GenerationId,
    cause: ResetCause,
    way: ResetWay,
}

#[derive(Clone, Debug)]
struct DoneReset {
    cause: ResetCause,
    way: Option<ResetWay>,
    from: GenerationId,
    to: TracedGeneration,
    ms: PhaseMs,
    steps_lost: u64,
}

impl ResetTraces {
    /// Of the job with this id.
    pub fn new(job: String) -> Self {
        let (members, members_before) = (Vec::new(), Vec::new());
        Self { job, members, members_before, running: None, decided: None, done: None }
    }

    /// Takes an event of this time since 1970. Returns the trace of a reset once all of it is known.
    pub fn handle_event(&mut self, at: Time, event: &DriverEvent) -> Option<ResetTrace> {
        match &event.kind {
            EventKind::GenerationFormed { members, .. } => {
                let before = std::mem::replace(&mut self.members, members.clone());
                // A generation that never trained does not count.
                if self.decided.as_ref().is_none_or(|reset| reset.from.0 + 1 == event.generation.0)
                {
                    self.members_before = before;
                }
                None
            }
            EventKind::GenerationRunning { world_size } => {
                let (generation, world_size) = (event.generation, *world_size);
                self.running = Some(TracedGeneration { generation, since: at, world_size });
                None
            }
            EventKind::ResetDecided { cause, way } => {
                let begun =
                    DecidedReset { at, from: event.generation, cause: cause.clone(), way: *way };
                self.decided.get_or_insert(begun);
                self.take_done(&BTreeMap::new())
            }
            EventKind::ResetDone { cause, from, ms, steps_lost, .. } => {
                let way = self.decided.take().map(|decided| decided.way);
                let (cause, from, ms, steps_lost) = (cause.clone(), *from, *ms, *steps_lost);
                let to = self.running?;
                self.done = Some(DoneReset { cause, way, from, to, ms, steps_lost });
                None
            }
            EventKind::FirstSteps { hosts, .. } => self.take_done(hosts),
            EventKind::JobEnded { result } => {
                let unfinished =
                    self.decided.take().map(|reset| self.of_unfinished(reset, at, result));
                unfinished.or_else(|| self.take_done(&BTreeMap::new()))
            }
            _ => None,
        }
    }

    /// The trace of the reset whose first steps have not been reported, when no more events will come.
    pub fn finish(&mut self) -> Option<ResetTrace> {
        self.take_done(&BTreeMap::new())
    }

    fn take_done(&mut self, hosts: &BTreeMap<HostName, HostResetMs>) -> Option<ResetTrace> {
        let reset = self.done.take()?;
        Some(self.of_done(&reset, hosts))
    }

    /// All times follow from the moment at which the new generation trained.
    fn of_done(&self, reset: &DoneReset, hosts: &BTreeMap<HostName, HostResetMs>) -> ResetTrace {
        let synced = reset.to.since;
        let ready = before(synced, reset.ms.sync.unwrap_or_default());
        let decided = before(ready, reset.ms.form.unwrap_or_default());
        let began = before(decided, reset.ms.detect);
        let stepped = hosts.values().filter_map(|host| host.first_step).max_by(f64::total_cmp);
        let stepped = stepped.map(|ms| after(decided, ms).max(synced));

        let mut tree = SpanTree::new(ids::trace_id(&self.job, reset.from, decided));
        let way = reset.way.map(|way| ("elastic_node.way", SpanValue::from(way.name())));
        let mut attributes = self.attributes(&reset.cause, reset.from, way);
        attributes.extend([
            ("elastic_node.generation", SpanValue::from(reset.to.generation.0)),
            ("elastic_node.world_size", SpanValue::from(u64::from(reset.to.world_size))),
            ("elastic_node.steps_lost", SpanValue::from(reset.steps_lost)),
        ]);
        let shown = last_hosts(hosts);
        if shown.len() < hosts.len() {
            let left_out = (hosts.len() - shown.len()) as u64;
            attributes.push(("elastic_node.hosts_left_out", SpanValue::from(left_out)));
        }
        let end = stepped.unwrap_or(synced);
        let root = tree.add(None, "reset", (began, end), attributes);
        tree.add(Some(root), "detect", (began, decided), self.culprit(&reset.cause));
        let form = tree.add(Some(root), "form", (decided, ready), Vec::new());
        let sync = tree.add(Some(root), "sync", (ready, synced), Vec::new());
        let step = stepped.map(|end| tree.add(Some(root), "first step", (synced, end), Vec::new()));
        let ranks = self.ranks();
        for (host, ms) in shown {
            let of_host = || host_attributes(host, ranks.get(host));
            let (host_ready, host_synced) = (after(decided, ms.ready), after(decided, ms.synced));
            tree.add(Some(form), "form: host", (decided, host_ready.min(ready)), of_host());
            tree.add(
                Some(sync),
                "sync: host",
                (ready, host_synced.clamp(ready, synced)),
                of_host(),
            );
            if let (Some(step), Some(ms)) = (step, ms.first_step) {
                let stepped = after(decided, ms).max(synced);
                tree.add(Some(step), "first step: host", (synced, stepped), of_host());
            }
        }
        tree.into_trace()
    }

    /// The trace of a reset after which nothing trained.
    fn of_unfinished(&self, reset: DecidedReset, at: Time, result: &JobResult) -> ResetTrace {
        let mut tree = SpanTree::new(ids::trace_id(&self.job, reset.from, reset.at));
        let way = Some(("elastic_node.way", SpanValue::from(reset.way.name())));
        let attributes = self.attributes(&reset.cause, reset.from, way);
        let root = tree.add(None, "reset", (reset.at, at), attributes);
        tree.fail(root, format!("the job ended: {}", result.reason));
        tree.into_trace()
    }

    /// Attributes of the root span.
    fn attributes(
        &self,
        cause: &ResetCause,
        from: GenerationId,
        way: Option<(&'static str, SpanValue)>,
    ) -> Vec<(&'static str, SpanValue)> {
        let about = [
            ("elastic_node.job", SpanValue::from(self.job.as_str())),
            ("elastic_node.cause", SpanValue::from(cause.to_string().as_str())),
            ("elastic_node.ended_generation", SpanValue::from(from.0)),
        ];
        about.into_iter().chain(way).chain(self.culprit(cause)).collect()
    }

    /// The worker and host that the cause names, with the rank in the generation that ended.
    fn culprit(&self, cause: &ResetCause) -> Vec<(&'static str, SpanValue)> {
        let (worker, host) = who(cause);
        let rank = worker.and_then(|worker| {
            let known = [&self.members_before, &self.members];
            known.into_iter().find_map(|members| members.iter().position(|it| it == worker))
        });
        let worker =
            worker.map(|it| ("elastic_node.worker", SpanValue::from(it.to_string().as_str())));
        let host = host.map(|host| ("host.name", SpanValue::from(host.as_str())));
        let rank = rank.map(|rank| ("elastic_node.rank", SpanValue::from(rank as u64)));
        worker.into_iter().chain(host).chain(rank).collect()
    }

    /// The first and the last rank of each host.
    fn ranks(&self) -> BTreeMap<&HostName, (usize, usize)> {
        let mut ranks = BTreeMap::new();
        for (rank, worker) in self.members.iter().enumerate() {
            ranks.entry(&worker.host).or_insert((rank, rank)).1 = rank;
        }
        ranks
    }
}

/// The hosts whose parts came last, in the order of their names.
fn last_hosts(hosts: &BTreeMap<HostName, HostResetMs>) -> BTreeMap<&HostName, &HostResetMs> {
    let end = |ms: &HostResetMs| ms.first_step.unwrap_or(f64::INFINITY);
    let mut all: Vec<_> = hosts.iter().collect();
    if all.len() > HOSTS_TRACED_MAX {
        all.sort_by(|left, right| end(right.1).total_cmp(&end(left.1)));
        all.truncate(HOSTS_TRACED_MAX);
    }
    all.into_iter().collect()
}

fn host_attributes(
    host: &HostName,
    ranks: Option<&(usize, usize)>,
) -> Vec<(&'static str, SpanValue)> {
    let ranks = ranks.map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    let ranks = ranks.map(|ranks| ("elastic_node.ranks", SpanValue::from(ranks.as_str())));
    [("host.name", SpanValue::from(host.as_str()))].into_iter().chain(ranks).collect()
}

/// A time this many milliseconds later.
fn after(at: Time, ms: f64) -> Time {
    at + Duration::from_secs_f64(ms.max(0.0) / 1e3)
}

/// A time this many milliseconds earlier.
fn before(at: Time, ms: f64) -> Time {
    let ns = Duration::from_secs_f64(ms.max(0.0) / 1e3).as_nanos();
    Time(at.0.saturating_sub(u64::try_from(ns).unwrap_or(u64::MAX)))
}
