//! Shrinking of failing seeds: leaves faults out of the plan until the failure needs all the remaining ones. Called
//! by the command line.

use crate::options::RunOptions;
use crate::report::{RunReport, RunVerdict};
use crate::trace::Recording;

/// Most runs that shrinking a seed may take.
pub const RUNS_MAX: usize = 400;

/// The smallest plan that still fails in the same way, and its report. The method is delta debugging (Zeller and
/// Hildebrandt, 2002).
pub fn shrink(options: &RunOptions, verdict: RunVerdict) -> (RunOptions, RunReport) {
    let whole = crate::run(options, Recording::default());
    let mut kept: Vec<usize> = options.keep.clone().unwrap_or_else(|| (0..whole.faults).collect());
    let mut best = whole;
    let mut chunk = kept.len().div_ceil(2).max(1);
    let mut runs = 0;
    loop {
        let mut at = 0;
        let mut has_shrunk = false;
        while at < kept.len() && runs < RUNS_MAX {
            let mut fewer = kept.clone();
            fewer.drain(at..(at + chunk).min(fewer.len()));
            let candidate = RunOptions { keep: Some(fewer.clone()), ..options.clone() };
            let report = crate::run(&candidate, Recording::default());
            runs += 1;
            if report.verdict() == verdict {
                (kept, best) = (fewer, report);
                has_shrunk = true;
            } else {
                at += chunk;
            }
        }
        if runs >= RUNS_MAX || (chunk == 1 && !has_shrunk) {
            break;
        }
        chunk = chunk.div_ceil(2).max(1);
    }
    (RunOptions { keep: Some(kept), ..options.clone() }, best)
}
