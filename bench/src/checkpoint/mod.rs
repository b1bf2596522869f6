//! `bench checkpoint`: the cost of a save for the steps beside it, the time until the save is durable, and the time
//! to resume from it at another world size. It compares ours with torch's `async_save` and Meta's
//! torch_checkpointing, in turns.
//!
//! Each turn of a contestant is two jobs: two ranks that train and save (`bench/peers/checkpoint.py`), and
//! `--resume-world` ranks that begin from the saved checkpoint.

mod contestant;
mod job;
mod measured;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use serde::Serialize;

use self::contestant::{CheckpointContestant, CheckpointPeer};
use self::measured::{SaveFigures, SaveSample};

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct CheckpointOptions {
    /// Bytes of the state on each rank, in 64 arrays of float32: `1GiB`, `64MiB`.
    #[arg(long, default_value = "1GiB", value_parser = bytes)]
    state: u64,
    /// Peers to measure beside it, where installed.
    #[arg(long, value_enum, value_delimiter = ',')]
    vs: Vec<CheckpointPeer>,
    /// How often the contestants take turns.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Saves of a turn, after a first one that does not count.
    #[arg(long, default_value_t = 2)]
    saves: u64,
    /// Least time of a step in milliseconds: the host waits as it waits for an accelerator.
    #[arg(long, default_value_t = 100)]
    step_ms: u64,
    /// Steps from one commit to the next.
    #[arg(long, default_value_t = 10)]
    steps: u64,
    /// Commits from one save to the next; of peers as many steps.
    #[arg(long, default_value_t = 10)]
    every: u64,
    /// Ranks that resume.
    #[arg(long, default_value_t = 3)]
    resume_world: u32,
    /// The folder in which checkpoints are made; the system's for temporary files if none is given.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// The interpreter, with `elastic_node` and torch, and with torch_checkpointing for that peer.
    #[arg(long, env = "ELASTIC_BENCH_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
struct CheckpointBenchReport {
    state_bytes: u64,
    ranks: u32,
    resume_world: u32,
    /// Least time of a step, as it was asked for.
    asked_step_ms: u64,
    /// Load average of the last minute, at the begin and at the end.
    load: [f64; 2],
    #[serde(flatten)]
    ours: SaveFigures,
    /// By name, as far as they could be measured.
    peers: BTreeMap<&'static str, PeerFigures>,
}

/// A peer's figures, and ours over them: below 1, ours is ahead.
#[derive(Debug, Serialize)]
struct PeerFigures {
    #[serde(flatten)]
    figures: SaveFigures,
    ours_over_durable: f64,
    ours_over_resume: f64,
}

/// Ranks that train and save.
const RANKS: u32 = 2;

/// Measures and prints.
pub(crate) fn run(options: &CheckpointOptions) -> anyhow::Result<()> {
    ensure!(options.rounds > 0 && options.saves > 0, "there must be a round and a save");
    let mut contestants = vec![CheckpointContestant::Ours];
    for peer in &options.vs {
        match peer.missing(&options.python) {
            Some(missing) => writeln!(std::io::stderr(), "left out: {missing}")?,
            None => contestants.extend(peer.contestants()),
        }
    }
    let began = load()?;
    let mut samples: BTreeMap<CheckpointContestant, Vec<SaveSample>> = BTreeMap::new();
    for round in 1..=options.rounds {
        contestants.retain(|contestant| match job::take_turn(options, *contestant) {
            Ok(sample) => {
                say(options, &format!("round {round}, {}: {sample}", contestant.name()));
                samples.entry(*contestant).or_default().push(sample);
                true
            }
            // The figures of the others count all the same.
            Err(error) => {
                say(options, &format!("left out: {}: {error:?}", contestant.name()));
                false
            }
        });
        ensure!(contestants.contains(&CheckpointContestant::Ours), "ours could not be measured");
    }
    let figures = |contestant: &CheckpointContestant| {
        samples.get(contestant).and_then(|samples| SaveFigures::of(samples))
    };
    let ours = figures(&CheckpointContestant::Ours);
    let Some(ours) = ours else { anyhow::bail!("ours made no save that counts") };
    let of_peer = |contestant: &CheckpointContestant| {
        let figures = figures(contestant)?;
        let ours_over_durable = ours.durable_s / figures.durable_s;
        let ours_over_resume = ours.resume_s / figures.resume_s;
        let peer = PeerFigures { figures, ours_over_durable, ours_over_resume };
        Some((contestant.name(), peer))
    };
    let peers = contestants.iter().filter(|it| **it != CheckpointContestant::Ours);
    let report = CheckpointBenchReport {
        state_bytes: options.state,
        ranks: RANKS,
        resume_world: options.resume_world,
        asked_step_ms: options.step_ms,
        load: [began, load()?],
        peers: peers.filter_map(of_peer).collect(),
        ours,
    };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

fn say(options: &CheckpointOptions, text: &str) {
    if !options.json {
        // Progress on a closed stderr is of no interest.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// Load average of the last minute.
fn load() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().parse()?)
}

/// Reads a number of bytes, such as `64MiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        unit => return Err(format!("{unit:?} is none of KiB, MiB and GiB")),
    };
    let number: u64 = digits.parse().map_err(|error| format!("{digits:?}: {error}"))?;
    number.checked_mul(factor).filter(|bytes| *bytes > 0).ok_or_else(|| "not that many".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_bytes_have_units() {
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("12"), Ok(12));
        bytes("3GB").expect_err("no such unit");
        bytes("0GiB").expect_err("no state");
    }
}
