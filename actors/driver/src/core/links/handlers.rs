//! Takes the rates of links that members report, and reviews them: names slow links, and tells of links that are fast
//! again. Called by the handlers of workers' messages, and with the review of stragglers.

use elastic_protocol::messages::{LinkPace, SlowLink, StepTimes};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{HostName, Time, WorkerId};

use super::judging::OtherLinks;
use super::{HostLink, ToldLinks};
use crate::core::DriverCore;
use crate::core::config::OnStraggler;
use crate::core::event::EventKind;

impl DriverCore {
    /// Takes a member's report of the rates at which data comes in. It comes with the member's step times, for which the
    /// review has been set already.
    pub(crate) fn handle_link_paces(
        &mut self,
        worker: &WorkerId,
        mut links: Vec<LinkPace>,
        times: StepTimes,
    ) {
        let Some(stamp) = self.round.stamp().filter(|_| self.round.is_member(worker)) else {
            return;
        };
        if self.config.on_straggler == OnStraggler::Off {
            return;
        }
        let roster = &self.roster;
        let is_there = |host: &HostName| roster.agent(host).is_some();
        self.links.turn_to(stamp, is_there);
        links.truncate(LinkPace::LINKS_MAX);
        // A worker may be another program than ours.
        links.retain(|link| link.from != worker.host && is_there(&link.from));
        self.links.told.insert(worker.clone(), ToldLinks { links, times, is_fresh: true });
    }

    /// Compares the links, and names those that are slow, or fast again. Called with the review of step times, after it.
    pub(crate) fn review_links(&mut self, now: Time) {
        if self.links.stamp != self.round.stamp() {
            return;
        }
        let round = &self.round;
        self.links.told.retain(|worker, _| round.is_member(worker));
        let stragglers = &self.stragglers;
        let is_slow_host = |host: &HostName| {
            stragglers.has_slow_on(host) && !is_planted(Bug::LinksOfSlowHostNamed)
        };
        self.links.look(now, is_slow_host);
        for (HostLink { from, to }, since) in self.links.take_recovered(now) {
            self.event(EventKind::SlowLinkRecovered { from, to, ms: now.ms_since(since) });
        }
        for (link, since) in self.links.due(now) {
            // It may have been named with its host meanwhile.
            if !self.links.named.contains_key(&link) {
                self.name_link(now, &link, since);
            }
        }
    }

    fn name_link(&mut self, now: Time, link: &HostLink, since: Time) {
        let host = self.links.name(link, since);
        let measured = self.links.measured();
        let score =
            measured.get(link).and_then(|pace| OtherLinks::new(&measured).score(link, pace));
        let Some(score) = score else { return };
        self.event(EventKind::SlowLinkFound {
            from: link.from.clone(),
            to: link.to.clone(),
            host,
            factor: score.factor,
            rate_mb_per_s: SlowLink::shown_mb_per_s(score.rate),
            others_mb_per_s: SlowLink::shown_mb_per_s(score.others),
            loss_ms: score.loss_us / 1e3,
            slow_ms: now.ms_since(since),
        });
    }
}
