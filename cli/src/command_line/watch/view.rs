//! [`WatchView`]: the knowledge of a job from its statuses so far: the last one, and the world size, the steps and the
//! resets before. Without I/O; fed by `status --watch`, read by `draw`.

use std::collections::VecDeque;
use std::time::Duration;

use elastic_protocol::messages::{ResetStatus, StatusReport};

use crate::process::StepRate;

/// Most world sizes that are kept: five minutes of two a second.
const SIZES_MAX: usize = 600;

/// Most resets that are kept.
const RESETS_MAX: usize = 20;

/// The knowledge of a job from its statuses so far.
#[derive(Debug, Default)]
pub(super) struct WatchView {
    status: Option<StatusReport>,
    /// The world size in each status, the oldest first.
    sizes: VecDeque<u64>,
    steps: StepRate,
    /// The resets, the newest first.
    resets: VecDeque<ResetStatus>,
    /// Whether the driver has not answered since the last status.
    is_silent: bool,
}

impl WatchView {
    /// Takes a status.
    pub(super) fn handle_status(&mut self, at: Duration, status: &StatusReport) {
        if self.sizes.len() == SIZES_MAX {
            self.sizes.pop_front();
        }
        self.sizes.push_back(u64::from(status.world_size));
        self.steps.handle_step(at, step_of(status));
        for reset in resets_of(status) {
            // A reset that is under way is told again when it is over; between two looks there may have been several.
            match self.resets.iter_mut().find(|known| known.at == reset.at) {
                Some(known) => *known = reset.clone(),
                None => self.resets.push_front(reset.clone()),
            }
        }
        self.resets.truncate(RESETS_MAX);
        self.status = Some(status.clone());
        self.is_silent = false;
    }

    /// Takes that the driver does not answer.
    pub(super) const fn handle_silence(&mut self) {
        self.is_silent = true;
    }

    /// Whether the driver has not answered since the last status.
    pub(super) const fn is_silent(&self) -> bool {
        self.is_silent
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
        self.steps.per_second()
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

/// The last resets of a status, the oldest first; of a driver that tells no more, the last one.
fn resets_of(status: &StatusReport) -> impl Iterator<Item = &ResetStatus> {
    let last = status.last_reset.iter().filter(|_| status.resets_recent.is_empty());
    status.resets_recent.iter().chain(last)
}
