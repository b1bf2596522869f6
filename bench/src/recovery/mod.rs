//! `bench recovery`: time for which training stands still when a worker is killed.
//!
//! Four workers train, one is killed. In process, the time is that from the kill to the first commit that the last of
//! the three survivors made in a later generation; by restart, that of the last of the four new processes. Workers
//! take it themselves, on the machine's monotonic clock. Phases in process: detection is from the kill to the
//! driver's decision, forming and syncing are the event log's, and the rest is the first step itself. By restart:
//! `start` until the last new process is at its first line, `import` until it has imported torch, `join` until its
//! process group stands, `step` until it has committed. Peers are measured after ours, in jobs of the same size and
//! pace.

pub(crate) mod contestant;
pub(crate) mod job;
mod kill;
mod report;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::Args;

use contestant::{RecoveryContestant, RecoveryMode, RecoveryPeer};
use job::RecoveryJob;
use report::{Figures, RecoveryReport};

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct RecoveryOptions {
    /// How many workers are killed, one after the other.
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// How many workers of each peer are killed.
    #[arg(long, default_value_t = 5)]
    peer_kills: usize,
    /// Least time of a step in milliseconds.
    #[arg(long, default_value_t = 5)]
    step_ms: u64,
    /// The training program, and its way to go on without a worker.
    #[arg(long, value_enum, default_value_t = RecoveryMode::InProcess)]
    mode: RecoveryMode,
    /// Peers to measure beside it, where installed.
    #[arg(long, value_enum, value_delimiter = ',')]
    vs: Vec<RecoveryPeer>,
    /// The interpreter of scripts: for `--mode python` with `elastic_node` and torch, for `--mode restart` and peers
    /// with torch.
    #[arg(long, env = "ELASTIC_BENCH_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub(crate) fn run(options: &RecoveryOptions) -> anyhow::Result<()> {
    ensure!(options.kills > 0 && options.peer_kills > 0, "there must be at least 1 kill");
    let (python, mode) = (options.python.as_path(), options.mode);
    let ours = measure(options, "ours", options.kills, |folder| {
        RecoveryContestant::ours(mode, python, folder)
    })?;
    let mut peers = BTreeMap::new();
    for peer in &options.vs {
        if let Some(missing) = peer.missing(python) {
            writeln!(std::io::stderr(), "left out: {missing}")?;
            continue;
        }
        let figures = measure(options, peer.name(), options.peer_kills, |_folder| {
            RecoveryContestant::peer(*peer, python, None)
        });
        match figures {
            Ok(figures) => {
                peers.insert(peer.name(), figures);
            }
            // The figures of the others count all the same.
            Err(error) => writeln!(std::io::stderr(), "left out: {}: {error:?}", peer.name())?,
        }
    }
    let report = RecoveryReport { ours, peers };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

/// Runs the job of one contestant, from its start to its end.
fn measure(
    options: &RecoveryOptions,
    name: &str,
    kills: usize,
    contestant: impl FnOnce(&Path) -> anyhow::Result<RecoveryContestant>,
) -> anyhow::Result<Figures> {
    let (mut job, contestant) = RecoveryJob::start(options.step_ms, contestant)?;
    let mut samples = Vec::with_capacity(kills);
    for number in 0..kills {
        let sample = kill::measure(&mut job, &contestant, number)?;
        if !options.json {
            let phases: Vec<String> =
                sample.phases_ms.iter().map(|(phase, ms)| format!("{phase} {ms:.1}")).collect();
            let (total_ms, phases) = (sample.total_ms, phases.join(", "));
            let mut stderr = std::io::stderr();
            writeln!(stderr, "{name}, kill {}: {total_ms:.1} ms ({phases})", number + 1)?;
        }
        samples.push(sample);
    }
    Figures::of(&samples).context("there are measurements")
}
