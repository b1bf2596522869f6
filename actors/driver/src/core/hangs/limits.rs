//! Limits of waits in collectives: the time after which an awaited member counts as hanging. Used by `hangs`.
//!
//! Usual waits are learnt from waits that ended by themselves: a rank that saves a checkpoint or evaluates alone makes
//! the others wait at each epoch. The least limit depends on the activity of the awaited process: a stopped process does
//! not go on by itself, and one that computes mostly does.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use elastic_protocol::messages::{ProcessActivity, ProcessSight, TrainingSection};
use elastic_protocol::planted::{Bug, is_planted};
use serde::{Deserialize, Serialize};

/// Limit of a wait for a process that does not go on by itself.
const FLOOR_STOPPED: Duration = Duration::from_secs(1);
/// Least limit of a wait for a process that sleeps.
const FLOOR_WAITING: Duration = Duration::from_secs(10);
/// Least limit of a wait for a process that computes or moves data, or of which nothing is known.
const FLOOR_WORKING: Duration = Duration::from_secs(60);
/// Least limit of a wait for a process that has not committed yet (it may import, compile, or read its data for the first
/// time), or that is in a section of its program for which nobody has waited yet.
const FLOOR_COLD: Duration = Duration::from_secs(120);

/// Ratio of a wait's limit to the longest usual wait.
const FACTOR: u32 = 3;
/// Most waits that are remembered of a class. More are not needed: a period of checkpoints or evaluations has fewer.
const USUAL_MAX: usize = 64;
/// One in this number of waits may be long without being usual: a moment in which a network or a disk did not answer.
const WAITS_FOR_OUTLIER: usize = 32;
/// Least number of learnt waits after which a longer one is reason enough to replace a member.
const WAITS_MIN: usize = 8;
/// Most sections whose waits are remembered. The waits in further sections are not learnt.
const SECTIONS_MAX: usize = 32;

/// The facts about an awaited member on which the limit of the wait depends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AwaitedState<'a> {
    /// The last sight of its process.
    pub(super) sight: Option<&'a ProcessSight>,
    /// Whether it has committed in this generation.
    pub(super) has_committed: bool,
    /// The section of the program that it is in.
    pub(super) section: Option<&'a TrainingSection>,
}

/// Waits that are compared with each other.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum WaitClass<'a> {
    /// For a member that has not committed yet, outside of sections.
    First,
    /// For a member between its commits, outside of sections.
    Step,
    /// For a member in the section of this name.
    Section(&'a str),
}

impl<'a> AwaitedState<'a> {
    pub(super) fn kind(&self) -> WaitClass<'a> {
        match self.section {
            _ if is_planted(Bug::SectionsIgnored) => WaitClass::Step,
            Some(section) => WaitClass::Section(&section.name),
            None if !self.has_committed => WaitClass::First,
            None => WaitClass::Step,
        }
    }
}

/// The longest of the last waits that is usual: of 64 the third longest, of a few the longest.
fn longest_usual(waits: &VecDeque<Duration>) -> Option<Duration> {
    let mut sorted: Vec<Duration> = waits.iter().copied().collect();
    sorted.sort_unstable();
    let outliers = waits.len() / WAITS_FOR_OUTLIER;
    sorted.into_iter().rev().nth(outliers)
}

/// The last waits that ended by themselves.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct UsualWaits {
    first: VecDeque<Duration>,
    step: VecDeque<Duration>,
    sections: BTreeMap<String, VecDeque<Duration>>,
}

impl UsualWaits {
    /// Learns the duration of a wait that ended by itself.
    pub(super) fn learn(&mut self, kind: WaitClass<'_>, waited: Duration) {
        let waits = match kind {
            WaitClass::First => &mut self.first,
            WaitClass::Step => &mut self.step,
            WaitClass::Section(name) => {
                let is_full = self.sections.len() == SECTIONS_MAX;
                if is_full && !self.sections.contains_key(name) {
                    return;
                }
                self.sections.entry(name.to_owned()).or_default()
            }
        };
        if waits.len() == USUAL_MAX {
            waits.pop_front();
        }
        waits.push_back(waited);
    }

    /// Longest time that others may wait for a member. `cap` is the operator's bound.
    pub(super) fn limit(&self, member: AwaitedState<'_>, cap: Option<Duration>) -> Duration {
        let AwaitedState { sight, has_committed, section } = member;
        let usual = match member.kind() {
            WaitClass::First => Some(&self.first),
            WaitClass::Step => Some(&self.step),
            WaitClass::Section(name) => self.sections.get(name),
        };
        let floor = match sight.map(|sight| sight.activity) {
            Some(ProcessActivity::Stopped | ProcessActivity::Frozen | ProcessActivity::Ended) => {
                return cap.map_or(FLOOR_STOPPED, |cap| cap.min(FLOOR_STOPPED));
            }
            _ if is_planted(Bug::EveryWaitIsAHang) => return FLOOR_STOPPED,
            _ if !has_committed || usual.is_none() => FLOOR_COLD,
            Some(ProcessActivity::Waiting | ProcessActivity::Uninterruptible) => FLOOR_WAITING,
            Some(ProcessActivity::Working) | None => FLOOR_WORKING,
        };
        let longest = usual.and_then(longest_usual).unwrap_or_default();
        let learnt = floor.max(longest.saturating_mul(FACTOR));
        let within = section.and_then(|section| section.within_ms).map(Duration::from_millis);
        let limit = within.unwrap_or(learnt);
        cap.map_or(limit, |cap| cap.min(limit))
    }

    /// Longest time that others may wait for a member before it is replaced (`--on-hang replace`). A limit that was learnt
    /// from few waits is not enough for that.
    pub(super) fn replaced_after(
        &self,
        member: AwaitedState<'_>,
        cap: Option<Duration>,
    ) -> Duration {
        let limit = self.limit(member, cap);
        let known = match member.kind() {
            WaitClass::First => self.first.len(),
            WaitClass::Step => self.step.len(),
            WaitClass::Section(name) => self.sections.get(name).map_or(0, VecDeque::len),
        };
        let is_by_force = member.sight.is_some_and(ProcessSight::is_by_force);
        let is_told = member.section.is_some_and(|section| section.within_ms.is_some());
        if is_by_force || is_told || known >= WAITS_MIN {
            return limit;
        }
        cap.map_or(FLOOR_COLD, |cap| cap.min(FLOOR_COLD)).max(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(activity: ProcessActivity) -> ProcessSight {
        ProcessSight::new(activity, 200)
    }

    fn warm(sight: Option<&ProcessSight>) -> AwaitedState<'_> {
        AwaitedState { sight, has_committed: true, section: None }
    }

    #[test]
    fn what_a_process_does_decides_how_long_it_may_be_awaited() {
        let usual = UsualWaits::default();
        let limit = |activity, has_committed| {
            let sight = Some(&sight(activity));
            usual.limit(AwaitedState { sight, has_committed, section: None }, None)
        };
        assert_eq!(limit(ProcessActivity::Stopped, false), FLOOR_STOPPED);
        assert_eq!(limit(ProcessActivity::Frozen, true), FLOOR_STOPPED);
        assert_eq!(limit(ProcessActivity::Waiting, true), FLOOR_WAITING);
        assert_eq!(limit(ProcessActivity::Uninterruptible, true), FLOOR_WAITING);
        assert_eq!(limit(ProcessActivity::Working, true), FLOOR_WORKING);
        assert_eq!(limit(ProcessActivity::Waiting, false), FLOOR_COLD);
        assert_eq!(usual.limit(warm(None), None), FLOOR_WORKING);
    }

    #[test]
    fn a_wait_that_has_ended_by_itself_makes_longer_ones_usual_until_it_is_long_ago() {
        let mut usual = UsualWaits::default();
        let saves = sight(ProcessActivity::Waiting);
        usual.learn(WaitClass::Step, Duration::from_secs(40));
        assert_eq!(usual.limit(warm(Some(&saves)), None), Duration::from_secs(120));
        let stopped = sight(ProcessActivity::Stopped);
        assert_eq!(usual.limit(warm(Some(&stopped)), None), FLOOR_STOPPED, "it is never usual");
        for _later in 0..USUAL_MAX {
            usual.learn(WaitClass::Step, Duration::from_millis(600));
        }
        assert_eq!(usual.limit(warm(Some(&saves)), None), FLOOR_WAITING);
    }

    #[test]
    fn two_long_waits_among_many_are_outliers_and_three_are_usual() {
        let mut usual = UsualWaits::default();
        let waits = sight(ProcessActivity::Waiting);
        let limit = |usual: &UsualWaits| usual.limit(warm(Some(&waits)), None);
        let learn = |usual: &mut UsualWaits, secs: u64, times: usize| {
            for _wait in 0..times {
                usual.learn(WaitClass::Step, Duration::from_secs(secs));
            }
        };
        learn(&mut usual, 100, 1);
        learn(&mut usual, 5, WAITS_FOR_OUTLIER - 2);
        assert_eq!(limit(&usual), Duration::from_secs(300), "of few waits the longest");
        learn(&mut usual, 5, 1);
        assert_eq!(limit(&usual), Duration::from_secs(15), "it was the only one of many");
        learn(&mut usual, 100, 1);
        learn(&mut usual, 5, USUAL_MAX - WAITS_FOR_OUTLIER - 1);
        assert_eq!(limit(&usual), Duration::from_secs(15), "two of 64");
        learn(&mut usual, 100, 2);
        assert_eq!(limit(&usual), Duration::from_secs(300), "as a checkpoint at times");
    }

    #[test]
    fn the_operators_bound_is_never_exceeded() {
        let mut usual = UsualWaits::default();
        usual.learn(WaitClass::Step, Duration::from_secs(40));
        let cap = Some(Duration::from_secs(5));
        assert_eq!(usual.limit(AwaitedState::default(), cap), Duration::from_secs(5));
        let cap = Some(Duration::from_millis(500));
        let stopped = sight(ProcessActivity::Stopped);
        assert_eq!(usual.limit(warm(Some(&stopped)), cap), Duration::from_millis(500));
    }

    #[test]
    fn a_section_has_its_own_usual_waits_and_is_cold_before_the_first() {
        let mut usual = UsualWaits::default();
        let evaluation = TrainingSection { name: "evaluation".to_owned(), within_ms: None };
        let evaluation_kind = WaitClass::Section("evaluation");
        let bounded = TrainingSection { within_ms: Some(7_000), ..evaluation.clone() };
        let waits = sight(ProcessActivity::Waiting);
        let within = |section| AwaitedState { section: Some(section), ..warm(Some(&waits)) };
        assert_eq!(usual.limit(within(&evaluation), None), FLOOR_COLD);
        usual.learn(evaluation_kind, Duration::from_secs(40));
        assert_eq!(usual.limit(within(&evaluation), None), Duration::from_secs(120));
        assert_eq!(
            usual.limit(warm(Some(&waits)), None),
            FLOOR_WAITING,
            "elsewhere it is not usual"
        );
        assert_eq!(
            usual.limit(within(&bounded), None),
            Duration::from_secs(7),
            "as the program says"
        );
        let cap = Some(Duration::from_secs(5));
        assert_eq!(
            usual.limit(within(&bounded), cap),
            Duration::from_secs(5),
            "but no longer than the operator"
        );
        for number in 0..SECTIONS_MAX {
            let name = format!("another {number}");
            usual.learn(WaitClass::Section(&name), Duration::from_secs(1));
        }
        assert_eq!(usual.sections.len(), SECTIONS_MAX);
        usual.learn(evaluation_kind, Duration::from_secs(60));
        assert_eq!(
            usual.limit(within(&evaluation), None),
            Duration::from_secs(180),
            "a known one is learnt still"
        );
    }

    #[test]
    fn few_waits_are_not_enough_to_replace_a_member_and_the_operators_bound_is() {
        let mut usual = UsualWaits::default();
        let (waits, stopped) = (sight(ProcessActivity::Waiting), sight(ProcessActivity::Stopped));
        let cap = Some(Duration::from_secs(5));
        assert_eq!(usual.replaced_after(warm(Some(&waits)), None), FLOOR_COLD);
        assert_eq!(usual.replaced_after(warm(Some(&stopped)), None), FLOOR_STOPPED);
        assert_eq!(usual.replaced_after(warm(Some(&waits)), cap), Duration::from_secs(5));
        for _wait in 0..WAITS_MIN {
            usual.learn(WaitClass::Step, Duration::from_secs(1));
        }
        assert_eq!(usual.replaced_after(warm(Some(&waits)), None), FLOOR_WAITING);
    }

    #[test]
    fn what_takes_long_before_the_first_commit_makes_no_step_longer() {
        let mut usual = UsualWaits::default();
        let waits = sight(ProcessActivity::Waiting);
        let cold = AwaitedState { has_committed: false, ..warm(Some(&waits)) };
        usual.learn(cold.kind(), Duration::from_secs(110));
        assert_eq!(usual.limit(cold, None), Duration::from_secs(330));
        assert_eq!(usual.limit(warm(Some(&waits)), None), FLOOR_WAITING);
    }
}
