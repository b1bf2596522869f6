//! `bench page`: the cost of the job's page for the driver: its CPU time in steady state with many workers, without a
//! viewer, with one that reads everything, and with one that stands still, in turns.
//!
//! Driver and agents are real processes; a worker is `sleep`, so that thousands fit on a machine. The figure is the
//! CPU time that the kernel gave to the driver's threads.

mod job;
mod viewer;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use serde::Serialize;

use self::job::PageJob;
use self::viewer::{PageViewer, ViewerManner};
use crate::process::{elastic_node, now, pause};
use crate::statistics::median;

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct PageOptions {
    /// Number of workers.
    #[arg(long, default_value_t = 4_000)]
    workers: u32,
    /// Number of hosts that they are on; each has an agent.
    #[arg(long, default_value_t = 16)]
    hosts: u32,
    /// How long each round counts, in seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Rounds; each has all three.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// The program to measure [default: built in this program's profile]
    #[arg(long)]
    program: Option<PathBuf>,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Medians, in percent of a core.
#[derive(Debug, Serialize)]
struct PageReport {
    workers: u32,
    hosts: u32,
    without_percent: f64,
    open_percent: f64,
    stuck_percent: f64,
    /// Additional CPU of the open page.
    page_percent: f64,
    /// Additional CPU of a viewer that stands still.
    stuck_page_percent: f64,
    /// Data sent to the page, in kB a second.
    sent_kb_per_s: f64,
}

/// Measures and prints.
pub(crate) fn run(options: &PageOptions) -> anyhow::Result<()> {
    let PageOptions { workers, hosts, seconds, rounds, json, .. } = *options;
    ensure!(
        hosts > 0 && workers > 0 && workers.is_multiple_of(hosts),
        "--workers must be a multiple of --hosts"
    );
    ensure!(rounds > 0 && seconds > 0, "--rounds and --seconds must be at least 1");
    let program = match &options.program {
        Some(program) => program.clone(),
        None => elastic_node()?,
    };
    let job = PageJob::start(&program, workers, hosts)?;
    let lasts = Duration::from_secs(seconds);
    let (mut without, mut open, mut stuck, mut sent) = (vec![], vec![], vec![], vec![]);
    for round in 1..=rounds {
        without.push(percent(&job, lasts)?);
        let viewer = PageViewer::open(job.page(), ViewerManner::Reads)?;
        // The first answer is the whole page. Only the answers after it count.
        pause(Duration::from_secs(2));
        let before = viewer.bytes();
        open.push(percent(&job, lasts)?);
        sent.push((viewer.bytes() - before) as f64 / 1e3 / lasts.as_secs_f64());
        drop(viewer);
        let viewer = PageViewer::open(job.page(), ViewerManner::Stuck)?;
        pause(Duration::from_secs(2));
        stuck.push(percent(&job, lasts)?);
        drop(viewer);
        if !json {
            let last = |values: &[f64]| values.last().copied().unwrap_or_default();
            let [a, b, c] = [&without, &open, &stuck].map(|values| last(values));
            writeln!(std::io::stderr(), "round {round}: {a:.2} %, open {b:.2} %, stuck {c:.2} %")?;
        }
    }
    let of = |values: &[f64]| median(values).context("there are measurements");
    let more = |values: &[f64]| {
        let more: Vec<f64> =
            values.iter().zip(&without).map(|(with, without)| with - without).collect();
        of(&more)
    };
    let report = PageReport {
        workers,
        hosts,
        without_percent: of(&without)?,
        open_percent: of(&open)?,
        stuck_percent: of(&stuck)?,
        page_percent: more(&open)?,
        stuck_page_percent: more(&stuck)?,
        sent_kb_per_s: of(&sent)?,
    };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

/// The driver's CPU time for as long, in percent of a core.
fn percent(job: &PageJob, lasts: Duration) -> anyhow::Result<f64> {
    let (began, before) = (now(), job.cpu_ns()?);
    pause(lasts);
    let spent = job.cpu_ns()? - before;
    Ok(spent as f64 / began.elapsed().as_nanos() as f64 * 100.0)
}
