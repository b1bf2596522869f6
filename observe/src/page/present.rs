//! The present on the page: the job's status in short, its fleet, and its goodput over time. Used by `page`.

use std::collections::BTreeMap;

use elastic_protocol::messages::{
    CheckpointStatus, DriverStatus, HostCondition, JobPhase, StatusReport,
};
use elastic_protocol::{HostName, JobId, JobResult, Time, counted};
use serde::Serialize;

use super::history::ms;
use crate::ledger::{GoodputLedger, TimeBucket, TotalsTimeline};

/// The status, without the parts that grow with the number of workers.
#[derive(Serialize)]
pub(super) struct PageStatus<'a> {
    /// Time of the page in milliseconds since 1970.
    now: u64,
    job: JobId,
    term: u64,
    driver: &'a DriverStatus,
    standbys: usize,
    generation: u64,
    phase: JobPhase,
    world_size: u32,
    min_np: u32,
    max_np: Option<u32>,
    resets: u64,
    steps_lost: u64,
    /// The highest step that a worker reported.
    step: u64,
    /// The progress note of rank 0.
    note: &'a str,
    hosts: usize,
    waiting_for: Option<&'a str>,
    warnings: Vec<String>,
    goodput: Option<f64>,
    goodput_10_min: Option<f64>,
    checkpoint: Option<&'a CheckpointStatus>,
    result: Option<&'a JobResult>,
}

impl<'a> PageStatus<'a> {
    pub(super) fn new(status: &'a StatusReport, now: Time, missed: u64) -> Self {
        let goodput = status.goodput.as_ref();
        let first = status.workers.iter().find(|worker| worker.rank == Some(0));
        Self {
            now: ms(now),
            job: status.job,
            term: status.term,
            driver: &status.driver,
            standbys: status.standbys.len(),
            generation: status.generation,
            phase: status.phase,
            world_size: status.world_size,
            min_np: status.min_np,
            max_np: status.max_np,
            resets: status.resets,
            steps_lost: status.steps_lost,
            step: status.workers.iter().map(|worker| worker.step).max().unwrap_or(0),
            note: first.map_or("", |worker| &worker.note),
            hosts: status.hosts.len(),
            waiting_for: status.waiting_for.as_deref(),
            warnings: warnings(status, missed),
            goodput: goodput.and_then(|goodput| goodput.since_start),
            goodput_10_min: goodput.and_then(|goodput| goodput.last_10_min),
            checkpoint: status.checkpoint.as_ref(),
            result: status.result.as_ref(),
        }
    }
}

/// Troubles that only a person can mend.
fn warnings(status: &StatusReport, missed: u64) -> Vec<String> {
    let unreachable = status.unreachable.iter().map(ToString::to_string);
    let stalled = status.stalled.iter().map(ToString::to_string);
    let differing = status.divergence.iter().map(ToString::to_string);
    let slow = status.stragglers.iter().map(ToString::to_string);
    let slow_links = status.slow_links.iter().map(ToString::to_string);
    let missed = (missed > 0).then(|| format!("this page has missed {}", counted(missed, "event")));
    status
        .warnings
        .iter()
        .cloned()
        .chain(stalled)
        .chain(differing)
        .chain(slow)
        .chain(slow_links)
        .chain(unreachable)
        .chain(missed)
        .collect()
}

/// The hosts, each with its slots.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct PageFleet<'a>(Vec<PageHost<'a>>);

#[derive(Serialize)]
struct PageHost<'a> {
    name: &'a HostName,
    state: HostCondition,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<&'a str>,
    /// A letter a slot: `a` for the first bucket.
    slots: String,
}

impl<'a> PageFleet<'a> {
    pub(super) fn new(status: &'a StatusReport, ledger: &GoodputLedger) -> Self {
        let mut slots: BTreeMap<&HostName, String> = BTreeMap::new();
        for (host, _, bucket) in ledger.slots_now() {
            slots.entry(host).or_default().push(letter(bucket));
        }
        let hosts = status.hosts.iter().map(|host| PageHost {
            name: &host.name,
            state: host.state,
            until: host.until.as_deref(),
            slots: slots.remove(&host.name).unwrap_or_default(),
        });
        Self(hosts.collect())
    }
}

const fn letter(bucket: TimeBucket) -> char {
    (b'a' + bucket as u8) as char
}

/// Slots by bucket over time.
#[derive(Serialize)]
pub(super) struct PageGoodput {
    /// Start of each piece in milliseconds since 1970, and the end of the last one.
    t: Vec<u64>,
    /// For each bucket that there was, the average number of slots in each piece.
    slots: BTreeMap<&'static str, Vec<f64>>,
}

impl PageGoodput {
    pub(super) fn new(timeline: &TotalsTimeline, now: Time) -> Self {
        let width = timeline.width_seconds();
        let mut t: Vec<u64> = timeline.pieces().map(|(start, _)| ms(start)).collect();
        let mut slots = BTreeMap::new();
        for bucket in TimeBucket::ALL {
            let averages = timeline.pieces().map(|(start, totals)| {
                let passed = width.min(ms(now).saturating_sub(ms(start)) as f64 / 1e3);
                let average = totals.seconds_of(bucket) / passed.max(1e-3);
                (average * 100.0).round() / 100.0
            });
            let averages: Vec<f64> = averages.collect();
            if averages.iter().any(|average| *average > 0.0) {
                slots.insert(bucket.name(), averages);
            }
        }
        t.push(ms(now));
        Self { t, slots }
    }
}
