//! Links that were named as slow, as the status shows them. Called by `status`.

use elastic_protocol::Time;
use elastic_protocol::messages::{SlowLink, StatusReport};

use super::judging::OtherLinks;
use crate::core::DriverCore;
use crate::core::phase::RoundPhase;

impl DriverCore {
    /// Links that were named as slow and are not fast again.
    pub(crate) fn slow_links(&self, now: Time) -> Vec<SlowLink> {
        let trains =
            matches!(self.round.phase(), RoundPhase::Run) && self.links.stamp == self.round.stamp();
        if !trains || self.links.named.is_empty() {
            return Vec::new();
        }
        let measured = self.links.measured();
        let others = OtherLinks::new(&measured);
        let shown = self.links.named.iter().filter_map(|(link, named)| {
            let score = others.score(link, measured.get(link)?)?;
            Some(SlowLink {
                from: link.from.clone(),
                to: link.to.clone(),
                factor: score.factor,
                rate_mb_per_s: SlowLink::shown_mb_per_s(score.rate),
                others_mb_per_s: SlowLink::shown_mb_per_s(score.others),
                loss_ms: score.loss_us / 1e3,
                slow_ms: u64::try_from(now.since(named.since).as_millis()).unwrap_or(u64::MAX),
                host: named.host.clone(),
            })
        });
        shown.take(StatusReport::AWAITED_MAX).collect()
    }
}
