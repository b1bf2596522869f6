//! What every agent that a driver starts is told, however it is started.

use std::fmt;
use std::path::PathBuf;

use elastic_host_manager::core::limits::SLOTS_MAX;
use elastic_protocol::HostName;

/// How agents are started.
#[derive(Clone)]
pub(crate) struct AgentCommand {
    /// This very program.
    pub(crate) program: PathBuf,
    /// `HOST:PORT` of the driver.
    pub(crate) driver: String,
    /// The driver's token file.
    pub(crate) token_file: PathBuf,
    /// What stands in it: a secret.
    pub(crate) token: String,
    /// Whether they go on when the driver dies: its successor takes them over.
    pub(crate) outlives_driver: bool,
    /// The role of their workers, if it has a name.
    pub(crate) role: Option<String>,
    /// What agents log.
    pub(crate) log: String,
}

impl AgentCommand {
    /// The flags of a host's agent, less where its token comes from.
    pub(super) fn arguments(&self, name: &HostName) -> Vec<String> {
        let (driver, host) = (self.driver.as_str(), name.as_str());
        // The list says how many slots a host has, and may change its mind: the agent takes any.
        let slots = SLOTS_MAX.to_string();
        let mut arguments = vec!["--role", "worker", "--join", driver, "--host", host];
        arguments.extend(["--slots", &slots, "--launched", "--log", &self.log]);
        arguments.extend(self.role.iter().flat_map(|role| ["--role-name", role]));
        arguments.into_iter().map(ToOwned::to_owned).collect()
    }
}

impl fmt::Debug for AgentCommand {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AgentCommand")
            .field("program", &self.program)
            .field("driver", &self.driver)
            .finish_non_exhaustive()
    }
}
