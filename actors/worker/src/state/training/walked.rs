//! `WalkedPasses`: the passes through data that were walked to their end in a generation, or lost their place in it. One that
//! begins again has no samples, or the same ones again, and the user is told. `PassesUnderWay`: those that are being walked. Used
//! by `worker`.

use std::rc::{Rc, Weak};

use crate::state::sampler::{DataPass, SampleLedger};

/// Most courses of which the user is told.
const TOLD_MAX: usize = 1024;

/// The passes that were walked to their end in this generation, by this worker. A pass that was finished in an earlier generation
/// is not among them: a training function that begins anew after a reset walks through it once more, as it should.
#[derive(Debug, Default)]
pub(super) struct WalkedPasses {
    /// As the ledger that makes them empty.
    ended: SampleLedger,
    /// The passes that were broken off and gave their place to others, each as one that is finished.
    displaced: SampleLedger,
    /// The courses of which the user was told that a pass began again.
    told: Vec<DataPass>,
}

impl WalkedPasses {
    /// A pass has no more samples.
    pub(super) fn end(&mut self, course: &DataPass, epoch: u64) {
        self.ended.advance(course, epoch, course.length);
    }

    /// A pass has lost its place to another one.
    pub(super) fn displace(&mut self, course: &DataPass, epoch: u64) {
        self.displaced.advance(course, epoch, course.length);
    }

    /// Whether a pass has lost its place here.
    pub(super) fn is_displaced(&self, course: &DataPass, epoch: u64) -> bool {
        self.displaced.place(course, epoch).is_some()
    }

    /// Whether the user is to be told that a pass which is done begins: if it was walked to its end here, once for all epochs of its
    /// course.
    pub(super) fn begins_again(&mut self, course: &DataPass, epoch: u64) -> bool {
        let is_told = self.told.len() >= TOLD_MAX || self.told.contains(course);
        let begins = self.ended.place(course, epoch).is_some() && !is_told;
        if begins {
            self.told.push(course.clone());
        }
        begins
    }
}

/// An epoch of a course, held by what gives its batches.
#[derive(Debug)]
pub(super) struct PassUnderWay {
    pub(super) course: DataPass,
    pub(super) epoch: u64,
}

/// The passes that are being walked in this generation, side by side or one within another. The ledger forgets none of them.
#[derive(Debug, Default)]
pub(super) struct PassesUnderWay(Vec<Weak<PassUnderWay>>);

impl PassesUnderWay {
    /// A pass begins, or goes on. It is under way until the result is dropped.
    pub(super) fn begin(&mut self, course: DataPass, epoch: u64) -> Rc<PassUnderWay> {
        self.0.retain(|pass| pass.strong_count() > 0);
        let pass = Rc::new(PassUnderWay { course, epoch });
        self.0.push(Rc::downgrade(&pass));
        pass
    }

    /// Whether a pass is under way.
    pub(super) fn has(&self, course: &DataPass, epoch: u64) -> bool {
        let mut passes = self.0.iter().filter_map(Weak::upgrade);
        passes.any(|pass| pass.epoch == epoch && pass.course == *course)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(name: usize) -> DataPass {
        DataPass { name: name.to_string(), length: 20, seed: None, plan: None }
    }

    #[test]
    fn h_23_a_pass_that_was_walked_to_its_end_and_begins_again_is_told_once() {
        let mut walked = WalkedPasses::default();
        assert!(!walked.begins_again(&course(1), 0), "finished before this generation");
        walked.end(&course(1), 0);
        assert!(!walked.begins_again(&course(1), 1), "another epoch");
        assert!(!walked.begins_again(&course(2), 0), "another pass");
        assert!(walked.begins_again(&course(1), 0));
        walked.end(&course(1), 0);
        assert!(!walked.begins_again(&course(1), 0), "it was told");
        walked.end(&course(1), 1);
        assert!(!walked.begins_again(&course(1), 1), "it was told, of another epoch");
    }

    #[test]
    fn h_23_a_pass_that_begins_again_after_other_epochs_of_it_is_told() {
        let mut walked = WalkedPasses::default();
        (0..9).for_each(|epoch| walked.end(&course(1), epoch));
        walked.end(&course(1), 1_000_000);
        assert!(walked.begins_again(&course(1), 0));
    }

    #[test]
    fn the_user_is_told_of_so_many_passes() {
        let mut walked = WalkedPasses::default();
        (0..2 * TOLD_MAX).for_each(|name| walked.end(&course(name), 0));
        let told = (0..2 * TOLD_MAX).filter(|name| walked.begins_again(&course(*name), 0));
        assert_eq!(told.count(), TOLD_MAX);
    }
}
