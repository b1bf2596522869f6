//! The training program of the soak; its workers run it. Its state shows the samples that were trained: a count for
//! each sample, sums that do not depend on the rank and time of a sample's training, and weights whose last bits
//! depend on the order of all operations.

use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use elastic_node::ReduceOp;
use serde::{Deserialize, Serialize};

use super::check::SoakRecord;

/// Samples of an epoch.
const SAMPLES: usize = 240;

/// Samples of a batch.
const BATCH: usize = 4;

/// Number of sums, and of weights.
const SUMS: usize = 64;
const WEIGHTS: usize = 2_048;

/// A file in the program's folder that asks all workers to finish after their current epoch.
pub(crate) const FINISH: &str = "finish";

/// A folder below the program's folder, for the records of each process.
pub(super) const RECORDS: &str = "records";

/// Flags of the training program.
#[derive(Args, Debug)]
pub(crate) struct SoakProgramOptions {
    /// Where its records go, and where it is told to finish.
    #[arg(long)]
    folder: PathBuf,
    /// Least time of a step in milliseconds.
    #[arg(long)]
    step_ms: u64,
}

#[derive(Deserialize, Serialize)]
struct SoakTraining {
    epoch: u64,
    steps: u64,
    counts: Vec<u32>,
    sums: Vec<u64>,
    weights: Vec<f32>,
}

impl SoakTraining {
    fn record(&self, generation: u64) -> SoakRecord {
        let mut whole = DefaultHasher::new();
        (self.epoch, self.steps, &self.counts, &self.sums).hash(&mut whole);
        self.weights.iter().for_each(|weight| weight.to_bits().hash(&mut whole));
        // All counts are equal only between two epochs.
        let is_whole = self.counts.iter().all(|count| u64::from(*count) == self.epoch);
        SoakRecord {
            generation,
            steps: self.steps,
            epoch: self.epoch,
            is_whole: u64::from(is_whole),
            state: whole.finish(),
            sums: digest(&self.sums),
        }
    }
}

/// Trains until it is asked to finish.
pub(crate) fn run(options: &SoakProgramOptions) -> anyhow::Result<()> {
    let name = options.folder.join(RECORDS).join(std::process::id().to_string());
    let mut records: File = OpenOptions::new().create(true).append(true).open(name)?;
    let start = SoakTraining {
        epoch: 0,
        steps: 0,
        counts: vec![0; SAMPLES],
        sums: vec![0; SUMS],
        weights: vec![0.0; WEIGHTS],
    };
    elastic_node::run(elastic_node::state(start), |worker, state| {
        // A commit at which a generation ends as planned returns an error, and is recorded by the next generation here.
        records.write_all(&state.record(worker.generation()).to_bytes())?;
        loop {
            for batch in worker.sampler(&SAMPLES, BATCH, state.epoch) {
                pace(options.step_ms);
                let mut counts = vec![0_u32; SAMPLES];
                let mut sums = vec![0_u64; SUMS];
                for sample in batch.iter() {
                    counts[sample] += 1;
                    add(&mut sums, sample, state.epoch);
                }
                let mut slopes: Vec<f32> = (0..WEIGHTS)
                    .map(|index| 1.0 / (1 + index + sums[index % SUMS] as usize % 997) as f32)
                    .collect();
                worker.all_reduce(&mut counts, ReduceOp::Sum)?;
                worker.all_reduce(&mut sums, ReduceOp::Sum)?;
                worker.all_reduce(&mut slopes, ReduceOp::Mean)?;
                state.counts.iter_mut().zip(&counts).for_each(|(all, count)| *all += count);
                state
                    .sums
                    .iter_mut()
                    .zip(&sums)
                    .for_each(|(all, sum)| *all = all.wrapping_add(*sum));
                state.weights.iter_mut().zip(&slopes).for_each(|(weight, slope)| {
                    *weight = *weight * 0.999 + slope;
                });
                state.steps += 1;
                state.commit(worker)?;
                records.write_all(&state.record(worker.generation()).to_bytes())?;
            }
            state.epoch += 1;
            let mut finish = [i32::from(options.folder.join(FINISH).exists())];
            worker.all_reduce(&mut finish, ReduceOp::Max)?;
            state.commit(worker)?;
            records.write_all(&state.record(worker.generation()).to_bytes())?;
            if finish[0] == 1 {
                return Ok(());
            }
        }
    })?;
    Ok(())
}

/// The digests of the sums after 0, 1, 2, … epochs, each with every sample once.
pub(super) fn digests_of_epochs() -> impl Iterator<Item = u64> {
    let mut sums = vec![0; SUMS];
    (0..).map(move |epoch| {
        let now = digest(&sums);
        (0..SAMPLES).for_each(|sample| add(&mut sums, sample, epoch));
        now
    })
}

fn digest(sums: &[u64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    sums.hash(&mut hasher);
    hasher.finish()
}

/// Adds a sample's numbers of an epoch to the sums. No other sample has the same numbers, and they are small
/// enough not to overflow within a step.
fn add(sums: &mut [u64], sample: usize, epoch: u64) {
    let mut number = (epoch << 32) | sample as u64;
    for sum in sums {
        // The finalizer of splitmix64.
        number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        *sum = sum.wrapping_add(mixed >> 33);
    }
}

#[expect(clippy::disallowed_methods, reason = "stands for the work of a step")]
fn pace(step_ms: u64) {
    std::thread::sleep(Duration::from_millis(step_ms));
}
