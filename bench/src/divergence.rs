//! `bench divergence`: the cost of the digests of a commit's arrays for the training thread. A job of two ranks
//! commits, in turns, a state of arrays that are compared, and one of as many bytes that are not.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::checkpoint::bytes;
use crate::monotonic::now_ns;
use crate::process::{elastic_node, now, pause, terminate};
use crate::statistics::median;

/// Ranks of the job.
const RANKS: &str = "2";

/// Turns of each state, and the first commits of a turn, which do not count: the commits before were of another size.
const TURNS: usize = 4;
const WARM_UP: usize = 4;

/// Most time for a job.
const PATIENCE: Duration = Duration::from_secs(300);

/// Interval between checks for its end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct DivergenceOptions {
    /// Bytes of the state on each rank: `32KiB`, `1GiB`.
    #[arg(long, value_delimiter = ',', default_value = "32KiB,64MiB,1GiB", value_parser = bytes)]
    state: Vec<u64>,
    /// Arrays of the state.
    #[arg(long, default_value_t = 16)]
    arrays: usize,
    /// Commits of a turn; of large states fewer, 64 GiB in all.
    #[arg(long, default_value_t = 2_000)]
    commits: usize,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Flags of the training program.
#[derive(Args, Debug)]
pub(crate) struct DivergenceProgramOptions {
    #[arg(long)]
    state_bytes: u64,
    #[arg(long)]
    arrays: usize,
    #[arg(long)]
    commits: usize,
    /// Where rank 0 writes what it measured.
    #[arg(long)]
    records: PathBuf,
}

/// The medians of one size.
#[derive(Debug, Deserialize, Serialize)]
struct DigestCost {
    state_bytes: u64,
    arrays: usize,
    /// Of a commit whose arrays are not compared.
    plain_ms: f64,
    /// Of a commit whose arrays are compared.
    compared_ms: f64,
    /// The difference.
    extra_ms: f64,
}

/// The state: either layers or as many plain bytes.
#[derive(Deserialize, Serialize)]
struct DigestedTraining {
    layers: Vec<DigestedLayer>,
    #[serde(with = "elastic_node::bulk")]
    plain: Vec<u8>,
}

#[derive(Deserialize, Serialize)]
struct DigestedLayer {
    #[serde(with = "elastic_node::bulk")]
    weight: Vec<f32>,
}

/// Measures and prints.
pub(crate) fn run(options: &DivergenceOptions) -> anyhow::Result<()> {
    let mut sizes = Vec::new();
    for state in &options.state {
        let cost = measure(options, *state)?;
        if !options.json {
            let DigestCost { plain_ms, compared_ms, extra_ms, .. } = &cost;
            let text = format!("{plain_ms:.4} ms, compared {compared_ms:.4}, extra {extra_ms:.4}");
            writeln!(std::io::stderr(), "{state} bytes: a commit takes {text}")?;
        }
        sizes.push(cost);
    }
    writeln!(std::io::stdout(), "{}", serde_json::json!({ "sizes": sizes }))?;
    Ok(())
}

/// Runs a job of this size.
fn measure(options: &DivergenceOptions, state: u64) -> anyhow::Result<DigestCost> {
    let folder = TempDir::with_prefix("elastic-node-bench-")?;
    let records = folder.path().join("records");
    let commits = options.commits.min(((64 << 30) / state / TURNS as u64 / 2) as usize);
    let mut job = Command::new(elastic_node()?)
        .args(["run", "--mode", "in-process", "--np", RANKS, "--state-dir"])
        .arg(folder.path().join("state"))
        .arg("--")
        .arg(std::env::current_exe()?)
        .args(["divergence-worker", "--state-bytes", &state.to_string()])
        .args(["--arrays", &options.arrays.to_string()])
        .args(["--commits", &commits.max(2 * WARM_UP).to_string(), "--records"])
        .arg(&records)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.path().join("log"))?)
        .spawn()
        .context("elastic-node cannot be started")?;
    let deadline = now() + PATIENCE;
    let log = || fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    loop {
        if let Some(status) = job.try_wait()? {
            ensure!(status.success(), "the job failed ({status})\n{}", log());
            return Ok(serde_json::from_slice(&fs::read(&records)?)?);
        }
        if now() > deadline {
            terminate(job.id())?;
            job.wait()?;
            anyhow::bail!("the job does not end\n{}", log());
        }
        pause(LOOK_EVERY);
    }
}

/// Trains: commits, in turns, of arrays that are compared and of plain bytes.
pub(crate) fn run_program(options: &DivergenceProgramOptions) -> anyhow::Result<()> {
    let start = DigestedTraining { layers: Vec::new(), plain: Vec::new() };
    let length = options.state_bytes as usize;
    elastic_node::run(elastic_node::state(start), |worker, state| {
        let (mut plain, mut compared) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            (state.layers, state.plain) = (Vec::new(), vec![0; length]);
            for step in 0..options.commits {
                state.plain.fill(step as u8);
                plain.extend(timed(step, || state.commit(worker))?);
            }
            let weight = || DigestedLayer { weight: vec![0.0; length / 4 / options.arrays] };
            state.plain = Vec::new();
            state.layers = (0..options.arrays).map(|_| weight()).collect();
            for step in 0..options.commits {
                state.layers.iter_mut().for_each(|layer| layer.weight.fill(step as f32));
                compared.extend(timed(step, || state.commit(worker))?);
            }
        }
        if worker.rank() == 0 {
            let of = |times: &[f64]| median(times).unwrap_or_default();
            let (plain_ms, compared_ms) = (of(&plain), of(&compared));
            let cost = DigestCost {
                state_bytes: options.state_bytes,
                arrays: options.arrays,
                plain_ms,
                compared_ms,
                extra_ms: compared_ms - plain_ms,
            };
            let text = serde_json::to_vec(&cost).map_err(std::io::Error::other)?;
            fs::write(&options.records, text)?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Milliseconds of a commit; none of the first ones of a turn.
fn timed(
    step: usize,
    commit: impl FnOnce() -> elastic_node::Result<()>,
) -> elastic_node::Result<Option<f64>> {
    let began = now_ns().map_err(std::io::Error::from)?;
    commit()?;
    let ended = now_ns().map_err(std::io::Error::from)?;
    Ok((step >= WARM_UP).then(|| (ended - began) as f64 / 1e6))
}
