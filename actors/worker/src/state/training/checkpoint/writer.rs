//! The thread that writes a worker's parts of checkpoints, from commits that training has given away. It needs no lock
//! of the training thread, and may hang as long as the file system does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use elastic_checkpoint::{SaveError, Snapshot, part_bytes, seal, write_part};
use elastic_protocol::messages::CheckpointReport;
use elastic_runtime::wall_clock;
use tracing::{debug, info};

use super::desk::{SaveOrder, SavedCommit, TellOutcome};
use super::jobs::{WriterJob, WriterJobs};
use crate::state::core::CheckpointOutcome;
use crate::state::training::control::StoreOf;
use crate::state::training::life::chain;

/// Nice value of the writer: the lowest priority, so that training gets the processors first.
const NICE: i32 = 19;

/// Carries the jobs of one worker out.
#[derive(Clone)]
pub(super) struct PartWriter {
    pub(super) store_of: StoreOf,
    pub(super) tell: TellOutcome,
    pub(super) jobs: Arc<WriterJobs>,
    /// Bytes that are written of a part, and those of the part; 0: none is being written.
    pub(super) written: Arc<[AtomicU64; 2]>,
}

impl PartWriter {
    /// Carries a job out, and reports its outcome. Nobody waits for that of a part that was given up.
    pub(super) fn carry_out(&self, job: WriterJob) {
        let (stamp, step) = job.order().save();
        let report = self.report(job);
        self.written[1].store(0, Ordering::Relaxed);
        self.jobs.end();
        if let Some(report) = report {
            (self.tell)(CheckpointOutcome { stamp, step, report });
        }
    }
}

/// Starts the thread. It ends when its jobs are closed.
pub(super) fn start(writer: PartWriter) -> std::io::Result<()> {
    let run = move || {
        stand_back();
        let _end = writer.jobs.closed_at_end();
        while let Some(job) = writer.jobs.begin() {
            writer.carry_out(job);
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

impl PartWriter {
    fn report(&self, job: WriterJob) -> Option<CheckpointReport> {
        let step = job.order().attempt.step;
        let done = match job {
            WriterJob::Part { order, commit } => self.part(&order, &commit),
            WriterJob::Seal { order, retention } => {
                let saved_at = wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
                let saved_at_ms = u64::try_from(saved_at.as_millis()).unwrap_or(u64::MAX);
                let files = (self.store_of)(&order.directory);
                seal(files, &order.directory, &order.attempt, saved_at_ms, retention).map(
                    |sealed| CheckpointReport::Sealed {
                        bytes: sealed.bytes,
                        troubles: sealed.troubles,
                    },
                )
            }
        };
        match done {
            Ok(report) => {
                debug!(step, ?report, "checkpoint");
                Some(report)
            }
            Err(SaveError::GivenUp) => {
                debug!(step, "the part was given up");
                None
            }
            Err(error @ SaveError::PartsDiffer { .. }) => {
                Some(CheckpointReport::Differ { reason: error.to_string() })
            }
            Err(error) => {
                let reason = chain(&error);
                info!(step, reason, "the checkpoint cannot be saved");
                Some(CheckpointReport::Failed { reason })
            }
        }
    }

    fn part(&self, order: &SaveOrder, commit: &SavedCommit) -> Result<CheckpointReport, SaveError> {
        if order.rank >= order.attempt.world_size {
            // Rank 0 writes it all.
            return Ok(CheckpointReport::PartSaved { bytes: 0 });
        }
        let SavedCommit { bytes, tensors, position } = commit;
        let snapshot = Snapshot { bytes, tensors, position };
        let (mut pace, began) = (Pace::new(order.bytes_per_s), now());
        let [done, total] = &*self.written;
        done.store(0, Ordering::Relaxed);
        let bytes = part_bytes(&snapshot, order.attempt.world_size, order.rank);
        total.store(bytes, Ordering::Relaxed);
        let mut pace = |bytes| {
            done.fetch_add(bytes as u64, Ordering::Relaxed);
            let early = pace.early_by(bytes as u64, began.elapsed());
            if self.jobs.is_given_up_within(early) { Err(SaveError::GivenUp) } else { Ok(()) }
        };
        let SaveOrder { rank, directory, attempt, .. } = order;
        let summary = write_part(
            (self.store_of)(directory),
            directory,
            attempt,
            *rank,
            &snapshot,
            &mut pace,
        )?;
        Ok(CheckpointReport::PartSaved { bytes: summary.bytes })
    }
}

#[expect(clippy::disallowed_methods, reason = "it paces a thread that decides nothing")]
fn now() -> Instant {
    Instant::now()
}

/// Bounds the bandwidth: says how long to wait where more was written than the time allows.
struct Pace {
    bytes_per_s: Option<u64>,
    written: u64,
}

impl Pace {
    const fn new(bytes_per_s: Option<u64>) -> Self {
        Self { bytes_per_s, written: 0 }
    }

    /// Notes that `bytes` more were written, `passed` after the begin. Returns the time by which that was too early.
    fn early_by(&mut self, bytes: u64, passed: Duration) -> Duration {
        self.written += bytes;
        let Some(rate) = self.bytes_per_s.filter(|rate| *rate > 0) else { return Duration::ZERO };
        Duration::from_secs_f64(self.written as f64 / rate as f64).saturating_sub(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn c_1_the_bandwidth_of_a_writer_is_bounded_whatever_the_disk_does() {
        let mut pace = Pace::new(Some(1 << 20));
        let (mut clock, mut written) = (Duration::ZERO, 0_u64);
        // A disk that is sometimes faster than the bound, and sometimes slower.
        for (piece, takes) in [(1 << 20, 2), (1 << 19, 900), (3 << 20, 1), (1, 5_000), (7 << 20, 3)]
        {
            written += piece;
            clock += takes * MS;
            clock += pace.early_by(piece, clock);
            let allowed = clock.as_secs_f64() * f64::from(1 << 20);
            assert!(written as f64 <= allowed + 1.0, "{written} bytes within {clock:?}");
        }
        // After a slow write the writer catches up, so the mean rate is the bound.
        let due = Duration::from_secs_f64(written as f64 / f64::from(1 << 20));
        assert!(clock.abs_diff(due) < MS, "{clock:?} instead of {due:?}");
    }

    #[test]
    fn without_a_bound_a_writer_does_not_wait() {
        assert_eq!(Pace::new(None).early_by(u64::MAX, Duration::ZERO), Duration::ZERO);
        assert_eq!(Pace::new(Some(0)).early_by(1, Duration::ZERO), Duration::ZERO);
    }
}
