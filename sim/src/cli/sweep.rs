//! `sim sweep`: many seeds, on as many threads as wanted.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use sim::{Recording, RunReport, RunVerdict};

use super::run::explain;
use super::{ClusterArguments, commit, note, say};

/// Number of failures that are shown in full.
const SHOWN_MAX: usize = 3;

#[derive(Args, Debug)]
pub(crate) struct SweepArguments {
    /// Seeds, as FIRST..LAST (without the last one).
    #[arg(long)]
    seeds: String,
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// One JSON object at the end, on stdout.
    #[arg(long)]
    json: bool,
    /// Runs each of the first so many seeds twice, and compares.
    #[arg(long, default_value_t = 0)]
    twice: u64,
    /// Stops at so many failures.
    #[arg(long, default_value_t = 20)]
    max_failures: usize,
}

fn seeds(text: &str) -> anyhow::Result<std::ops::Range<u64>> {
    let (first, last) =
        text.split_once("..").with_context(|| format!("{text:?} is not FIRST..LAST"))?;
    let first = first.parse().with_context(|| format!("{first:?} is no number"))?;
    let last = last.parse().with_context(|| format!("{last:?} is no number"))?;
    if first >= last {
        bail!("{text:?} has no seeds");
    }
    Ok(first..last)
}

#[derive(Default)]
struct Totals {
    events: u64,
    nanoseconds: u64,
    resets: u64,
    commits: u64,
    seeds: u64,
    /// Seeds whose jobs have logical shards, and their commits, each with the bits of the undisturbed run.
    sharded_seeds: u64,
    sharded_commits: u64,
    failed: Vec<RunReport>,
}

pub(crate) fn sweep(arguments: &SweepArguments) -> anyhow::Result<ExitCode> {
    let cluster = arguments.cluster.read()?;
    let seeds = seeds(&arguments.seeds)?;
    let bar = ProgressBar::new(seeds.end - seeds.start);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {per_sec} {eta} {msg}") {
        bar.set_style(style);
    }
    let next = AtomicU64::new(seeds.start);
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let options = cluster.options(seed);
                    let report = if seed - seeds.start < arguments.twice {
                        sim::run_twice(&options)
                    } else {
                        sim::run(&options, Recording::default())
                    };
                    let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
                    totals.seeds += 1;
                    totals.events += report.events;
                    totals.nanoseconds += report.nanoseconds;
                    totals.resets += report.resets;
                    totals.commits += report.commits;
                    if report.shards.is_some() {
                        totals.sharded_seeds += 1;
                        totals.sharded_commits += report.commits;
                    }
                    bar.inc(1);
                    if report.verdict() != RunVerdict::Ok {
                        totals.failed.push(report);
                        bar.set_message(format!("{} failed", totals.failed.len()));
                        if totals.failed.len() >= arguments.max_failures {
                            next.store(seeds.end, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let seconds = bar.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let mut totals = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    totals.failed.sort_by_key(|report| report.options.seed);
    for report in totals.failed.iter().take(SHOWN_MAX) {
        explain(report, 40);
    }
    for report in &totals.failed {
        note(format!(
            "seed {} {}: {}",
            report.options.seed,
            report.verdict().name(),
            report.reason().unwrap_or_default()
        ));
    }
    let failed: Vec<_> = totals
        .failed
        .iter()
        .map(|report| {
            json!({
                "seed": report.options.seed,
                "verdict": report.verdict().name(),
                "reason": report.reason(),
                "command": report.options.command(),
            })
        })
        .collect();
    if arguments.json {
        say(json!({
            "seeds": totals.seeds,
            "mode": cluster.mode_name(),
            "failed": failed,
            "events": totals.events,
            "sim_seconds": totals.nanoseconds as f64 / 1e9,
            "resets": totals.resets,
            "commits": totals.commits,
            "sharded_seeds": totals.sharded_seeds,
            "sharded_commits": totals.sharded_commits,
            "seconds": seconds,
            "events_per_second": totals.events as f64 / seconds,
            "commit": commit(),
        })
        .to_string());
    } else {
        say(format!(
            "{} seeds, {} failed · {} events, {:.2} M/s · {:.0} simulated s · {} resets · {} commits, {} of them of {} \
             seeds with shards · {seconds:.1} s",
            totals.seeds,
            totals.failed.len(),
            totals.events,
            totals.events as f64 / seconds / 1e6,
            totals.nanoseconds as f64 / 1e9,
            totals.resets,
            totals.commits,
            totals.sharded_commits,
            totals.sharded_seeds,
        ));
    }
    let worst = totals.failed.iter().map(|report| report.verdict().exit_code()).min().unwrap_or(0);
    Ok(ExitCode::from(worst))
}
