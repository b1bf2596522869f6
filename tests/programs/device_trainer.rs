//! The training program of the end-to-end tests with state on a GPU. All its weights equal the number of steps made so
//! far, so that a torn state shows. It writes a line for each step to its log folder, and ends once `finish` is in its
//! control folder, or after a given number of steps. `bench/gpu.sh` measures commits with it.

#![expect(clippy::disallowed_methods, reason = "a program, which lives in real time")]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use elastic_node::gpu::{DeviceArray, DeviceOperation, LocalGpu, Region, local_gpu, with_nccl};
use elastic_node::{DataType, Error, OperationKind, ReduceOp, Result, Worker};
use serde::{Deserialize, Serialize};

#[derive(Clone, Parser)]
struct Flags {
    /// The folder of control files.
    #[arg(long)]
    control: PathBuf,
    /// The folder of the log.
    #[arg(long)]
    log: PathBuf,
    /// Length of the weights, in bytes.
    #[arg(long, default_value_t = 1 << 20)]
    bytes: usize,
    /// Number of steps; 0: train until `finish` appears.
    #[arg(long, default_value_t = 0)]
    steps: u64,
    /// Least time of a step, in milliseconds.
    #[arg(long, default_value_t = 10)]
    step_ms: u64,
}

#[derive(Deserialize, Serialize)]
struct Training {
    step: u64,
}

/// Reads the weights, and fails unless all are of this step.
fn check(weights: &DeviceArray, step: u64) -> Result<Vec<f32>> {
    let bytes = weights.read()?;
    let (words, _) = bytes.as_chunks::<4>();
    let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    match values.iter().position(|value| *value != step as f32) {
        Some(at) => Err(format!("torn: weight {at} is {} in step {step}", values[at]).into()),
        None => Ok(values),
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The mean of a gradient of ones, by NCCL on the GPU: 1.0.
fn slope(worker: &Worker, gradient: &DeviceArray) -> Result<f32> {
    gradient.write(&bytes_of(&[1.0; 16]))?;
    let launched = with_nccl(worker, |nccl| {
        let launched = gradient.read_by(|buffer| {
            let (data, data_type, op) = (Region::all(buffer), DataType::F32, ReduceOp::Mean);
            nccl.launch_operation(&DeviceOperation::AllReduce { data, data_type, op })
        })?;
        nccl.wait(OperationKind::AllReduce, launched)
    });
    launched?;
    let bytes = gradient.read()?;
    let (words, _) = bytes.as_chunks::<4>();
    Ok(f32::from_le_bytes(words[0]))
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    let gpu: LocalGpu = local_gpu()?.ok_or("this worker has no GPU")?;
    let (weights, gradient) = (gpu.array(flags.bytes)?, gpu.array(64)?);
    let mut state = elastic_node::state(Training { step: 0 });
    state.add_device_memory(weights.clone());
    elastic_node::run(state, |worker, state| {
        loop {
            let started = Instant::now();
            let mut values = check(&weights, state.step)?;
            let slope = slope(worker, &gradient)?;
            values.iter_mut().for_each(|value| *value += slope);
            weights.write(&bytes_of(&values))?;
            state.step += 1;
            let is_last = state.step == flags.steps || flags.control.join("finish").exists();
            let mut finish = [u32::from(is_last)];
            worker.all_reduce(&mut finish, ReduceOp::Max)?;
            log(&flags, worker, state.step, started.elapsed(), &weights)?;
            if finish[0] > 0 {
                return Ok(());
            }
            std::thread::sleep(
                Duration::from_millis(flags.step_ms).saturating_sub(started.elapsed()),
            );
            state.commit(worker)?;
        }
    })
}

fn log(
    flags: &Flags,
    worker: &Worker,
    step: u64,
    took: Duration,
    weights: &DeviceArray,
) -> Result<()> {
    let cost = weights.commit_cost();
    let line = serde_json::json!({
        "pid": std::process::id(),
        "generation": worker.generation(),
        "rank": worker.rank(),
        "size": worker.size(),
        "step": step,
        "step_us": took.as_micros() as u64,
        "commits": cost.commits,
        "waited_us": cost.waited.as_micros() as u64,
        "copied_us": cost.copied.as_micros() as u64,
    });
    let name = flags.log.join(format!("{}.jsonl", std::process::id()));
    fs::create_dir_all(&flags.log).map_err(Error::from)?;
    let mut file = OpenOptions::new().create(true).append(true).open(name)?;
    Ok(writeln!(file, "{line}")?)
}
