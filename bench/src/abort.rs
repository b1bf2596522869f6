//! `bench abort`: SIGKILL of a rank in the middle of a large all-reduce, at random moments. It measures the time from
//! the kernel's report of the death until the survivors return, and checks that all name the same reason, that the
//! next generation works, and that nothing is left behind.
//!
//! The survivors detect the death by themselves: no agent and no driver runs here. In a job these are a second
//! source.

mod rank;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::monotonic::now_ns;
use crate::process::{kill_9, pause};
use crate::statistics::{median, percentile};

pub(crate) use rank::{AbortRankOptions, run as run_rank};

/// The name of a segment in a process's mappings.
const SEGMENT: &str = "memfd:elastic-collectives";

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct AbortOptions {
    /// How many ranks, each a process.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    world: u32,
    /// How many of them are killed on each path, one after the other.
    #[arg(long, default_value_t = 200)]
    kills: usize,
    /// The paths that are measured.
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp,hierarchy")]
    paths: Vec<AbortPath>,
    /// Bytes of the all-reduce.
    #[arg(long, default_value_t = 64 << 20)]
    bytes: usize,
    /// A kill comes at most this long after the generation's first all-reduce, in milliseconds.
    #[arg(long, default_value_t = 150)]
    within_ms: u64,
    /// Of the random moments and victims.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The path of the data.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum AbortPath {
    /// Shared memory.
    Shm,
    /// TCP over loopback.
    Tcp,
    /// Both, as of hosts with two ranks each.
    Hierarchy,
}

impl AbortPath {
    /// The host of a rank.
    fn host(self, rank: usize) -> usize {
        match self {
            AbortPath::Shm => 0,
            AbortPath::Tcp => rank,
            AbortPath::Hierarchy => rank / 2,
        }
    }
}

/// The result.
#[derive(Debug, Serialize)]
struct AbortReport {
    world: u32,
    kills: usize,
    bytes: usize,
    paths: Vec<PathReport>,
}

#[derive(Debug, Serialize)]
struct PathReport {
    path: AbortPath,
    /// From the kernel's report of the end to the return of a survivor's all-reduce; 0 where it was before.
    median_ms: f64,
    p95_ms: f64,
    max_ms: f64,
    /// Kills after which all survivors named the killed rank.
    same_reason: usize,
    /// Generations whose first all-reduce was right.
    next_right: usize,
    /// Segments that are mapped after the last kill, descriptors that a rank of the last generation has beyond those of
    /// an early one, and new files in /dev/shm.
    left_behind: usize,
}

/// A rank's process; killed when dropped.
struct RankProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        // The victim has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RankProcess {
    fn start(options: &AbortOptions) -> anyhow::Result<RankProcess> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["abort-rank", &options.bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("a rank cannot be started")?;
        let input = child.stdin.take().context("stdin is a pipe")?;
        let output = BufReader::new(child.stdout.take().context("stdout is a pipe")?);
        let mut rank = RankProcess { child, input, output, address: String::new() };
        rank.address = rank.line()?;
        Ok(rank)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "a rank ended early");
        Ok(line.trim().to_owned())
    }

    /// Segments that it maps.
    fn segments(&self) -> anyhow::Result<usize> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id()))?;
        Ok(maps.matches(SEGMENT).count())
    }

    /// Descriptors that it holds, without those of the listener's backlog.
    fn descriptors(&self) -> anyhow::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count())
    }
}

/// Measures and prints.
pub(crate) fn run(options: &AbortOptions) -> anyhow::Result<()> {
    ensure!(options.kills > 0 && options.bytes.is_multiple_of(4), "a kill, and whole float32s");
    let mut paths = Vec::new();
    for path in &options.paths {
        paths.push(measure(options, *path)?);
    }
    let AbortOptions { world, kills, bytes, .. } = *options;
    let report = AbortReport { world, kills, bytes, paths };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

fn measure(options: &AbortOptions, path: AbortPath) -> anyhow::Result<PathReport> {
    let mut random = ChaCha8Rng::seed_from_u64(options.seed);
    let mut ranks = Vec::new();
    for _ in 0..options.world {
        ranks.push(RankProcess::start(options)?);
    }
    let files = files_in_dev_shm()?;
    let (mut times_ms, mut same_reason, mut next_right) = (Vec::new(), 0, 0);
    let (mut descriptors, mut segments) = (Vec::new(), 0);
    for generation in 0..options.kills {
        next_right += usize::from(form(&mut ranks, generation, path)?);
        // Of generations that stand, since between two some connections are kept, and others are not.
        if generation == 1 || generation + 1 == options.kills {
            let held =
                ranks.iter().map(RankProcess::descriptors).collect::<anyhow::Result<Vec<_>>>()?;
            descriptors.extend(held.into_iter().max());
        }
        let victim = random.random_range(0..ranks.len());
        pause(Duration::from_micros(random.random_range(0..=options.within_ms * 1000)));
        let reported_ns = kill(&mut ranks[victim])?;
        let mut reasons = BTreeSet::new();
        for (number, rank) in ranks.iter_mut().enumerate() {
            if number == victim {
                continue;
            }
            let line = rank.line()?;
            let (at_ns, reason) = line.split_once(' ').context("a time and a reason")?;
            times_ms.push(at_ns.parse::<u64>()?.saturating_sub(reported_ns) as f64 / 1e6);
            reasons.insert(reason.to_owned());
        }
        let due = format!("rank {victim} was lost");
        let is_same = reasons.iter().eq([&due]);
        same_reason += usize::from(is_same);
        if !options.json {
            let shown: Vec<_> = reasons.into_iter().collect();
            writeln!(std::io::stderr(), "{path:?} kill {}: {}", generation + 1, shown.join("; "))?;
        }
        if generation + 1 == options.kills {
            let survivors = ranks.iter().enumerate().filter(|(number, _)| *number != victim);
            let mapped = survivors.map(|(_, rank)| rank.segments());
            segments = mapped.collect::<anyhow::Result<Vec<_>>>()?.into_iter().max().unwrap_or(0);
        }
        ranks[victim] = RankProcess::start(options)?;
    }
    let (first, last) = descriptors.first().zip(descriptors.last()).context("there was a kill")?;
    let descriptors = last.saturating_sub(*first);
    let left_behind = segments + descriptors + files_in_dev_shm()?.saturating_sub(files);
    let of = |share| percentile(&times_ms, share).context("there are measurements");
    let median_ms = median(&times_ms).context("there are measurements")?;
    let (p95_ms, max_ms) = (of(0.95)?, of(1.0)?);
    Ok(PathReport { path, median_ms, p95_ms, max_ms, same_reason, next_right, left_behind })
}

/// Forms a generation; whether its first all-reduce was right on all ranks.
fn form(ranks: &mut [RankProcess], generation: usize, path: AbortPath) -> anyhow::Result<bool> {
    let peers: Vec<String> = ranks.iter().map(|rank| rank.address.clone()).collect();
    let peers = peers.join(",");
    let hosts: Vec<String> = (0..ranks.len()).map(|rank| path.host(rank).to_string()).collect();
    let hosts = hosts.join(",");
    for (number, rank) in ranks.iter_mut().enumerate() {
        writeln!(rank.input, "{generation} {number} {hosts} {peers}")?;
    }
    let mut is_right = true;
    for rank in ranks {
        is_right &= rank.line()? == "right";
    }
    Ok(is_right)
}

/// Kills a rank; when the kernel reported its end.
fn kill(rank: &mut RankProcess) -> anyhow::Result<u64> {
    kill_9(rank.child.id())?;
    rank.child.wait()?;
    Ok(now_ns()?)
}

fn files_in_dev_shm() -> anyhow::Result<usize> {
    Ok(std::fs::read_dir("/dev/shm")?.count())
}
