//! The one place that derives deadlines, and refuses settings that contradict each other.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long each wait may last. `beat ≪ suspect < lost ≪ form ≪ elastic timeout` (G-9).
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Deadlines {
    /// A sign of life on a connection that has been silent for so long. Default 100 ms.
    pub beat: Duration,
    /// A node not heard for so long is suspected. Default 1 s.
    pub suspect: Duration,
    /// A node not heard for so long is lost. Default 2 s.
    pub lost: Duration,
    /// From the assignment to READY of all its members. Default 10 s.
    pub form: Duration,
    /// How long more workers are waited for once enough are there. Default 1 s.
    pub last_call: Duration,
    /// A worker's process, from its start to its first word. Default 600 s.
    pub start: Duration,
    /// A gather, from its beginning to an assignment. Default 600 s.
    pub elastic: Duration,
    /// From SIGTERM to SIGKILL. Default 5 s.
    pub grace: Duration,
    /// How long agents and workers that have nothing to do wait for a driver. Default 30 s.
    pub orphan: Duration,
    /// How long a generation trains on without a driver. Default: none, for as long as nobody in it fails.
    pub orphan_training: Option<Duration>,
}

/// Two deadlines that contradict each other.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{shorter} ({shorter_ms} ms) must be at most 1/{factor} of {longer} ({longer_ms} ms)")]
pub struct InvalidDeadlines {
    /// Name of the one that is too long.
    pub shorter: &'static str,
    /// Its value.
    pub shorter_ms: u128,
    /// Name of the one that it must stay below.
    pub longer: &'static str,
    /// Its value.
    pub longer_ms: u128,
    /// How many times it must fit.
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
    /// Checks the ladder. The elastic timeout is the user's and may be short: it is only kept above zero.
    ///
    /// # Errors
    /// Names the first pair that contradicts the ladder.
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
