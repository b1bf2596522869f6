//! Straggler scores: a member's time of computation relative to the median of its peers' times, and to its own time before.
//! Used by `stragglers`.
//!
//! A rank that saves a checkpoint, evaluates, compiles or collects garbage is slow in a few steps or for a few seconds. It
//! does not count as a straggler: workers report medians, which leave out rare steps, and a spell has to last.

use std::collections::VecDeque;

use elastic_protocol::Time;
use elastic_protocol::messages::StepTimes;
use elastic_protocol::planted::{Bug, is_planted};
use serde::{Deserialize, Serialize};

use crate::core::pace_spell::{LOOKS_MIN, PaceSpell};

/// Least ratio of a slow member's time of computation to the median of its peers' times.
const FACTOR: f64 = 1.5;
/// The same for a member that computes [`FACTOR`] times as long as it did itself before.
const FACTOR_OF_CHANGED: f64 = 1.25;
/// Below this factor a member is as fast as its peers.
const FACTOR_OF_FAST: f64 = 1.25;
/// Least share of the whole step that a slow member makes the others wait for. A shorter wait is not worth a report.
const SHARE_MIN: f64 = 0.1;
/// Least time that it makes them wait for in a step, in microseconds. A shorter wait is noise.
const LOSS_US_MIN: u64 = 1_000;

/// First looks at a member in a generation that do not count: it compiles, and fills its caches.
const LOOKS_OF_WARM_UP: u32 = 2;

/// Number of last looks at a member over which its pace is a median, and the least number needed.
const MEASURED_LOOKS_MAX: usize = 9;
const MEASURED_LOOKS_MIN: usize = 5;

/// Most remembered looks at a member while it was not slow, and the least number that gives its usual time.
const PAST_MAX: usize = 32;
const PAST_MIN: usize = 8;

/// The time of computation of one member, and its spells of being slow or fast.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct MemberPace {
    times: StepTimes,
    /// Looks in this generation.
    looks: u32,
    /// Whether the last times were not looked at.
    is_fresh: bool,
    /// Earlier times of computation, of looks in which it was not slow, in microseconds; at most [`PAST_MAX`].
    past_us: VecDeque<u64>,
    /// The times of computation in its last looks, slow or not, in microseconds; at most [`MEASURED_LOOKS_MAX`].
    #[serde(default)]
    measured_us: VecDeque<u64>,
    /// The spell under way, in which it is slow.
    slow: Option<PaceSpell>,
    /// The spell under way, in which it is as fast as the others.
    fast: Option<PaceSpell>,
}

/// Comparison of a member with its peers and its past.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PaceScore {
    /// Ratio of its time of computation to the median of its peers' times, for as many shards.
    pub(super) factor: f64,
    /// Ratio of its time of computation to its own usual time before; none while too little is known.
    pub(super) own_factor: Option<f64>,
    /// Its time of computation, in microseconds; with shards, for an equal part of them.
    pub(super) compute_us: u64,
    /// The median of its peers' such times, in microseconds.
    pub(super) peers_us: u64,
    /// Whether the others lose enough time by it for a report.
    is_costly: bool,
    /// Whether they lose it with the shards that they carry, where all carry as many as each other, up to one. Not all time is one of
    /// shards: a member with one shard less may take as long as the others do. Of other deals, one hides a slow member.
    is_waited_for: bool,
}

/// The times of computation of all members.
///
/// Members that carry logical shards are compared by the time that each would take for an equal part of all shards: a member
/// is not slow for carrying more shards than others.
pub(super) struct PeerTimes {
    /// For an equal part of all shards, in order.
    times: Vec<u64>,
    /// For the shards that each carries, in order.
    spent: Vec<u64>,
    /// The shards of all members together, if each carries some.
    shards: Option<u64>,
    /// Whether all members carry as many shards as each other, up to one.
    is_even: bool,
}

impl MemberPace {
    pub(super) const fn new(times: StepTimes) -> Self {
        Self {
            times,
            looks: 0,
            is_fresh: true,
            past_us: VecDeque::new(),
            measured_us: VecDeque::new(),
            slow: None,
            fast: None,
        }
    }

    /// Takes the times that the member has reported.
    pub(super) const fn take(&mut self, times: StepTimes) {
        self.times = times;
        self.is_fresh = true;
    }

    pub(super) const fn times(&self) -> StepTimes {
        self.times
    }

    /// The time that is compared, in microseconds.
    pub(super) fn compute_us(&self) -> u64 {
        match is_planted(Bug::StragglerByWaiting) {
            true => self.times.waiting_us,
            false => self.times.compute_us,
        }
    }

    /// The logical shards that it carries in a step; 0 if it deals by none.
    pub(super) const fn shards(&self) -> u32 {
        self.times.shards
    }

    /// The median of its times of computation in the last looks, in microseconds; none while it was looked at too seldom.
    pub(super) fn measured_us(&self) -> Option<u64> {
        let mut measured: Vec<u64> = self.measured_us.iter().copied().collect();
        measured.sort_unstable();
        measured.get(measured.len() / 2).copied().filter(|_| measured.len() >= MEASURED_LOOKS_MIN)
    }

    pub(super) const fn is_slow(&self) -> bool {
        self.slow.is_some()
    }

    /// Whether it was looked at often enough in this generation to be sure of its times.
    pub(super) const fn is_known(&self) -> bool {
        self.looks >= LOOKS_OF_WARM_UP + LOOKS_MIN
    }

    /// Time since which it is slow, if that has lasted for long enough.
    pub(super) fn slow_since(&self, now: Time) -> Option<Time> {
        let early = is_planted(Bug::StragglerAtOnce);
        let spell = self.slow.filter(|spell| early || spell.has_lasted(now));
        spell.map(PaceSpell::since)
    }

    /// Whether it has been as fast as the others for long enough.
    pub(super) fn is_fast(&self, now: Time) -> bool {
        self.fast.is_some_and(|spell| spell.has_lasted(now))
    }

    /// Looks at the times that the member has reported since the last look, if there are any.
    pub(super) fn look(&mut self, now: Time, score: Option<PaceScore>) {
        let Some(score) = score.filter(|_| std::mem::take(&mut self.is_fresh)) else { return };
        self.looks = self.looks.saturating_add(1);
        if self.looks <= LOOKS_OF_WARM_UP {
            return;
        }
        if self.measured_us.len() == MEASURED_LOOKS_MAX {
            self.measured_us.pop_front();
        }
        self.measured_us.push_back(self.compute_us());
        let (is_slow, is_fast) = (score.is_slow(), score.is_fast());
        self.slow = PaceSpell::after(self.slow, now, is_slow, is_fast);
        self.fast = PaceSpell::after(self.fast, now, is_fast, is_slow);
        if self.slow.is_none() {
            if self.past_us.len() == PAST_MAX {
                self.past_us.pop_front();
            }
            self.past_us.push_back(self.compute_us());
        }
    }

    /// The median of its own past, in microseconds.
    fn usual_us(&self) -> Option<u64> {
        if self.past_us.len() < PAST_MIN {
            return None;
        }
        let mut past: Vec<u64> = self.past_us.iter().copied().collect();
        past.sort_unstable();
        past.get(past.len() / 2).copied()
    }
}

impl PaceScore {
    /// Whether it computes for much longer than it did itself before.
    pub(super) fn has_become_slow(self) -> bool {
        self.own_factor.is_some_and(|factor| factor >= FACTOR)
    }

    fn is_slow(&self) -> bool {
        let least = if self.has_become_slow() { FACTOR_OF_CHANGED } else { FACTOR };
        self.is_costly && self.is_waited_for && self.factor >= least
    }

    fn is_fast(&self) -> bool {
        !self.is_costly || self.factor < FACTOR_OF_FAST
    }
}

impl PeerTimes {
    /// The times of computation of members, in microseconds, each with the shards that it carries.
    pub(super) fn new(members: impl IntoIterator<Item = (u64, u32)>) -> Self {
        let members: Vec<(u64, u32)> = members.into_iter().collect();
        let carried: u64 = members.iter().map(|(_, shards)| u64::from(*shards)).sum();
        let shards = members.iter().all(|(_, shards)| *shards > 0).then_some(carried);
        let mut spent: Vec<u64> = members.iter().map(|(us, _)| *us).collect();
        spent.sort_unstable();
        let carried = || members.iter().map(|(_, shards)| *shards);
        let least = carried().min().unwrap_or_default();
        let is_even = carried().all(|shards| shards <= least.saturating_add(1));
        let mut peers = Self { times: Vec::new(), spent, shards, is_even };
        let count = members.len();
        peers.times =
            members.iter().map(|(us, own)| peers.for_equal_part(*us, *own, count)).collect();
        peers.times.sort_unstable();
        peers
    }

    /// The time for an equal part of all shards of a member that takes this time for its own, in microseconds.
    fn for_equal_part(&self, us: u64, own: u32, members: usize) -> u64 {
        let Some(shards) = self.shards.filter(|_| own > 0) else { return us };
        let parts = u128::from(own) * (members as u128).max(1);
        u64::try_from(u128::from(us) * u128::from(shards) / parts).unwrap_or(u64::MAX)
    }

    /// The median of the others' times, for a member with this time among them; none if there is no other. Of an even number of
    /// others the lower one of the two in the middle counts: half of the members may be slow.
    fn of_others(times: &[u64], own: u64) -> Option<u64> {
        let others = times.len().checked_sub(1).filter(|others| *others > 0)?;
        let (middle, own_at) = ((others - 1) / 2, times.partition_point(|time| *time < own));
        // The member's own place is passed over.
        times.get(if middle < own_at { middle } else { middle + 1 }).copied()
    }

    /// The time that a member takes for as many shards as its peers, in thousandths of the median of theirs.
    pub(super) fn slowness(&self, us: u64, shards: u32) -> Option<u32> {
        let own = self.for_equal_part(us, shards, self.times.len());
        let peers_us = Self::of_others(&self.times, own)?.max(1);
        Some(u32::try_from(own.saturating_mul(1_000) / peers_us).unwrap_or(u32::MAX))
    }

    /// Compares a member with the others; none if there is no other.
    pub(super) fn score(&self, pace: &MemberPace) -> Option<PaceScore> {
        let own = self.for_equal_part(pace.compute_us(), pace.shards(), self.times.len());
        let peers_us = Self::of_others(&self.times, own)?;
        let is_loss = |own: u64, peers: u64| {
            let loss = own.saturating_sub(peers);
            loss >= LOSS_US_MIN && as_float(loss) >= SHARE_MIN * as_float(pace.times.step_us)
        };
        let is_costly = is_loss(own, peers_us);
        let spent = pace.compute_us();
        let is_waited_for = !self.is_even || is_loss(spent, Self::of_others(&self.spent, spent)?);
        let factor = as_float(own) / as_float(peers_us.max(1));
        let usual = pace.usual_us().map(as_float);
        let own_factor = usual.map(|usual| as_float(pace.compute_us()) / usual.max(1.0));
        Some(PaceScore { factor, own_factor, compute_us: own, peers_us, is_costly, is_waited_for })
    }
}

#[expect(clippy::cast_precision_loss, reason = "2^53 us are 285 years")]
const fn as_float(us: u64) -> f64 {
    us as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pace(compute_us: u64, step_us: u64) -> MemberPace {
        let waiting_us = step_us.saturating_sub(compute_us);
        MemberPace::new(StepTimes { step_us, compute_us, waiting_us, ..StepTimes::default() })
    }

    fn peers(all_us: &[u64]) -> PeerTimes {
        PeerTimes::new(all_us.iter().map(|us| (*us, 0)))
    }

    fn score(all_us: &[u64], number: usize) -> PaceScore {
        let longest = all_us.iter().max().copied().unwrap_or_default();
        peers(all_us).score(&pace(all_us[number], longest)).expect("there are others")
    }

    #[test]
    fn the_others_median_counts_and_half_of_them_may_be_slow() {
        let times = [100_000, 101_000, 99_000, 200_000];
        assert_eq!(score(&times, 3).peers_us, 100_000);
        assert!(score(&times, 3).is_slow());
        assert!((0..3).all(|number| score(&times, number).is_fast()));
        let half = [100_000, 200_000, 100_000, 200_000];
        assert_eq!(
            [0, 1, 2, 3].map(|number| score(&half, number).is_slow()),
            [false, true, false, true]
        );
        let two = [100_000, 160_000];
        assert_eq!([score(&two, 0).is_slow(), score(&two, 1).is_slow()], [false, true]);
        assert_eq!(peers(&[5]).score(&pace(5, 5)), None, "a world of one");
    }

    #[test]
    fn who_carries_more_shards_is_not_slower_for_that() {
        let of = |members: &[(u64, u32)], number: usize| {
            let (compute_us, shards) = members[number];
            let longest = members.iter().map(|(us, _)| *us).max().unwrap_or_default();
            let times = StepTimes { step_us: longest, compute_us, shards, ..StepTimes::default() };
            let peers = PeerTimes::new(members.iter().copied());
            peers.score(&MemberPace::new(times)).expect("there are others")
        };
        let dealt = [(200_000, 2), (100_000, 1), (100_000, 1)];
        assert!((0..3).all(|number| of(&dealt, number).is_fast()));
        // As slow as before, with fewer shards: the deal hides it from its peers, and not from the comparison.
        let dealt = [(200_000, 1), (400_000, 4), (300_000, 3)];
        let slow = of(&dealt, 0);
        assert!(slow.is_slow());
        assert!((1.99..2.01).contains(&slow.factor), "{}", slow.factor);
        assert_eq!((slow.compute_us, slow.peers_us), (533_333, 266_666));
        assert_eq!(PeerTimes::new(dealt).slowness(200_000, 1), Some(2_000));
        // Part of a step takes as long with any number of shards: nobody waits for the member with one shard less.
        let (even, fixed) =
            (of(&[(12_000, 2), (12_000, 1)], 1), of(&[(12_000, 2), (18_000, 1)], 1));
        assert!(!even.is_slow() && even.factor > FACTOR, "{even:?}");
        assert!(fixed.is_slow(), "the others wait for it");
        // One that deals by no shards: all are compared as they are.
        assert!(of(&[(200_000, 2), (100_000, 1), (100_000, 0)], 0).is_slow());
    }

    #[test]
    fn what_costs_the_others_little_is_not_slow() {
        let peers = peers(&[1_000, 1_000, 9_000]);
        let of = |step_us| peers.score(&pace(9_000, step_us)).expect("there are others");
        assert!(of(20_000).is_slow());
        assert!(!of(200_000).is_slow(), "the step is made of communication");
        assert!(!score(&[100, 100, 900], 2).is_slow(), "a step of less than a millisecond");
    }

    #[test]
    fn a_spell_must_last_and_one_look_ends_it() {
        let (all, mut slow) = ([100_000, 100_000, 200_000], pace(200_000, 200_000));
        let peers = peers(&all);
        let mut now = Time::ZERO;
        let mut look = |slow: &mut MemberPace, compute_us| {
            now = now + SECOND;
            slow.take(StepTimes { compute_us, step_us: 200_000, ..StepTimes::default() });
            slow.look(now, peers.score(slow));
            slow.slow_since(now)
        };
        for _ in 0..12 {
            assert_eq!(look(&mut slow, 200_000), None, "not for long enough");
        }
        assert!(look(&mut slow, 200_000).is_some());
        assert_eq!(look(&mut slow, 100_000), None);
        for _ in 0..10 {
            assert_eq!(look(&mut slow, 200_000), None, "the next spell begins anew");
        }
    }

    #[test]
    fn times_that_are_not_told_anew_make_no_spell() {
        let mut slow = pace(200_000, 200_000);
        let peers = peers(&[100_000, 100_000, 200_000]);
        for second in 0..100 {
            let now = Time::ZERO + SECOND * second;
            slow.look(now, peers.score(&slow));
            assert_eq!(slow.slow_since(now), None);
        }
    }

    #[test]
    fn who_is_slower_than_before_is_slow_at_a_smaller_factor() {
        let peers = peers(&[100_000, 100_000, 130_000]);
        let mut changed = pace(80_000, 130_000);
        for second in 0..20 {
            changed.take(StepTimes {
                compute_us: 80_000,
                step_us: 130_000,
                ..StepTimes::default()
            });
            changed.look(Time::ZERO + SECOND * second, peers.score(&changed));
        }
        changed.take(StepTimes { compute_us: 130_000, step_us: 130_000, ..StepTimes::default() });
        let score_of = |pace| peers.score(pace).expect("there are others");
        assert!(score_of(&changed).is_slow());
        assert_eq!(score_of(&changed).own_factor, Some(1.625));
        assert!(!score_of(&pace(130_000, 130_000)).is_slow(), "it has never been faster");
    }

    #[test]
    fn times_are_a_measurement_from_the_fifth_look_that_counts() {
        let mut member = pace(100_000, 100_000);
        let looks = LOOKS_OF_WARM_UP as usize + MEASURED_LOOKS_MIN;
        for look in 1..=looks {
            assert_eq!(member.measured_us(), None, "before look {look}");
            member.take(member.times());
            let score = peers(&[100_000, 100_000]).score(&member);
            member.look(Time::from_ms(look as u64), score);
        }
        assert_eq!(member.measured_us(), Some(100_000));
    }
}
