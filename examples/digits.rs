//! Data-parallel training of a digit reader: SGD with momentum on the UCI handwritten digits.
//!
//! Alone: `cargo run --release --example digits`. With four workers on this machine:
//! `elastic-node run -n 4 -- target/release/examples/digits`. Kill a worker, add one: it trains on.
//!
//! stdout has one line at the end, from rank 0: `accuracy 0.9611`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program, not a library")]

#[path = "digits/data.rs"]
mod data;
#[path = "digits/model.rs"]
mod model;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use elastic_node::{ReduceOp, Worker};
use serde::{Deserialize, Serialize};

use data::Digits;
use model::Model;

/// Trains a digit reader, alone or as one worker of many.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// Number of passes over the training data.
    #[arg(long, default_value_t = 20)]
    pub(crate) epochs: u64,
    /// Number of images in each worker's batch.
    #[arg(long, default_value_t = 32)]
    pub(crate) batch_size: usize,
    /// Least time of a step in milliseconds, so that one can watch.
    #[arg(long, default_value_t = 0)]
    pub(crate) step_ms: u64,
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
        while state.epoch < options.epochs {
            for batch in worker.sampler(&digits.train, options.batch_size, state.epoch) {
                let began = now();
                let mut gradient = state.model.gradient(batch.iter(), batch.weight());
                worker.all_reduce(&mut gradient, ReduceOp::Mean)?;
                state.model.apply(&gradient);
                state.loss = gradient[gradient.len() - 1];
                wait_until(began + Duration::from_millis(options.step_ms));
                state.report(worker)?;
                state.commit(worker)?;
            }
            state.accuracy = state.model.accuracy(&digits.test);
            if worker.rank() == 0 {
                eprintln!("{} on {} workers", state.summary(), worker.size());
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
        }
        Ok(())
    })?;
    Ok(accuracy)
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
        let options = Options { epochs: 12, batch_size: 32, step_ms: 0, save: None };
        let accuracy = train(&options).expect("alone, nothing can be lost");
        assert!(accuracy >= 0.93, "accuracy {accuracy}");
    }

    #[test]
    fn it_reads_digits_with_the_batches_of_four_workers() {
        let options = Options { epochs: 20, batch_size: 128, step_ms: 0, save: None };
        let accuracy = train(&options).expect("alone, nothing can be lost");
        assert!(accuracy >= 0.93, "accuracy {accuracy}");
    }
}
