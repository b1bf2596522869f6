//! The thread that writes a worker's parts of checkpoints, from commits that training has given away. It needs no lock
//! of the training thread, and may hang as long as the file system does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, UNIX_EPOCH};

use elastic_checkpoint::{LocalFiles, SaveError, Snapshot, part_bytes, seal, write_part};
use elastic_protocol::Step;
use elastic_protocol::messages::CheckpointReport;
use elastic_runtime::wall_clock;
use tracing::{debug, info};

use super::desk::{SaveOrder, SavedCommit, TellOutcome};
use crate::state::core::CheckpointOutcome;
use crate::state::training::life::chain;

/// How far the writer stands back where training wants the processors: as far as it can.
const NICE: i32 = 19;

/// Work for the writer.
#[derive(Debug)]
pub(super) enum WriterJob {
    /// Write this rank's part.
    Part { order: SaveOrder, commit: SavedCommit },
    /// Make the checkpoint whole.
    Seal { order: SaveOrder, keep: u32 },
}

impl WriterJob {
    pub(super) const fn order(&self) -> &SaveOrder {
        match self {
            Self::Part { order, .. } | Self::Seal { order, .. } => order,
        }
    }
}

/// Starts the thread. It ends with the channel of its jobs.
pub(super) fn start(
    jobs: Receiver<WriterJob>,
    tell: TellOutcome,
    is_busy: Arc<AtomicBool>,
    written: Arc<[AtomicU64; 2]>,
) -> std::io::Result<()> {
    let run = move || {
        stand_back();
        for job in jobs {
            let (stamp, step) = (job.order().stamp, Step(job.order().attempt.step));
            let report = carry_out(job, &written);
            written[1].store(0, Ordering::Relaxed);
            is_busy.store(false, Ordering::SeqCst);
            tell(CheckpointOutcome { stamp, step, report });
        }
    };
    std::thread::Builder::new().name("checkpoint".to_owned()).spawn(run).map(drop)
}

/// Lowers the priority of the calling thread; on Linux of that thread alone. If that is refused, saves cost the steps beside them a
/// little more.
fn stand_back() {
    // SAFETY: The call takes a number and no memory.
    #[expect(unsafe_code, reason = "nix has no nice")]
    let _ = unsafe { libc::nice(NICE) };
}

fn carry_out(job: WriterJob, written: &[AtomicU64; 2]) -> CheckpointReport {
    let step = job.order().attempt.step;
    let done = match job {
        WriterJob::Part { order, commit } => part(&order, &commit, written),
        WriterJob::Seal { order, keep } => {
            let saved_at = wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
            let saved_at_ms = u64::try_from(saved_at.as_millis()).unwrap_or(u64::MAX);
            let keep = usize::try_from(keep).unwrap_or(usize::MAX);
            seal(&LocalFiles, &order.directory, &order.attempt, saved_at_ms, keep).map(|sealed| {
                CheckpointReport::Sealed { bytes: sealed.bytes, troubles: sealed.troubles }
            })
        }
    };
    match done {
        Ok(report) => {
            debug!(step, ?report, "checkpoint");
            report
        }
        Err(error) => {
            let reason = chain(&error);
            info!(step, reason, "the checkpoint cannot be saved");
            CheckpointReport::Failed { reason }
        }
    }
}

fn part(
    order: &SaveOrder,
    commit: &SavedCommit,
    written: &[AtomicU64; 2],
) -> Result<CheckpointReport, SaveError> {
    let SavedCommit { bytes, tensors, position } = commit;
    let snapshot = Snapshot { bytes, tensors, position };
    let mut pace = Pace::new(order.bytes_per_s);
    let [done, total] = written;
    done.store(0, Ordering::Relaxed);
    let bytes = part_bytes(&snapshot, order.attempt.world_size, order.rank);
    total.store(bytes, Ordering::Relaxed);
    let mut pace = |bytes| {
        done.fetch_add(bytes as u64, Ordering::Relaxed);
        pace.wrote(bytes);
        Ok(())
    };
    let SaveOrder { rank, directory, attempt, .. } = order;
    let summary = write_part(&LocalFiles, directory, attempt, *rank, &snapshot, &mut pace)?;
    Ok(CheckpointReport::PartSaved { bytes: summary.bytes })
}

/// Bounds the bandwidth: sleeps where more was written than the time allows.
struct Pace {
    bytes_per_s: Option<u64>,
    began: Instant,
    written: u64,
}

impl Pace {
    #[expect(clippy::disallowed_methods, reason = "it paces a thread that decides nothing")]
    fn new(bytes_per_s: Option<u64>) -> Self {
        Self { bytes_per_s, began: Instant::now(), written: 0 }
    }

    fn wrote(&mut self, bytes: usize) {
        self.written += bytes as u64;
        let Some(rate) = self.bytes_per_s.filter(|rate| *rate > 0) else { return };
        let due = Duration::from_secs_f64(self.written as f64 / rate as f64);
        if let Some(early) = due.checked_sub(self.began.elapsed()) {
            #[expect(clippy::disallowed_methods, reason = "nobody waits for this thread")]
            std::thread::sleep(early);
        }
    }
}
