//! The runs whose decisions and states are committed: the arguments of `sim decisions` and `sim states`, and their common loop
//! over these runs. Called by both.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use clap::Args;
use sim::decisions::record::{self, RecordError, RecordedRun};

/// Exit code if something differs from the record.
pub(super) const DIFFERS: u8 = 6;

/// Number of differing runs that are shown.
pub(super) const SHOWN_MAX: usize = 5;

/// The kinds of runs.
const KINDS: [&str; 5] = ["cores", "restart", "actors", "training", "store"];

#[derive(Args, Debug)]
pub(crate) struct RecordedRunsArguments {
    /// Records what is so now, in place of what is committed.
    #[arg(long)]
    pub(super) accept: bool,
    /// The folder of what is recorded.
    #[arg(long, default_value = "sim/decisions")]
    pub(super) folder: PathBuf,
    /// Only runs of this kind: the first word of their lines.
    #[arg(long, conflicts_with = "accept", value_parser = KINDS)]
    kind: Option<String>,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    pub(super) jobs: usize,
    /// Stops after so many runs that differ.
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    max_differences: usize,
    /// One JSON object at the end, on stdout.
    #[arg(long)]
    pub(super) json: bool,
}

impl RecordedRunsArguments {
    /// The runs that are asked for, of those that are recorded.
    pub(super) fn chosen(&self) -> Result<Vec<RecordedRun>, RecordError> {
        let mut runs = record::read(&self.folder)?;
        if let Some(kind) = &self.kind {
            runs.retain(|run| run.kind() == kind);
        }
        Ok(runs)
    }

    /// Whether all runs are asked for.
    pub(super) const fn are_all(&self) -> bool {
        self.kind.is_none()
    }
}

/// The present result of a run, and its difference from the record, if there is one.
#[derive(Debug)]
pub(super) struct ComparedRun<N, D> {
    pub(super) run: RecordedRun,
    pub(super) now: N,
    pub(super) differs: Option<D>,
}

/// Compares the runs, in threads and in the order of the runs. Gives up after too many that differ.
pub(super) fn compare<N: Send, D: Send>(
    arguments: &RecordedRunsArguments,
    runs: &[RecordedRun],
    compare: impl Fn(&RecordedRun) -> Result<(N, Option<D>), RecordError> + Sync,
) -> anyhow::Result<Vec<ComparedRun<N, D>>> {
    let next = AtomicUsize::new(0);
    let differing = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| {
                while differing.load(Ordering::Relaxed) < arguments.max_differences {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(run) = runs.get(index) else { return };
                    let compared = compare(run);
                    if !matches!(compared, Ok((_, None))) {
                        differing.fetch_add(1, Ordering::Relaxed);
                    }
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((index, compared));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    let compared = done.into_iter().map(|(index, compared)| {
        let (now, differs) = compared?;
        Ok(ComparedRun { run: runs[index].clone(), now, differs })
    });
    compared.collect()
}
