//! Stretches of time without a driver that began while a generation trained. Whether it went on training is known once its
//! members have come back to the next driver. Used by the ledger.

use elastic_protocol::Time;

use super::spans::SlotSpan;

/// Most stretches that are kept: one for each driver in a row that died before all members had come back to it.
const STRETCHES_MAX: usize = 16;

/// The stretches; each has its end once a driver is there again.
#[derive(Clone, Debug, Default)]
pub(super) struct UnseenTraining(Vec<(Time, Option<Time>)>);

impl UnseenTraining {
    /// The driver was last seen at this time.
    pub(super) fn begin(&mut self, now: Time) {
        if self.0.len() < STRETCHES_MAX {
            self.0.push((now, None));
        }
    }

    /// A driver is there again.
    pub(super) fn end(&mut self, now: Time) {
        if let Some((_, end @ None)) = self.0.last_mut() {
            *end = Some(now);
        }
    }

    /// The stretches that have ended, each of so many slots.
    pub(super) fn take(&mut self, slots: u64) -> Vec<SlotSpan> {
        let ended = std::mem::take(&mut self.0).into_iter();
        ended.filter_map(|(start, end)| Some(SlotSpan::whole(slots, start, end?))).collect()
    }
}
