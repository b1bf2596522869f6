//! Health checks, as the status shows them. Called by `status` and by `replacements`.

use elastic_protocol::HostName;
use elastic_protocol::messages::HealthCondition;

use super::CheckStage;
use crate::core::DriverCore;

impl DriverCore {
    /// State of a host's check, and the reason for which the last one failed.
    pub(crate) fn health_of(&self, host: &HostName) -> (Option<HealthCondition>, Option<String>) {
        let Some(check) = self.health.hosts.get(host) else { return (None, None) };
        let condition = match (&check.stage, &check.failure) {
            (CheckStage::Passed, _) => HealthCondition::Passed,
            (_, Some(_)) => HealthCondition::Failed,
            (CheckStage::Running { .. }, None) => HealthCondition::Running,
            (CheckStage::Due { .. }, None) => HealthCondition::Due,
        };
        (Some(condition), check.failure.as_ref().map(ToString::to_string))
    }

    /// The reason, in words, for which the slots of a host stay at rest beside its cool-down.
    pub(crate) fn health_in_words(&self, host: &HostName) -> Option<String> {
        match self.health_of(host) {
            (Some(HealthCondition::Failed), Some(failure)) => {
                Some(format!("its health check has failed ({failure}), and is made again"))
            }
            (Some(HealthCondition::Running), _) => Some("its health check runs".to_owned()),
            (Some(HealthCondition::Due), _) => Some("its health check is due".to_owned()),
            _ => None,
        }
    }
}
