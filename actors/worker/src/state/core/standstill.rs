//! Standstills: when the training thread stays at one place among its collectives, the driver is told where, and told
//! again when the thread goes on. A thread that moves costs no message. Part of `StateCore`.

use elastic_protocol::Time;
use elastic_protocol::messages::{CollectivePosition, WorkerToDriver};
use elastic_protocol::planted::{Bug, is_planted};

use super::StateCore;

/// The place at which the training thread was seen last.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct SeenPosition {
    position: CollectivePosition,
    /// The time at which it was first seen there.
    since: Time,
    is_told: bool,
}

impl StateCore {
    /// Takes the place of a thread that runs.
    pub(super) fn note_position(&mut self, now: Time, position: CollectivePosition) {
        let still = self.deadlines.beat * WorkerToDriver::STILL_BEATS;
        let stays = self.seen.as_ref().is_some_and(|seen| seen.position == position);
        if !stays {
            let fresh = SeenPosition { position, since: now, is_told: false };
            let before = self.seen.replace(fresh);
            if let Some(before) = before.filter(|before| before.is_told)
                && !is_planted(Bug::GoingOnNotTold)
            {
                self.say_standstill(None, now.since(before.since).as_millis());
            }
            return;
        }
        let Some(seen) = self.seen.as_mut().filter(|seen| !seen.is_told) else { return };
        let stood = now.since(seen.since);
        if stood >= still {
            seen.is_told = true;
            let position = seen.position.clone();
            self.say_standstill(Some(position), stood.as_millis());
        }
    }

    /// Lets a standstill be reported again, to a driver that does not know it.
    pub(super) fn repeat_standstill(&mut self) {
        if let Some(seen) = &mut self.seen {
            seen.is_told = false;
        }
    }

    fn say_standstill(&mut self, position: Option<CollectivePosition>, for_ms: u128) {
        let (stamp, for_ms) = (self.stamp, u64::try_from(for_ms).unwrap_or(u64::MAX));
        self.tell_driver(WorkerToDriver::Standstill { stamp, position, for_ms });
    }
}
