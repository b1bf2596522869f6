//! The command line of every agent that a driver starts, for every way of starting it. Used by `launcher`.

use std::fmt;
use std::path::PathBuf;

use elastic_host_manager::core::limits::SLOTS_MAX;
use elastic_protocol::HostName;

/// The settings with which agents are started.
#[derive(Clone)]
pub(crate) struct AgentCommand {
    /// The path of this very program, for hosts that are reached over ssh. On this machine `own_program` finds it.
    pub(crate) program: PathBuf,
    /// `HOST:PORT` of the driver.
    pub(crate) driver: String,
    /// The driver's token file.
    pub(crate) token_file: PathBuf,
    /// The token itself: a secret.
    pub(crate) token: String,
    /// Whether agents go on when the driver dies, so that its successor takes them over.
    pub(crate) outlives_driver: bool,
    /// The role of the agents' workers, if it has a name.
    pub(crate) role: Option<String>,
    /// The network interface by which other hosts reach the agents' workers, if one was named.
    pub(crate) interface: Option<String>,
    /// The agents' log filter.
    pub(crate) log: String,
}

impl AgentCommand {
    /// The flags of a host's agent, without the source of its token.
    pub(super) fn arguments(&self, name: &HostName) -> Vec<String> {
        let (driver, host) = (self.driver.as_str(), name.as_str());
        // The agent accepts the most slots: the host list decides how many it uses, and may change.
        let slots = SLOTS_MAX.to_string();
        let mut arguments = vec!["--role", "worker", "--join", driver, "--host", host];
        arguments.extend(["--slots", &slots, "--launched", "--log", &self.log]);
        arguments.extend(self.role.iter().flat_map(|role| ["--role-name", role]));
        arguments.extend(self.interface.iter().flat_map(|name| ["--interface", name]));
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
