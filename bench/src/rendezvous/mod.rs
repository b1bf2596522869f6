//! `bench rendezvous`: time for many hosts to become one group, and its cost.
//!
//! A driver and all agents are the real ones, over real QUIC on the loopback. Each agent enrols, joins, and is told
//! its rank; only the process that it would start then is left out. The driver has a thread, the agents have another.
//! Time is from before the driver listens until the last agent has its rank. Bytes are those of the loopback of a
//! network namespace of our own, headers included, so that torchrun's are counted alike; that needs root.

mod agents;
mod driver;
mod isolation;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use self::isolation::{Isolation, open_files_max, peak_memory_bytes};
use crate::monotonic::now_ns;
use crate::statistics::median;

/// Most time for the whole rendezvous.
const PATIENCE: Duration = Duration::from_secs(300);

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct RendezvousOptions {
    /// How many agents, each of a host with one slot.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    agents: u32,
    /// How often; the medians are given.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Peers to compare with, once, where installed.
    #[arg(long, value_delimiter = ',')]
    vs: Vec<RendezvousPeer>,
    /// The Python that has torch.
    #[arg(long, default_value = "python3", env = "ELASTIC_BENCH_PYTHON")]
    python: PathBuf,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Peers that form groups.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum RendezvousPeer {
    /// torchrun's c10d rendezvous: its handlers, as threads of two processes.
    Torchrun,
}

/// The result.
#[derive(Debug, Deserialize, Serialize)]
struct RendezvousReport {
    agents: u32,
    rounds: usize,
    ours: RoundCost,
    #[serde(skip_serializing_if = "Option::is_none")]
    torchrun: Option<RoundCost>,
}

/// The cost of a rendezvous.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct RoundCost {
    seconds: f64,
    /// Of the loopback, if it was ours alone.
    bytes: Option<u64>,
    packets: Option<u64>,
    /// Most resident memory of all of it, driver and agents; not counted for peers.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
}

/// Measures and prints.
pub(crate) fn run(options: &RendezvousOptions) -> anyhow::Result<()> {
    ensure!(options.rounds > 0, "--rounds must be at least 1");
    open_files_max()?;
    let isolation = Isolation::enter();
    let mut stderr = std::io::stderr();
    if let Err(error) = &isolation {
        writeln!(stderr, "bytes are not counted: {error:#}")?;
    }
    let isolation = isolation.ok();
    let mut costs = Vec::with_capacity(options.rounds);
    for _round in 0..options.rounds {
        let cost = match options.rounds {
            1 => {
                let cost = measure(isolation.as_ref(), || ours(options.agents))?;
                RoundCost { memory_bytes: peak_memory_bytes(), ..cost }
            }
            _ => in_a_process_of_its_own(options.agents)?,
        };
        if !options.json {
            writeln!(stderr, "ours: {}", told(&cost))?;
        }
        costs.push(cost);
    }
    let of = |value: fn(&RoundCost) -> f64| median(&costs.iter().map(value).collect::<Vec<f64>>());
    let count = |value: fn(&RoundCost) -> Option<u64>| {
        let mut counts: Vec<u64> = costs.iter().filter_map(value).collect();
        counts.sort_unstable();
        counts.get(counts.len() / 2).copied()
    };
    let ours = RoundCost {
        seconds: of(|cost| cost.seconds).context("there are measurements")?,
        bytes: count(|cost| cost.bytes),
        packets: count(|cost| cost.packets),
        memory_bytes: count(|cost| cost.memory_bytes),
    };
    let mut torchrun = None;
    if options.vs.contains(&RendezvousPeer::Torchrun) {
        let cost = measure(isolation.as_ref(), || peer(&options.python, options.agents))?;
        if !options.json {
            writeln!(stderr, "torchrun: {}", told(&cost))?;
        }
        torchrun = Some(cost);
    }
    let report =
        RendezvousReport { agents: options.agents, rounds: options.rounds, ours, torchrun };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

fn told(cost: &RoundCost) -> String {
    let bytes = cost.bytes.map_or_else(String::new, |bytes| {
        format!(", {:.2} MB in {} packets", bytes as f64 / 1e6, cost.packets.unwrap_or_default())
    });
    format!("{:.2} s{bytes}", cost.seconds)
}

/// Measures the network's traffic while a closure returns its seconds.
fn measure(
    isolation: Option<&Isolation>,
    rendezvous: impl FnOnce() -> anyhow::Result<f64>,
) -> anyhow::Result<RoundCost> {
    let before = isolation.map(Isolation::traffic).transpose()?;
    let seconds = rendezvous()?;
    let after = isolation.map(Isolation::traffic).transpose()?;
    let traffic = before.zip(after);
    Ok(RoundCost {
        seconds,
        bytes: traffic.map(|(before, after)| after.bytes - before.bytes),
        packets: traffic.map(|(before, after)| after.packets - before.packets),
        memory_bytes: None,
    })
}

/// Runs a round as if it were the only one. After another one in the same process the allocator would give it memory
/// that was used before, and all buffers for what the sockets receive (3 MiB each, of which little is used) would have
/// to be zeroed one by one.
fn in_a_process_of_its_own(agents: u32) -> anyhow::Result<RoundCost> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["rendezvous", "--rounds", "1", "--json", "--agents", &agents.to_string()]);
    let output = command.stderr(Stdio::inherit()).output().context("the bench cannot be run")?;
    ensure!(output.status.success(), "a round failed: {}", output.status);
    let report: RendezvousReport =
        serde_json::from_slice(&output.stdout).context("a round's report")?;
    Ok(report.ours)
}

/// Seconds until the last of our agents has its rank.
fn ours(count: u32) -> anyhow::Result<f64> {
    let started = now_ns()?;
    let (tell_address, address) = mpsc::channel();
    let (tell_assigned, assigned) = mpsc::channel();
    let (tell_over, over) = tokio::sync::oneshot::channel();
    let driving = std::thread::Builder::new()
        .name("driver".to_owned())
        .spawn(move || driver::run(count, tell_address, over))?;
    let listening = address.recv_timeout(PATIENCE).context("the driver does not listen")?;
    let joining = std::thread::Builder::new()
        .name("agents".to_owned())
        .spawn(move || agents::run(count, &listening, PATIENCE, tell_assigned))?;
    let all = assigned.recv_timeout(PATIENCE).context("not every agent has a rank");
    let ended = now_ns()?;
    // An agent that ended early reports its reason itself.
    let _ = tell_over.send(());
    let joined = joining.join().map_err(|_| anyhow::anyhow!("the agents panicked"))?;
    driving.join().map_err(|_| anyhow::anyhow!("the driver panicked"))??;
    joined?;
    all?;
    Ok(Duration::from_nanos(ended - started).as_secs_f64())
}

/// Seconds that a peer's program prints.
fn peer(python: &Path, count: u32) -> anyhow::Result<f64> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/rendezvous.py");
    let output = Command::new(python).arg(script).arg(count.to_string()).output();
    let output = output.with_context(|| format!("{} cannot be run", python.display()))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "torchrun's rendezvous failed: {stderr}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().with_context(|| format!("{text:?} is no time; {stderr}"))
}
