//! Links between hosts that are slow against the others. Part of `DriverCore`. Its handlers are in `handlers`, the criteria
//! of a slow link in `judging`, and the lines of the status in `shown`.
//!
//! Workers report beside their step times the rate at which data comes in from each other host. A link is named if it
//! carries much less than the median of the other links, its receiver waits for that in each step, and neither of its hosts
//! has a member that computes slowly: such a member sends and receives slowly, too. If all links from a host, or all to it,
//! are slow, the host is at fault, and not a link. A slow link is only reported: no member is replaced for it.

mod handlers;
mod judging;
mod shown;

use std::collections::BTreeMap;

use elastic_protocol::messages::{LinkPace, StepTimes};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{HostName, Stamp, Time, WorkerId};
use serde::{Deserialize, Serialize};

use self::judging::{LinkSpells, MeasuredLink, OtherLinks};

/// A link: the path of data from one host to another.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct HostLink {
    pub(super) from: HostName,
    pub(super) to: HostName,
}

/// Rates of the links of the generation that trains, and the slow links.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Links {
    /// The generation that all of this is about, but for `named`.
    stamp: Option<Stamp>,
    /// The last report of each member; at most [`LinkPace::LINKS_MAX`] links of each.
    #[serde(with = "crate::recording::readable::pairs")]
    told: BTreeMap<WorkerId, ToldLinks>,
    #[serde(with = "crate::recording::readable::pairs")]
    spells: BTreeMap<HostLink, LinkSpells>,
    /// Links that were named. They remain named in later generations, until they are as fast as the others or one of their
    /// hosts is gone.
    #[serde(with = "crate::recording::readable::pairs")]
    named: BTreeMap<HostLink, NamedLink>,
}

/// A member's report of the links to its host.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct ToldLinks {
    links: Vec<LinkPace>,
    times: StepTimes,
    /// Whether the report has not been looked at yet.
    is_fresh: bool,
}

/// A link that was named.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct NamedLink {
    since: Time,
    /// The host at fault; none if it is the link alone.
    host: Option<HostName>,
}

impl Links {
    /// Forgets the generation before.
    fn turn_to(&mut self, stamp: Stamp, is_there: impl Fn(&HostName) -> bool) {
        if self.stamp != Some(stamp) {
            self.stamp = Some(stamp);
            self.told.clear();
            self.spells.clear();
            self.named.retain(|link, _| is_there(&link.from) && is_there(&link.to));
        }
    }

    /// Each link as it is now. Of several receivers on its host, the one with the highest rate counts: a link that is slow for
    /// that one is slow for all.
    fn measured(&self) -> BTreeMap<HostLink, MeasuredLink> {
        let mut measured: BTreeMap<HostLink, MeasuredLink> = BTreeMap::new();
        for (worker, told) in &self.told {
            for LinkPace { from, rate, load } in &told.links {
                let ends = (from.clone(), worker.host.clone());
                let (from, to) = match is_planted(Bug::LinkTurnedAround) {
                    true => (ends.1, ends.0),
                    false => ends,
                };
                let (rate, load, is_fresh) = (*rate, *load, told.is_fresh);
                let link = MeasuredLink { rate, load, times: told.times, is_fresh };
                match measured.get_mut(&HostLink { from: from.clone(), to: to.clone() }) {
                    Some(best) if best.rate >= rate => best.is_fresh |= is_fresh,
                    Some(best) => {
                        *best = MeasuredLink { is_fresh: is_fresh || best.is_fresh, ..link }
                    }
                    None => _ = measured.insert(HostLink { from, to }, link),
                }
            }
        }
        measured
    }

    /// Looks at the reports since the last look. `is_slow_host`: whether a host has members that compute slowly.
    fn look(&mut self, now: Time, is_slow_host: impl Fn(&HostName) -> bool) {
        let measured = self.measured();
        let others = OtherLinks::new(&measured);
        self.spells.retain(|link, _| measured.contains_key(link));
        for (link, pace) in measured.iter().filter(|(_, pace)| pace.is_fresh) {
            let Some(score) = others.score(link, pace) else { continue };
            let by_host = is_slow_host(&link.from) || is_slow_host(&link.to);
            self.spells.entry(link.clone()).or_default().look(now, score, by_host);
        }
        self.told.values_mut().for_each(|told| told.is_fresh = false);
    }

    /// Links that have been slow for long enough and are not named, each with the time since which it is slow.
    fn due(&self, now: Time) -> Vec<(HostLink, Time)> {
        let due = self.spells.iter().filter(|(link, _)| !self.named.contains_key(link));
        due.filter_map(|(link, spells)| Some((link.clone(), spells.slow_since(now)?))).collect()
    }

    /// The host at fault for a slow link: all of the links that it sends over, or receives over, are slow, and it has several.
    fn host_at_fault(&self, link: &HostLink) -> Option<HostName> {
        let all_slow = |is_of: &dyn Fn(&HostLink) -> bool| {
            let of = || self.spells.iter().filter(|(other, _)| is_of(other));
            of().nth(1).is_some() && of().all(|(_, spells)| spells.is_slow_often())
        };
        let sends = all_slow(&|other| other.from == link.from).then(|| link.from.clone());
        sends.or_else(|| all_slow(&|other| other.to == link.to).then(|| link.to.clone()))
    }

    /// Names a link, or all slow links of the host at fault. Returns that host.
    fn name(&mut self, link: &HostLink, since: Time) -> Option<HostName> {
        let host = self.host_at_fault(link);
        let is_of = |other: &HostLink, host: &HostName| match *host == link.from {
            true => other.from == *host,
            false => other.to == *host,
        };
        let slow = self.spells.iter().filter(|(other, spells)| {
            spells.is_slow_often() && host.as_ref().is_some_and(|host| is_of(other, host))
        });
        let also: Vec<HostLink> = slow.map(|(other, _)| other.clone()).collect();
        for link in also.into_iter().chain([link.clone()]) {
            self.named.insert(link, NamedLink { since, host: host.clone() });
        }
        host
    }

    /// Takes the links that were named and are as fast as the others again, each with the time since which it was slow.
    fn take_recovered(&mut self, now: Time) -> Vec<(HostLink, Time)> {
        let is_fast = |link: &HostLink| self.spells.get(link).is_some_and(|it| it.is_fast(now));
        let named = self.named.iter().filter(|(link, _)| is_fast(link));
        let recovered: Vec<(HostLink, Time)> =
            named.map(|(link, named)| (link.clone(), named.since)).collect();
        recovered.iter().for_each(|(link, _)| _ = self.named.remove(link));
        recovered
    }
}
