//! The core's deadlines in one ordered set, so that the shell keeps a single timer. The handler of a fired timer
//! checks its purpose: a timer whose subject has changed since does nothing. Kept in `Timetable`.

use std::collections::BTreeSet;

use elastic_protocol::{HostName, Time, WorkerId};
use serde::{Deserialize, Serialize};

use super::table::SlotId;

/// Purpose of a deadline.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) enum Timer {
    /// Deadline of the phase.
    Phase,
    /// The last call of a gather, or the wait for newcomers to come together, or for a worker that is out of reach.
    LastCall,
    /// A worker must have attached, or have come to rest.
    Start(WorkerId),
    /// A slot's back-off is over.
    Slot(SlotId),
    /// A slot's cool-down after a replacement is over.
    Rest(SlotId),
    /// A slot's failures may be forgiven.
    Forgiveness(SlotId),
    /// Time limit of a pending join: a new agent with the name of another is accepted or refused.
    Join(HostName),
    /// End of the time in which the agent of a silent worker would fall silent, too, if the network were at fault.
    Silence(WorkerId),
    /// Members wait for others: their processes are to be looked at, or the wait lasts too long.
    Hang,
    /// Members by restart are to be looked at, or one of them to be named.
    Inactivity,
    /// Members have reported their step times: they are to be compared.
    Straggler,
    /// A checkpoint is due, or its save or load is slow.
    Checkpoint,
    /// The report of a reset waits no longer for an exit status.
    ResetReport,
    /// The report of the first steps after a reset waits no longer for members that have not committed.
    FirstSteps,
    /// A worker that wants to leave must be let go.
    Departure(WorkerId),
    /// End of a takeover: agents and workers that are not back are lost.
    Takeover,
    /// End of the wait for an agent's reports on processes that ended without a driver.
    Reports(HostName),
    /// Training has finished, and processes of workers are still there.
    SlowEnd,
    /// The job is over, and its end may still not be stored.
    Unstored,
    /// The health check of a host is due, or its agent has not answered.
    HealthCheck(HostName),
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Timers(BTreeSet<(Time, Timer)>);

impl Timers {
    pub(crate) fn set(&mut self, at: Time, timer: Timer) {
        self.0.insert((at, timer));
    }

    pub(crate) fn has(&self, at: Time, timer: Timer) -> bool {
        self.0.contains(&(at, timer))
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Moves the departure timers that are due to `to`.
    pub(crate) fn put_off_departures(&mut self, due: Time, to: Time) {
        let departs =
            |(at, timer): &&(Time, Timer)| *at <= due && matches!(timer, Timer::Departure(_));
        let departures: Vec<(Time, Timer)> = self.0.iter().filter(departs).cloned().collect();
        for departure in departures {
            self.0.remove(&departure);
            self.0.insert((to, departure.1));
        }
    }

    pub(crate) fn due(&self, now: Time) -> usize {
        self.0.iter().take_while(|(at, _)| *at <= now).count()
    }

    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        self.0.pop_first().map(|(_, timer)| timer)
    }
}
