//! Distribution of one step's samples over the ranks. Used by `training`'s sampler.

use std::ops::Range;

/// One rank's part of one step, as places in the epoch's order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StepShare {
    /// The samples of the step.
    pub global: Range<u64>,
    /// The samples of this rank: a part of `global`, empty for some ranks if fewer samples are left than there
    /// are ranks.
    pub local: Range<u64>,
}

impl StepShare {
    /// The factor for a mean over this rank's samples, such that the mean over ranks is the mean over all
    /// samples of the step: local × world ÷ global. 1 except in the last step of an epoch, 0 for a rank without
    /// samples.
    pub fn weight(&self, world: u32) -> f32 {
        let local = (self.local.end - self.local.start) as f64;
        let global = (self.global.end - self.global.start) as f64;
        if global == 0.0 { 0.0 } else { (local * f64::from(world) / global) as f32 }
    }
}

/// The step that follows `consumed` samples of `length`, or `None` at the end of the epoch.
///
/// `batch` and `world` of 0 count as 1.
pub fn share(consumed: u64, length: u64, batch: u64, world: u32, rank: u32) -> Option<StepShare> {
    let global_batch = batch.max(1).saturating_mul(u64::from(world.max(1)));
    share_of_global(consumed, length, global_batch, world, rank)
}

/// As [`share`], for a step of `global_batch` samples in all, which are dealt evenly to `parts`.
pub fn share_of_global(
    consumed: u64,
    length: u64,
    global_batch: u64,
    parts: u32,
    part: u32,
) -> Option<StepShare> {
    let left = length.checked_sub(consumed).filter(|left| *left > 0)?;
    let parts = u64::from(parts.max(1));
    let count = global_batch.max(1).min(left);
    let (even, one_more) = (count / parts, count % parts);
    let part = u64::from(part);
    let start = consumed + part * even + part.min(one_more);
    let end = start + even + u64::from(part < one_more);
    Some(StepShare { global: consumed..consumed + count, local: start..end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h_23_the_tail_is_dealt_out_evenly() {
        let local = |rank| share(8, 9, 1, 4, rank).map(|share| share.local);
        assert_eq!(local(0), Some(8..9));
        assert_eq!(local(3), Some(9..9), "nothing is left for it, but it makes the step");
        let weights: Vec<f32> =
            (0..4).filter_map(|rank| share(0, 7, 2, 4, rank)).map(|part| part.weight(4)).collect();
        assert!((weights.iter().sum::<f32>() - 4.0).abs() < 1e-5);
    }

    #[test]
    fn a_full_step_gives_each_rank_its_batch() {
        assert_eq!(share(10, 100, 5, 2, 1), Some(StepShare { global: 10..20, local: 15..20 }));
        assert_eq!(share(100, 100, 5, 2, 1), None);
    }
}
