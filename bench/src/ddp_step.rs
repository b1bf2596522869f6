//! `bench ddp-step`: a step of torch's DistributedDataParallel on CPUs, over backend "elastic" and over gloo, in turns in the same
//! processes; by the number of ranks and of parameters.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::process::elastic_node;
use crate::statistics::median;

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct DdpStepOptions {
    /// Numbers of ranks, all on this machine.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4])]
    ranks: Vec<u32>,
    /// Millions of parameters.
    #[arg(long, value_delimiter = ',', default_values_t = [0.4, 10.0])]
    parameters: Vec<f64>,
    /// Turns of each; the medians are taken over them.
    #[arg(long, default_value_t = 10)]
    turns: u32,
    /// An interpreter with `elastic_node` and torch.
    #[arg(long, env = "ELASTIC_BENCH_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Only the results, as one line of JSON each.
    #[arg(long)]
    json: bool,
}

/// Results of rank 0: milliseconds of a step, by turn.
#[derive(Debug, Deserialize)]
struct DdpStepMeasurement {
    parameters: u64,
    ms: DdpStepTimes,
}

#[derive(Debug, Deserialize)]
struct DdpStepTimes {
    ours: Vec<f64>,
    gloo: Vec<f64>,
    unexchanged: Vec<f64>,
    alone: Vec<f64>,
}

/// Medians, in milliseconds.
#[derive(Debug, Serialize)]
struct DdpStepReport {
    ranks: u32,
    parameters: u64,
    ours_ms: f64,
    gloo_ms: f64,
    /// The same step of DDP with a communication hook that exchanges nothing: no backend is faster.
    unexchanged_ms: f64,
    /// The same step of one rank without DDP, beside the others.
    alone_ms: f64,
    /// Ours over gloo's: below 1 is faster.
    ratio: f64,
    /// Ours over gloo's, of the time that each adds to the step that exchanges nothing.
    exchange_ratio: f64,
}

/// Measures and prints.
pub(crate) fn run(options: &DdpStepOptions) -> anyhow::Result<()> {
    ensure!(options.turns > 0, "--turns must be at least 1");
    let binary = elastic_node()?;
    for parameters in &options.parameters {
        for ranks in &options.ranks {
            let report = measure(options, &binary, *ranks, *parameters)?;
            let line = match options.json {
                true => serde_json::to_string(&report)?,
                false => format!(
                    "{ranks} ranks, {:.1} M parameters: ours {:.2} ms, gloo {:.2} ms, DDP without exchange {:.2} ms, without DDP \
                     {:.2} ms; ratio {:.2}, of the exchange alone {:.2}",
                    report.parameters as f64 / 1e6,
                    report.ours_ms,
                    report.gloo_ms,
                    report.unexchanged_ms,
                    report.alone_ms,
                    report.ratio,
                    report.exchange_ratio
                ),
            };
            writeln!(std::io::stdout(), "{line}")?;
        }
    }
    Ok(())
}

fn measure(
    options: &DdpStepOptions,
    binary: &Path,
    ranks: u32,
    parameters: f64,
) -> anyhow::Result<DdpStepReport> {
    let folder = TempDir::with_prefix("elastic-node-bench-")?;
    let results = folder.path().join("results");
    let log = fs::File::create(folder.path().join("log"))?;
    let status = Command::new(binary)
        .args(["run", "--np", &ranks.to_string(), "--mode", "restart", "--state-dir"])
        .arg(folder.path().join("state"))
        .arg("--")
        .arg(&options.python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/peers/ddp_step.py"))
        .arg("--results")
        .arg(&results)
        .args(["--parameters", &parameters.to_string()])
        .args(["--turns", &options.turns.to_string()])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .status()
        .context("the job cannot be started")?;
    ensure!(
        status.success(),
        "the job failed ({status})\n{}",
        fs::read_to_string(folder.path().join("log"))?
    );
    let measured: DdpStepMeasurement = serde_json::from_str(&fs::read_to_string(&results)?)?;
    let of = |times: &[f64]| median(times).context("there are turns");
    let (ours_ms, gloo_ms) = (of(&measured.ms.ours)?, of(&measured.ms.gloo)?);
    let unexchanged_ms = of(&measured.ms.unexchanged)?;
    Ok(DdpStepReport {
        ranks,
        parameters: measured.parameters,
        ours_ms,
        gloo_ms,
        unexchanged_ms,
        alone_ms: of(&measured.ms.alone)?,
        ratio: ours_ms / gloo_ms,
        exchange_ratio: (ours_ms - unexchanged_ms) / (gloo_ms - unexchanged_ms),
    })
}
