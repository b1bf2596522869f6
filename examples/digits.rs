//! Data-parallel training of a digit reader: SGD with momentum on the UCI handwritten digits.
//!
//! Alone: `cargo run --release --example digits`. With four workers on this machine:
//! `elastic-node run -n 4 -- target/release/examples/digits`. Kill a worker, add one: it trains on.
//!
//! stdout has one line at the end, from rank 0: `accuracy 0.9611`. With `--shards 8` (or the driver's), a second one has the
//! SHA-256 of the weights: `sha256 4f…`. It is the same for any number of workers up to 8, whatever happens to them.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program, not a library")]

#[path = "digits/data.rs"]
mod data;
#[path = "digits/model.rs"]
mod model;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use elastic_node::{BatchPlan, ReduceOp, State, Worker};
use serde::{Deserialize, Serialize};

use data::Digits;
use model::Model;

/// Trains a digit reader, alone or as one worker of many.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// Number of passes over the training data.
    #[arg(long, default_value_t = 20)]
    pub(crate) epochs: u64,
    /// Number of images in each worker's batch, or in each shard's.
    #[arg(long, default_value_t = 32)]
    pub(crate) batch_size: usize,
    /// Logical shards of a step, at least as many as workers; the weights do not depend on the number of workers then.
    #[arg(long)]
    pub(crate) shards: Option<u32>,
    /// Least time of a step in milliseconds, so that one can watch.
    #[arg(long, default_value_t = 0)]
    pub(crate) step_ms: u64,
    /// Least time of each shard in milliseconds of the process's own: none passes while it is stopped.
    #[arg(long, default_value_t = 0)]
    pub(crate) shard_ms: u64,
    /// The file in which rank 0 stores the trained parameters, as the bytes of 32-bit floats.
    #[arg(long)]
    pub(crate) save: Option<PathBuf>,
}

/// The complete training state, committed and restored as one unit.
#[derive(Deserialize, Serialize)]
struct Training {
    model: Model,
    epoch: u64,
    loss: f32,
    accuracy: f64,
}

fn main() -> elastic_node::Result<()> {
    let options = Options::parse();
    train(&options).map(drop)
}

/// Trains and returns the accuracy on the test images.
pub(crate) fn train(options: &Options) -> elastic_node::Result<f64> {
    let digits = Digits::load()?;
    let mut accuracy = 0.0;
    let start = Training { model: Model::new(), epoch: 0, loss: 0.0, accuracy: 0.0 };
    elastic_node::run(elastic_node::state(start), |worker, state| {
        let shards = options.shards.or(worker.job_shards());
        while state.epoch < options.epochs {
            match shards {
                Some(shards) => by_shards(worker, state, &digits, options, shards)?,
                None => by_ranks(worker, state, &digits, options)?,
            }
            state.accuracy = state.model.accuracy(&digits.test);
            if worker.rank() == 0 {
                let workers = if worker.size() == 1 { "worker" } else { "workers" };
                eprintln!("{} on {} {workers}", state.summary(), worker.size());
            }
            state.epoch += 1;
        }
        state.report(worker)?;
        accuracy = state.accuracy;
        if worker.rank() == 0 {
            if let Some(file) = &options.save {
                std::fs::write(file, state.model.to_bytes())?;
            }
            println!("accuracy {accuracy:.4}");
            if shards.is_some() {
                println!("sha256 {}", sha256(&state.model.to_bytes()));
            }
        }
        Ok(())
    })?;
    Ok(accuracy)
}

/// Trains the rest of an epoch with a batch for each rank: more ranks make larger steps.
fn by_ranks(
    worker: &Worker,
    state: &mut State<Training>,
    digits: &Digits,
    options: &Options,
) -> elastic_node::Result<()> {
    for batch in worker.sampler(&digits.train, options.batch_size, state.epoch) {
        let began = now();
        let mut gradient = state.model.gradient(batch.iter(), batch.weight());
        pace(began, options);
        worker.all_reduce(&mut gradient, ReduceOp::Mean)?;
        end_step(worker, state, &gradient)?;
    }
    Ok(())
}

/// Trains the rest of an epoch with a batch for each logical shard: the steps are the same in a world of any size.
fn by_shards(
    worker: &Worker,
    state: &mut State<Training>,
    digits: &Digits,
    options: &Options,
    shards: u32,
) -> elastic_node::Result<()> {
    let plan = BatchPlan::new(options.batch_size as u64 * u64::from(shards)).shards(shards);
    for step in worker.shards(&digits.train, &plan, state.epoch)? {
        let began = now();
        let gradient = step.all_reduce(ReduceOp::Mean, |shard| {
            let gradient = state.model.gradient(shard.iter(), shard.weight());
            pace(began, options);
            // A wait goes on while the process is stopped, the next one begins only when it runs.
            (0..options.shard_ms).for_each(|_| wait_until(now() + Duration::from_millis(1)));
            Ok(gradient)
        })?;
        end_step(worker, state, &gradient)?;
    }
    Ok(())
}

/// Waits as if the gradient took `--step-ms`. Behind the exchange, the first rank to wait would be a straggler.
fn pace(began: Instant, options: &Options) {
    wait_until(began + Duration::from_millis(options.step_ms));
}

fn end_step(
    worker: &Worker,
    state: &mut State<Training>,
    gradient: &[f32],
) -> elastic_node::Result<()> {
    state.model.apply(gradient);
    state.loss = gradient[gradient.len() - 1];
    state.report(worker)?;
    state.commit(worker)
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Training {
    fn summary(&self) -> String {
        let Self { epoch, loss, accuracy, .. } = self;
        format!("epoch {epoch} loss {loss:.4} accuracy {accuracy:.4}")
    }

    /// Shows where training is, in `elastic-node status` and on the job's page.
    fn report(&self, worker: &Worker) -> elastic_node::Result<()> {
        worker.note(format!("epoch {}", self.epoch));
        worker.report("loss", self.loss)?;
        Ok(worker.report("accuracy", self.accuracy)?)
    }
}

#[expect(clippy::disallowed_methods, reason = "a program that paces itself for whoever watches it")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a program that paces itself for whoever watches it")]
fn wait_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_digits() {
        let options = Options {
            epochs: 12,
            batch_size: 32,
            shards: None,
            step_ms: 0,
            shard_ms: 0,
            save: None,
        };
        let accuracy = train(&options).expect("alone, nothing can be lost");
        assert!(accuracy >= 0.93, "accuracy {accuracy}");
    }

    #[test]
    fn it_reads_digits_by_shards() {
        let options = Options {
            epochs: 20,
            batch_size: 16,
            shards: Some(8),
            step_ms: 0,
            shard_ms: 0,
            save: None,
        };
        let accuracy = train(&options).expect("alone, nothing can be lost");
        assert!(accuracy >= 0.93, "accuracy {accuracy}");
    }

    #[test]
    fn it_reads_digits_with_the_batches_of_four_workers() {
        let options = Options {
            epochs: 20,
            batch_size: 128,
            shards: None,
            step_ms: 0,
            shard_ms: 0,
            save: None,
        };
        let accuracy = train(&options).expect("alone, nothing can be lost");
        assert!(accuracy >= 0.93, "accuracy {accuracy}");
    }
}
