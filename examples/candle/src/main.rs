//! Data-parallel training of a digit reader with candle: layers, gradients and the optimiser are candle's.
//!
//! Alone: `cargo run --release --manifest-path examples/candle/Cargo.toml`. With four workers on this machine:
//! `elastic-node run -n 4 -- examples/candle/target/release/candle-digits`. Kill a worker: the others train on.
//!
//! stdout has one line of each worker at the end, the same of all: `after 240 steps: loss 0.2159, accuracy 0.9417`. With
//! `--shards 8`, a second one has the SHA-256 of the weights: it is the same for any number of workers up to 8.

mod model;

use std::time::Duration;

use candle_core::{Device, Tensor};
use clap::Parser;
use elastic_node::{BatchPlan, ReduceOp, State, Worker};
use serde::{Deserialize, Serialize};

use model::Model;

/// An image's pixels, from 0 (white) to 1 (black), and the digit that it shows.
type Sample = ([f32; model::PIXELS], u32);

/// Trains a digit reader, alone or as one worker of many.
#[derive(Debug, Parser)]
struct Options {
    /// Passes over the data.
    #[arg(long, default_value_t = 20)]
    epochs: u64,
    /// Images that each worker, or each shard, takes a step.
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// Logical shards of a step, at least as many as workers; the weights do not depend on the number of workers then.
    #[arg(long)]
    shards: Option<u32>,
    /// Least time of a step in milliseconds, so that one can watch.
    #[arg(long, default_value_t = 0)]
    step_ms: u64,
}

/// Everything that must survive, as one unit.
#[derive(Deserialize, Serialize)]
struct Training {
    model: Model,
    epoch: u64,
    step: u64,
}

fn main() -> elastic_node::Result<()> {
    let options = Options::parse();
    let (train, test) = digits()?;
    let (test_images, test_labels) = tensors(test.iter())?;
    let start = Training { model: Model::new()?, epoch: 0, step: 0 };
    elastic_node::run(elastic_node::state(start), |worker, state| {
        while state.epoch < options.epochs {
            match options.shards {
                Some(shards) => by_shards(worker, state, &train, &options, shards)?,
                None => by_ranks(worker, state, &train, &options)?,
            }
            state.epoch += 1;
            if worker.rank() == 0 {
                let loss = state.model.loss(&test_images, &test_labels)?;
                eprintln!("epoch {}: loss {loss:.4} on {} workers", state.epoch, worker.size());
            }
        }
        let loss = state.model.loss(&test_images, &test_labels)?;
        let accuracy = state.model.accuracy(&test_images, &test_labels)?;
        println!("after {} steps: loss {loss}, accuracy {accuracy}", state.step);
        if options.shards.is_some() {
            println!("sha256 {}", sha256(&state.model.to_bytes()));
        }
        Ok(())
    })
}

/// Trains the rest of an epoch with a batch for each rank.
fn by_ranks(
    worker: &Worker,
    state: &mut State<Training>,
    train: &[Sample],
    options: &Options,
) -> elastic_node::Result<()> {
    for batch in worker.sampler(train, options.batch_size, state.epoch) {
        let (images, labels) = tensors(batch.iter())?;
        let mut gradient = state.model.gradient(&images, &labels, batch.weight())?;
        worker.all_reduce(&mut gradient, ReduceOp::Mean)?;
        end_step(worker, state, &gradient, options)?;
    }
    Ok(())
}

/// Trains the rest of an epoch with a batch for each logical shard.
fn by_shards(
    worker: &Worker,
    state: &mut State<Training>,
    train: &[Sample],
    options: &Options,
    shards: u32,
) -> elastic_node::Result<()> {
    let plan = BatchPlan::new(options.batch_size as u64 * u64::from(shards)).shards(shards);
    for step in worker.shards(train, &plan, state.epoch)? {
        let gradient = step.all_reduce(ReduceOp::Mean, |shard| {
            let (images, labels) = tensors(shard.iter())?;
            Ok(state.model.gradient(&images, &labels, shard.weight())?)
        })?;
        end_step(worker, state, &gradient, options)?;
    }
    Ok(())
}

fn end_step(
    worker: &Worker,
    state: &mut State<Training>,
    gradient: &[f32],
    options: &Options,
) -> elastic_node::Result<()> {
    state.model.step(gradient)?;
    state.step += 1;
    pause(options.step_ms);
    state.commit(worker)
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The handwritten digits to learn from, and, every fifth, to be tested on; the same ones on every rank. Their source:
/// `examples/data/README.md`.
fn digits() -> model::Result<(Vec<Sample>, Vec<Sample>)> {
    let (mut train, mut test) = (Vec::new(), Vec::new());
    for (index, line) in include_str!("../../data/digits.csv").lines().enumerate() {
        let part = if index % 5 == 0 { &mut test } else { &mut train };
        part.push(sample(line).ok_or_else(|| format!("line {} is no image", index + 1))?);
    }
    Ok((train, test))
}

fn sample(line: &str) -> Option<Sample> {
    let mut numbers = line.split(',').map(str::parse::<u8>);
    let mut pixels = [0.0; model::PIXELS];
    for pixel in &mut pixels {
        *pixel = f32::from(numbers.next()?.ok()?) / 16.0;
    }
    Some((pixels, numbers.next()?.ok()?.into()))
}

/// Images as the rows of a matrix, and their labels.
fn tensors<'a>(
    samples: impl ExactSizeIterator<Item = &'a Sample>,
) -> model::Result<(Tensor, Tensor)> {
    let count = samples.len();
    let (pixels, labels): (Vec<[f32; model::PIXELS]>, Vec<u32>) = samples.copied().unzip();
    let images = Tensor::from_vec(pixels.concat(), (count, model::PIXELS), &Device::Cpu)?;
    Ok((images, Tensor::from_vec(labels, count, &Device::Cpu)?))
}

#[expect(clippy::disallowed_methods, reason = "a program that paces itself for whoever watches it")]
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
