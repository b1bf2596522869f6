//! Incidents of a generation: losses of members, and accusations. The driver sees them (agents, links, deadlines) and
//! reports them; the registry decides whether they end the generation.

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{ExitStatus, ResetCause, Stamp, Time, WorkerId};
use serde::{Deserialize, Serialize};

/// An event after which a generation cannot go on as it is.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Incident {
    /// The generation.
    pub stamp: Stamp,
    /// The lost member; none: all are there, and one has given the generation up.
    pub lost: Option<WorkerId>,
    /// Exit status of the member's process; none if the end was expected.
    pub failure: Option<ExitStatus>,
    /// Cause of the generation's end.
    pub cause: ResetCause,
    /// Time of the first sign of the cause.
    pub evidence: Time,
}

/// Restart budget of a generation. The driver counts the resets. A generation gets the counts when it is opened, and
/// applies the limits like a supervisor.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct RestartBudget {
    /// Number of resets so far, planned ones included.
    pub resets: u64,
    /// Limit of resets (`--reset-limit`); none: any number.
    pub resets_max: Option<u32>,
    /// Number of resets so far that failures have caused.
    pub restarts: u64,
    /// Limit of resets caused by failures, for processes that live for one generation; none: any number.
    pub restarts_max: Option<u32>,
    /// Whether the processes live for this generation only: then a result counts only together with all others.
    pub is_by_restart: bool,
}

/// The part of the restart budget that is spent.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, thiserror::Error)]
pub enum BudgetSpent {
    /// The limit of resets (`--reset-limit`) is reached.
    #[error("the limit of {max} resets was reached")]
    Resets {
        /// The limit.
        max: u32,
    },
    /// A worker failed, and no restart is allowed.
    #[error("a worker failed, and no restart is allowed")]
    NoRestarts,
    /// A worker failed after all restarts.
    #[error("a worker failed after {max} of {max} restarts")]
    Restarts {
        /// The limit.
        max: u32,
    },
}

impl RestartBudget {
    /// The limit that one more reset of this cause would exceed, if any. Changes of the membership are no restarts
    /// (T-4).
    pub fn spent_by(&self, cause: &ResetCause) -> Option<BudgetSpent> {
        let restarts_max = self.restarts_max.filter(|_| self.is_by_restart && cause.is_failure());
        match restarts_max {
            Some(0) => return Some(BudgetSpent::NoRestarts),
            Some(max) if self.restarts >= u64::from(max) => {
                return Some(BudgetSpent::Restarts { max });
            }
            _ => {}
        }
        let spent = self.resets.saturating_sub(u64::from(is_planted(Bug::ResetLimitOneMore)));
        let max = self.resets_max.filter(|max| spent >= u64::from(*max))?;
        Some(BudgetSpent::Resets { max })
    }
}
