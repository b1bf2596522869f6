//! Kills a worker with SIGKILL, and measures the time for which training stood still. Called by `recovery`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;

use super::contestant::{RecoveryContestant, Survivors, WORKERS};
use super::job::{LoggedEvent, RecoveryJob, ResetPhases};
use crate::monotonic::now_ns;
use crate::process::{kill_9, pause};
use crate::record::{self, CommitRecord};
use crate::statistics::median;

/// Steps that all four commit before the next kill.
const STEPS_BETWEEN: u64 = 20;

/// The fractional parts of its multiples are spread evenly, however many there are.
const GOLDEN_RATIO: f64 = 1.618_033_988_749_895;

/// The cost of one kill, in milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct KillSample {
    pub(crate) total_ms: f64,
    /// By phase, where the contestant tells; together they are the total.
    pub(crate) phases_ms: BTreeMap<&'static str, f64>,
}

/// Waits until four workers train together, kills one of them, and takes the time.
pub(crate) fn measure(
    job: &mut RecoveryJob,
    contestant: &RecoveryContestant,
    number: usize,
) -> anyhow::Result<KillSample> {
    let (generation, members) = job.wait("four workers that train together", together)?;
    // Each rank in turn, and at moments that are spread evenly over a step.
    let victim_rank = u32::try_from(number)? % WORKERS;
    wait_into_step(job, &members, (number as f64 * GOLDEN_RATIO).fract())?;
    let victim = *members.get(&victim_rank).context("every rank has a worker")?;
    let survivors: Vec<u32> = members.values().copied().filter(|pid| *pid != victim).collect();
    let killed_at = wall_clock();
    let killed_ns = now_ns()?;
    kill_9(victim)?;
    let ms_since = |at_ns: u64| at_ns.saturating_sub(killed_ns) as f64 / 1e6;
    match contestant.survivors {
        Survivors::Stay => {
            let resumed_ns = job.wait("a step of all survivors", |job| {
                let firsts = survivors.iter().map(|pid| first_after(job, *pid, generation));
                firsts.collect::<Option<Vec<_>>>()?.into_iter().max()
            })?;
            let total_ms = ms_since(resumed_ns);
            let phases_ms = if contestant.has_events {
                let (decided, ms) =
                    job.wait("the reset in the event log", |it| reset_of(it, generation))?;
                let detect = decided.at()?.duration_since(killed_at).unwrap_or_default();
                let detect = detect.as_secs_f64() * 1e3;
                let step = (total_ms - detect - ms.form - ms.sync).max(0.0);
                BTreeMap::from([
                    ("detect", detect),
                    ("form", ms.form),
                    ("sync", ms.sync),
                    ("step", step),
                ])
            } else {
                BTreeMap::new()
            };
            Ok(KillSample { total_ms, phases_ms })
        }
        Survivors::Restart => {
            let (resumed_ns, pids) =
                job.wait("a step of a whole group", |job| whole_group_after(job, generation))?;
            let folder = job.records();
            let marks: Vec<_> = pids
                .iter()
                .map(|pid| record::marks(&folder, *pid))
                .collect::<Option<_>>()
                .context("every process marks its start")?;
            let last =
                |of: fn(&record::Marks) -> u64| ms_since(marks.iter().map(of).max().unwrap_or(0));
            let (began, imported) = (last(|it| it.began_ns), last(|it| it.imported_ns));
            let (joined, total_ms) = (last(|it| it.joined_ns), ms_since(resumed_ns));
            let phases_ms = BTreeMap::from([
                ("start", began),
                ("import", imported - began),
                ("join", joined - imported),
                ("step", total_ms - joined),
            ]);
            Ok(KillSample { total_ms, phases_ms })
        }
    }
}

/// Waits until this share of a step is done. The work of survivors until the step's end is part of the measured time,
/// and the files are looked at in a rhythm of their own.
fn wait_into_step(
    job: &RecoveryJob,
    members: &BTreeMap<u32, u32>,
    share: f64,
) -> anyhow::Result<()> {
    let first = members.values().next().context("there are members")?;
    let commits: Vec<u64> =
        record::read(&job.records(), *first).into_iter().map(|record| record.at_ns).collect();
    let recent = &commits[commits.len().saturating_sub(STEPS_BETWEEN as usize)..];
    let steps: Vec<f64> = recent.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    let (step_ns, last_ns) = median(&steps).zip(recent.last()).context("there were steps")?;
    let done = (now_ns()?.saturating_sub(*last_ns) as f64 / step_ns).fract();
    let left = if share < done { share + 1.0 - done } else { share - done };
    pause(Duration::from_nanos((left * step_ns) as u64));
    Ok(())
}

/// The newest generation and its members by rank, if it has all four, and they have made a few steps.
fn together(job: &RecoveryJob) -> Option<(u64, BTreeMap<u32, u32>)> {
    let mut newest = (0, BTreeMap::new());
    let mut steps = u64::MAX;
    for (pid, records) in record::all(&job.records()) {
        let Some(last) = records.last() else { continue };
        if last.generation > newest.0 {
            newest = (last.generation, BTreeMap::new());
            steps = u64::MAX;
        }
        if last.generation == newest.0 && last.world_size == WORKERS {
            newest.1.insert(last.rank, pid);
            steps = steps.min(steps_in(&records, last.generation));
        }
    }
    let are_all_there = newest.1.len() == WORKERS as usize;
    (are_all_there && steps >= STEPS_BETWEEN).then_some(newest)
}

fn steps_in(records: &[CommitRecord], generation: u64) -> u64 {
    records.iter().filter(|record| record.generation == generation).count() as u64
}

/// A worker's first commit in a later generation.
fn first_after(job: &RecoveryJob, pid: u32, generation: u64) -> Option<u64> {
    let records = record::read(&job.records(), pid).into_iter();
    records.filter(|it| it.generation > generation).map(|it| it.at_ns).min()
}

/// The first later generation in which all four have committed: the time of the last one's first commit, and their
/// process ids.
fn whole_group_after(job: &RecoveryJob, generation: u64) -> Option<(u64, BTreeSet<u32>)> {
    let mut firsts: BTreeMap<u64, BTreeMap<u32, u64>> = BTreeMap::new();
    for (pid, records) in record::all(&job.records()) {
        if let Some(first) = records.first().filter(|it| it.generation > generation) {
            firsts.entry(first.generation).or_default().insert(pid, first.at_ns);
        }
    }
    let of_all = firsts.into_values().find(|of| of.len() == WORKERS as usize)?;
    Some((of_all.values().copied().max()?, of_all.into_keys().collect()))
}

/// The decision to end this generation, and how long the phases of that reset took.
fn reset_of(job: &RecoveryJob, generation: u64) -> Option<(LoggedEvent, ResetPhases)> {
    let events = job.events();
    let done = events.iter().find(|event| event.from == Some(generation))?;
    let ms = done.ms?;
    let decided = events.into_iter().find(|event| {
        event.kind == "reset_decided" && event.generation == generation && event.cause.is_some()
    })?;
    Some((decided, ms))
}

#[expect(clippy::disallowed_methods, reason = "compared with the event log's wall clock")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
