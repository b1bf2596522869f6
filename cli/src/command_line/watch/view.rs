//! [`WatchView`]: what one who watches has seen of a job: its last status, and the world size, the steps and the resets
//! before. Without I/O; fed by `status --watch`, read by `draw`.

use std::collections::VecDeque;
use std::time::Duration;

use elastic_protocol::messages::{ResetStatus, StatusReport};

/// Most world sizes that are kept: five minutes of two a second.
const SIZES_MAX: usize = 600;

/// Time over which steps a second are counted.
const RATE_OVER: Duration = Duration::from_secs(10);

/// Most resets that are kept.
const RESETS_MAX: usize = 20;

/// What was seen of a job.
#[derive(Debug, Default)]
pub(super) struct WatchView {
    status: Option<StatusReport>,
    /// The world size in each status, the oldest first.
    sizes: VecDeque<u64>,
    /// The highest step in each status of the last seconds, the oldest first.
    steps: VecDeque<(Duration, u64)>,
    /// The resets, the newest first.
    resets: VecDeque<ResetStatus>,
}

impl WatchView {
    /// Takes a status.
    pub(super) fn handle_status(&mut self, at: Duration, status: &StatusReport) {
        if self.sizes.len() == SIZES_MAX {
            self.sizes.pop_front();
        }
        self.sizes.push_back(u64::from(status.world_size));
        let step = step_of(status);
        // A job that has lost its state counts from a lower step on.
        if self.steps.back().is_some_and(|(_, last)| *last > step) {
            self.steps.clear();
        }
        self.steps.push_back((at, step));
        while self.steps.front().is_some_and(|(since, _)| *since + RATE_OVER < at) {
            self.steps.pop_front();
        }
        if let Some(reset) = &status.last_reset {
            // A reset that is under way is told again when it is over.
            if self.resets.front().is_some_and(|last| last.at == reset.at) {
                self.resets.pop_front();
            }
            self.resets.push_front(reset.clone());
            self.resets.truncate(RESETS_MAX);
        }
        self.status = Some(status.clone());
    }

    /// The last status; none before the first.
    pub(super) const fn status(&self) -> Option<&StatusReport> {
        self.status.as_ref()
    }

    /// The highest step that a worker has committed.
    pub(super) fn step(&self) -> u64 {
        self.status.as_ref().map_or(0, step_of)
    }

    /// Steps a second over the last ten seconds; none while too little was seen.
    pub(super) fn steps_per_second(&self) -> Option<f64> {
        let ((since, first), (until, last)) = (self.steps.front()?, self.steps.back()?);
        let seconds = until.checked_sub(*since)?.as_secs_f64();
        let steps = u32::try_from(last - first).unwrap_or(u32::MAX);
        (seconds >= 1.0).then(|| f64::from(steps) / seconds)
    }

    /// The last world sizes, at most `most`, the oldest first.
    pub(super) fn sizes(&self, most: usize) -> Vec<u64> {
        self.sizes.iter().skip(self.sizes.len().saturating_sub(most)).copied().collect()
    }

    /// The resets that were seen, the newest first.
    pub(super) fn resets(&self) -> impl Iterator<Item = &ResetStatus> {
        self.resets.iter()
    }
}

fn step_of(status: &StatusReport) -> u64 {
    status.workers.iter().map(|worker| worker.step).max().unwrap_or_default()
}
