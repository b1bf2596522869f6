//! Announcements to the driver, derived from the worker's present state. Each is sent once when it changes, and
//! all are sent again on every new connection. Part of `StateCore`.

use elastic_protocol::messages::{Ballot, UndoneTraining, WorkerToDriver};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Stamp, Time};

use super::{DriverAttachment, StateCore, StateOutput, ThreadState};

impl StateCore {
    /// Sends `Attach`: the first message on a new connection, and sent again when the data address changes.
    pub(super) fn attach(&mut self, now: Time) {
        self.link = DriverAttachment::Attaching { since: self.alone_since().unwrap_or(now) };
        self.silent_since = None;
        self.arrived = false;
        self.outputs.push_back(StateOutput::ToDriver(WorkerToDriver::Attach {
            pid: self.config.pid,
            data_address: self.config.data_address,
            stamp: self.stamp,
            active: self.is_active(),
            commit: self.commit,
        }));
    }

    /// Sends the present state to a driver that has just sent `Welcome`. Votes and reports are idempotent
    ///
    pub(super) fn announce(&mut self) {
        if self.stamp != Stamp::default() && is_planted(Bug::NothingAnnounced) {
            return;
        }
        match self.training {
            ThreadState::AtRest => self.say_arrived(),
            ThreadState::Formed | ThreadState::Syncing => self.vote(Ballot::Ready),
            ThreadState::Running { .. } => {
                self.vote(Ballot::Synced);
                self.say_paused();
                self.say_checkpoint();
                self.repeat_standstill();
            }
            ThreadState::Returned => {
                self.vote(Ballot::Success);
                self.say_checkpoint();
            }
            // A generation waits for the thread in these alone, if any does (`check`).
            ThreadState::Starting
            | ThreadState::Forming
            | ThreadState::Ending
            | ThreadState::Exited => {}
        }
        self.say_leaving();
    }

    pub(super) fn say_arrived(&mut self) {
        if self.exit.is_none() && self.pending.is_none() {
            self.arrived = matches!(self.link, DriverAttachment::Attached);
            self.tell_driver(WorkerToDriver::Arrived {
                stamp: self.stamp,
                commit: self.commit.filter(|_| !is_planted(Bug::CommitNotTold)),
                undone: match is_planted(Bug::LostStepsNotTold) {
                    true => UndoneTraining::default(),
                    false => self.undone,
                },
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
