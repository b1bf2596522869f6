//! `WalkedPasses`: the passes through data that were walked to their end in a generation. One that begins again has no samples,
//! and the user is told. Used by `worker`.

use std::collections::VecDeque;

use crate::state::sampler::{DataPass, SampleLedger};

/// A pass that was walked to its end here.
#[derive(Debug)]
struct WalkedPass {
    course: DataPass,
    /// The epoch that was walked to its end last.
    epoch: u64,
    /// Whether the user was told that it began again.
    is_told: bool,
}

/// The passes that were walked to their end in this generation, by this worker. A pass that was finished in an earlier generation
/// is not among them: a training function that begins anew after a reset walks through it once more, as it should.
#[derive(Debug, Default)]
pub(super) struct WalkedPasses {
    /// By their first end; at most [`SampleLedger::ENTRIES_MAX`]. Only a ledger that holds a pass makes it empty.
    passes: VecDeque<WalkedPass>,
}

impl WalkedPasses {
    /// A pass has no more samples.
    pub(super) fn end(&mut self, course: &DataPass, epoch: u64) {
        if let Some(pass) = self.passes.iter_mut().find(|pass| pass.course == *course) {
            pass.epoch = epoch;
            return;
        }
        if self.passes.len() >= SampleLedger::ENTRIES_MAX {
            self.passes.pop_front();
        }
        self.passes.push_back(WalkedPass { course: course.clone(), epoch, is_told: false });
    }

    /// Whether the user is to be told that a pass which is done begins: if it was walked to its end here, once for all its
    /// epochs.
    pub(super) fn begins_again(&mut self, course: &DataPass, epoch: u64) -> bool {
        let is_same = |pass: &&mut WalkedPass| pass.course == *course && pass.epoch == epoch;
        self.passes
            .iter_mut()
            .find(is_same)
            .is_some_and(|pass| !std::mem::replace(&mut pass.is_told, true))
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
    fn as_many_passes_are_remembered_as_a_ledger_holds() {
        let mut walked = WalkedPasses::default();
        let all = 0..2 * SampleLedger::ENTRIES_MAX;
        all.clone().for_each(|name| walked.end(&course(name), 0));
        assert_eq!(walked.passes.len(), SampleLedger::ENTRIES_MAX);
        assert!(walked.begins_again(&course(all.end - 1), 0));
        assert!(!walked.begins_again(&course(0), 0));
    }
}
