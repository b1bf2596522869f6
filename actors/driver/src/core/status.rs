//! The job at a glance, for `status`.

use std::collections::BTreeMap;

use elastic_host_manager::HostState;
use elastic_protocol::messages::{
    DriverStatus, HostStatus, ResetStatus, StatusReport, WorkerStatus,
};
use elastic_protocol::{Time, WorkerId};

use super::DriverCore;
use super::phase::{Phase, ResetRecord};
use super::table::{Link, SlotId, Stance, WorkerRecord};
use crate::journal::Ledger;

/// The job in a few numbers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Glance {
    /// Its phase, as in the status.
    pub phase: String,
    /// The generation.
    pub generation: u64,
    /// Its workers; 0 while none trains.
    pub world_size: u32,
    /// The last step that a worker told of.
    pub step: u64,
    /// Resets so far.
    pub resets: u64,
}

impl DriverCore {
    /// The job in a few numbers.
    pub fn glance(&self) -> Glance {
        let current = self.current.as_ref().filter(|_| self.phase.is_generation_active());
        Glance {
            phase: self.phase.name().to_owned(),
            generation: self.generation.0,
            world_size: current.map_or(0, |current| current.assignment.world_size()),
            step: self.workers.values().map(|record| record.step.0).max().unwrap_or(0),
            resets: self.resets,
        }
    }

    /// The status; `wall_clock` gives a moment as RFC 3339.
    pub fn status(&self, now: Time, wall_clock: &dyn Fn(Time) -> String) -> StatusReport {
        let reset = self.reset.as_ref().or(self.last_reset.as_ref());
        let current = self.current.as_ref().filter(|_| self.phase.is_generation_active());
        StatusReport {
            job: self.job.to_string(),
            term: self.term.0,
            driver: DriverStatus {
                address: self.config.driver_address.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            standbys: self.standbys.clone(),
            generation: self.generation.0,
            phase: self.phase.name().to_owned(),
            world_size: current.map_or(0, |current| current.assignment.world_size()),
            min_np: self.min_np(),
            max_np: self.config.max_np,
            resets: self.resets,
            hosts: self.host_statuses(wall_clock),
            workers: self.worker_statuses(now),
            last_reset: reset.map(|reset| reset_status(reset, wall_clock)),
            waiting_for: self.waiting_for(now),
            warnings: self.warnings(),
            dropped_messages: self.dropped_messages,
            result: self.result_so_far().cloned(),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let trouble = self.ledger.as_ref().and_then(Ledger::trouble);
        self.snapshot.warnings.iter().cloned().chain(trouble.map(ToOwned::to_owned)).collect()
    }

    fn host_statuses(&self, wall_clock: &dyn Fn(Time) -> String) -> Vec<HostStatus> {
        let of_list = self.snapshot.hosts.iter().map(|entry| {
            let agent = self.agents.get(&entry.name);
            let (state, until) = match (&entry.state, agent) {
                (HostState::Blacklisted { until }, _) => ("blacklisted", until.map(wall_clock)),
                (HostState::Listed, None) => ("joining", None),
                (HostState::Listed, Some(agent)) if agent.draining.is_some() => ("draining", None),
                (HostState::Listed, Some(agent)) => match agent.link {
                    Link::Up => ("active", None),
                    Link::Silent => ("silent", None),
                    Link::Down => ("lost", None),
                },
            };
            let name = entry.name.to_string();
            HostStatus { name, slots: entry.slots, state: state.to_owned(), until }
        });
        let others = self.agents.iter().filter(|(host, _)| self.seating.listing(host).is_none());
        let of_agents = others.map(|(host, agent)| HostStatus {
            name: host.to_string(),
            slots: agent.slots,
            state: if agent.link == Link::Down { "lost" } else { "unlisted" }.to_owned(),
            until: None,
        });
        of_list.chain(of_agents).collect()
    }

    fn worker_statuses(&self, now: Time) -> Vec<WorkerStatus> {
        let table = self.current.as_ref().map(|current| current.assignment.members());
        let ranks: BTreeMap<WorkerId, u32> =
            table.into_iter().flatten().map(|member| member.worker).zip(0..).collect();
        let mut statuses: Vec<WorkerStatus> = self
            .workers
            .iter()
            .map(|(worker, record)| self.worker_status(worker, record, ranks.get(worker)))
            .collect();
        statuses.extend(self.empty_slots(now));
        statuses.sort_by(|a, b| {
            let key = |status: &WorkerStatus| {
                (status.rank.is_none(), status.rank, status.host.clone(), status.slot)
            };
            key(a).cmp(&key(b))
        });
        statuses
    }

    fn worker_status(
        &self,
        worker: &WorkerId,
        record: &WorkerRecord,
        rank: Option<&u32>,
    ) -> WorkerStatus {
        let rank = rank.copied().filter(|_| self.is_member(worker));
        let state = match (record.stance, &self.phase) {
            (Stance::Leaving, _) => "leaving",
            (Stance::Lost, _) => "lost",
            (_, _) if record.link == Link::Silent => "silent",
            (Stance::Starting, _) => "starting",
            (Stance::Attached | Stance::Arrived, _) => "attached",
            (Stance::Finished, _) => "succeeded",
            (Stance::Member, Phase::Form { .. }) => "forming",
            (Stance::Member, Phase::Sync { .. }) => "syncing",
            (Stance::Member, Phase::Gather(_)) => "arriving",
            (Stance::Member, _) => "running",
        };
        WorkerStatus {
            rank,
            host: worker.host.to_string(),
            slot: worker.slot,
            pid: record.pid,
            state: state.to_owned(),
            step: record.step.0,
            note: record.note.clone(),
        }
    }

    /// Slots without a process: spare, or in back-off.
    fn empty_slots(&self, now: Time) -> impl Iterator<Item = WorkerStatus> {
        let listed = self.snapshot.hosts.iter().filter(|entry| entry.state == HostState::Listed);
        let slots =
            listed.flat_map(|entry| (0..entry.slots).map(|slot| (entry.name.clone(), slot)));
        slots.filter_map(move |slot: SlotId| {
            let record = self.slots.get(&slot);
            if record.is_some_and(|record| record.worker.is_some()) {
                return None;
            }
            let waits =
                record.is_some_and(|record| record.backoff_until.is_some_and(|until| until > now));
            let state = if waits { "backoff" } else { "spare" };
            Some(WorkerStatus {
                rank: None,
                host: slot.0.to_string(),
                slot: slot.1,
                pid: None,
                state: state.to_owned(),
                step: 0,
                note: String::new(),
            })
        })
    }

    /// Who is waited for while the job stands still (G-9).
    fn waiting_for(&self, now: Time) -> Option<String> {
        match &self.phase {
            Phase::Gather(gather) => {
                let late: Vec<WorkerId> = gather.waiting_for.iter().cloned().collect();
                let missing = self.who_is_missing(now, &late);
                let needed = self.workers_needed();
                let who = if missing.is_empty() {
                    "hosts to join".to_owned()
                } else {
                    missing.join(", ")
                };
                let ms = now.ms_since(gather.since);
                Some(format!("{needed} workers are needed; for {ms:.0} ms waiting for {who}"))
            }
            Phase::Stopping { waiting_for, .. } if !waiting_for.is_empty() => {
                let who: Vec<String> = waiting_for.iter().map(ToString::to_string).collect();
                Some(format!("to stop at one step: {}", who.join(", ")))
            }
            _ => None,
        }
    }
}

fn reset_status(reset: &ResetRecord, wall_clock: &dyn Fn(Time) -> String) -> ResetStatus {
    ResetStatus {
        generation: reset.to.0,
        cause: reset.cause.to_string(),
        at: wall_clock(reset.decided_at),
        ms: reset.phases(),
    }
}
