//! The training program of `detect`: rank 0 is blocked in an all-reduce, rank 1 holds memory and waits to be killed.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use elastic_node::ReduceOp;
use serde::{Deserialize, Serialize};

use crate::monotonic::now_ns;
use crate::process::pause;

/// The file with a line for each generation whose rank 1 holds its memory: its process id and the generation.
const READY: &str = "ready";
/// The file with a line for each return of rank 0: the generation and the time.
const RETURNED: &str = "returned";

/// Time for rank 0 to enter its all-reduce, and the interval at which a lone worker looks for others.
const SETTLES: Duration = Duration::from_millis(20);

/// Flags of the training program.
#[derive(Args, Debug)]
pub(crate) struct DetectWorkerOptions {
    /// Memory that rank 1 touches.
    #[arg(long)]
    resident_bytes: usize,
    /// Where the two files are.
    #[arg(long)]
    records: PathBuf,
    /// As the benchmark gives it to every program; steps are not paced here.
    #[arg(long)]
    step_ms: u64,
}

#[derive(Deserialize, Serialize)]
struct NoState {}

/// Waits until it is told to leave, or killed.
pub(crate) fn run(options: &DetectWorkerOptions) -> anyhow::Result<()> {
    let DetectWorkerOptions { resident_bytes, records, step_ms } = options;
    let state = elastic_node::state(NoState {});
    elastic_node::run(state, |worker, _state| {
        while worker.size() < 2 {
            pause(SETTLES.max(Duration::from_millis(*step_ms)));
            worker.check_host_updates()?;
        }
        let mut sum = [1.0_f32];
        worker.all_reduce(&mut sum, ReduceOp::Sum)?;
        if worker.rank() == 1 {
            let memory = vec![1_u8; *resident_bytes];
            pause(SETTLES);
            let line = format!("{} {}", std::process::id(), worker.generation());
            append(&records.join(READY), &line)?;
            loop {
                pause(SETTLES);
                std::hint::black_box(&memory);
            }
        }
        let returned = worker.all_reduce(&mut sum, ReduceOp::Sum);
        let now = now_ns().map_err(std::io::Error::from)?;
        append(&records.join(RETURNED), &format!("{} {now}", worker.generation()))?;
        returned
    })?;
    Ok(())
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// Contents of the two files.
pub(super) struct Records {
    /// Process id and generation of the rank 1 that holds its memory, and has not been killed.
    pub(super) ready: Option<(u32, u64)>,
    /// Generations from which rank 0 has returned, with the time.
    pub(super) returned: Vec<(u64, u64)>,
}

/// Reads both files.
pub(super) fn ready_and_returned(folder: &Path) -> Records {
    let pairs = |name| {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        let pair = |line: &str| {
            let (one, two) = line.split_once(' ')?;
            Some((one.parse().ok()?, two.parse().ok()?))
        };
        text.lines().filter_map(pair).collect::<Vec<(u64, u64)>>()
    };
    let returned = pairs(RETURNED);
    let is_over = |generation: u64| returned.iter().any(|(of, _)| *of >= generation);
    let last = pairs(READY).pop().filter(|(_, generation)| !is_over(*generation));
    let ready = last.and_then(|(pid, generation)| Some((u32::try_from(pid).ok()?, generation)));
    Records { ready, returned }
}
