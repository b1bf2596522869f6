//! The training program of `bench rebalance`: a batch plan with logical shards, each of which takes a fixed time of
//! the process's own, and a record of each commit.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use elastic_node::{BatchPlan, ReduceOp};
use serde::{Deserialize, Serialize};

use crate::monotonic::now_ns;
use crate::record::CommitRecord;

/// Numbers that are trained: a gradient of 14 KiB, as that of the digits example.
const PARAMETERS: usize = 3_610;

/// Samples of a shard in each step.
const SAMPLES: u64 = 4;

/// Steps of an epoch.
const STEPS_OF_EPOCH: usize = 50;

/// The file of the trained parameters, beside the records.
pub(super) const TRAINED: &str = "parameters";

/// Its length.
pub(super) const TRAINED_BYTES: usize = PARAMETERS * 4;

/// Flags of the training program.
#[derive(Args, Debug)]
pub(crate) struct RebalanceWorkerOptions {
    /// Where its records go, in a file that is named by its process id.
    #[arg(long)]
    records: PathBuf,
    /// Steps of the training, in whole epochs.
    #[arg(long)]
    steps: u64,
    /// Logical shards.
    #[arg(long)]
    shards: u32,
    /// Least time of each shard in milliseconds; its flag is that of all training programs here.
    #[arg(long = "step-ms")]
    shard_ms: u64,
}

#[derive(Deserialize, Serialize)]
struct ShardedTraining {
    step: u64,
    parameters: Vec<f32>,
}

/// Trains for so many steps.
pub(crate) fn run(options: &RebalanceWorkerOptions) -> anyhow::Result<()> {
    let mut records = File::create(options.records.join(std::process::id().to_string()))?;
    let start = ShardedTraining { step: 0, parameters: vec![0.0; PARAMETERS] };
    let samples = u64::from(options.shards) * SAMPLES;
    let data: Vec<u32> = (0..samples as u32 * STEPS_OF_EPOCH as u32).collect();
    let plan = BatchPlan::new(samples).shards(options.shards).seed(18);
    elastic_node::run(elastic_node::state(start), |worker, state| {
        while state.step < options.steps {
            let epoch = state.step / STEPS_OF_EPOCH as u64;
            for step in worker.shards(&data[..], &plan, epoch)? {
                let gradient = step.all_reduce(ReduceOp::Mean, |shard| {
                    // A wait goes on while the process is stopped, the next one begins only when it runs.
                    (0..options.shard_ms).for_each(|_| pace());
                    let sum: f32 = shard.iter().map(|sample| *sample as f32).sum();
                    let slope = |(at, value): (usize, &f32)| (sum + at as f32).sin() - value * 0.01;
                    Ok(state.parameters.iter().enumerate().map(slope).collect())
                })?;
                let moved = state.parameters.iter_mut().zip(&gradient);
                moved.for_each(|(parameter, slope)| *parameter += 0.1 * slope);
                state.step += 1;
                state.commit(worker)?;
                let record = CommitRecord {
                    at_ns: now_ns().map_err(std::io::Error::from)?,
                    generation: worker.generation(),
                    step: state.step,
                    world_size: worker.size(),
                    rank: worker.rank(),
                };
                records.write_all(&record.to_bytes())?;
            }
        }
        if worker.rank() == 0 {
            let bytes: Vec<u8> = state.parameters.iter().flat_map(|it| it.to_ne_bytes()).collect();
            std::fs::write(options.records.join(TRAINED), bytes)?;
        }
        Ok(())
    })?;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "stands for the work of a shard")]
fn pace() {
    std::thread::sleep(Duration::from_millis(1));
}
