//! [`DriverSearch`]: one search for the driver at all its possible addresses. The dialer makes the connections.

use std::collections::VecDeque;
use std::time::Duration;

use elastic_protocol::{Incarnation, Time};

/// Period of the search. After each, an address whose attempt has ended is tried again; after the first, a
/// second attempt is begun beside an attempt that has no answer.
pub(crate) const AGAIN_EVERY: Duration = Duration::from_millis(500);

/// Most addresses of one name that are tried.
pub(crate) const ADDRESSES_MAX: usize = 8;

/// Result of one attempt at one address. `L`: a failure that a further attempt would not mend.
#[derive(Debug)]
pub(crate) enum Attempt<L> {
    /// A driver of this term is there, and has proved it.
    Reached(Incarnation),
    /// A further attempt would fail in the same way.
    Lasting(L),
    /// A further attempt may succeed.
    Passing(String),
}

/// The fate of a driver that an attempt has reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Choice {
    /// Use this driver.
    Take,
    /// Close the connection: the driver has a successor.
    Succeeded,
}

/// Reason for which a search failed.
#[derive(Debug)]
pub(crate) enum Failed<L> {
    /// There is one address, and a further attempt would not mend the failure.
    Lasting(L),
    /// A further search may succeed.
    Passing(String),
}

/// A search: tries all addresses at once, as an address that is gone without notice shows only by its silence.
/// Takes the first driver whose term is not before that of the last one met: a driver that has a successor is
/// not gone back to (G-2).
#[derive(Debug)]
pub(crate) struct DriverSearch<L> {
    /// Term of the last driver that was met.
    term: Incarnation,
    /// No attempt is begun after this time.
    tries_until: Time,
    next_tick: Time,
    ticks: u32,
    /// Attempts under way, for each address.
    under_way: Vec<u32>,
    attempts: VecDeque<usize>,
    passing: String,
    lasting: Option<L>,
}

impl<L> DriverSearch<L> {
    /// Begins with an attempt at each of `addresses` addresses. `why_none`: the failure to report without any
    /// attempt's own.
    pub(crate) fn new(
        now: Time,
        addresses: usize,
        why_none: String,
        term: Incarnation,
        within: Duration,
    ) -> Self {
        Self {
            term,
            tries_until: now + within,
            next_tick: now + AGAIN_EVERY,
            ticks: 0,
            under_way: vec![1; addresses],
            attempts: (0..addresses).collect(),
            passing: why_none,
            lasting: None,
        }
    }

    /// The next address to try.
    pub(crate) fn poll_attempt(&mut self) -> Option<usize> {
        self.attempts.pop_front()
    }

    /// Time at which [`Self::handle_timeout`] must be called.
    pub(crate) fn poll_timeout(&self) -> Time {
        self.next_tick
    }

    /// Begins further attempts.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + AGAIN_EVERY;
        self.ticks += 1;
        if now >= self.tries_until {
            return;
        }
        for (index, under_way) in self.under_way.iter_mut().enumerate() {
            // An address that has answered, as a standby does, may be that of the acting driver by now. A
            // driver that starts now has not seen the first packets of the attempts under way, and their next
            // packets come later and later.
            if *under_way == 0 || self.ticks.is_power_of_two() {
                *under_way += 1;
                self.attempts.push_back(index);
            }
        }
    }

    /// Takes the result of an attempt. Returns whether the driver that it reached is the one to use.
    pub(crate) fn handle_attempt(&mut self, index: usize, attempt: Attempt<L>) -> Choice {
        self.under_way[index] -= 1;
        match attempt {
            Attempt::Reached(term) if term < self.term => {
                self.passing = format!("a driver of term {term} answers, which was succeeded");
            }
            Attempt::Reached(_) => return Choice::Take,
            Attempt::Lasting(error) => self.lasting = Some(error),
            Attempt::Passing(reason) => self.passing = reason,
        }
        Choice::Succeeded
    }

    /// Whether no attempt is left: the search has failed.
    pub(crate) fn is_over(&self) -> bool {
        self.under_way.iter().all(|under_way| *under_way == 0)
    }

    /// The failure to report.
    pub(crate) fn into_failure(self) -> Failed<L>
    where
        L: std::fmt::Display,
    {
        match self.lasting {
            Some(error) if self.under_way.len() == 1 => Failed::Lasting(error),
            // A driver may still start at another address.
            Some(error) => Failed::Passing(error.to_string()),
            None => Failed::Passing(self.passing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(addresses: usize, term: u64) -> DriverSearch<&'static str> {
        let none = "no address".to_owned();
        DriverSearch::new(Time::ZERO, addresses, none, Incarnation(term), Duration::from_secs(5))
    }

    fn attempts(search: &mut DriverSearch<&'static str>) -> Vec<usize> {
        std::iter::from_fn(|| search.poll_attempt()).collect()
    }

    #[test]
    fn all_addresses_are_tried_at_once_and_one_that_answered_is_asked_again() {
        let mut search = search(2, 0);
        assert_eq!(attempts(&mut search), [0, 1]);
        search.handle_attempt(1, Attempt::Passing("it stands by".to_owned()));
        assert!(!search.is_over(), "the other may still answer");
        let expected = [(500, vec![0, 1]), (1000, vec![0, 1]), (1500, vec![]), (2000, vec![0, 1])];
        for (tick, expected) in expected {
            search.handle_timeout(Time::from_ms(tick));
            assert_eq!(attempts(&mut search), expected, "at {tick} ms");
        }
        for _ in 0..3 {
            search.handle_attempt(1, Attempt::Passing("it stands by".to_owned()));
        }
        search.handle_timeout(Time::from_ms(2500));
        assert_eq!(attempts(&mut search), [1], "it may act by now");
    }

    #[test]
    fn a_search_ends_although_nobody_answers() {
        let mut search = search(1, 0);
        let mut begun = attempts(&mut search).len();
        for tick in 1..40 {
            search.handle_timeout(Time::from_ms(tick * 500));
            begun += attempts(&mut search).len();
        }
        for _ in 0..begun {
            assert!(!search.is_over());
            search.handle_attempt(0, Attempt::Passing("no answer".to_owned()));
        }
        assert!(search.is_over());
        assert!(matches!(search.into_failure(), Failed::Passing(reason) if reason == "no answer"));
    }

    #[test]
    fn a_driver_that_was_succeeded_is_not_gone_back_to() {
        let mut search = search(2, 4);
        assert_eq!(search.handle_attempt(0, Attempt::Reached(Incarnation(3))), Choice::Succeeded);
        assert_eq!(search.handle_attempt(1, Attempt::Reached(Incarnation(4))), Choice::Take, "G-2");
    }

    #[test]
    fn a_lasting_failure_ends_the_search_only_where_there_is_one_address() {
        let mut one = search(1, 0);
        one.handle_attempt(0, Attempt::Lasting("wrong secret"));
        assert!(one.is_over());
        assert!(matches!(one.into_failure(), Failed::Lasting("wrong secret")));
        let mut two = search(2, 0);
        two.handle_attempt(0, Attempt::Lasting("wrong secret"));
        two.handle_attempt(1, Attempt::Passing("no answer".to_owned()));
        assert!(matches!(two.into_failure(), Failed::Passing(reason) if reason == "wrong secret"));
    }
}
