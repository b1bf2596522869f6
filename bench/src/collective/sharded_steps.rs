//! `bench sharded-steps`: the cost of a step with logical shards compared with one without, in time and in bytes
//! sent. A step is a gradient of this rank's part of a global batch, its sum over the ranks, and its application.
//! Steps with and without shards take turns in the same processes.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::contestant::{CollectiveContestant, CollectivePath};
use super::rank::SHARDS;
use super::{CALLS, Collective, CollectiveOptions, ROUNDS, TRIAL_CALLS};
use crate::statistics::median;

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct ShardedStepsOptions {
    /// Numbers of ranks, each a process.
    #[arg(long, value_delimiter = ',', default_value = "2,3,4", value_parser = clap::value_parser!(u32).range(2..=8))]
    worlds: Vec<u32>,
    /// Lengths of the gradient in bytes, whole float32s.
    #[arg(long, value_delimiter = ',', default_value = "65536,1048576,16777216")]
    sizes: Vec<usize>,
    /// How long each kind of step is measured at each size, about, in milliseconds.
    #[arg(long, default_value_t = 2000)]
    time_ms: u64,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// A kind of step on one path.
#[derive(Debug, Default, Serialize)]
struct StepFigures {
    plain_us: f64,
    sharded_us: f64,
    /// The time with shards over the time without.
    ratio: f64,
}

/// The figures of one world and size.
#[derive(Debug, Serialize)]
struct StepReport {
    world: u32,
    bytes: usize,
    /// Within a host, through memory.
    memory: StepFigures,
    tcp: StepFigures,
    /// Bytes that all ranks together have sent over TCP for each byte of the gradient, headers included.
    plain_sent: f64,
    sharded_sent: f64,
}

/// Measures, and prints.
pub(crate) fn run(options: &ShardedStepsOptions) -> anyhow::Result<()> {
    let whole = options.sizes.iter().all(|bytes| *bytes > 0 && bytes.is_multiple_of(4));
    ensure!(whole, "--sizes: whole float32s, at least one");
    let mut reports = Vec::new();
    for world in &options.worlds {
        for bytes in &options.sizes {
            let (memory, _) = measure(options, *world, *bytes, CollectivePath::Best)?;
            let (tcp, sent) = measure(options, *world, *bytes, CollectivePath::Tcp)?;
            let [plain_sent, sharded_sent] = sent;
            let (world, bytes) = (*world, *bytes);
            reports.push(StepReport { world, bytes, memory, tcp, plain_sent, sharded_sent });
            if !options.json {
                writeln!(std::io::stderr(), "measured {world} ranks, {bytes} bytes")?;
            }
        }
    }
    if !options.json {
        writeln!(std::io::stderr(), "{}", table(&reports))?;
    }
    let result = serde_json::json!({ "shards": SHARDS, "steps": reports });
    writeln!(std::io::stdout(), "{result}")?;
    Ok(())
}

/// Times of a step without and with shards, in turns; and the bytes that each sends for one of the gradient.
fn measure(
    options: &ShardedStepsOptions,
    world: u32,
    bytes: usize,
    path: CollectivePath,
) -> anyhow::Result<(StepFigures, [f64; 2])> {
    let of_ranks = CollectiveOptions {
        world,
        vs: Vec::new(),
        time_ms: options.time_ms,
        netns: false,
        python: PathBuf::new(),
        mpirun: PathBuf::new(),
        json: options.json,
    };
    let mut ranks = CollectiveContestant::ours(&of_ranks, None, path)?;
    let kinds = [Collective::Step, Collective::ShardedStep];
    let (mut times, mut sent) = ([Vec::new(), Vec::new()], [0.0; 2]);
    let mut calls = [0; 2];
    for (kind, calls) in kinds.into_iter().zip(&mut calls) {
        let each_us = median(&ranks.measure(kind, bytes, TRIAL_CALLS)?).context("it has calls")?;
        let turn_us = options.time_ms as f64 * 1e3 / f64::from(ROUNDS);
        *calls = ((turn_us / each_us.max(0.1)) as usize).clamp(*CALLS.start(), *CALLS.end());
    }
    for _ in 0..ROUNDS {
        for (index, kind) in kinds.into_iter().enumerate() {
            let before = loopback_bytes()?;
            times[index].extend(ranks.measure(kind, bytes, calls[index])?);
            sent[index] += (loopback_bytes()? - before) as f64;
        }
    }
    let [plain_us, sharded_us] = times.map(|times| median(&times).unwrap_or_default());
    // Each turn has calls that warm up, too.
    let calls = calls.map(|calls| f64::from(ROUNDS) * (calls + super::rank::WARM_UP) as f64);
    let sent = [0, 1].map(|index| sent[index] / calls[index] / bytes as f64);
    Ok((StepFigures { plain_us, sharded_us, ratio: sharded_us / plain_us }, sent))
}

/// Bytes that went over the loopback so far.
fn loopback_bytes() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/net/dev")?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:"));
    let received = line.and_then(|line| line.split_whitespace().next());
    Ok(received.context("there is a loopback")?.parse()?)
}

fn table(reports: &[StepReport]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let of_path = |path: &str| [format!("{path}: plain"), "shards".to_owned(), "ratio".to_owned()];
    let mut header = vec!["ranks".to_owned(), "bytes".to_owned()];
    header.extend(of_path("memory").into_iter().chain(of_path("TCP")));
    header.extend(["sent: plain".to_owned(), "shards".to_owned()]);
    table.set_header(header);
    for report in reports {
        let mut row = vec![report.world.to_string(), report.bytes.to_string()];
        for StepFigures { plain_us, sharded_us, ratio } in [&report.memory, &report.tcp] {
            let ms = |us: &f64| format!("{:.2} ms", us / 1e3);
            row.extend([ms(plain_us), ms(sharded_us), format!("{ratio:.3}")]);
        }
        row.extend([report.plain_sent, report.sharded_sent].map(|sent| format!("{sent:.2}")));
        table.add_row(row);
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}
