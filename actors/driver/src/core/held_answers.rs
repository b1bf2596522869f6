//! [`HeldAnswers`]: answers to the operator's commands that leave once what they say is in the journal: the next driver knows
//! it, too. Used by `actor::operator`.

use std::collections::VecDeque;
use std::time::Duration;

use elastic_protocol::Time;

/// Deadline of the journal for an answer; shorter than a client waits for it.
pub(crate) const ANSWERED_WITHIN: Duration = Duration::from_secs(3);

/// Most answers that wait; the oldest leaves as late for another one.
const HELD_MAX: usize = 256;

/// Answers that wait for a record, in the order of their records.
#[derive(Debug)]
pub(crate) struct HeldAnswers<A> {
    held: VecDeque<HeldAnswer<A>>,
}

#[derive(Debug)]
struct HeldAnswer<A> {
    record: u64,
    due: Time,
    answer: A,
}

/// An answer that waits no longer.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum ReleasedAnswer<A> {
    /// Its record is stored.
    Stored(A),
    /// Its record is not stored within [`ANSWERED_WITHIN`].
    Late(A),
    /// Its record was not stored while this driver led, and will not be.
    Deposed(A),
}

impl<A> Default for HeldAnswers<A> {
    fn default() -> Self {
        Self { held: VecDeque::new() }
    }
}

impl<A> HeldAnswers<A> {
    /// Holds an answer until `record`, the last one made, is stored.
    pub(crate) fn hold(&mut self, now: Time, record: u64, answer: A) {
        if self.held.len() >= HELD_MAX
            && let Some(oldest) = self.held.front_mut()
        {
            oldest.due = now;
        }
        self.held.push_back(HeldAnswer { record, due: now + ANSWERED_WITHIN, answer });
    }

    /// The next answer that waits no longer. `leads`: whether this driver still leads, and stores records.
    pub(crate) fn poll(
        &mut self,
        now: Time,
        leads: bool,
        is_stored: impl FnOnce(u64) -> bool,
    ) -> Option<ReleasedAnswer<A>> {
        let HeldAnswer { record, due, .. } = self.held.front()?;
        let release = match is_stored(*record) {
            true => ReleasedAnswer::Stored,
            false if !leads => ReleasedAnswer::Deposed,
            false if *due <= now => ReleasedAnswer::Late,
            false => return None,
        };
        self.held.pop_front().map(|held| release(held.answer))
    }

    /// The time at which `poll` is due.
    pub(crate) fn due_at(&self) -> Option<Time> {
        self.held.front().map(|held| held.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d_4_an_answer_waits_until_its_record_is_stored() {
        let mut answers = HeldAnswers::default();
        answers.hold(Time::ZERO, 7, "a");
        answers.hold(Time::ZERO, 8, "b");
        assert_eq!(answers.poll(Time::ZERO, true, |record| record <= 6), None);
        assert_eq!(
            answers.poll(Time::ZERO, true, |record| record <= 7),
            Some(ReleasedAnswer::Stored("a"))
        );
        assert_eq!(answers.poll(Time::ZERO, true, |record| record <= 7), None);
        assert_eq!(
            answers.poll(Time::ZERO, true, |record| record <= 8),
            Some(ReleasedAnswer::Stored("b"))
        );
        assert_eq!((answers.poll(Time::ZERO, true, |_| true), answers.due_at()), (None, None));
    }

    #[test]
    fn d_4_a_driver_that_leads_no_more_answers_at_once_what_it_has_not_stored() {
        let mut answers = HeldAnswers::default();
        answers.hold(Time::ZERO, 7, "a");
        answers.hold(Time::ZERO, 8, "b");
        let mut poll = || answers.poll(Time::ZERO, false, |record| record <= 7);
        assert_eq!(poll(), Some(ReleasedAnswer::Stored("a")), "the next driver knows it");
        assert_eq!((poll(), poll()), (Some(ReleasedAnswer::Deposed("b")), None));
    }

    #[test]
    fn the_oldest_of_too_many_answers_leaves() {
        let mut answers = HeldAnswers::default();
        for answer in 0..HELD_MAX {
            answers.hold(Time::ZERO, 7, answer);
            assert_eq!(answers.poll(Time::ZERO, true, |_| false), None);
        }
        answers.hold(Time::ZERO, 7, HELD_MAX);
        assert_eq!(answers.poll(Time::ZERO, true, |_| false), Some(ReleasedAnswer::Late(0)));
        assert_eq!(answers.poll(Time::ZERO, true, |_| false), None);
    }

    #[test]
    fn g_9_an_answer_whose_record_is_not_stored_leaves_with_its_deadline() {
        let mut answers = HeldAnswers::default();
        answers.hold(Time::ZERO, 7, "a");
        let due = Time::ZERO + ANSWERED_WITHIN;
        assert_eq!(answers.due_at(), Some(due));
        assert_eq!(answers.poll(Time(due.0 - 1), true, |_| false), None);
        assert_eq!(answers.poll(due, true, |_| false), Some(ReleasedAnswer::Late("a")));
        assert_eq!(answers.due_at(), None);
    }
}
