//! What the driver must know of a worker, derived from its present state: said once when it changes, and
//! all of it again on every new connection.

use elastic_protocol::messages::{Ballot, WorkerToDriver};
use elastic_protocol::{Stamp, Time};
use elastic_runtime::planted::{Bug, is_planted};

use super::{Link, Output, StateCore, Training};

impl StateCore {
    /// The first word on a new connection.
    pub(super) fn attach(&mut self, now: Time) {
        let since = match self.link {
            Link::Attached => now,
            Link::Down { since } | Link::Attaching { since } => since,
        };
        self.link = Link::Attaching { since };
        self.arrived = false;
        self.outputs.push_back(Output::ToDriver(WorkerToDriver::Attach {
            pid: self.config.pid,
            data_address: self.config.data_address,
            stamp: self.stamp,
            active: self.is_active(),
            commit: self.commit,
        }));
    }

    /// All that a driver which has just said `Welcome` does not know yet. Votes and reports are
    /// idempotent.
    pub(super) fn announce(&mut self) {
        if self.stamp != Stamp::default() && is_planted(Bug::NothingAnnounced) {
            return;
        }
        if self.pending.is_none() {
            match self.training {
                Training::AtRest => self.say_arrived(),
                Training::Formed | Training::Syncing => self.vote(Ballot::Ready),
                Training::Running { .. } => {
                    self.vote(Ballot::Synced);
                    self.say_paused();
                }
                Training::Returned => self.vote(Ballot::Success),
                Training::Starting | Training::Forming | Training::Ending | Training::Exited => {}
            }
        }
        self.say_leaving();
    }

    pub(super) fn say_arrived(&mut self) {
        if self.exit.is_none() && self.pending.is_none() {
            self.arrived = matches!(self.link, Link::Attached);
            self.tell_driver(WorkerToDriver::Arrived {
                stamp: self.stamp,
                commit: self.commit.filter(|_| !is_planted(Bug::CommitNotTold)),
                steps_lost: self.steps_lost,
            });
        }
    }

    pub(super) fn say_paused(&mut self) {
        if let Some(boundary) = self.pause.promised
            && self.pause.stop_at.is_none()
            && !self.pause.is_old
        {
            self.tell_driver(WorkerToDriver::Paused { stamp: self.stamp, boundary });
        }
    }

    pub(super) fn say_leaving(&mut self) {
        if let Some(reason) = self.leaving.clone() {
            self.tell_driver(WorkerToDriver::Leaving { reason });
        }
    }
}
