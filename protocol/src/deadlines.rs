//! Deadlines: the one place that derives them and refuses settings that contradict each other.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits of all waits. `beat ≪ suspect < lost ≪ form ≪ elastic timeout` (G-9).
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Deadlines {
    /// Silence of a connection after which a sign of life is sent. Default 100 ms.
    pub beat: Duration,
    /// Silence after which a node is suspected. Default 1 s.
    pub suspect: Duration,
    /// Silence after which a node is lost. Default 2 s.
    pub lost: Duration,
    /// Time limit from an assignment to READY of all its members. Default 10 s.
    pub form: Duration,
    /// Time for which the driver waits for more workers once enough are present. Default 1 s.
    pub last_call: Duration,
    /// Time limit of a worker's process from its start to its first message. Default 600 s.
    pub start: Duration,
    /// Time limit of a gather, from its beginning to an assignment. Default 600 s.
    pub elastic: Duration,
    /// Grace period between SIGTERM and SIGKILL. Default 5 s.
    pub grace: Duration,
    /// Time for which idle agents and workers wait for a driver. Default 30 s.
    pub orphan: Duration,
    /// Time for which a generation trains on without a driver. Default: `None`, for as long as no member fails.
    pub orphan_training: Option<Duration>,
}

/// Two deadlines that contradict each other.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{shorter} ({shorter_ms} ms) must be at most 1/{factor} of {longer} ({longer_ms} ms)")]
pub struct InvalidDeadlines {
    /// Name of the deadline that is too long.
    pub shorter: &'static str,
    /// Its value.
    pub shorter_ms: u128,
    /// Name of the deadline that it must stay below.
    pub longer: &'static str,
    /// Its value.
    pub longer_ms: u128,
    /// The longer deadline must be at least this many times the shorter one.
    pub factor: u32,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            beat: Duration::from_millis(100),
            suspect: Duration::from_secs(1),
            lost: Duration::from_secs(2),
            form: Duration::from_secs(10),
            last_call: Duration::from_secs(1),
            start: Duration::from_secs(600),
            elastic: Duration::from_secs(600),
            grace: Duration::from_secs(5),
            orphan: Duration::from_secs(30),
            orphan_training: None,
        }
    }
}

impl Deadlines {
    /// Longest interval between two attempts of a node to reach a driver, with the handshake.
    const REACHED_WITHIN: Duration = Duration::from_secs(2);

    /// Longest silence of the path between two workers while the driver hears both. Longer than the time until a host
    /// counts as lost, so that the driver's own findings come first. Default 10 s.
    pub fn data_path(&self) -> Duration {
        self.lost * 5
    }

    /// Time that a node waits after an absence, such as a driver after a takeover or a pause. Within this time its
    /// peers notice that their connections are gone, and make new ones. Default 6 s.
    pub fn return_grace(&self) -> Duration {
        self.lost * 2 + Self::REACHED_WITHIN
    }

    /// Time after a node's pause until the silence of all its peers is judged. Default 8 s.
    pub fn judged_after_pause(&self) -> Duration {
        self.return_grace() + self.lost
    }

    /// Length of a node's pause during which the other ends may have given up their connections. Default 1 s.
    pub fn breaking_pause(&self) -> Duration {
        self.lost.saturating_sub(self.suspect)
    }

    /// Checks that each deadline is short enough for the next. The elastic timeout is the user's and may be
    /// short: it is only kept above zero.
    ///
    /// # Errors
    /// Names the first pair that contradicts itself.
    pub fn validate(self) -> Result<Self, InvalidDeadlines> {
        let ladder = [
            ("beat", self.beat, "suspect", self.suspect, 3),
            ("suspect", self.suspect, "lost", self.lost, 1),
            ("lost", self.lost, "form", self.form, 2),
        ];
        for (shorter, short, longer, long, factor) in ladder {
            if short * factor > long {
                return Err(InvalidDeadlines {
                    shorter,
                    shorter_ms: short.as_millis(),
                    longer,
                    longer_ms: long.as_millis(),
                    factor,
                });
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_agree_with_each_other() {
        assert!(Deadlines::default().validate().is_ok());
    }

    #[test]
    fn a_contradiction_is_named() {
        let deadlines = Deadlines { beat: Duration::from_secs(1), ..Deadlines::default() };
        let error = deadlines.validate().expect_err("beat is as long as suspect");
        assert_eq!((error.shorter, error.longer), ("beat", "suspect"));
    }
}
