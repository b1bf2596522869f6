//! `StepSamples`: durations of the last steps, and the time in them for which the process was blocked in collectives.
//! The training thread measures at its boundaries, and the actor's thread reads the medians, both through `control`.
//! Simulated programs measure with it, too.

use std::collections::VecDeque;
use std::time::Duration;

pub use elastic_collectives::WaitReading;
use elastic_protocol::messages::StepTimes;

/// Time after which a check for host updates ends a measurement, where no commit does.
const MEASURED_MAX: Duration = Duration::from_secs(1);

/// Time for which a measurement counts, and the number that count however old they are: a change shows within seconds where
/// steps are long.
const RECENT: Duration = Duration::from_secs(5);
const RECENT_MIN: usize = 5;

/// The last measurements. Each is the mean of the steps up to a commit, or up to a check if no commit comes within
/// `MEASURED_MAX`. The median leaves out rare delays: a checkpoint, a collection of garbage, the compilation of a new
/// shape.
#[derive(Debug, Default)]
pub struct StepSamples {
    /// Reading at the start of the current measurement. `None` before the first commit or check of a generation: the
    /// steps before it load and compile.
    since: Option<WaitReading>,
    /// Reading at the start of the current section of the program. Sections, such as evaluations, are no steps.
    aside_since: Option<WaitReading>,
    /// Parts of the measurement under way.
    parts: StepParts,
    /// The measurements, the oldest first; at most [`StepTimes::STEPS_MAX`].
    samples: VecDeque<StepSample>,
    /// The logical shards that this rank carries in a step; 0 until its steps are dealt by shards.
    shards: u32,
}

/// One measurement, for one step.
#[derive(Clone, Copy, Debug)]
struct StepSample {
    ended: Duration,
    step: Duration,
    waiting: Duration,
    parts: StepParts,
}

/// Time of a step that is neither its computation nor waiting for other ranks.
#[derive(Clone, Copy, Debug, Default)]
struct StepParts {
    /// Waiting for data.
    data: Duration,
    /// Commits.
    commit: Duration,
}

impl StepSamples {
    /// Forgets the generation before.
    pub fn begin_generation(&mut self) {
        *self = Self::default();
    }

    /// A commit, or a check for host updates, ends `steps` steps. Returns whether they are measured: a check leaves them to the
    /// next commit, unless none comes.
    pub fn end_steps(&mut self, now: WaitReading, steps: u64, is_commit: bool) -> bool {
        let Some(since) = self.since.filter(|_| self.aside_since.is_none()) else {
            self.since = Some(now);
            self.parts = StepParts::default();
            self.aside_since = self.aside_since.map(|_| now);
            return true;
        };
        let whole = now.at.saturating_sub(since.at);
        if !is_commit && whole < MEASURED_MAX {
            return false;
        }
        let steps = u32::try_from(steps).unwrap_or(u32::MAX).max(1);
        let waiting = now.waited.saturating_sub(since.waited).min(whole);
        let ended = now.at;
        let (step, waiting) = (whole / steps, waiting / steps);
        let StepParts { data, commit } = std::mem::take(&mut self.parts);
        let parts = StepParts { data: data / steps, commit: commit / steps };
        self.samples.push_back(StepSample { ended, step, waiting, parts });
        let is_old = |sample: &StepSample| sample.ended + RECENT < now.at;
        while self.samples.len() > StepTimes::STEPS_MAX
            || self.samples.len() > RECENT_MIN && self.samples.front().is_some_and(is_old)
        {
            self.samples.pop_front();
        }
        self.since = Some(now);
        true
    }

    /// The training thread goes on after a wait for the driver, which is no part of a step.
    pub fn go_on(&mut self, now: WaitReading) {
        self.since = self.since.map(|_| now);
        self.parts = StepParts::default();
    }

    /// The training thread has waited for data.
    pub fn note_data(&mut self, waited: Duration) {
        if self.aside_since.is_none() {
            self.parts.data += waited;
        }
    }

    /// The training thread has made a commit's copy.
    pub fn note_commit(&mut self, took: Duration) {
        if self.aside_since.is_none() {
            self.parts.commit += took;
        }
    }

    /// Notes that this rank carries so many logical shards in each step.
    pub const fn carry_shards(&mut self, shards: u32) {
        self.shards = shards;
    }

    /// A section of the program begins, outside of others. Its time is no part of a step.
    pub fn begin_section(&mut self, now: WaitReading) {
        self.aside_since = Some(now);
    }

    /// The outermost section ends.
    pub fn end_section(&mut self, now: WaitReading) {
        let Some(aside) = self.aside_since.take() else { return };
        let Some(since) = &mut self.since else { return };
        since.at += now.at.saturating_sub(aside.at);
        since.waited += now.waited.saturating_sub(aside.waited);
    }

    /// Whether nothing is measured yet, so that there are no times.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The medians of the last measurements; none before the first.
    pub fn times(&self) -> Option<StepTimes> {
        let median = |of: &dyn Fn(&StepSample) -> Duration| {
            let mut all: Vec<u64> =
                self.samples.iter().map(|sample| of(sample).as_nanos() as u64).collect();
            let middle = all.len() / 2;
            (middle < all.len()).then(|| *all.select_nth_unstable(middle).1 / 1_000)
        };
        Some(StepTimes {
            step_us: median(&|sample| sample.step)?,
            compute_us: median(&|sample| sample.step.saturating_sub(sample.waiting))?,
            waiting_us: median(&|sample| sample.waiting)?,
            data_us: median(&|sample| sample.parts.data)?,
            commit_us: median(&|sample| sample.parts.commit)?,
            shards: self.shards,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64, waited_ms: u64) -> WaitReading {
        WaitReading { at: Duration::from_millis(ms), waited: Duration::from_millis(waited_ms) }
    }

    fn times(step: u64, compute: u64, waiting: u64) -> Option<StepTimes> {
        let (step_us, compute_us, waiting_us) = (step * 1000, compute * 1000, waiting * 1000);
        Some(StepTimes { step_us, compute_us, waiting_us, data_us: 0, commit_us: 0, shards: 0 })
    }

    #[test]
    fn the_first_commit_begins_the_first_measurement_and_the_median_counts() {
        let mut samples = StepSamples::default();
        samples.end_steps(at(9_000, 100), 1, true);
        assert_eq!(samples.times(), None, "what comes before loads and compiles");
        let mut now = 9_000;
        for step in [10, 10, 900, 12, 10] {
            now += step;
            samples.end_steps(at(now, 100 + 4 * (now - 9_000) / 10), 1, true);
        }
        assert_eq!(samples.times(), times(10, 6, 4));
        samples.begin_generation();
        assert_eq!(samples.times(), None);
    }

    #[test]
    fn several_steps_of_one_commit_are_measured_together() {
        let mut samples = StepSamples::default();
        samples.end_steps(at(0, 0), 1, true);
        assert!(!samples.end_steps(at(10, 0), 1, false), "a commit follows");
        assert!(samples.end_steps(at(40, 20), 4, true));
        assert_eq!(samples.times(), times(10, 5, 5));
        assert!(samples.end_steps(at(2_040, 1_020), 10, false), "no commit follows");
        assert!(samples.end_steps(at(4_040, 2_020), 10, false));
        assert_eq!(samples.times(), times(200, 100, 100));
    }

    #[test]
    fn sections_and_waits_for_the_driver_are_no_part_of_a_step() {
        let mut samples = StepSamples::default();
        samples.end_steps(at(0, 0), 1, true);
        samples.begin_section(at(10, 2));
        samples.end_section(at(5_010, 4_002));
        samples.end_steps(at(5_020, 4_005), 1, true);
        assert_eq!(samples.times(), times(20, 15, 5));
        samples.go_on(at(9_000, 4_005));
        samples.end_steps(at(9_020, 4_010), 1, true);
        assert_eq!(samples.times(), times(20, 15, 5));
        samples.begin_section(at(9_020, 4_010));
        samples.end_steps(at(9_500, 4_300), 1, true);
        samples.end_section(at(10_000, 4_700));
        samples.end_steps(at(10_020, 4_705), 1, true);
        assert_eq!(samples.times(), times(20, 15, 5), "a commit inside of a section");
    }

    #[test]
    fn data_and_commits_are_parts_of_their_step_and_none_in_a_section() {
        let ms = Duration::from_millis;
        let mut samples = StepSamples::default();
        samples.note_data(ms(500));
        samples.end_steps(at(500, 0), 1, true);
        samples.note_data(ms(8));
        samples.note_commit(ms(2));
        samples.begin_section(at(510, 0));
        samples.note_data(ms(100));
        samples.note_commit(ms(60));
        samples.end_section(at(700, 0));
        samples.note_data(ms(4));
        samples.end_steps(at(740, 20), 2, true);
        let parts =
            StepTimes { data_us: 6_000, commit_us: 1_000, ..times(25, 15, 10).expect("times") };
        assert_eq!(samples.times(), Some(parts), "of each of two steps");
    }

    #[test]
    fn long_steps_show_a_change_after_a_few() {
        let mut samples = StepSamples::default();
        let mut now = 0;
        for step in [vec![2_000; 20], vec![4_000; 4]].concat() {
            samples.end_steps(at(now, 0), 1, true);
            now += step;
        }
        assert_eq!(samples.times(), times(4_000, 4_000, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut samples = StepSamples::default();
        for step in 0..1_000 {
            samples.end_steps(at(step, 0), 1, true);
        }
        assert_eq!(samples.samples.len(), StepTimes::STEPS_MAX);
    }
}
