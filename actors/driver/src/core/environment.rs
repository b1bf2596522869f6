//! The environment variables of a worker's process (design: "The outer contract"), and host names for people. Called
//! when workers are started.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use elastic_protocol::{HostName, WorkerId, environment};

use super::DriverCore;

/// torch's default port.
const MASTER_PORT: u16 = 29_500;

/// Ranks that workers would have if every wanted slot took part.
#[derive(Debug, Default)]
pub(crate) struct RankLayout {
    /// Each host with the counts of hosts and workers before it, and its wanted slots.
    hosts: BTreeMap<HostName, (Before, Vec<u32>)>,
    workers: usize,
    /// The host of rank 0.
    first: Option<HostName>,
    /// Number of workers of each role.
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
    ) -> RankLayout {
        let mut layout = RankLayout::default();
        for (host, slots) in hosts {
            let of_role = layout.of_role.entry(self.roster.role_of(host).to_owned()).or_default();
            let before =
                Before { hosts: layout.hosts.len(), workers: layout.workers, of_role: *of_role };
            *of_role += slots.len();
            if layout.workers == 0 && !slots.is_empty() {
                layout.first = Some(host.clone());
            }
            layout.workers += slots.len();
            layout.hosts.insert(host.clone(), (before, slots));
        }
        layout
    }

    /// Environment of a worker that is about to start, with torchrun's names and ours.
    ///
    /// `layout` has the slots that take part, by rank. For an in-process worker these are the wanted slots: the
    /// assignment that counts comes with the generation, and the worker reads its ranks from the library. The agent
    /// adds the address of its store, and the variables that depend on its own environment.
    pub(crate) fn worker_environment(
        &self,
        worker: &WorkerId,
        layout: &RankLayout,
    ) -> Vec<(String, String)> {
        let own = (worker.host.clone(), worker.slot);
        let (before, slots) = layout.hosts.get(&worker.host).cloned().unwrap_or_default();
        let local_world_size = slots.len().max(1);
        let local_rank = slots.iter().position(|slot| *slot == worker.slot).unwrap_or(0);
        let rank = before.workers + local_rank;
        let group_rank = before.hosts;
        let world_size = layout.workers.max(1);
        let role = self.roster.role_of(&worker.host);
        let role_rank = before.of_role + local_rank;
        let role_world_size = layout.of_role.get(role).copied().unwrap_or(1);
        let restarts = match self.is_by_restart() {
            true => self.round.restarts(),
            false => self.roster.slot(&own).map_or(0, |slot| u64::from(slot.failures)),
        };
        let max_restarts = self.config.max_job_restarts.unwrap_or(self.config.max_restarts);
        let run_id = self.config.run_id.clone().unwrap_or_else(|| self.job.to_string());
        let (master, port) = self.master(layout);
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
            ("MASTER_ADDR", master),
            ("MASTER_PORT", port.to_string()),
            ("TORCHELASTIC_RUN_ID", run_id),
            ("TORCHELASTIC_RESTART_COUNT", restarts.to_string()),
            ("TORCHELASTIC_MAX_RESTARTS", max_restarts.to_string()),
        ];
        let ours = environment::of_worker(&self.driver_addresses(), self.job, worker);
        of_torch.into_iter().chain(ours).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Address and port at which all ranks reach a port opened by rank 0 (`MASTER_ADDR`). If the address is the
    /// loopback, all ranks are on this machine.
    fn master(&self, layout: &RankLayout) -> (String, u16) {
        let agent = layout.first.as_ref().and_then(|host| self.roster.agent(host));
        let meeting = agent.and_then(|agent| match self.is_by_restart() {
            true => agent.meeting,
            false => agent.first_meeting,
        });
        if let Some(meeting) = meeting.filter(|meeting| !meeting.ip().is_loopback()) {
            return (meeting.ip().to_string(), meeting.port());
        }
        // An agent that came by the loopback is on the driver's machine.
        let driver = self.config.driver_address.rsplit_once(':').map_or("", |(host, _)| host);
        let port = meeting.as_ref().map_or(MASTER_PORT, SocketAddr::port);
        (driver.trim_matches(['[', ']']).to_owned(), port)
    }
}
