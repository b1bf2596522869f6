//! Health checks of hosts whose workers were replaced. Part of `DriverCore`; its handlers are in `handlers`, and the lines
//! of the status are in `shown`.
//!
//! With `--health-check`, a host is checked once the processes of its slots at rest have ended. A slot goes back into use
//! when its cool-down is over and the check has passed. A check that has failed, or was not answered, keeps the slots at
//! rest closed, however few others there are, and is repeated after a while. A driver that takes over repeats all checks.

mod handlers;
mod shown;

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::messages::HealthFailure;
use elastic_protocol::{HostName, NodeId, Time};
use serde::{Deserialize, Serialize};

/// Delay from a check that has failed to the next one.
const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Longest time between a check's own timeout and its agent's answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The checks of the hosts with slots at rest, one for each host.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct HealthChecks {
    hosts: BTreeMap<HostName, HostCheck>,
    /// Number of questions asked so far.
    asked: u64,
}

/// The check of one host.
#[derive(Debug, Deserialize, Serialize)]
struct HostCheck {
    stage: CheckStage,
    /// Failure of the last check; none if it has passed, or none has ended.
    failure: Option<HealthFailure>,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum CheckStage {
    /// The check is due from `at` on, as soon as the host's agent is there and the slots at rest are empty.
    Due {
        at: Time,
    },
    /// The host's agent was asked, and must answer before `until`.
    Running {
        number: u64,
        agent: NodeId,
        until: Time,
    },
    Passed,
}

impl HealthChecks {
    /// Whether the last check of a host has passed.
    pub(crate) fn has_passed(&self, host: &HostName) -> bool {
        self.hosts.get(host).is_some_and(|check| check.stage == CheckStage::Passed)
    }
}
