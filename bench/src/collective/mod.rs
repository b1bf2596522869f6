//! `bench allreduce`, `broadcast`, `allgather`, `shards`, `sharded-steps` and `form`: time of a collective over real
//! processes of this machine, by size, beside other programs that do the same.
//!
//! All programs run from the start to the end, and take turns: while one is measured, the ranks of the others sleep
//! until their next command. Times are those of rank 0, of calls back to back.

mod contestant;
mod mpi;
mod namespaces;
mod plot;
mod rank;
mod report;
mod sharded_steps;

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use elastic_collectives::ShardDeal;
use serde::{Deserialize, Serialize};

use crate::statistics::median;
use contestant::{CollectiveContestant, CollectivePath};
use namespaces::Namespaces;
use report::{CollectiveReport, Measured};

pub(crate) use rank::{CollectiveRankOptions, run as run_rank};
pub(crate) use sharded_steps::{ShardedStepsOptions, run as run_sharded_steps};

/// Turns of each program at each size.
const ROUNDS: u32 = 5;
/// Bounds of the measured calls of one turn.
const CALLS: std::ops::RangeInclusive<usize> = 3..=4_000;
/// Trial calls, from whose time the number of calls of a turn follows.
const TRIAL_CALLS: usize = 3;

/// Flags of the collectives with a size.
#[derive(Args, Debug)]
pub(crate) struct SizedOptions {
    /// Lengths of the buffers in bytes, whole float32s (allgather: of one rank's part).
    #[arg(long, value_delimiter = ',', default_value = "4,1024,65536,1048576,16777216,67108864")]
    sizes: Vec<usize>,
    /// Draw the medians by size into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    options: CollectiveOptions,
}

/// Flags of all.
#[derive(Args, Debug)]
pub(crate) struct CollectiveOptions {
    /// How many ranks, each a process.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    world: u32,
    /// Peers to compare with, where installed: see docs/performance.md.
    #[arg(long, value_delimiter = ',')]
    vs: Vec<CollectivePeer>,
    /// How long each program is measured at each size, about, in milliseconds.
    #[arg(long, default_value_t = 2000)]
    time_ms: u64,
    /// The ranks run in two network namespaces that a veth pair joins, half of them in each; needs root.
    #[arg(long)]
    netns: bool,
    /// The Python that has torch, for gloo.
    #[arg(long, default_value = "python3", env = "ELASTIC_BENCH_PYTHON")]
    python: PathBuf,
    /// The launcher of the MPI to compare with: Open MPI, MPICH or Intel MPI. Its `mpicc` lies beside it.
    #[arg(long, default_value = "mpirun", env = "ELASTIC_BENCH_MPIRUN")]
    mpirun: PathBuf,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The measured collective.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Collective {
    /// The sum of every rank's buffer, to all.
    Allreduce,
    /// A broadcast from each rank in turn.
    Broadcast,
    /// Every rank's buffer, to all.
    Allgather,
    /// The sum of every shard's buffer over the tree of [`rank::SHARDS`] shards, to all.
    Shards,
    /// A new generation's group, of processes that were in the last one.
    Form,
    /// A step of training with a batch for each rank.
    Step,
    /// A step of training of the same global batch with [`rank::SHARDS`] shards.
    #[serde(rename = "sharded-step")]
    ShardedStep,
}

impl Collective {
    /// Its name in commands.
    fn name(self) -> &'static str {
        match self {
            Collective::Allreduce => "allreduce",
            Collective::Broadcast => "broadcast",
            Collective::Allgather => "allgather",
            Collective::Shards => "shards",
            Collective::Form => "form",
            Collective::Step => "step",
            Collective::ShardedStep => "sharded-step",
        }
    }
}

/// Peers.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum CollectivePeer {
    /// torch.distributed with gloo.
    Gloo,
    /// The MPI of `--mpirun`: Open MPI, MPICH or Intel MPI.
    Mpi,
    /// Ours, over TCP alone.
    Tcp,
    /// Ours, over TCP alone, encrypted.
    Encrypted,
    /// Ours, over TCP alone, with one connection for each pair of ranks.
    #[serde(rename = "one-stream")]
    OneStream,
    /// Ours, over QUIC alone.
    Quic,
    /// A copy of the same bytes by one process.
    Memcpy,
}

/// Measures a collective with a size, and prints.
pub(crate) fn run(collective: Collective, options: &SizedOptions) -> anyhow::Result<()> {
    let whole = options.sizes.iter().all(|bytes| *bytes > 0 && bytes.is_multiple_of(4));
    ensure!(whole, "--sizes: whole float32s, at least one");
    let report = measure(collective, &options.sizes, &options.options)?;
    if let Some(file) = &options.plot {
        plot::draw(&report, file).with_context(|| format!("cannot draw {}", file.display()))?;
    }
    report.print(options.options.json)
}

/// Measures forming, and prints.
pub(crate) fn run_form(options: &CollectiveOptions) -> anyhow::Result<()> {
    measure(Collective::Form, &[0], options)?.print(options.json)
}

/// Says how many bytes the busiest rank moves, beside those of a plain all-reduce.
fn tell_bytes(world: u32) -> anyhow::Result<()> {
    const BYTES: u64 = 1 << 20;
    let deal = ShardDeal::even(rank::SHARDS, world);
    let most = (0..world).map(|rank| deal.bytes_moved(rank, BYTES)).max().unwrap_or_default();
    let plain = 4 * BYTES / u64::from(world) * u64::from(world - 1);
    let shards = rank::SHARDS;
    Ok(writeln!(
        std::io::stderr(),
        "{shards} shards on {world} ranks: the busiest sends and receives {:.2} bytes for one of the buffer, and {:.2} in a \
         plain all-reduce",
        most as f64 / BYTES as f64,
        plain as f64 / BYTES as f64
    )?)
}

fn measure(
    collective: Collective,
    sizes: &[usize],
    options: &CollectiveOptions,
) -> anyhow::Result<CollectiveReport> {
    let namespaces = options.netns.then(Namespaces::create).transpose()?;
    let mut contestants = vec![(
        None,
        CollectiveContestant::ours(options, namespaces.as_ref(), CollectivePath::Best)?,
    )];
    for peer in &options.vs {
        match contestant::peer(*peer, collective, options, namespaces.as_ref()) {
            Ok(contestant) => contestants.push((Some(*peer), contestant)),
            // The others are measured all the same.
            Err(error) => writeln!(std::io::stderr(), "{peer:?} is left out: {error:#}")?,
        }
    }
    if collective == Collective::Shards && !options.json {
        tell_bytes(options.world)?;
    }
    let mut report = CollectiveReport::new(collective, options.world);
    for bytes in sizes {
        let mut measured = Vec::new();
        for (peer, contestant) in &mut contestants {
            let trial = contestant.measure(collective, *bytes, TRIAL_CALLS)?;
            let each_us = median(&trial).context("a trial has calls")?;
            let turn_us = options.time_ms as f64 * 1e3 / f64::from(ROUNDS);
            let calls = (turn_us / each_us.max(0.1)) as usize;
            let calls = calls.clamp(*CALLS.start(), *CALLS.end());
            measured.push((calls, Measured { peer: *peer, times_us: Vec::new() }));
        }
        for _ in 0..ROUNDS {
            for ((_, contestant), (calls, measured)) in contestants.iter_mut().zip(&mut measured) {
                measured.times_us.extend(contestant.measure(collective, *bytes, *calls)?);
            }
        }
        let measured: Vec<Measured> = measured.into_iter().map(|(_, measured)| measured).collect();
        if !options.json {
            writeln!(std::io::stderr(), "measured {bytes} bytes")?;
        }
        report.add(*bytes, &measured).context("every program was measured")?;
    }
    Ok(report)
}
