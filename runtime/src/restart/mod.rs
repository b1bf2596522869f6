//! Decides when a child that ended is restarted: a core without I/O, as in OTP's supervisors. Driven by
//! [`Supervisor`](crate::Supervisor), and by shells that restart other things than actors (such as processes).

mod backoff;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use elastic_protocol::Time;
use rand::RngCore;

pub use self::backoff::RestartBackoff;
use crate::child::ChildExit;

/// Children that are restarted when one child ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RestartStrategy {
    /// The child that ended.
    OneForOne,
    /// All children.
    OneForAll,
    /// The child that ended, and those that were started after it.
    RestForOne,
}

/// Ends of a child that lead to a restart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Lifetime {
    /// Any end.
    Permanent,
    /// Failures and panics; a child that stops is done.
    Transient,
    /// No end: the child lives once. A supervisor ends it with its siblings where the strategy says so, and
    /// does not start it again.
    Temporary,
}

/// Policy for the restart of children.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RestartPolicy {
    /// Strategy that selects the children to restart with the one that ended.
    pub strategy: RestartStrategy,
    /// Restarts allowed within `window`; one that concerns several children counts once.
    pub restarts_max: u32,
    /// The window.
    pub window: Duration,
    /// The wait before a restart.
    pub backoff: RestartBackoff,
}

impl Default for RestartPolicy {
    /// One-for-one, 5 restarts in 10 s, 50 ms doubling to 2 s.
    fn default() -> Self {
        Self {
            strategy: RestartStrategy::OneForOne,
            restarts_max: 5,
            window: Duration::from_secs(10),
            backoff: RestartBackoff {
                base: Duration::from_millis(50),
                cap: Duration::from_secs(2),
            },
        }
    }
}

/// Number of a supervisor's child, in the order of their start; never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ChildNumber(pub u32);

/// The answer to a child's end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RestartDecision {
    /// Stop those of `children` that still live, in reverse order, and start all of them at `at`, in order.
    RestartAt {
        /// The children, in the order of their start.
        children: Vec<ChildNumber>,
        /// The earliest time of their start.
        at: Time,
        /// The reason.
        reason: String,
    },
    /// The budget is spent: the supervisor itself fails with this reason.
    Escalate {
        /// The reason.
        reason: String,
    },
    /// Do nothing: the end is in order.
    Ignore {
        /// The reason.
        reason: String,
    },
}

/// Decides about restarts. No actor, no clock, no randomness of its own.
#[derive(Clone, Debug)]
pub struct RestartCore {
    policy: RestartPolicy,
    children: BTreeMap<ChildNumber, Lifetime>,
    next: u32,
    /// Restarts within the window: their times, and the children that caused them.
    recent: VecDeque<(Time, ChildNumber)>,
}

impl RestartCore {
    /// A core without children.
    pub const fn new(policy: RestartPolicy) -> Self {
        Self { policy, children: BTreeMap::new(), next: 0, recent: VecDeque::new() }
    }

    /// Adds a child, which is started after all others.
    pub fn add_child(&mut self, lifetime: Lifetime) -> ChildNumber {
        let child = ChildNumber(self.next);
        self.next += 1;
        self.children.insert(child, lifetime);
        child
    }

    /// Removes a child that is not to be restarted any more, by its own end or another's.
    pub fn remove_child(&mut self, child: ChildNumber) {
        self.children.remove(&child);
    }

    /// The children, in the order of their start.
    pub fn children(&self) -> impl Iterator<Item = ChildNumber> {
        self.children.keys().copied()
    }

    /// Decides on a child's end. Ends that the supervisor itself caused, to carry out a decision, are not
    /// passed here. A child whose end is in order is removed.
    pub fn handle_exit(
        &mut self,
        now: Time,
        child: ChildNumber,
        exit: &ChildExit,
        rng: &mut impl RngCore,
    ) -> RestartDecision {
        let Some(lifetime) = self.children.get(&child).copied() else {
            return RestartDecision::Ignore {
                reason: format!("{exit}; it is not supervised any more"),
            };
        };
        let mended = match lifetime {
            Lifetime::Permanent => true,
            Lifetime::Transient => !exit.is_normal(),
            Lifetime::Temporary => false,
        };
        if !mended {
            self.children.remove(&child);
            return RestartDecision::Ignore {
                reason: format!("{exit}; nothing to mend for {lifetime:?}"),
            };
        }
        self.forget_before(now);
        let RestartPolicy { strategy, restarts_max, window, backoff } = self.policy;
        if self.recent.len() >= restarts_max as usize {
            let reason = format!(
                "{exit}; {restarts_max} restarts within {} ms are spent",
                window.as_millis()
            );
            return RestartDecision::Escalate { reason };
        }
        let before = match strategy {
            RestartStrategy::OneForOne => {
                self.recent.iter().filter(|(_, who)| *who == child).count()
            }
            RestartStrategy::OneForAll | RestartStrategy::RestForOne => self.recent.len(),
        };
        let attempt = u32::try_from(before).unwrap_or(u32::MAX);
        let wait = backoff.wait(attempt, rng);
        self.recent.push_back((now, child));
        let children = match strategy {
            RestartStrategy::OneForOne => vec![child],
            RestartStrategy::OneForAll => self.children().collect(),
            RestartStrategy::RestForOne => {
                self.children().filter(|other| *other >= child).collect()
            }
        };
        let number = self.recent.len();
        let reason = format!(
            "{exit}; restart {number} of {restarts_max} within {} ms, after {} ms",
            window.as_millis(),
            wait.as_millis()
        );
        RestartDecision::RestartAt { children, at: now + wait, reason }
    }

    fn forget_before(&mut self, now: Time) {
        while self.recent.front().is_some_and(|(at, _)| now.since(*at) >= self.policy.window) {
            self.recent.pop_front();
        }
    }
}
