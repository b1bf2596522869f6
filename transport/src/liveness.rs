//! [`Liveness`]: when a peer counts as silent and when as lost (TR-5). Pure; the transport's one timer
//! drives it.

use std::time::Duration;

use elastic_protocol::{Deadlines, Time};

/// What changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// Not heard for `Deadlines::suspect`.
    Silent,
    /// Heard again.
    Heard,
    /// Not heard for `Deadlines::lost`.
    Lost,
}

/// When a peer was heard last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Liveness {
    suspect: Duration,
    lost: Duration,
    heard_at: Time,
    received: u64,
    silent: bool,
}

impl Liveness {
    /// A peer that is heard now.
    pub(crate) fn new(deadlines: &Deadlines, now: Time) -> Self {
        let Deadlines { suspect, lost, .. } = *deadlines;
        Self { suspect, lost, heard_at: now, received: 0, silent: false }
    }

    /// Milliseconds since it was heard last.
    pub(crate) fn silent_ms(&self, now: Time) -> u64 {
        u64::try_from(now.since(self.heard_at).as_millis()).unwrap_or(u64::MAX)
    }

    /// A new session began: what came before does not count.
    pub(crate) fn handle_session(&mut self, now: Time) {
        self.silent = false;
        self.heard_at = now;
    }

    /// A new connection with it stands.
    pub(crate) fn handle_connection(&mut self, now: Time) -> Option<Verdict> {
        self.received = 0;
        self.hear(now)
    }

    /// A look at the number of datagrams that its connection has received so far.
    pub(crate) fn handle_received(&mut self, now: Time, received: u64) -> Option<Verdict> {
        if received == self.received {
            return None;
        }
        self.received = received;
        self.hear(now)
    }

    fn hear(&mut self, now: Time) -> Option<Verdict> {
        self.heard_at = now;
        std::mem::take(&mut self.silent).then_some(Verdict::Heard)
    }

    /// This process itself stood still for so long (stopped, or swapped out): it was not listening.
    pub(crate) fn forgive(&mut self, now: Time, pause: Duration) {
        self.heard_at = (self.heard_at + pause).min(now);
    }

    /// Judges the silence.
    pub(crate) fn handle_timeout(&mut self, now: Time) -> Option<Verdict> {
        let silence = now.since(self.heard_at);
        if silence >= self.lost {
            return Some(Verdict::Lost);
        }
        if silence >= self.suspect && !self.silent {
            self.silent = true;
            return Some(Verdict::Silent);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_suspected_and_then_a_loss() {
        let mut liveness = Liveness::new(&Deadlines::default(), Time::ZERO);
        assert_eq!(liveness.handle_received(Time::from_ms(100), 3), None);
        assert_eq!(liveness.handle_timeout(Time::from_ms(1099)), None);
        assert_eq!(liveness.handle_timeout(Time::from_ms(1100)), Some(Verdict::Silent));
        assert_eq!(liveness.handle_timeout(Time::from_ms(1200)), None, "once");
        assert_eq!(liveness.handle_received(Time::from_ms(1300), 4), Some(Verdict::Heard));
        assert_eq!(liveness.handle_timeout(Time::from_ms(2300)), Some(Verdict::Silent));
        assert_eq!(liveness.handle_timeout(Time::from_ms(3300)), Some(Verdict::Lost));
        assert_eq!(liveness.silent_ms(Time::from_ms(3300)), 2000);
    }

    #[test]
    fn who_slept_accuses_nobody() {
        let mut liveness = Liveness::new(&Deadlines::default(), Time::ZERO);
        liveness.forgive(Time::from_ms(10_500), Duration::from_secs(10));
        assert_eq!(liveness.handle_timeout(Time::from_ms(10_500)), None);
    }
}
