//! The training program of the benchmarks: a small state, an all-reduce and a commit a step, and a record of
//! each commit.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use elastic_node::ReduceOp;
use serde::{Deserialize, Serialize};

use crate::monotonic::now_ns;
use crate::record::CommitRecord;

/// Numbers that are trained: a gradient of 14 KiB, as that of the digits example.
const PARAMETERS: usize = 3_610;

/// Flags of the training program.
#[derive(Args, Debug)]
pub(crate) struct WorkerOptions {
    /// Where its records go, in a file that is named by its process id.
    #[arg(long)]
    records: PathBuf,
    /// Least time of a step in milliseconds.
    #[arg(long, default_value_t = 5)]
    step_ms: u64,
    /// Bytes of the line that is printed at each step; 0: none.
    #[arg(long, default_value_t = 0)]
    line_bytes: usize,
}

#[derive(Deserialize, Serialize)]
struct BenchTraining {
    step: u64,
    parameters: Vec<f32>,
}

/// Trains until it is told to leave.
pub(crate) fn run(options: &WorkerOptions) -> anyhow::Result<()> {
    let mut records = File::create(options.records.join(std::process::id().to_string()))?;
    let start = BenchTraining { step: 0, parameters: vec![0.0; PARAMETERS] };
    elastic_node::run(elastic_node::state(start), |worker, state| {
        loop {
            let mut gradient = vec![1.0_f32; PARAMETERS];
            pace(options.step_ms);
            worker.all_reduce(&mut gradient, ReduceOp::Mean)?;
            let moved = state.parameters.iter_mut().zip(&gradient);
            moved.for_each(|(parameter, slope)| *parameter += slope);
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
            if let Some(width) = options.line_bytes.checked_sub(1) {
                writeln!(std::io::stdout(), "{:<width$}", format!("step {}", state.step))?;
            }
        }
    })?;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "stands for the work of a step")]
fn pace(step_ms: u64) {
    std::thread::sleep(Duration::from_millis(step_ms));
}
