//! Judges links by their rates. A link is slow if its rate is far below the median of the other links' rates, and if its
//! receiver loses time by it. Used by `links`.

use std::collections::BTreeMap;

use elastic_protocol::Time;
use elastic_protocol::messages::StepTimes;
use elastic_protocol::planted::{Bug, is_planted};
use serde::{Deserialize, Serialize};

use super::HostLink;
use crate::core::pace_spell::PaceSpell;

/// Least ratio of the median rate of the other links to the rate of a slow link.
const FACTOR: f64 = 2.5;
/// Below this factor a link is as fast as the others.
const FACTOR_OF_FAST: f64 = 1.5;
/// Least number of other links needed to judge one. The link in the opposite direction does not count, since it may have
/// the same fault.
const OTHERS_MIN: usize = 2;
/// Least share of the whole step that the receiver loses by a slow link. A smaller loss is not worth a report.
const SHARE_MIN: f64 = 0.1;
/// Least time that the receiver loses in a step, in microseconds. A smaller loss is noise.
const LOSS_US_MIN: f64 = 1_000.0;
/// First looks at a link in a generation that do not count: connections take a while to find their rate.
const LOOKS_OF_WARM_UP: u32 = 2;

/// A link as its receiver has reported it.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredLink {
    /// In bytes a second.
    pub(super) rate: u64,
    pub(super) load: u64,
    /// Step times of the receiver.
    pub(super) times: StepTimes,
    pub(super) is_fresh: bool,
}

/// Comparison of a link with the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LinkScore {
    /// Ratio of the median rate of the others to its rate.
    pub(super) factor: f64,
    /// Its rate, and the median of the others', in bytes a second.
    pub(super) rate: u64,
    pub(super) others: u64,
    /// Time that its receiver loses in a step, in microseconds.
    pub(super) loss_us: f64,
    is_costly: bool,
}

/// Times since which a link is slow, or fast.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct LinkSpells {
    /// Looks in this generation.
    looks: u32,
    slow: Option<PaceSpell>,
    fast: Option<PaceSpell>,
}

/// All links, to compare one with the others.
pub(super) struct OtherLinks<'a> {
    measured: &'a BTreeMap<HostLink, MeasuredLink>,
    /// The rates of all, in order.
    rates: Vec<u64>,
}

impl LinkSpells {
    /// Takes a look. `by_host`: a slow member of one of its hosts explains the slow link.
    pub(super) fn look(&mut self, now: Time, score: LinkScore, by_host: bool) {
        self.looks = self.looks.saturating_add(1);
        if self.looks <= LOOKS_OF_WARM_UP {
            return;
        }
        let (is_slow, is_fast) = (score.is_slow() && !by_host, score.is_fast());
        self.slow = PaceSpell::after(self.slow, now, is_slow, is_fast || by_host);
        self.fast = PaceSpell::after(self.fast, now, is_fast, is_slow);
    }

    /// Whether it is slow in more than a look or two: all links of a host that is busy for a moment are slow in one or two.
    pub(super) fn is_slow_often(&self) -> bool {
        self.slow.is_some_and(PaceSpell::is_seen_often)
    }

    /// Time since which it is slow, if that has lasted for long enough.
    pub(super) fn slow_since(&self, now: Time) -> Option<Time> {
        let early = is_planted(Bug::LinkSlowAtOnce);
        self.slow.filter(|spell| early || spell.has_lasted(now)).map(PaceSpell::since)
    }

    /// Whether it has been as fast as the others for long enough.
    pub(super) fn is_fast(&self, now: Time) -> bool {
        self.fast.is_some_and(|spell| spell.has_lasted(now))
    }
}

impl LinkScore {
    fn is_slow(&self) -> bool {
        self.is_costly && self.factor >= FACTOR
    }

    fn is_fast(&self) -> bool {
        !self.is_costly || self.factor < FACTOR_OF_FAST
    }
}

impl<'a> OtherLinks<'a> {
    pub(super) fn new(measured: &'a BTreeMap<HostLink, MeasuredLink>) -> Self {
        let mut rates: Vec<u64> = measured.values().map(|link| link.rate).collect();
        rates.sort_unstable();
        Self { measured, rates }
    }

    /// The median of the rates of all links but this one and its opposite; none if there are too few. Of an even number the
    /// faster one of the two in the middle counts: half of them may be slow.
    fn of_others(&self, link: &HostLink, rate: u64) -> Option<u64> {
        let opposite = HostLink { from: link.to.clone(), to: link.from.clone() };
        let mut passed_over: Vec<usize> = Vec::with_capacity(2);
        let opposite = self.measured.get(&opposite).map(|link| link.rate);
        for rate in [Some(rate), opposite].into_iter().flatten() {
            let mut at = self.rates.partition_point(|other| *other < rate);
            // Two of the same rate are at two places.
            at += usize::from(passed_over.contains(&at));
            passed_over.push(at);
        }
        let count = self.rates.len().checked_sub(passed_over.len())?;
        let mut middle = count / 2;
        passed_over.sort_unstable();
        for at in passed_over {
            middle += usize::from(at <= middle);
        }
        self.rates.get(middle).copied().filter(|_| count >= OTHERS_MIN)
    }

    /// Compares a link with the others; none if there are too few of them.
    pub(super) fn score(&self, link: &HostLink, pace: &MeasuredLink) -> Option<LinkScore> {
        let MeasuredLink { rate, load, times, .. } = *pace;
        let others = self.of_others(link, rate)?;
        let [slow, usual] = [rate, others].map(|rate| as_float(rate.max(1)));
        // The share of the time in which the link is busy, less the share at the others' rate.
        let share = as_float(load) * (1.0 / slow - 1.0 / usual);
        let step_us = as_float(times.step_us);
        let loss_us = (share * step_us).min(as_float(times.waiting_us)).max(0.0);
        let is_costly = loss_us >= LOSS_US_MIN && loss_us >= SHARE_MIN * step_us;
        Some(LinkScore { factor: usual / slow, rate, others, loss_us, is_costly })
    }
}

#[expect(clippy::cast_precision_loss, reason = "2^53 bytes a second are 9 PB/s")]
const fn as_float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use elastic_protocol::HostName;

    use super::*;

    const MB: u64 = 1_000_000;

    fn link(name: &str) -> HostLink {
        let (from, to) = name.split_once('-').expect("two hosts");
        let [from, to] = [from, to].map(|host| HostName::new(host).expect("a name"));
        HostLink { from, to }
    }

    /// Links with their rates and loads in MB/s; steps of 100 ms, of which a half is waiting.
    fn links(of: &[(&str, u64, u64)]) -> BTreeMap<HostLink, MeasuredLink> {
        let times = StepTimes { step_us: 100_000, waiting_us: 50_000, ..StepTimes::default() };
        let measured = |(name, rate, load): &(&str, u64, u64)| {
            let (rate, load, is_fresh) = (rate * MB, load * MB, true);
            (link(name), MeasuredLink { rate, load, times, is_fresh })
        };
        of.iter().map(measured).collect()
    }

    fn score(of: &[(&str, u64, u64)], name: &str) -> Option<LinkScore> {
        let measured = links(of);
        OtherLinks::new(&measured).score(&link(name), &measured[&link(name)])
    }

    #[test]
    fn a_link_is_compared_with_the_median_of_the_others_without_its_opposite() {
        let all = [
            ("a-b", 20, 5),
            ("b-a", 20, 5),
            ("a-c", 400, 5),
            ("c-a", 400, 5),
            ("b-c", 500, 5),
            ("c-b", 300, 5),
        ];
        let slow = score(&all, "a-b").expect("four others");
        // The load takes a quarter of the time on this link, and about a hundredth on the others.
        assert_eq!((slow.factor, slow.others), (20.0, 400 * MB));
        assert!((slow.loss_us - 23_750.0).abs() < 1.0, "{slow:?}");
        assert!(slow.is_slow() && score(&all, "b-a").is_some_and(|it| it.is_slow()));
        let fast = ["a-c", "c-a", "b-c", "c-b"].map(|name| score(&all, name).expect("others"));
        assert!(fast.iter().all(LinkScore::is_fast), "{fast:?}");
    }

    #[test]
    fn two_hosts_and_a_chain_of_three_have_enough_others_or_none() {
        assert_eq!(score(&[("a-b", 20, 5), ("b-a", 400, 5)], "a-b"), None, "only its opposite");
        let chain = [("a-b", 20, 5), ("b-a", 20, 5), ("b-c", 400, 5), ("c-b", 300, 5)];
        let slow = score(&chain, "a-b").expect("two others");
        assert_eq!((slow.others, slow.is_slow()), (400 * MB, true));
        assert!(score(&chain, "b-c").is_some_and(|it| it.is_fast()), "against two slow ones");
    }

    #[test]
    fn a_link_that_costs_little_is_not_slow() {
        let all = |load| [("a-b", 20, load), ("a-c", 400, 5), ("c-a", 400, 5)];
        assert!(score(&all(5), "a-b").is_some_and(|it| it.is_slow()));
        let idle = score(&all(1), "a-b").expect("others");
        assert!(idle.is_fast() && idle.factor > FACTOR, "a twentieth of the time: {idle:?}");
        // Its receiver waits for nobody: the data came in while it computed.
        let mut measured = links(&all(5));
        measured.values_mut().for_each(|link| link.times.waiting_us = 500);
        let hidden = OtherLinks::new(&measured).score(&link("a-b"), &measured[&link("a-b")]);
        assert!(hidden.is_some_and(|it| it.is_fast()), "{hidden:?}");
    }

    #[test]
    fn links_of_the_same_rate_are_passed_over_once_each() {
        let all = [("a-b", 20, 5), ("b-a", 20, 5), ("c-d", 20, 5), ("d-c", 400, 5)];
        let score = score(&all, "a-b").expect("two others");
        assert_eq!(score.others, 400 * MB, "of 20 and 400 the faster");
    }
}
