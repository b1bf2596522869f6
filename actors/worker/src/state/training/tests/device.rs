//! Tests of memory beside the live state: it is committed and synced with the rest, or not at all.

use std::cell::RefCell;
use std::rc::Rc;

use elastic_protocol::messages::CheckpointReport;

use super::super::checkpoint::tensors::NotedArrays;
use super::super::device::{DeviceError, DeviceMemory};
use super::super::membership::Membership;
use super::super::{Error, State};
use super::saving::last_save;

/// Memory that copies when it is told to finish. A reader of the commit before that gets the previous one.
#[derive(Default)]
struct Content {
    live: Vec<u8>,
    copying: Option<Vec<u8>>,
    committed: Vec<u8>,
    changed: bool,
    /// Whether the copy that is under way fails.
    fails: bool,
    /// Whether no copy can be begun.
    is_refused: bool,
}

#[derive(Clone, Default)]
struct Fake(Rc<RefCell<Content>>);

impl Fake {
    fn of(bytes: &[u8]) -> Self {
        let fake = Self::default();
        fake.set(bytes);
        fake
    }

    fn set(&self, bytes: &[u8]) {
        let mut content = self.0.borrow_mut();
        (content.live, content.changed) = (bytes.to_vec(), true);
    }

    fn live(&self) -> Vec<u8> {
        self.0.borrow().live.clone()
    }

    fn fail(&self) {
        self.0.borrow_mut().fails = true;
    }
}

impl DeviceMemory for Fake {
    fn length_bytes(&self) -> usize {
        self.0.borrow().live.len()
    }

    fn begin_commit(&mut self, stop: &dyn Fn() -> Option<String>) -> Result<(), DeviceError> {
        if let Some(reason) = stop() {
            return Err(reason.into());
        }
        let mut content = self.0.borrow_mut();
        if content.is_refused {
            return Err("told to refuse".into());
        }
        assert!(content.copying.is_none(), "one copy at a time");
        content.copying = Some(content.live.clone());
        content.changed = false;
        Ok(())
    }

    fn finish_commit(&mut self) -> Result<(), DeviceError> {
        if std::mem::take(&mut self.0.borrow_mut().fails) {
            Err("told to fail".into())
        } else {
            Ok(())
        }
    }

    fn keep_commit(&mut self) {
        let mut content = self.0.borrow_mut();
        content.committed = content.copying.take().expect("one was begun");
    }

    fn give_up_commit(&mut self) {
        self.0.borrow_mut().copying = None;
    }

    fn read_commit(&self, read: &mut dyn FnMut(&[u8])) {
        read(&self.0.borrow().committed);
    }

    fn replace_commit(&mut self, bytes: &[u8]) -> Result<(), DeviceError> {
        self.0.borrow_mut().committed = bytes.to_vec();
        Ok(())
    }

    fn restore(&mut self) -> Result<(), DeviceError> {
        let mut content = self.0.borrow_mut();
        (content.live, content.changed) = (content.committed.clone(), false);
        Ok(())
    }

    fn is_changed(&self) -> bool {
        self.0.borrow().changed
    }
}

fn state_of(memories: &[&Fake]) -> State<u64> {
    let mut state = State::new(0);
    for memory in memories {
        state.add_device_memory((*memory).clone());
    }
    state
}

#[test]
fn h_22_what_is_on_the_device_goes_back_with_the_rest() {
    let memory = Fake::of(&[1, 1]);
    let mut state = state_of(&[&memory]);
    *state = 1;
    state.save().expect("it begins");
    *state = 2;
    memory.set(&[2, 2]);
    state.restore().expect("there is a commit");
    assert_eq!((*state, memory.live()), (1, vec![1, 1]));
}

#[test]
fn h_22_a_copy_that_fails_leaves_the_commit_of_before_whole() {
    let (first, second) = (Fake::of(&[1]), Fake::of(&[1]));
    let mut state = state_of(&[&first, &second]);
    *state = 1;
    state.save().expect("it begins");
    let before = state.commit_id();
    *state = 2;
    first.set(&[2]);
    second.set(&[2]);
    state.save().expect("it begins");
    assert_eq!(state.step().0, 2);
    second.fail();
    assert_eq!(state.commit_id(), before, "one part is lost, so all of it is");
    state.restore().expect("there is a commit");
    assert_eq!((*state, first.live(), second.live()), (1, vec![1], vec![1]));
    assert_eq!(state.step().0, 1);
}

#[test]
fn h_22_a_copy_that_cannot_begin_leaves_none_under_way() {
    let (first, second) = (Fake::of(&[1]), Fake::of(&[1]));
    let mut state = state_of(&[&first, &second]);
    *state = 1;
    second.0.borrow_mut().is_refused = true;
    let error = state.save().expect_err("the second one cannot be copied");
    assert!(matches!(error, Error::Device { action: "committed", .. }), "{error:?}");
    second.0.borrow_mut().is_refused = false;
    state.save().expect("it begins");
    assert_eq!(state.step().0, 1);
}

#[test]
fn h_22_a_rank_that_was_interrupted_at_a_commit_that_is_lost_goes_on_from_the_one_before() {
    let memory = Fake::of(&[1]);
    let mut state = state_of(&[&memory]);
    *state = 1;
    state.save().expect("it begins");
    *state = 2;
    memory.set(&[2]);
    state.save().expect("it begins");
    state.keep_live();
    memory.fail();
    let told = state.commit_id().expect("the one before");
    state.refresh().expect("there is a commit");
    assert_eq!(
        (told.step.0, *state, memory.live()),
        (1, 1, vec![1]),
        "what is told is what it has"
    );
}

#[test]
fn c_1_where_the_last_commit_is_lost_the_one_before_is_saved_with_its_own_content() {
    let memory = Fake::of(&[1]);
    let mut state = state_of(&[&memory]);
    *state = 1;
    state.save().expect("it begins");
    *state = 2;
    memory.set(&[2]);
    state.save().expect("it begins");
    memory.fail();
    let told = state.commit_id().expect("the one before");
    let (control, order, outcomes) = last_save(told.step.0);
    state.save_last(&control, order).expect("it is copied");
    assert_eq!((told.step.0, *state, memory.live()), (1, 1, vec![1]));
    assert!(control.shared().checkpoints().is_write_due() && outcomes.try_recv().is_err());
}

#[test]
fn c_4_a_save_whose_commit_is_lost_is_told() {
    let memory = Fake::of(&[1]);
    let mut state = state_of(&[&memory]);
    state.save().expect("it begins");
    let told = state.commit_id().expect("it is copied");
    memory.fail();
    let (control, order, outcomes) = last_save(told.step.0);
    state.save_last(&control, order).expect("it begins");
    let outcome = outcomes.try_recv().expect("the driver waits for it");
    let CheckpointReport::Failed { reason } = outcome.report else { panic!("{outcome:?}") };
    assert!(outcome.step == told.step && reason.contains("told to fail"), "{reason}");
}

#[test]
fn what_the_device_changed_after_a_planned_end_does_not_count() {
    let memory = Fake::of(&[1]);
    let mut state = state_of(&[&memory]);
    state.save().expect("it begins");
    memory.set(&[2]);
    state.keep_live();
    state.refresh().expect("there is a commit");
    assert_eq!(memory.live(), [1]);
}

#[test]
fn h_4_a_commit_goes_to_another_rank_as_one() {
    let memories = [Fake::of(&[1, 2, 3]), Fake::of(&[4])];
    let mut root = state_of(&[&memories[0], &memories[1]]);
    *root = 7;
    root.save().expect("it begins");
    let commit = root.content_id().expect("there is one");
    let whole = root.whole_commit().expect("it is in memory").to_vec();
    assert_eq!(commit.length, whole.len() as u64);
    assert_eq!(commit.digest, xxhash_rust::xxh3::xxh3_64(&whole), "takers hash what came");

    let others = [Fake::of(&[0, 0, 0]), Fake::of(&[0])];
    let mut taker = state_of(&[&others[0], &others[1]]);
    taker.take_over(whole, commit).expect("it is the same program");
    assert_eq!((*taker, others[0].live(), others[1].live()), (7, vec![1, 2, 3], vec![4]));
    assert_eq!(taker.content_id(), Some(commit));
    assert_eq!(taker.step(), root.step());
}

#[test]
fn a_commit_of_a_program_with_other_memory_is_refused() {
    let memory = Fake::of(&[1, 2]);
    let mut root = state_of(&[&memory]);
    root.save().expect("it begins");
    let commit = root.content_id().expect("there is one");
    let whole = root.whole_commit().expect("it is in memory").to_vec();
    let other = Fake::of(&[0]);
    let mut taker = state_of(&[&other, &other]);
    let error = taker.take_over(whole, commit).expect_err("it is another program");
    assert!(matches!(error, Error::OtherDeviceMemory { .. } | Error::State { .. }), "{error:?}");
}

#[test]
fn memory_that_is_not_compared_with_other_ranks_is_named_once() {
    let memory = Fake::of(&[1]);
    let mut state = state_of(&[&memory]);
    let arrays = NotedArrays::default();
    assert_eq!(state.left_out_untold(&arrays).as_deref(), Some("memory on a GPU (device.0)"));
    assert_eq!(state.left_out_untold(&arrays), None);
}

#[test]
fn what_a_callback_changed_after_a_planned_end_does_not_count() {
    let mut state = state_of(&[]);
    state.on_reset(|_, live| *live += 10);
    state.save().expect("it begins");
    let mut membership = Membership::alone();
    let worker = membership.enter(&mut state).expect("a world of one").expect("it begins");
    state.call_back(&worker).expect("it does not panic");
    state.keep_live();
    state.refresh().expect("there is a commit");
    assert_eq!(*state, 0);
}

#[test]
fn a_world_of_one_has_finished_once_its_training_function_has_returned() {
    let (mut state, mut membership) = (state_of(&[]), Membership::alone());
    let worker = membership.enter(&mut state).expect("a world of one").expect("it begins");
    assert!(!membership.has_finished());
    membership.conclude(&mut state, &worker, Ok(())).expect("it has returned");
    assert!(membership.enter(&mut state).expect("it has ended well").is_none());
    assert!(membership.has_finished());
}
