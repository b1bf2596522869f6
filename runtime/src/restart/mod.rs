//! When a child that ended is started again: a pure core, as in OTP's supervisors. Driven by
//! [`Supervisor`](crate::Supervisor), and by anyone who restarts other things than actors (processes, say).

mod backoff;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use elastic_protocol::Time;
use rand::RngCore;

pub use self::backoff::Backoff;
use crate::child::Exit;

/// Who is restarted when one child ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RestartStrategy {
    /// The one that ended.
    OneForOne,
    /// All of them.
    OneForAll,
    /// The one that ended, and those that were started after it.
    RestForOne,
}

/// Which ends of a child are to be mended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Lifetime {
    /// Any end.
    Permanent,
    /// Failures and panics; when it stops, it is done.
    Transient,
    /// None: it lives once. A supervisor ends it with its siblings where the strategy says so, and does not
    /// start it again.
    Temporary,
}

/// How children are restarted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RestartPolicy {
    /// Who is restarted with the one that ended.
    pub strategy: RestartStrategy,
    /// Restarts allowed within `window`; one that concerns several children counts once.
    pub restarts_max: u32,
    /// The window.
    pub window: Duration,
    /// How long to wait before a restart.
    pub backoff: Backoff,
}

impl Default for RestartPolicy {
    /// One for one, 5 restarts in 10 s, 50 ms doubling to 2 s.
    fn default() -> Self {
        Self {
            strategy: RestartStrategy::OneForOne,
            restarts_max: 5,
            window: Duration::from_secs(10),
            backoff: Backoff { base: Duration::from_millis(50), cap: Duration::from_secs(2) },
        }
    }
}

/// A child of a supervisor: numbered in the order of their start, never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ChildNumber(pub u32);

/// What is to be done about a child's end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// Stop those of `children` that still live, in reverse order, and start all of them at `at`, in order.
    RestartAt {
        /// Who, in the order of their start.
        children: Vec<ChildNumber>,
        /// When, at the earliest.
        at: Time,
        /// Why.
        reason: String,
    },
    /// The budget is spent: the supervisor itself fails with this reason.
    Escalate {
        /// Why.
        reason: String,
    },
    /// Nothing: this end is in order.
    Ignore {
        /// Why.
        reason: String,
    },
}

/// Decides about restarts. No actor, no clock, no randomness of its own.
#[derive(Clone, Debug)]
pub struct RestartCore {
    policy: RestartPolicy,
    children: BTreeMap<ChildNumber, Lifetime>,
    next: u32,
    /// Restarts within the window: when, and because of whom.
    recent: VecDeque<(Time, ChildNumber)>,
}

impl RestartCore {
    /// Without children.
    pub const fn new(policy: RestartPolicy) -> Self {
        Self { policy, children: BTreeMap::new(), next: 0, recent: VecDeque::new() }
    }

    /// A child that was, or will be, started after all others.
    pub fn add_child(&mut self, lifetime: Lifetime) -> ChildNumber {
        let child = ChildNumber(self.next);
        self.next += 1;
        self.children.insert(child, lifetime);
        child
    }

    /// A child that is not to be restarted any more, by its own end or another's.
    pub fn remove_child(&mut self, child: ChildNumber) {
        self.children.remove(&child);
    }

    /// Its children, in the order of their start.
    pub fn children(&self) -> impl Iterator<Item = ChildNumber> {
        self.children.keys().copied()
    }

    /// A child has ended. Ends that the supervisor itself brought about, to carry out a decision, are not
    /// told here. A child whose end is in order is one no more.
    pub fn handle_exit(
        &mut self,
        now: Time,
        child: ChildNumber,
        exit: &Exit,
        rng: &mut impl RngCore,
    ) -> Decision {
        let Some(lifetime) = self.children.get(&child).copied() else {
            return Decision::Ignore { reason: format!("{exit}; it is not supervised any more") };
        };
        let mended = match lifetime {
            Lifetime::Permanent => true,
            Lifetime::Transient => !exit.is_normal(),
            Lifetime::Temporary => false,
        };
        if !mended {
            self.children.remove(&child);
            return Decision::Ignore {
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
            return Decision::Escalate { reason };
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
        Decision::RestartAt { children, at: now + wait, reason }
    }

    fn forget_before(&mut self, now: Time) {
        while self.recent.front().is_some_and(|(at, _)| now.since(*at) >= self.policy.window) {
            self.recent.pop_front();
        }
    }
}
