//! `UndoneClock`: since when nothing was committed, and until when the generation trained. The training thread and the actor note
//! both; when an abort has undone the training since, the thread tells the driver how long it was. Used by `control`.

use std::time::Duration;

/// Times on the clock of the steps.
#[derive(Debug, Default)]
pub(super) struct UndoneClock {
    /// The last commit, or the begin of the training function.
    kept_at: Duration,
    /// The abort, if there was one.
    ended_at: Option<Duration>,
}

impl UndoneClock {
    /// The state is committed, or the training function begins with it.
    pub(super) const fn keep(&mut self, now: Duration) {
        (self.kept_at, self.ended_at) = (now, None);
    }

    /// The generation was aborted. The training thread may compute on until its next collective. The first abort counts.
    pub(super) fn end(&mut self, now: Duration) {
        self.ended_at.get_or_insert(now);
    }

    /// Training since the last commit, for a thread that gives it up now.
    pub(super) fn undone(&self, now: Duration) -> Duration {
        self.ended_at.unwrap_or(now).saturating_sub(self.kept_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_is_undone_from_the_last_commit_to_the_abort() {
        let s = Duration::from_secs;
        let mut clock = UndoneClock::default();
        clock.keep(s(10));
        assert_eq!(clock.undone(s(13)), s(3), "its own collective failed");
        clock.end(s(15));
        clock.end(s(16));
        assert_eq!(clock.undone(s(40)), s(5), "it computed until its next collective");
        clock.keep(s(50));
        assert_eq!(clock.undone(s(51)), s(1), "another generation");
    }
}
