//! Members to which their own system refuses what a communicator needs, such as descriptors. No peer is at fault, and the slot's
//! next process may get it: such a member is evicted. Called with a member's report, and before the next generation is formed.

use elastic_protocol::job::shorten;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{ResetCause, Time, WorkerId};

use super::DriverCore;

impl DriverCore {
    /// Evicts a worker whose system refused it something. While a record is not stored, the order could not leave, and other
    /// holders of the commit may be gone by then: the generation ends, and the worker is evicted before the next one.
    pub(crate) fn handle_refused_by_its_system(
        &mut self,
        now: Time,
        worker: WorkerId,
        error: &str,
    ) {
        // If the generation has ended already, the failure will show in the next one.
        if !self.round.phase().is_generation_active() {
            return;
        }
        let cause = ResetCause::WorkerFailed { worker: worker.clone(), error: shorten(error) };
        if is_planted(Bug::RefusedIsKept) {
            return self.accuse_generation(cause, now);
        }
        if self.is_held() {
            self.round.note_refused(worker, cause.clone());
            return self.accuse_generation(cause, now);
        }
        self.evict(now, &[worker], &cause);
    }

    /// Evicts the worker that was kept until the records are stored, unless only it holds the commit. Returns whether the next
    /// generation may be formed: not before they are.
    pub(crate) fn evict_refused(&mut self, now: Time) -> bool {
        if self.round.refused().is_none() {
            return true;
        }
        if self.is_held() {
            return false;
        }
        let Some((worker, cause)) = self.round.take_refused() else { return true };
        let stays = self.roster.worker(&worker).is_some_and(|record| !record.stance.is_gone());
        let alone = std::slice::from_ref(&worker);
        if stays && self.round.is_member(&worker) && !self.are_last_holders(now, alone) {
            self.evict(now, &[worker], &cause);
        }
        true
    }
}
