//! Members that hang, as the ledger books them: nothing is trained while one does. Called for the events of stalls and for
//! those that end a generation.

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Time, WorkerId};

use super::GoodputLedger;
use super::bucket::TimeBucket;
use super::facts::KnownPhase;
use super::nanos;

impl GoodputLedger {
    /// A member hangs: the others have waited for it for `late_ms`, and do so from now on.
    pub(super) fn stalled(&mut self, worker: &WorkerId, late_ms: u64) {
        if !matches!(self.phase, KnownPhase::Run | KnownPhase::Hang) {
            return;
        }
        let is_first = self.hung.is_empty();
        self.hung.insert(worker.clone());
        if !is_first {
            return;
        }
        let since = Time(self.now.0.saturating_sub(nanos(late_ms as f64)));
        let slots = self.slots_in(TimeBucket::Training);
        self.hung_before = self.totals.of(TimeBucket::Hung);
        if let Some(span) = self.history.stand_still(self.now, since, slots) {
            self.rebook((TimeBucket::Training, TimeBucket::Hung), &span);
        }
        self.enter(KnownPhase::Hang);
    }

    /// A member that hung goes on.
    pub(super) fn stall_ended(&mut self, worker: &WorkerId) {
        let is_last = self.hung.remove(worker) && self.hung.is_empty();
        if is_last && self.phase == KnownPhase::Hang && !is_planted(Bug::HangStaysBooked) {
            self.history.go_on(self.now);
            self.enter(KnownPhase::Run);
        }
    }

    /// The generation ends, and with it the hang. Returns the slot-time that the hang took, in nanoseconds.
    pub(super) fn end_hang(&mut self) -> u128 {
        if std::mem::take(&mut self.hung).is_empty() {
            return 0;
        }
        self.totals.of(TimeBucket::Hung) - self.hung_before
    }
}
