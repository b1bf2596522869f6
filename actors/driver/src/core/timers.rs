//! The core's own deadlines in one ordered set, so that the shell keeps a single timer. What a timer was for
//! is checked when it fires: a timer of something that has changed since does nothing.

use std::collections::BTreeSet;

use elastic_protocol::{HostName, Time, WorkerId};

use super::table::SlotId;

/// What a deadline is for.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Timer {
    /// The phase's own deadline.
    Phase,
    /// The last call of a gather, or the wait for newcomers to come together.
    LastCall,
    /// A worker's process must have attached.
    Start(WorkerId),
    /// A slot's back-off is over.
    Slot(SlotId),
    /// A slot's failures may be forgiven.
    Forgiveness(SlotId),
    /// A new agent with the name of another is taken or refused.
    Join(HostName),
    /// A worker is silent: by now its agent would be, too, if it were the network.
    Silence(WorkerId),
    /// A worker that wants to leave must be let go.
    Departure(WorkerId),
    /// Who was there under a former driver is back or lost.
    Takeover,
    /// An agent has had the time to tell how processes ended while there was no driver.
    Reports(HostName),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Time, Timer)>);

impl Timers {
    pub(crate) fn set(&mut self, at: Time, timer: Timer) {
        self.0.insert((at, timer));
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.0.first().map(|(at, _)| *at)
    }

    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        self.0.pop_first().map(|(_, timer)| timer)
    }
}
