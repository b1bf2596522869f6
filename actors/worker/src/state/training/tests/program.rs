//! The training program of these tests: counts how often each sample was trained, over all ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use elastic_collectives::ReduceOp;
use serde::{Deserialize, Serialize};

use super::super::{Error, State, Worker};

pub(super) const SAMPLES: usize = 97;

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Training {
    pub(super) counts: Vec<u32>,
    pub(super) epoch: u64,
    pub(super) done: bool,
    pub(super) resets: Vec<u64>,
}

impl Default for Training {
    fn default() -> Self {
        Self { counts: vec![0; SAMPLES], epoch: 0, done: false, resets: Vec::new() }
    }
}

/// The controls and observations of a running program.
#[derive(Clone, Default)]
pub(super) struct Strings {
    /// All ranks end after the epoch in which one of them sees this.
    pub(super) finish: Arc<AtomicBool>,
    /// Set: the worker dies in its next step.
    pub(super) die: Arc<AtomicBool>,
    /// Set: the training function turns every error into `Ok`.
    pub(super) swallow: Arc<AtomicBool>,
    /// Set: the training function panics at every error.
    pub(super) unwrap: Arc<AtomicBool>,
    /// Set: the training function fails in its next step.
    pub(super) fail: Arc<AtomicBool>,
    /// The number of times that the function was entered.
    pub(super) entered: Arc<AtomicU32>,
    /// The state at the end.
    pub(super) result: Arc<std::sync::Mutex<Option<Training>>>,
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::SeqCst)
}

impl Strings {
    /// The training function.
    pub(super) fn train(
        &self,
    ) -> impl FnMut(&Worker, &mut State<Training>) -> Result<(), Error> + Send + 'static {
        let strings = self.clone();
        move |worker, state| {
            strings.entered.fetch_add(1, Ordering::SeqCst);
            let result = strings.epochs(worker, state);
            if is_set(&strings.unwrap) {
                result.as_ref().expect("no error in this program");
            }
            if is_set(&strings.swallow) { Ok(()) } else { result }
        }
    }

    fn epochs(&self, worker: &Worker, state: &mut State<Training>) -> Result<(), Error> {
        while !state.done {
            let mut finish = 0;
            for batch in worker.sampler(&SAMPLES, 3, state.epoch) {
                let mut trained = vec![0_u32; SAMPLES + 1];
                batch.iter().for_each(|sample| trained[sample] += 1);
                trained[SAMPLES] = u32::from(is_set(&self.finish));
                assert!(!is_set(&self.die), "told to die");
                if is_set(&self.fail) {
                    return Err(Error::user("told to fail"));
                }
                worker.all_reduce(&mut trained, ReduceOp::Sum)?;
                state.counts.iter_mut().zip(&trained).for_each(|(sum, more)| *sum += more);
                finish = trained[SAMPLES];
                worker.check_host_updates()?;
                state.commit(worker)?;
            }
            state.epoch += 1;
            state.done = finish > 0;
        }
        *self.result.lock().expect("nobody panics with it") = Some((**state).clone());
        Ok(())
    }

    pub(super) fn finish(&self) {
        self.finish.store(true, Ordering::SeqCst);
    }

    pub(super) fn set(flag: &AtomicBool) {
        flag.store(true, Ordering::SeqCst);
    }

    /// The state at the end: every sample as often as there were epochs (H-20, H-23).
    pub(super) fn checked_result(&self) -> Training {
        let training = self.result.lock().expect("nobody panics with it").clone();
        let training = training.expect("it has finished");
        assert!(training.epoch > 0);
        let expected = vec![training.epoch as u32; SAMPLES];
        assert_eq!(training.counts, expected, "every sample exactly once an epoch");
        training
    }
}
