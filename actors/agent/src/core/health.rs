//! Health checks: the driver asks for one when a worker of this host was replaced, and the process port runs it. Part
//! of [`AgentCore`].

use std::time::Duration;

use elastic_protocol::messages::{AgentToDriver, HealthFailure};

use super::AgentCore;
use super::output::AgentOutput;

impl AgentCore {
    /// The driver asks for a check. One runs at a time: the result of one under way answers the newest question.
    pub(super) fn check_health(&mut self, number: u64, command: String, timeout: Duration) {
        if self.health_check.replace(number).is_none() {
            self.outputs.push_back(AgentOutput::CheckHealth { command, timeout });
        }
    }

    /// The process port has run a check.
    pub fn handle_health_checked(&mut self, failure: Option<HealthFailure>) {
        let Some(number) = self.health_check.take() else { return };
        // Another driver asks again.
        if self.accepted {
            self.send(AgentToDriver::HealthChecked { number, failure });
        }
    }
}
