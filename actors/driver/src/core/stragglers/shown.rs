//! Members that were named as slow, as the status shows them. Called by `status`.

use elastic_protocol::messages::{StatusReport, StepTimes, StragglingWorker};
use elastic_protocol::{Time, WorkerId};

use super::NamedStraggler;
use crate::core::DriverCore;
use crate::core::phase::RoundPhase;

impl DriverCore {
    /// Members that were named as slow and are not fast again.
    pub(crate) fn straggling_workers(&self, now: Time) -> Vec<StragglingWorker> {
        let trains = matches!(self.round.phase(), RoundPhase::Run)
            && self.stragglers.stamp == self.round.stamp();
        let named = self.stragglers.named.iter().filter(|_| trains);
        named
            .filter_map(|(worker, named)| self.straggling_worker(now, worker, *named))
            .take(StatusReport::AWAITED_MAX)
            .collect()
    }

    fn straggling_worker(
        &self,
        now: Time,
        worker: &WorkerId,
        named: NamedStraggler,
    ) -> Option<StragglingWorker> {
        let score = self.stragglers.score_of(worker)?;
        Some(StragglingWorker {
            rank: self.round.rank_of(worker)?,
            host: worker.host.clone(),
            slot: worker.slot,
            factor: score.factor,
            own_factor: score.own_factor,
            compute_ms: StepTimes::shown_ms(score.compute_us),
            peers_ms: StepTimes::shown_ms(score.peers_us),
            slow_ms: u64::try_from(now.since(named.since).as_millis()).unwrap_or(u64::MAX),
            is_host: named.is_host,
            shards: self
                .stragglers
                .times_of(worker, self.round.stamp())
                .map(|times| times.shards)
                .filter(|shards| *shards > 0),
        })
    }
}
