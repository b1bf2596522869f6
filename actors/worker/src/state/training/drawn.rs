//! `DrawnPasses`: the passes through data that batches were drawn from since the last commit. The driver compares those of all
//! ranks with the digests of the commit (`digests`). Used by `worker`.

use std::rc::Rc;

use elastic_protocol::messages::{StateDigests, TensorDigest, TensorName};
use xxhash_rust::xxh3::xxh3_64;

use super::control::TrainingControl;
use crate::state::core::prefix;
use crate::state::sampler::DataPass;

/// Most ways through passes in a commit that is compared. They share the room of a message with the arrays. Of more, one that is
/// common to all ranks could be left out, so none is compared.
const COMPARED_MAX: usize = 8;

/// A way in which a pass was gone through, which must be the same on all ranks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct DrawnPass {
    course: DataPass,
    epoch: u64,
    /// Samples of a step on each rank; `None` where the course's plan decides it.
    batch_size: Option<u64>,
}

impl DrawnPass {
    /// The pass in words: the same on ranks that are to go through the same data.
    fn name(&self) -> String {
        let DataPass { name, plan, .. } = &self.course;
        let kind = if plan.is_some() { "pass by shards" } else { "pass" };
        format!("{kind} {name:?}")
    }

    /// The way through it in words: all that decides which samples a rank is given.
    fn way(&self) -> String {
        let batches = match (self.batch_size, self.course.plan) {
            (Some(size), _) => format!("batches of {size}"),
            (None, Some(plan)) => {
                format!("{} shards of a global batch of {}", plan.shards, plan.global_batch)
            }
            (None, None) => String::new(),
        };
        let order = self.course.seed.map_or("in order".to_owned(), |seed| format!("seed {seed}"));
        format!("{batches} of {} samples, {order}, epoch {}", self.course.length, self.epoch)
    }

    /// Adds it to the digests of a commit.
    pub(super) fn digest_into(&self, step: u64, digests: &mut StateDigests) {
        let named = |words: String| {
            let id = TensorDigest::pass_id(xxh3_64(words.as_bytes()));
            TensorName { id, tensor: prefix(&words, StateDigests::NAME_BYTES_MAX).to_owned() }
        };
        let (pass, way) = (named(self.name()), named(self.way()));
        let (tensor, digest) = (pass.id, way.id);
        digests.digests.push(TensorDigest { step, tensor, digest, changed: true });
        digests.names.extend([pass, way]);
    }
}

/// The passes that were drawn from since the last commit.
#[derive(Debug, Default)]
pub(super) struct DrawnPasses {
    /// Each way once; at most one more than [`COMPARED_MAX`].
    ways: Vec<DrawnPass>,
}

impl DrawnPasses {
    /// A batch was drawn.
    pub(super) fn draw(&mut self, course: &DataPass, epoch: u64, batch_size: Option<u64>) {
        let is_known = |it: &DrawnPass| {
            (it.epoch, it.batch_size) == (epoch, batch_size) && it.course == *course
        };
        if self.ways.len() <= COMPARED_MAX && !self.ways.iter().any(is_known) {
            self.ways.push(DrawnPass { course: course.clone(), epoch, batch_size });
        }
    }

    /// Takes them for a commit: all, or none if there are too many.
    pub(super) fn take(&mut self) -> Vec<DrawnPass> {
        let ways = std::mem::take(&mut self.ways);
        if ways.len() > COMPARED_MAX { Vec::new() } else { ways }
    }
}

/// The parts of a commit that the driver compares between the ranks.
pub(super) struct ComparedCommit {
    /// The control that takes its digests.
    pub(super) control: Rc<TrainingControl>,
    /// Whether they carry the names of arrays.
    pub(super) is_named: bool,
    /// The passes through data that the commit's steps were drawn from.
    pub(super) passes: Vec<DrawnPass>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::sampler::LedgerPlan;

    fn digests(draws: &[(&str, Option<u64>, u64, u64)]) -> StateDigests {
        digests_of_length(480, draws)
    }

    fn digests_of_length(length: u64, draws: &[(&str, Option<u64>, u64, u64)]) -> StateDigests {
        let mut drawn = DrawnPasses::default();
        for (name, seed, epoch, batch_size) in draws {
            let course = DataPass { name: (*name).to_owned(), length, seed: *seed, plan: None };
            drawn.draw(&course, *epoch, Some(*batch_size));
        }
        let mut digests = StateDigests::after(4);
        drawn.take().iter().for_each(|pass| pass.digest_into(5, &mut digests));
        assert!(drawn.take().is_empty());
        digests
    }

    #[test]
    fn h_23_ranks_that_give_another_batch_size_seed_epoch_or_length_tell_other_digests_of_one_pass()
    {
        let one = digests(&[("", Some(5), 0, 8), ("", Some(5), 0, 8)]);
        let [told] = one.digests[..] else { panic!("one pass: {one:?}") };
        assert!(TensorDigest::is_pass_id(told.tensor) && told.step == 5);
        let words: Vec<&str> = one.names.iter().map(|name| name.tensor.as_str()).collect();
        assert_eq!(words, ["pass \"\"", "batches of 8 of 480 samples, seed 5, epoch 0"]);
        for other in
            [("", Some(5), 0, 4), ("", Some(6), 0, 8), ("", Some(5), 7, 8), ("", None, 0, 8)]
        {
            let other = digests(&[other]).digests[0];
            assert_eq!(other.tensor, told.tensor);
            assert_ne!(other.digest, told.digest);
        }
        let longer = digests_of_length(481, &[("", Some(5), 0, 8)]).digests[0];
        assert_eq!(longer.tensor, told.tensor, "a data set of another length");
        assert_ne!(longer.digest, told.digest);
        let named = digests(&[("validation", Some(5), 0, 8)]).digests[0];
        assert_ne!(named.tensor, told.tensor, "another pass");
    }

    #[test]
    fn the_passes_of_a_commit_are_compared_unless_they_are_too_many() {
        let all: Vec<_> = (0..=COMPARED_MAX as u64).map(|epoch| ("", None, epoch, 8)).collect();
        assert_eq!(digests(&all[1..]).digests.len(), COMPARED_MAX);
        assert!(digests(&all).digests.is_empty());
    }

    #[test]
    fn a_pass_by_shards_tells_its_plan() {
        let plan = Some(LedgerPlan { shards: 8, global_batch: 64 });
        let course = DataPass { name: "a".to_owned(), length: 9, seed: None, plan };
        let pass = DrawnPass { course, epoch: 2, batch_size: None };
        assert_eq!(pass.name(), "pass by shards \"a\"");
        assert_eq!(pass.way(), "8 shards of a global batch of 64 of 9 samples, in order, epoch 2");
    }
}
