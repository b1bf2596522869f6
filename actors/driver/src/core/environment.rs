//! What a worker's process finds in its environment (design: "The outer contract"), and host names for people.

use elastic_host_manager::{HostEntry, HostState};
use elastic_protocol::{WorkerId, environment};

use super::DriverCore;

/// torch's default port.
const MASTER_PORT: u16 = 29_500;

/// `name:slots`, in parentheses when blacklisted.
pub(crate) fn describe_host(entry: &HostEntry) -> String {
    match entry.state {
        HostState::Listed => format!("{}:{}", entry.name, entry.slots),
        HostState::Blacklisted { .. } => format!("({}:{})", entry.name, entry.slots),
    }
}

impl DriverCore {
    /// torchrun's names and ours for a worker that is about to start.
    ///
    /// Ranks and sizes are those that the worker would have if every wanted slot took part: the assignment
    /// that counts comes with the generation, and in-process workers read theirs from the library.
    pub(crate) fn worker_environment(
        &self,
        worker: &WorkerId,
        desired: &[(elastic_protocol::HostName, u32)],
    ) -> Vec<(String, String)> {
        let own = (worker.host.clone(), worker.slot);
        let rank = desired.iter().position(|slot| *slot == own).unwrap_or(0);
        let on_host = desired.iter().filter(|(host, _)| *host == worker.host);
        let local_world_size = on_host.clone().count().max(1);
        let local_rank = on_host.take_while(|slot| **slot != own).count();
        let mut hosts: Vec<&elastic_protocol::HostName> =
            desired.iter().map(|(host, _)| host).collect();
        hosts.dedup();
        let group_rank = hosts.iter().position(|host| **host == worker.host).unwrap_or(0);
        let restarts = self.slots.get(&own).map_or(0, |slot| slot.failures);
        let world_size = desired.len().max(1);
        // What a script of stock torch needs to meet its peers. The driver's host is one that every worker
        // can name before any generation has a rank 0.
        let master = self.config.driver_address.rsplit_once(':').map_or("", |(host, _)| host);
        let of_torch: [(&str, String); 14] = [
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("WORLD_SIZE", world_size.to_string()),
            ("LOCAL_WORLD_SIZE", local_world_size.to_string()),
            ("GROUP_RANK", group_rank.to_string()),
            ("GROUP_WORLD_SIZE", hosts.len().max(1).to_string()),
            ("ROLE_RANK", rank.to_string()),
            ("ROLE_WORLD_SIZE", world_size.to_string()),
            ("ROLE_NAME", "default".to_owned()),
            ("MASTER_ADDR", master.trim_matches(['[', ']']).to_owned()),
            ("MASTER_PORT", MASTER_PORT.to_string()),
            ("TORCHELASTIC_RUN_ID", self.job.to_string()),
            ("TORCHELASTIC_RESTART_COUNT", restarts.to_string()),
            ("TORCHELASTIC_MAX_RESTARTS", self.config.max_restarts.to_string()),
        ];
        let ours = environment::of_worker(&self.config.driver_address, self.job, worker);
        of_torch.into_iter().chain(ours).map(|(name, value)| (name.to_owned(), value)).collect()
    }
}
