//! `bench allreduce`: how long a sum of float32 over real processes of this machine takes, by size.
//!
//! Every rank is a process. The paths (shared memory, TCP over loopback) alternate within one call, size by
//! size, so that what else the machine does hits both. Times are those of rank 0, of calls back to back.

mod rank;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::statistics::{median, percentile};

pub(crate) use rank::run as run_rank;

/// All ranks are children of this process, on loopback, for a few seconds.
const KEY: [u8; 32] = [42; 32];

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// How many ranks, each a process.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    world: u32,
    /// Lengths of the buffers in bytes, whole float32s.
    #[arg(long, value_delimiter = ',', default_value = "4,1024,65536,1048576,16777216,67108864")]
    sizes: Vec<usize>,
    /// The paths that are measured.
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp")]
    paths: Vec<Path>,
    /// How long each size is measured on each path, about, in milliseconds.
    #[arg(long, default_value_t = 2000)]
    time_ms: u64,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// What carries the data.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Path {
    /// Shared memory.
    Shm,
    /// TCP over loopback.
    Tcp,
}

/// What a rank must know; one line on its stdin.
#[derive(Debug, Deserialize, Serialize)]
struct Plan {
    rank: u32,
    peers: Vec<SocketAddr>,
    key: [u8; 32],
    sizes: Vec<usize>,
    paths: Vec<Path>,
    time_ms: u64,
}

/// One size on one path; a line on rank 0's stdout.
#[derive(Debug, Deserialize, Serialize)]
struct Timed {
    bytes: usize,
    path: Path,
    times_ns: Vec<u64>,
}

/// The result.
#[derive(Debug, Serialize)]
struct Report {
    world: u32,
    sizes: Vec<SizeReport>,
}

#[derive(Debug, Serialize)]
struct SizeReport {
    bytes: usize,
    /// Of the first path.
    median_us: f64,
    p95_us: f64,
    /// The first path's median over another one's: below 1, the first is faster.
    ratio: BTreeMap<Path, f64>,
}

/// A rank's process; killed when dropped, so that none outlives a failed measurement.
struct Rank {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It has ended already where all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rank {
    fn start() -> anyhow::Result<Rank> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("allreduce-rank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("a rank cannot be started")?;
        let input = child.stdin.take().context("stdin is a pipe")?;
        let output = BufReader::new(child.stdout.take().context("stdout is a pipe")?);
        Ok(Rank { child, input, output })
    }

    /// The next line; an error where the rank has ended.
    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "a rank ended early");
        Ok(line)
    }
}

/// Measures and prints.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.sizes.iter().all(|bytes| bytes.is_multiple_of(4)), "--sizes: whole float32s");
    let first = *options.paths.first().context("--paths names none")?;
    let mut ranks = Vec::new();
    for _ in 0..options.world {
        ranks.push(Rank::start()?);
    }
    let mut peers = Vec::new();
    for rank in &mut ranks {
        peers.push(rank.line()?.trim().parse::<SocketAddr>()?);
    }
    for (number, rank) in (0..).zip(&mut ranks) {
        let plan = Plan {
            rank: number,
            peers: peers.clone(),
            key: KEY,
            sizes: options.sizes.clone(),
            paths: options.paths.clone(),
            time_ms: options.time_ms,
        };
        writeln!(rank.input, "{}", serde_json::to_string(&plan)?)?;
    }
    let mut sizes = Vec::new();
    for bytes in &options.sizes {
        let mut micros = BTreeMap::new();
        for _ in &options.paths {
            let timed: Timed = serde_json::from_str(&ranks[0].line()?)?;
            ensure!(timed.bytes == *bytes, "rank 0 measures in the order asked for");
            let times = timed.times_ns.iter().map(|time| *time as f64 / 1e3).collect::<Vec<_>>();
            if !options.json {
                let (median, p95) = (median(&times), percentile(&times, 0.95));
                let (median, p95) = median.zip(p95).context("there are measurements")?;
                let (path, count) = (timed.path, times.len());
                writeln!(
                    std::io::stderr(),
                    "{bytes:>10} B {path:?}: median {median:.1} us, p95 {p95:.1} us ({count} calls)"
                )?;
            }
            micros.insert(timed.path, times);
        }
        sizes.push(report(*bytes, first, &micros).context("there are measurements")?);
    }
    let report = Report { world: options.world, sizes };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

fn report(bytes: usize, first: Path, micros: &BTreeMap<Path, Vec<f64>>) -> Option<SizeReport> {
    let times = micros.get(&first)?;
    let (median_us, p95_us) = (median(times)?, percentile(times, 0.95)?);
    let others = micros.iter().filter(|(path, _)| **path != first);
    let ratio = others.filter_map(|(path, times)| Some((*path, median_us / median(times)?)));
    Some(SizeReport { bytes, median_us, p95_us, ratio: ratio.collect() })
}
