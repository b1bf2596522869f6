//! Evaluation of the records of a turn: the steps beside a save compared with those without one, and the medians of
//! all turns.

use std::fmt;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::statistics::median;

/// Cycles at the begin of a job that do not count: memory is touched for the first time.
const WARM_UP: u64 = 2;

/// The record of a job that trained. Times are seconds since 1970.
#[derive(Debug, Deserialize)]
pub(super) struct TrainedJob {
    /// Cycle, number within the cycle, begin and end of each step.
    pub(super) steps: Vec<(u64, u64, f64, f64)>,
    /// Begin of each save, and the time at which it was reported as done.
    pub(super) saves: Vec<[f64; 2]>,
}

/// Measurements of one turn.
#[derive(Clone, Debug)]
pub(super) struct SaveSample {
    /// Time of a step without a save, in milliseconds, with its share of the commits.
    step_ms: f64,
    /// Time of a step that has no commit in it.
    plain_step_ms: f64,
    /// For each save, time of the steps beside it over the time of the same steps without it.
    ratios: Vec<f64>,
    /// For each save, the longest step beside it, in milliseconds.
    longest_ms: Vec<f64>,
    /// For each save, the seconds until it was reported as done.
    durable_s: Vec<f64>,
    resume: ResumeSample,
}

/// A resume of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ResumeSample {
    /// Seconds from the last rank's start until all had the state.
    pub(super) resume_s: f64,
    /// Those of them until all had joined their job and made their arrays, which are filled then.
    pub(super) build_s: f64,
    /// Seconds of a processor that all ranks together took for both.
    pub(super) cpu_s: f64,
}

/// Medians of all turns.
#[derive(Debug, Serialize)]
pub(super) struct SaveFigures {
    saves: usize,
    step_ms: f64,
    plain_step_ms: f64,
    step_ratio: f64,
    longest_step_ms: f64,
    pub(super) durable_s: f64,
    pub(super) resume_s: f64,
    resume_build_s: f64,
    resume_cpu_s: f64,
}

impl SaveSample {
    pub(super) fn of(job: &TrainedJob, resume: ResumeSample) -> anyhow::Result<Self> {
        let is_beside =
            |step: &(u64, u64, f64, f64), save: &[f64; 2]| step.2 < save[1] && step.3 > save[0];
        let is_quiet = |step: &&(u64, u64, f64, f64)| {
            step.0 >= WARM_UP && !job.saves.iter().any(|save| is_beside(step, save))
        };
        let quiet: Vec<_> = job.steps.iter().filter(is_quiet).collect();
        let steps = job.steps.iter().map(|step| step.1).max().context("nothing was trained")? + 1;
        let usual: Vec<f64> = (0..steps)
            .map(|number| {
                let of = quiet.iter().filter(|step| step.1 == number);
                median(&of.map(|step| step.3 - step.2).collect::<Vec<_>>())
            })
            .collect::<Option<_>>()
            .context("no cycle is without a save: more --every, or fewer --saves")?;
        // The first save starts threads and processes.
        let counted = job.saves.get(1..).unwrap_or_default();
        let mut sample = Self {
            step_ms: usual.iter().sum::<f64>() / usual.len() as f64 * 1e3,
            plain_step_ms: median(usual.get(1..).unwrap_or_default()).unwrap_or_default() * 1e3,
            ratios: Vec::new(),
            longest_ms: Vec::new(),
            durable_s: Vec::new(),
            resume,
        };
        for save in counted {
            let beside = || job.steps.iter().filter(|step| is_beside(step, save));
            let took: f64 = beside().map(|step| step.3 - step.2).sum();
            let due: f64 = beside().map(|step| usual[step.1 as usize]).sum();
            sample.ratios.push(took / due);
            let longest = beside().map(|step| step.3 - step.2).fold(0.0, f64::max);
            sample.longest_ms.push(longest * 1e3);
            sample.durable_s.push(save[1] - save[0]);
        }
        Ok(sample)
    }
}

impl fmt::Display for SaveSample {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step_ms, plain_step_ms, ratios, longest_ms, durable_s, resume } = self;
        let ResumeSample { resume_s, build_s, cpu_s } = resume;
        write!(
            formatter,
            "step {step_ms:.1} ms (plain {plain_step_ms:.1}), beside saves {ratios:.3?} times that, at most {longest_ms:.0?} \
             ms, durable after {durable_s:.2?} s, resumed after {resume_s:.2} s (arrays made after {build_s:.2} s; {cpu_s:.2} s of a \
             processor)"
        )
    }
}

impl SaveFigures {
    /// Of all turns; none if no save counts.
    pub(super) fn of(samples: &[SaveSample]) -> Option<Self> {
        let each = |of: fn(&SaveSample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
        let all = |of: fn(&SaveSample) -> &Vec<f64>| {
            median(&samples.iter().flat_map(of).copied().collect::<Vec<_>>())
        };
        Some(Self {
            saves: samples.iter().map(|sample| sample.ratios.len()).sum(),
            step_ms: each(|sample| sample.step_ms)?,
            plain_step_ms: each(|sample| sample.plain_step_ms)?,
            step_ratio: all(|sample| &sample.ratios)?,
            longest_step_ms: all(|sample| &sample.longest_ms)?,
            durable_s: all(|sample| &sample.durable_s)?,
            resume_s: each(|sample| sample.resume.resume_s)?,
            resume_build_s: each(|sample| sample.resume.build_s)?,
            resume_cpu_s: each(|sample| sample.resume.cpu_s)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_beside_a_save_are_held_against_the_same_steps_without_one() {
        // Cycles of a step of 2 s and one of 1 s; the third save makes its steps longer by half.
        let mut job = TrainedJob { steps: Vec::new(), saves: vec![[6.0, 8.0], [12.0, 13.0]] };
        let mut at = 0.0;
        for cycle in 0..8 {
            for (number, length) in [(0, 2.0), (1, 1.0)] {
                let length = if cycle == 4 { length * 1.5 } else { length };
                job.steps.push((cycle, number, at, at + length));
                at += length;
            }
        }
        let sample = SaveSample::of(&job, ResumeSample::default()).expect("steps");
        assert_eq!((sample.step_ms, sample.plain_step_ms), (1_500.0, 1_000.0));
        assert_eq!((sample.ratios, sample.durable_s), (vec![1.5], vec![1.0]));
        assert_eq!(sample.longest_ms, [3_000.0]);
    }

    #[test]
    fn a_job_that_saves_all_the_time_is_no_measure() {
        let job = TrainedJob { steps: vec![(5, 0, 1.0, 2.0)], saves: vec![[0.0, 9.0]] };
        let error = SaveSample::of(&job, ResumeSample::default()).expect_err("no quiet step");
        assert!(error.to_string().contains("--every"), "{error}");
    }
}
