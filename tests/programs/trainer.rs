//! The training program of the end-to-end tests. Its state counts how often each sample was trained, so that any lost
//! or repeated sample shows. Tests control it through files in its control folder, and read what it writes to its log
//! folder.
//!
//! | control file | effect |
//! | --- | --- |
//! | `finish` | all ranks finish after the epoch that they are in |
//! | `raise.RANK` | that rank's training function returns an error, once |
//! | `raise-all` | the training function of every rank returns an error, always |
//! | `extra-collective.RANK` | that rank enters a collective that the others do not, once |
//! | `slow-finish.RANK` | that rank takes two seconds to finish |
//! | `die-last.RANK` | that rank takes two seconds to finish, and is killed before its training function returns |
//! | `slow-end.RANK` | that rank's process does not end after the training for as long as the file is there |
//! | `flip.RANK` | one bit of one of that rank's weights is flipped, once |
//! | `hang.RANK` | that rank waits in native code for ever, once |
//! | `pairs` | each generation begins with sub-groups of two neighbours |
//! | `elsewhere.RANK` | that rank enters a barrier of its pair instead of the step's collective, once |
//! | `hold` | all ranks wait before their next step for as long as the file is there |

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use elastic_node::{ReduceOp, Result, State, Worker};
use serde::{Deserialize, Serialize};

#[derive(Clone, Parser)]
struct Flags {
    /// Number of samples in an epoch.
    #[arg(long, default_value_t = 96)]
    samples: usize,
    /// Number of samples in one worker's batch.
    #[arg(long, default_value_t = 4)]
    batch_size: usize,
    /// Least time of a step, in milliseconds.
    #[arg(long, default_value_t = 10)]
    step_ms: u64,
    /// Number of steps from one commit to the next.
    #[arg(long, default_value_t = 1)]
    commit_every: u64,
    /// The folder of control files.
    #[arg(long)]
    control: PathBuf,
    /// The folder of the log.
    #[arg(long)]
    log: PathBuf,
    /// Additional bytes of state.
    #[arg(long, default_value_t = 0)]
    padding_bytes: usize,
    /// Number of weights, which each step changes alike on all ranks.
    #[arg(long, default_value_t = 8)]
    weights: usize,
    /// Number of averages that each rank has of its own. Rank 0 alone writes checkpoints of a state with some.
    #[arg(long, default_value_t = 0)]
    averages: usize,
}

#[derive(Deserialize, Serialize)]
struct Counts {
    epoch: u64,
    steps: u64,
    trained: Vec<u32>,
    #[serde(with = "elastic_node::bulk")]
    padding: Vec<u8>,
    #[serde(with = "elastic_node::bulk")]
    weights: Vec<f32>,
    /// Averages over a rank's own samples: each rank has others.
    averages: Vec<f32>,
    /// The same, said to be so.
    #[serde(with = "elastic_node::per_rank")]
    own: Vec<f32>,
}

struct Log(File);

impl Log {
    fn write(&mut self, event: &str, worker: &Worker, state: &State<Counts>) {
        let line = serde_json::json!({
            "event": event,
            "pid": std::process::id(),
            "rank": worker.rank(), "size": worker.size(),
            "local_rank": worker.local_rank(), "local_size": worker.local_size(),
            "cross_rank": worker.cross_rank(), "cross_size": worker.cross_size(),
            "generation": worker.generation(),
            "epoch": state.epoch, "steps": state.steps,
            "sum": state.trained.iter().map(|count| u64::from(*count)).sum::<u64>(),
            "weights": format!("{:08x}", folded(&state.weights)),
            "least": state.trained.iter().min(), "most": state.trained.iter().max(),
        });
        // A single write per line, so that a kill leaves whole lines.
        let _ = self.0.write_all(format!("{line}\n").as_bytes());
    }
}

fn taken(control: &Path, name: &str) -> bool {
    fs::remove_file(control.join(name)).is_ok()
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    let worker_name = std::env::var("ELASTIC_WORKER").unwrap_or_else(|_| "alone".to_owned());
    let file_name = format!("{}.jsonl", std::process::id());
    let file = OpenOptions::new().create(true).append(true).open(flags.log.join(file_name));
    let mut log = Log(file.map_err(elastic_node::Error::user)?);
    writeln!(std::io::stdout(), "{worker_name} starts")?;
    let padding = vec![7; flags.padding_bytes];
    let (trained, weights) = (vec![0; flags.samples], vec![0.5; flags.weights]);
    let (averages, own) = (vec![0.0; flags.averages], vec![0.0; flags.averages]);
    let counts = Counts { epoch: 0, steps: 0, trained, padding, weights, averages, own };
    let mut rank = 0;
    elastic_node::run(elastic_node::state(counts), |worker, state| {
        rank = worker.rank();
        log.write("enter", worker, state);
        let pair = match flags.control.join("pairs").exists() {
            true => worker.split(Some(worker.rank() / 2), 0)?,
            false => None,
        };
        loop {
            for batch in worker.sampler(&flags.samples, flags.batch_size, state.epoch) {
                std::thread::park_timeout(Duration::from_millis(flags.step_ms));
                while flags.control.join("hold").exists() {
                    std::thread::park_timeout(Duration::from_millis(flags.step_ms));
                }
                steer(worker, &flags)?;
                if taken(&flags.control, &format!("elsewhere.{}", worker.rank())) {
                    pair.iter().try_for_each(|pair| pair.barrier())?;
                }
                let mut counts = vec![0u32; flags.samples];
                for index in batch.iter() {
                    counts[index] += 1;
                }
                worker.all_reduce(&mut counts, ReduceOp::Sum)?;
                for (total, count) in state.trained.iter_mut().zip(&counts) {
                    *total += count;
                }
                state.steps += 1;
                learn(worker, state, &flags, &counts);
                report(worker, state)?;
                if state.steps % flags.commit_every == 0 {
                    state.commit(worker)?;
                    log.write("commit", worker, state);
                }
            }
            state.epoch += 1;
            let exact = state.trained.iter().all(|count| u64::from(*count) == state.epoch);
            log.write(if exact { "epoch" } else { "inexact" }, worker, state);
            let mut finish = [i32::from(flags.control.join("finish").exists())];
            worker.all_reduce(&mut finish, ReduceOp::Max)?;
            state.commit(worker)?;
            if finish[0] == 1 {
                break;
            }
        }
        if taken(&flags.control, &format!("slow-finish.{}", worker.rank())) {
            std::thread::park_timeout(Duration::from_secs(2));
        }
        if taken(&flags.control, &format!("die-last.{rank}")) {
            std::thread::park_timeout(Duration::from_secs(2));
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        }
        log.write("finish", worker, state);
        Ok(())
    })?;
    while flags.control.join(format!("slow-end.{rank}")).exists() {
        std::thread::park_timeout(Duration::from_millis(flags.step_ms));
    }
    Ok(())
}

/// Changes the weights alike on all ranks, and the averages by each rank's own number.
fn learn(worker: &Worker, state: &mut Counts, flags: &Flags, counts: &[u32]) {
    let rate = 1e-3 * (1 + state.steps % 7) as f32;
    for (weight, count) in state.weights.iter_mut().zip(counts.iter().cycle()) {
        *weight += rate * (*count as f32 - *weight);
    }
    let own = worker.rank() as f32 + state.steps as f32;
    for average in state.averages.iter_mut().chain(&mut state.own) {
        *average += 0.1 * (own - *average);
    }
    if taken(&flags.control, &format!("flip.{}", worker.rank())) {
        let place = state.weights.len() / 2;
        let weight = &mut state.weights[place];
        *weight = f32::from_bits(weight.to_bits() ^ 1 << 22);
    }
}

/// A number that differs where one weight does.
fn folded(weights: &[f32]) -> u32 {
    weights.iter().fold(0, |folded, weight| folded.rotate_left(1) ^ weight.to_bits())
}

/// Reports numbers as a training program would: the loss differs from rank to rank, and falls.
fn report(worker: &Worker, state: &Counts) -> Result<()> {
    let (epoch, steps) = (state.epoch as f64, state.steps as f64);
    worker.report("epoch", epoch)?;
    worker.report("loss", (2.0 + 0.1 * f64::from(worker.rank())) / (1.0 + steps / 100.0))?;
    Ok(())
}

fn steer(worker: &Worker, flags: &Flags) -> Result<()> {
    let rank = worker.rank();
    if flags.control.join("raise-all").exists() || taken(&flags.control, &format!("raise.{rank}")) {
        return Err(elastic_node::Error::user(format!("rank {rank} was told to raise")));
    }
    if taken(&flags.control, &format!("hang.{rank}")) {
        waits_for_a_batch_that_does_not_come();
    }
    if taken(&flags.control, &format!("extra-collective.{rank}")) {
        worker.barrier()?;
    }
    Ok(())
}

/// A native stack shows it by its name.
#[inline(never)]
fn waits_for_a_batch_that_does_not_come() {
    let (_loader, batches) = std::sync::mpsc::channel::<()>();
    // The sender is kept, so this waits for ever.
    let _ = batches.recv();
}
