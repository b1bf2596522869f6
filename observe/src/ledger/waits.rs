//! Waits of steps, as the ledger books them: for data, for commits, and for slow members, with their names. Called for
//! the event that reports the shares.

use std::collections::BTreeMap;

use elastic_protocol::messages::GoodputStatus;
use elastic_protocol::{HostName, WorkerId};

use super::GoodputLedger;
use super::bucket::TimeBucket;
use super::totals::seconds;

/// Slots that are kept as stragglers. Of more, the one that was waited for least is forgotten.
const STRAGGLERS_KEPT: usize = 256;

/// Slot-time in which a slot's workers were waited for as stragglers, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct AwaitedStragglers(BTreeMap<(HostName, u32), u128>);

impl GoodputLedger {
    /// A share of the last `nanos` of training was waiting. Returns the slot-time of it, in nanoseconds.
    pub(super) fn waited(&mut self, nanos: u64, bucket: TimeBucket, share: f64) -> u128 {
        let slots = self.slots_of_members();
        let waited = self.history.wait(self.now, nanos, slots, (bucket, share));
        waited.map_or(0, |span| self.rebook((TimeBucket::Training, bucket), &span))
    }
}

impl AwaitedStragglers {
    /// So much slot-time was waited for these workers.
    pub(super) fn add(&mut self, workers: &[WorkerId], nanos: u128) {
        for worker in workers {
            let share = nanos / workers.len() as u128;
            *self.0.entry((worker.host.clone(), worker.slot)).or_default() += share;
        }
        while self.0.len() > STRAGGLERS_KEPT {
            let Some(least) = self.0.iter().min_by_key(|(_, nanos)| **nanos) else { return };
            let least = least.0.clone();
            self.0.remove(&least);
        }
    }

    /// The slots that were waited for longest, with their slot-seconds.
    pub(super) fn shown(&self) -> BTreeMap<String, f64> {
        let mut all: Vec<_> = self.0.iter().filter(|(_, nanos)| **nanos > 0).collect();
        all.sort_by_key(|(_, nanos)| std::cmp::Reverse(**nanos));
        let most = all.into_iter().take(GoodputStatus::STRAGGLERS_MAX);
        most.map(|((host, slot), nanos)| (format!("{host}:{slot}"), seconds(*nanos))).collect()
    }
}
