//! Health checks of hosts whose workers were replaced. Part of `DriverCore`; its handlers are in `handlers`, and what the status says in
//! `shown`.
//!
//! With `--health-check`, a host is checked once the processes of its slots at rest have ended. A slot goes back into use when its
//! cool-down is over and the check has passed. One that has failed, or was not answered, keeps the slots at rest closed, however few
//! others there are, and is made again after a while. Who takes over from a driver makes each check anew.

mod handlers;
mod shown;

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::messages::HealthFailure;
use elastic_protocol::{HostName, NodeId, Time};
use serde::{Deserialize, Serialize};

/// Delay from a check that has failed to the next one.
const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// How much later than the check's own timeout its agent's answer may come.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The hosts with slots at rest, and how their checks went; no more than there are hosts.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct HealthChecks {
    hosts: BTreeMap<HostName, HostCheck>,
    /// Questions that were asked.
    asked: u64,
}

/// The check of one host.
#[derive(Debug, Deserialize, Serialize)]
struct HostCheck {
    stage: CheckStage,
    /// Why the last check failed; none if it did not.
    failure: Option<HealthFailure>,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum CheckStage {
    /// From then on, as soon as its agent is there and the slots are empty.
    Due {
        at: Time,
    },
    /// Its agent was asked, and must answer until then.
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
