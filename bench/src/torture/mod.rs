//! `bench torture`: jobs that must not be lost. Digits is trained with logical shards under kills, joins, a driver's death and a
//! kill of everything, and must give the weights of one undisturbed worker (`shards`). And a job whose every process is killed again
//! and again must train each sample once an epoch, from checkpoints that are whole (`total`).

mod job;
mod shards;
mod total;

use std::io::Write as _;

use clap::Args;
use serde::Serialize;

use self::shards::ShardsReport;
use self::total::TotalReport;

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct TortureOptions {
    /// Workers killed in the training with shards; `0` leaves that training out.
    #[arg(long, default_value_t = 20)]
    kills: u32,
    /// Passes over the data in the training with shards: it must last until the last fault.
    #[arg(long, default_value_t = 300)]
    epochs: u64,
    /// How often every process is killed; `0` leaves that job out.
    #[arg(long, default_value_t = 50)]
    total_kills: u32,
    /// Commits from one checkpoint to the next in that job.
    #[arg(long, default_value_t = 20)]
    every: u64,
    /// Least time of a step in milliseconds.
    #[arg(long, default_value_t = 20)]
    step_ms: u64,
    /// Draws the faults and their moments.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
struct TortureReport {
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    shards: Option<ShardsReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<TotalReport>,
}

/// Runs both, and checks them.
pub(crate) fn run(options: &TortureOptions) -> anyhow::Result<()> {
    let shards = (options.kills > 0).then(|| shards::run(options)).transpose()?;
    let total = (options.total_kills > 0).then(|| total::run(options)).transpose()?;
    let report = TortureReport { seed: options.seed, shards, total };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

fn say(options: &TortureOptions, text: &str) {
    if !options.json {
        // Progress on a closed stderr is of no interest.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}
