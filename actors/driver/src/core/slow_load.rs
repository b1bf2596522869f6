//! [`CheckpointLoad`]: the wait for a checkpoint that training is to begin from. A part of
//! [`Checkpoints`](super::checkpoints::Checkpoints).
//!
//! Storage that does not answer blocks the thread that reads, so no member can report that it waits for storage. The driver
//! knows the folder and sees whether bytes are read. If none are, it names the folder, and again if the job ends for it.

use std::time::Duration;

use elastic_protocol::messages::MovedBytes;
use elastic_protocol::{Stamp, Step, Time};
use serde::{Deserialize, Serialize};

use super::DriverCore;
use super::event::EventKind;
use super::phase::RoundPhase;
use super::timers::Timer;

/// Time without a byte after which the folder of the checkpoints is named.
const LOAD_SLOW: Duration = Duration::from_secs(10);

/// Progress of a generation's members that look for a checkpoint and read it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct CheckpointLoad {
    stamp: Stamp,
    /// Bytes that the members had read at the last look.
    done: u64,
    /// Time at which the load counts as slow.
    slow_at: Time,
    is_slow: bool,
    /// Whether a sync has already passed its deadline because of a slow load.
    has_expired: bool,
    /// The step of the checkpoint that the root has loaded.
    #[serde(default)]
    pub(super) found: Option<Step>,
}

impl DriverCore {
    /// Begins the wait for the checkpoint that the members of the generation formed last look for. Of the load before, only
    /// its slowness and its passed deadline are kept.
    pub(crate) fn begin_load(&mut self, now: Time, stamp: Stamp) {
        let (is_slow, has_expired) =
            self.checkpoints.load.take().map_or((false, false), |it| (it.is_slow, it.has_expired));
        let slow_at = now + LOAD_SLOW;
        self.agenda.set(slow_at, Timer::Checkpoint);
        self.checkpoints.load =
            Some(CheckpointLoad { stamp, done: 0, slow_at, is_slow, has_expired, found: None });
    }

    /// Handles the timer of a load, which may have become slow.
    pub(crate) fn review_load(&mut self, now: Time) {
        let (done, are_more) = self.read_bytes();
        let is_loading = matches!(self.round.phase(), RoundPhase::Sync { .. });
        let stamp = self.round.stamp().filter(|_| is_loading);
        let Some(load) = &mut self.checkpoints.load else { return };
        if load.slow_at > now || stamp != Some(load.stamp) {
            return;
        }
        load.slow_at = now + LOAD_SLOW;
        self.agenda.set(load.slow_at, Timer::Checkpoint);
        let (was_slow, is_slow) = (load.is_slow, are_more && load.done == done);
        (load.done, load.is_slow) = (done, is_slow);
        if let Some(message) = self.slow_load_in_words().filter(|_| is_slow && !was_slow) {
            self.event(EventKind::Warning { message });
        }
    }

    /// Handles a sync that has passed its deadline during a slow load. Another root is tried once, as the storage may only not
    /// answer the root's host. At the second time the job ends, and no host is at fault. True if it has ended.
    pub(crate) fn fails_of_slow_load(&mut self, now: Time) -> bool {
        let words = self.slow_load_in_words();
        let Some((load, words)) = self.checkpoints.load.as_mut().zip(words) else { return false };
        if !std::mem::replace(&mut load.has_expired, true) {
            return false;
        }
        self.fail(now, &words, Some("--resume never begins from the start; --elastic-timeout says how long a read may take"));
        true
    }

    /// Bytes of a checkpoint that members of the generation formed last have read, and whether more are to come.
    fn read_bytes(&self) -> (u64, bool) {
        let Some(stamp) = self.round.stamp() else { return (0, false) };
        let read = self.round.alive().filter_map(|worker| {
            let (of, bytes) = self.roster.worker(worker)?.moved?;
            (of == stamp && bytes.work.is_sync()).then_some(bytes)
        });
        MovedBytes::together(read).map_or((0, true), |read| (read.done, read.done < read.total))
    }

    /// Names the folder whose storage does not answer, until a generation trains.
    pub(crate) fn slow_load_in_words(&self) -> Option<String> {
        self.checkpoints.load.as_ref().filter(|load| load.is_slow)?;
        let directory = &self.config.checkpoint.as_ref()?.directory;
        let seconds = LOAD_SLOW.as_secs();
        Some(format!(
            "training waits for the checkpoints in {directory}, of which nothing was read for {seconds} s: does the folder \
             answer on all hosts?"
        ))
    }
}
