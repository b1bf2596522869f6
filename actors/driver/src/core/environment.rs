//! What a worker's process finds in its environment (design: "The outer contract"), and host names for people.

use std::collections::BTreeMap;

use elastic_host_manager::{HostEntry, HostState};
use elastic_protocol::{HostName, WorkerId, environment};

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

/// Which ranks workers would have if every wanted slot took part.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Each host with what stands before it, and its wanted slots.
    hosts: BTreeMap<HostName, (Before, Vec<u32>)>,
    workers: usize,
    /// How many workers each role has.
    of_role: BTreeMap<String, usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Before {
    hosts: usize,
    workers: usize,
    of_role: usize,
}

impl DriverCore {
    /// The layout of these hosts, in this order, with their slots.
    pub(crate) fn layout<'a>(
        &self,
        hosts: impl Iterator<Item = (&'a HostName, Vec<u32>)>,
    ) -> Layout {
        let mut layout = Layout::default();
        for (host, slots) in hosts {
            let of_role = layout.of_role.entry(self.role_of(host).to_owned()).or_default();
            let before =
                Before { hosts: layout.hosts.len(), workers: layout.workers, of_role: *of_role };
            *of_role += slots.len();
            layout.workers += slots.len();
            layout.hosts.insert(host.clone(), (before, slots));
        }
        layout
    }

    /// torchrun's names and ours for a worker that is about to start.
    ///
    /// `slots` are those that take part, by rank. For an in-process worker they are those that are wanted: the
    /// assignment that counts comes with the generation, and it reads its ranks from the library. The agent adds
    /// where the store is, and what depends on its own environment.
    pub(crate) fn worker_environment(
        &self,
        worker: &WorkerId,
        layout: &Layout,
    ) -> Vec<(String, String)> {
        let own = (worker.host.clone(), worker.slot);
        let (before, slots) = layout.hosts.get(&worker.host).cloned().unwrap_or_default();
        let local_world_size = slots.len().max(1);
        let local_rank = slots.iter().position(|slot| *slot == worker.slot).unwrap_or(0);
        let rank = before.workers + local_rank;
        let group_rank = before.hosts;
        let world_size = layout.workers.max(1);
        let role = self.role_of(&worker.host);
        let role_rank = before.of_role + local_rank;
        let role_world_size = layout.of_role.get(role).copied().unwrap_or(1);
        let restarts = match self.is_by_restart() {
            true => self.restarts,
            false => self.slots.get(&own).map_or(0, |slot| u64::from(slot.failures)),
        };
        let max_restarts = self.config.max_job_restarts.unwrap_or(self.config.max_restarts);
        let run_id = self.config.run_id.clone().unwrap_or_else(|| self.job.to_string());
        // What a script of stock torch needs to meet its peers, where the agent serves no store.
        let master = self.config.driver_address.rsplit_once(':').map_or("", |(host, _)| host);
        let of_torch: [(&str, String); 14] = [
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("WORLD_SIZE", world_size.to_string()),
            ("LOCAL_WORLD_SIZE", local_world_size.to_string()),
            ("GROUP_RANK", group_rank.to_string()),
            ("GROUP_WORLD_SIZE", layout.hosts.len().max(1).to_string()),
            ("ROLE_RANK", role_rank.to_string()),
            ("ROLE_WORLD_SIZE", role_world_size.to_string()),
            ("ROLE_NAME", role.to_owned()),
            ("MASTER_ADDR", master.trim_matches(['[', ']']).to_owned()),
            ("MASTER_PORT", MASTER_PORT.to_string()),
            ("TORCHELASTIC_RUN_ID", run_id),
            ("TORCHELASTIC_RESTART_COUNT", restarts.to_string()),
            ("TORCHELASTIC_MAX_RESTARTS", max_restarts.to_string()),
        ];
        let ours = environment::of_worker(&self.driver_addresses(), self.job, worker);
        of_torch.into_iter().chain(ours).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The role that a host's agent said its workers have.
    fn role_of(&self, host: &HostName) -> &str {
        self.agents.get(host).map_or("default", |agent| agent.role.as_str())
    }
}
