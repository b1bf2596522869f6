//! [`Liveness`]: decides when a peer counts as silent, and when as lost (TR-5). Called by the core of peers.

use std::time::Duration;

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Deadlines, Time};

use super::limits::{RESUME_WITHIN, STARVED_MAX, refused_silence};

/// A change in the judgement of a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PeerChange {
    /// The peer was silent for `Deadlines::suspect`. If the session is kept for longer than `Deadlines::lost`, this is
    /// reported once more at `Deadlines::lost`.
    Silent,
    /// The peer was silent for as long as the session is kept.
    Lost,
    /// The peer's host has said that the peer's port is closed, and the peer was silent since then.
    Refused,
}

/// The time at which a peer was last heard, and the verdicts on its silence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Liveness {
    suspect: Duration,
    lost: Duration,
    /// Silence up to which the session is kept: `lost`, or longer at the end that makes the connections.
    keep: Duration,
    heard_at: Time,
    /// End of excused time: silence before it does not count, because this process was paused, or the peer's starved.
    excused_until: Time,
    /// Silence after a refusal with which the peer is lost. None at the end that makes the connections: the other end
    /// may be a driver that is started again on the same port.
    refused_silence: Option<Duration>,
    /// Time at which the peer's host has said that the peer's port is closed. `None` once the peer was heard again.
    refused_at: Option<Time>,
    /// Number of verdicts on the current silence.
    told: u8,
}

impl Liveness {
    /// A peer that is heard now. `dialled`: whether this end makes the connections.
    pub(crate) fn new(deadlines: &Deadlines, now: Time, dialled: bool) -> Self {
        let Deadlines { suspect, lost, .. } = *deadlines;
        let is_kept = dialled && !is_planted(Bug::SilentDriverForgotten);
        let keep = if is_kept { lost.max(RESUME_WITHIN) } else { lost };
        let refused_silence = (!dialled).then(|| refused_silence(deadlines));
        Self {
            suspect,
            lost,
            keep,
            heard_at: now,
            excused_until: Time::ZERO,
            refused_silence,
            refused_at: None,
            told: 0,
        }
    }

    /// Milliseconds since the peer was last heard.
    pub(crate) fn silent_ms(&self, now: Time) -> u64 {
        u64::try_from(now.since(self.heard_at).as_millis()).unwrap_or(u64::MAX)
    }

    /// Starts anew for a new session: earlier silence does not count.
    pub(crate) fn handle_session(&mut self, now: Time) {
        (self.told, self.refused_at) = (0, None);
        self.heard_at = now;
    }

    /// Takes note that the peer was heard at this moment, which may be past. Returns whether it had counted as silent.
    /// A moment that is not later than the last one known is no sign of life.
    pub(crate) fn handle_heard(&mut self, at: Time) -> bool {
        if at <= self.heard_at {
            return false;
        }
        self.heard_at = at;
        if !is_planted(Bug::RefusalBelieved) {
            self.refused_at = self.refused_at.filter(|refused| *refused > at);
        }
        std::mem::take(&mut self.told) > 0
    }

    /// Takes note that the peer's host has refused a packet to the peer's port. Anybody who knows both ports can send
    /// such a message, so it ends nothing by itself: a peer that is heard again was not meant.
    pub(crate) fn handle_refused(&mut self, now: Time) {
        if self.refused_silence.is_some() {
            self.refused_at.get_or_insert(now);
        }
    }

    /// Time at which a peer counts as lost whose port is closed.
    fn refused_due(&self) -> Option<Time> {
        let silence = self.refused_silence?;
        let silence = if is_planted(Bug::RefusalBelieved) { Duration::ZERO } else { silence };
        Some(self.refused_at?.max(self.counted_from()) + silence)
    }

    /// Takes note of a pause of this process of this length, up to now, in which it did not listen.
    pub(crate) fn handle_pause(&mut self, now: Time, pause: Duration, grace: Duration) {
        if is_planted(Bug::PauseNotExcused) {
            return;
        }
        let counted = (self.counted_from() + pause).min(now) + grace;
        self.excused_until = self.excused_until.max(counted);
    }

    /// Whether the peer was silent for half of the time after which it counts as silent.
    pub(crate) fn is_quiet(&self, now: Time) -> bool {
        self.heard_at + self.suspect / 2 <= now
    }

    /// Takes note that the peer's process is there and waits for a processor or a disk of this machine: it is starved, and
    /// not dead. Excuses its silence up to now, for [`STARVED_MAX`]. A closed port says more.
    pub(crate) fn handle_starved(&mut self, now: Time) {
        let is_excused = self.heard_at + STARVED_MAX > now && self.refused_at.is_none();
        if is_excused && !is_planted(Bug::StarvedGivenUp) {
            self.excused_until = self.excused_until.max(now);
        }
    }

    fn counted_from(&self) -> Time {
        self.heard_at.max(self.excused_until)
    }

    /// Time of the next verdict by [`Self::handle_timeout`], if the peer is not heard until then.
    pub(crate) fn due(&self) -> Time {
        let after = match self.told {
            0 => self.suspect,
            1 => self.lost,
            _ => self.keep,
        };
        let due = self.counted_from() + after;
        self.refused_due().map_or(due, |refused| refused.min(due))
    }

    /// Judges the silence.
    pub(crate) fn handle_timeout(&mut self, now: Time) -> Option<PeerChange> {
        if now < self.due() {
            return None;
        }
        if self.counted_from() + self.keep <= now {
            return Some(PeerChange::Lost);
        }
        if self.refused_due().is_some_and(|due| due <= now) {
            return Some(PeerChange::Refused);
        }
        // If two verdicts are due at once, only the later one is reported.
        self.told = if self.counted_from() + self.lost <= now { 2 } else { 1 };
        Some(PeerChange::Silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_ms(ms)
    }

    #[test]
    fn silence_is_suspected_and_then_a_loss() {
        let mut liveness = Liveness::new(&Deadlines::default(), Time::ZERO, false);
        assert!(!liveness.handle_heard(at(100)));
        assert_eq!(liveness.handle_timeout(at(1099)), None);
        assert_eq!(liveness.handle_timeout(at(1100)), Some(PeerChange::Silent));
        assert_eq!(liveness.handle_timeout(at(1200)), None, "once");
        assert!(liveness.handle_heard(at(1300)));
        assert_eq!(liveness.handle_timeout(at(2300)), Some(PeerChange::Silent));
        assert_eq!(liveness.handle_timeout(at(3300)), Some(PeerChange::Lost));
        assert_eq!(liveness.silent_ms(at(3300)), 2000);
    }

    #[test]
    fn the_same_sign_of_life_is_not_heard_twice() {
        let mut liveness = Liveness::new(&Deadlines::default(), Time::ZERO, true);
        liveness.handle_heard(at(100));
        assert_eq!(liveness.handle_timeout(at(1100)), Some(PeerChange::Silent));
        assert!(!liveness.handle_heard(at(100)), "it was silent since then");
        assert_eq!(liveness.handle_timeout(at(1200)), None, "once");
        assert!(liveness.handle_heard(at(1200)));
    }

    #[test]
    fn the_end_that_dials_keeps_the_session_for_a_driver_that_may_come_back() {
        let mut liveness = Liveness::new(&Deadlines::default(), Time::ZERO, true);
        assert_eq!(liveness.handle_timeout(at(1000)), Some(PeerChange::Silent));
        assert_eq!(liveness.handle_timeout(at(1999)), None);
        assert_eq!(liveness.handle_timeout(at(2000)), Some(PeerChange::Silent), "as good as gone");
        assert_eq!(liveness.handle_timeout(at(119_999)), None);
        assert_eq!(liveness.handle_timeout(at(120_000)), Some(PeerChange::Lost));
    }

    #[test]
    fn a_peer_whose_port_is_closed_is_lost_after_three_beats_unless_it_is_heard() {
        let mut liveness = Liveness::new(&Deadlines::default(), Time::ZERO, false);
        liveness.handle_refused(at(150));
        assert_eq!(liveness.due(), at(450));
        liveness.handle_heard(at(200));
        assert_eq!(liveness.due(), at(1200), "it is there: the refusal was not its host's");
        liveness.handle_refused(at(350));
        liveness.handle_refused(at(600));
        assert_eq!(liveness.handle_timeout(at(649)), None);
        assert_eq!(liveness.handle_timeout(at(650)), Some(PeerChange::Refused));
    }

    #[test]
    fn a_driver_whose_port_is_closed_may_be_started_again() {
        let mut liveness = Liveness::new(&Deadlines::default(), Time::ZERO, true);
        liveness.handle_refused(at(100));
        assert_eq!(liveness.handle_timeout(at(999)), None);
        assert_eq!(liveness.due(), at(1000));
    }

    #[test]
    fn a_process_that_was_paused_accuses_nobody() {
        let mut liveness = Liveness::new(&Deadlines::default(), Time::ZERO, false);
        liveness.handle_pause(at(10_500), Duration::from_secs(10), Duration::from_secs(6));
        assert_eq!(liveness.handle_timeout(at(10_500)), None);
        assert_eq!(liveness.due(), at(10_000 + 6_000 + 1_000), "pause, grace, suspicion");
    }

    #[test]
    fn a_starved_peer_is_waited_for_and_at_most_for_30_s() {
        let mut liveness = Liveness::new(&Deadlines::default(), Time::ZERO, false);
        assert!(!liveness.is_quiet(at(499)));
        assert!(liveness.is_quiet(at(500)));
        for ms in (500..30_000).step_by(100) {
            liveness.handle_starved(at(ms));
            assert_eq!(liveness.handle_timeout(at(ms)), None, "after {ms} ms");
        }
        liveness.handle_starved(at(30_000));
        assert_eq!(liveness.handle_timeout(at(30_900)), Some(PeerChange::Silent));
        assert_eq!(liveness.handle_timeout(at(31_900)), Some(PeerChange::Lost));
    }

    #[test]
    fn a_process_that_seems_starved_is_not_waited_for_once_its_port_is_closed() {
        let mut liveness = Liveness::new(&Deadlines::default(), Time::ZERO, false);
        liveness.handle_starved(at(600));
        liveness.handle_refused(at(650));
        liveness.handle_starved(at(900));
        assert_eq!(liveness.handle_timeout(at(950)), Some(PeerChange::Refused));
    }
}
