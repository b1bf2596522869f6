//! The state of the job, for the `status` request. Called by `actor`.

use std::collections::{BTreeMap, BTreeSet};

use elastic_host_manager::{HostEntry, HostState};
use elastic_protocol::messages::{
    DriverStatus, GatherStatus, HostCondition, HostStatus, JobPhase, MovedBytes, ReportedValues,
    ResetStatus, StatusReport, StepTimes, WorkerCondition, WorkerStatus,
};
use elastic_protocol::{HostName, NodeId, Time, WorkerId};

use super::DriverCore;
use super::gather::missing::needed_text;
use super::phase::{Gather, ResetRecord, RoundPhase};
use super::table::{PeerLink, SlotId, Stance, WorkerRecord};

/// The job in a few numbers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Glance {
    /// Phase, as in the status.
    pub phase: JobPhase,
    /// Number of the generation.
    pub generation: u64,
    /// Number of its workers; 0 while no generation is under way.
    pub world_size: u32,
    /// Highest step that a worker reported.
    pub step: u64,
    /// Number of resets so far.
    pub resets: u64,
    /// Number of workers that are there for the next generation, and of those needed.
    pub gather: GatherStatus,
    /// Number of listed hosts whose agents are there.
    pub hosts_there: u32,
    /// Number of listed hosts that may have workers.
    pub hosts_listed: u32,
    /// The cause of the last reset.
    pub last_cause: Option<String>,
    /// The workers and hosts that the gather waits for; none in other phases, or while the next generation is put off.
    pub awaited: Option<String>,
    /// The bytes that members move in bulk, in all.
    pub moved: Option<MovedBytes>,
    /// The numbers that the program of rank 0 reports.
    pub reported: ReportedValues,
}

impl DriverCore {
    /// The job in a few numbers.
    pub fn glance(&self, now: Time) -> Glance {
        let current = self.round.current().filter(|_| self.round.phase().is_generation_active());
        let listed = self.roster.hosts().iter().filter(|entry| entry.state == HostState::Listed);
        let has_agent = |entry: &&HostEntry| {
            self.roster.agent(&entry.name).is_some_and(|agent| agent.link == PeerLink::Up)
        };
        let first = current.and_then(|current| current.assignment.member(0));
        let first = first.and_then(|member| self.roster.worker(&member.worker));
        let count = |it: usize| u32::try_from(it).unwrap_or(u32::MAX);
        Glance {
            hosts_there: count(listed.clone().filter(has_agent).count()),
            hosts_listed: count(listed.count()),
            last_cause: self.round.last_reset().map(|reset| reset.cause.to_string()),
            awaited: match self.round.phase() {
                RoundPhase::Gather(gather) if self.pacing.put_off(now).is_none() => {
                    Some(self.awaited_in_gather(now, gather))
                }
                _ => None,
            },
            moved: self.moved_bytes(),
            reported: first.map(|record| record.reported.clone()).unwrap_or_default(),
            phase: self.round.phase().name(),
            generation: self.round.generation().0,
            world_size: current.map_or(0, |current| current.assignment.world_size()),
            step: self
                .roster
                .workers()
                .map(|(_, record)| record)
                .map(|record| record.step.0)
                .max()
                .unwrap_or(0),
            resets: self.round.resets(),
            gather: self.gather_status(),
        }
    }

    fn gather_status(&self) -> GatherStatus {
        let there = u32::try_from(self.workers_there().count()).unwrap_or(u32::MAX);
        GatherStatus { there, needed: self.workers_needed() }
    }

    /// The agents that are there, by host.
    pub fn agents_there(&self) -> Vec<(HostName, NodeId)> {
        let there = self.roster.agents().filter(|(_, agent)| agent.link == PeerLink::Up);
        there.map(|(host, agent)| (host.clone(), agent.node.clone())).collect()
    }

    /// The full status; `wall_clock` formats a time as RFC 3339.
    pub fn status(&self, now: Time, wall_clock: &dyn Fn(Time) -> String) -> StatusReport {
        let reset = self.round.reset().or(self.round.last_reset());
        let current = self.round.current().filter(|_| self.round.phase().is_generation_active());
        StatusReport {
            job: self.job,
            term: self.term.0,
            driver: DriverStatus {
                address: self.config.driver_address.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            standbys: self.standbys.clone(),
            generation: self.round.generation().0,
            phase: self.round.phase().name(),
            world_size: current.map_or(0, |current| current.assignment.world_size()),
            min_np: self.min_np(),
            max_np: self.config.max_np,
            shards: self.config.shards,
            resets: self.round.resets(),
            steps_lost: self.state.steps_lost(),
            hosts: self.host_statuses(now, wall_clock),
            workers: self.worker_statuses(now),
            resets_recent: self
                .round
                .recent_resets()
                .map(|reset| reset_status(reset, wall_clock))
                .collect(),
            moved: self.moved_bytes(),
            last_reset: reset.map(|reset| reset_status(reset, wall_clock)),
            gather: matches!(self.round.phase(), RoundPhase::Gather(_))
                .then(|| self.gather_status()),
            waiting_for: self.waiting_for(now),
            awaited: self.awaited_workers(now),
            stalled: self.stalled_workers(now),
            stragglers: self.straggling_workers(now),
            slow_links: self.slow_links(now),
            divergence: self.divergent_replicas(),
            not_compared: self.uncompared_tensors(),
            warnings: self.warnings(now),
            unreachable: self.unreachable(),
            lanes: Vec::new(),
            goodput: None,
            dashboard: None,
            checkpoint: self.checkpoint_status(wall_clock),
            dropped_messages: self.dropped_messages,
            result: self.result_so_far().cloned(),
            answered_at: None,
        }
    }

    /// The bytes that members of the generation move now: the state before it trains, parts of a checkpoint while it does.
    fn moved_bytes(&self) -> Option<MovedBytes> {
        let stamp = self.round.stamp()?;
        let is_syncing = matches!(self.round.phase(), RoundPhase::Sync { .. });
        let is_saving = self.checkpoints.is_saving();
        let moved = self.round.alive().filter_map(|worker| {
            let (of, bytes) = self.roster.worker(worker)?.moved?;
            let counts = if bytes.work.is_sync() { is_syncing } else { is_saving };
            (of == stamp && counts).then_some(bytes)
        });
        MovedBytes::together(moved)
    }

    fn warnings(&self, now: Time) -> Vec<String> {
        let trouble = self.outbox.trouble();
        self.roster
            .host_warnings()
            .iter()
            .cloned()
            .chain(trouble.map(ToOwned::to_owned))
            .chain(self.state.loss_in_words())
            .chain(self.checkpoints.trouble().map(ToOwned::to_owned))
            .chain(self.slow_load_in_words())
            .chain(self.rests_in_words(now))
            .chain(self.short_hosts_in_words())
            .collect()
    }

    fn host_statuses(&self, now: Time, wall_clock: &dyn Fn(Time) -> String) -> Vec<HostStatus> {
        let of_list = self.roster.hosts().iter().map(|entry| {
            let agent = self.roster.agent(&entry.name);
            let (state, until) = match (&entry.state, agent) {
                (HostState::Blacklisted { until }, _) => {
                    (HostCondition::Blacklisted, until.map(wall_clock))
                }
                (HostState::Drained, _) => (HostCondition::Drained, None),
                (HostState::Listed, None) => (HostCondition::Joining, None),
                (HostState::Listed, Some(agent)) if agent.draining.is_some() => {
                    (HostCondition::Draining, None)
                }
                (HostState::Listed, Some(agent)) => match agent.link {
                    PeerLink::Up => match self.host_rests_until(&entry.name, entry.slots) {
                        Some(until) => (HostCondition::Resting, Some(wall_clock(until))),
                        None => (HostCondition::Active, None),
                    },
                    PeerLink::Silent => (HostCondition::Silent, None),
                    PeerLink::Down => (HostCondition::Lost, None),
                },
            };
            let name = entry.name.clone();
            let lanes = agent.map(|agent| agent.hanging_at(now)).unwrap_or_default();
            let (health_check, health_failure) = self.health_of(&name);
            let slots = entry.slots;
            HostStatus { name, slots, state, until, lanes, health_check, health_failure }
        });
        let others =
            self.roster.agents().filter(|(host, _)| self.roster.seating().listing(host).is_none());
        let of_agents = others.map(|(host, agent)| HostStatus {
            name: host.clone(),
            slots: agent.slots,
            state: if agent.link == PeerLink::Down {
                HostCondition::Lost
            } else {
                HostCondition::Unlisted
            },
            until: None,
            lanes: agent.hanging_at(now),
            health_check: None,
            health_failure: None,
        });
        of_list.chain(of_agents).collect()
    }

    /// End of the first cool-down on a host, if all of its slots rest.
    fn host_rests_until(&self, host: &HostName, slots: u32) -> Option<Time> {
        let resting = || self.roster.resting_of(host).filter(|(slot, _)| *slot < slots);
        let all = slots > 0 && resting().count() == slots as usize;
        resting().map(|(_, rest)| rest.until).min().filter(|_| all)
    }

    fn worker_statuses(&self, now: Time) -> Vec<WorkerStatus> {
        let table = self.round.current().map(|current| current.assignment.members());
        let ranks: BTreeMap<WorkerId, u32> =
            table.into_iter().flatten().map(|member| member.worker).zip(0..).collect();
        let counts = self.counts_now();
        let mut statuses: Vec<WorkerStatus> = self
            .roster
            .workers()
            .map(|(worker, record)| self.worker_status(worker, record, ranks.get(worker), &counts))
            .collect();
        let done = self.members_done(&ranks);
        let slots: BTreeSet<_> = done.iter().map(|it| (&it.host, it.slot)).collect();
        let is_shown = |empty: &WorkerStatus| !slots.contains(&(&empty.host, empty.slot));
        statuses.extend(self.empty_slots(now).filter(is_shown));
        statuses.extend(done);
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
        counts: &[u32],
    ) -> WorkerStatus {
        let rank = rank.copied().filter(|_| self.round.is_member(worker));
        let state = match (record.stance, self.round.phase()) {
            (Stance::Leaving, _) => WorkerCondition::Leaving,
            (Stance::Dying | Stance::Lost, _) => WorkerCondition::Lost,
            (_, _) if record.link == PeerLink::Silent => WorkerCondition::Silent,
            (Stance::Starting, _) => WorkerCondition::Starting,
            (Stance::Attached | Stance::Arrived, _) => WorkerCondition::Attached,
            (Stance::Finished, _) => WorkerCondition::Succeeded,
            (Stance::Member, RoundPhase::Form { .. }) => WorkerCondition::Forming,
            (Stance::Member, RoundPhase::Sync { .. }) => WorkerCondition::Syncing,
            (Stance::Member, RoundPhase::Gather(_)) => WorkerCondition::Arriving,
            (Stance::Member, _) => WorkerCondition::Running,
        };
        let steps = self.stragglers.times_of(worker, self.round.stamp()).filter(|_| rank.is_some());
        let shown = |us: fn(StepTimes) -> u64| steps.map(|times| StepTimes::shown_ms(us(times)));
        WorkerStatus {
            rank,
            host: worker.host.clone(),
            slot: worker.slot,
            pid: record.pid,
            state,
            step: record.step.0,
            note: record.note.clone(),
            reported: record.reported.clone(),
            step_ms: shown(|times| times.step_us),
            compute_ms: shown(|times| times.compute_us),
            waiting_ms: shown(|times| times.waiting_us),
            shards: rank.and_then(|rank| counts.get(rank as usize).copied()),
        }
    }

    /// Members, without a process, of a job that has succeeded: processes of a job by restart live for one generation.
    fn members_done(&self, ranks: &BTreeMap<WorkerId, u32>) -> Vec<WorkerStatus> {
        if self.round.phase().name() != JobPhase::Succeeded {
            return Vec::new();
        }
        let done = ranks.iter().filter(|(worker, _)| self.roster.worker(worker).is_none());
        done.map(|(worker, rank)| {
            let (host, state) = (worker.host.clone(), WorkerCondition::Succeeded);
            WorkerStatus::without_process(host, worker.slot, Some(*rank), state)
        })
        .collect()
    }

    /// Slots without a process: spare, in back-off, or at rest.
    fn empty_slots(&self, now: Time) -> impl Iterator<Item = WorkerStatus> {
        let listed = self.roster.hosts().iter().filter(|entry| entry.state == HostState::Listed);
        let slots =
            listed.flat_map(|entry| (0..entry.slots).map(|slot| (entry.name.clone(), slot)));
        slots.filter_map(move |slot: SlotId| {
            let record = self.roster.slot(&slot);
            if record.is_some_and(|record| record.worker.is_some()) {
                return None;
            }
            let waits =
                record.is_some_and(|record| record.backoff_until.is_some_and(|until| until > now));
            let rests = record.is_some_and(|record| record.rest.is_some());
            let state = match (waits, rests) {
                (true, _) => WorkerCondition::Backoff,
                (false, true) => WorkerCondition::Resting,
                (false, false) => WorkerCondition::Spare,
            };
            Some(WorkerStatus::without_process(slot.0, slot.1, None, state))
        })
    }

    /// The workers and hosts that a gather waits for, in words.
    fn awaited_in_gather(&self, now: Time, gather: &Gather) -> String {
        let late: Vec<WorkerId> = gather.waiting_for.iter().cloned().collect();
        let missing = self.who_is_missing(now, &late);
        match missing.is_empty() {
            true => self.short_nodes().unwrap_or_else(|| "hosts to join".to_owned()),
            false => missing.join(", "),
        }
    }

    /// The workers and hosts that the job waits for while it stands still, in words (G-9).
    fn waiting_for(&self, now: Time) -> Option<String> {
        match self.round.phase() {
            RoundPhase::Gather(gather) => {
                if let Some(why) = self.pacing.put_off(now) {
                    return Some(why);
                }
                let who = self.awaited_in_gather(now, gather);
                let ms = now.ms_since(gather.since);
                let needed = needed_text(self.workers_needed());
                Some(format!("{needed}; for {ms:.0} ms waiting for {who}"))
            }
            RoundPhase::Stopping { waiting_for, .. } if !waiting_for.is_empty() => {
                let who: Vec<String> = waiting_for.iter().map(ToString::to_string).collect();
                Some(format!("to stop at one step: {}", who.join(", ")))
            }
            RoundPhase::Ending { .. } => self.awaited_ends(now),
            RoundPhase::Run => {
                self.awaited_before_stop(now).or_else(|| self.awaited_before_leaving(now))
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
        steps_lost: reset.undone.steps,
        lost_ms: reset.undone.ms,
    }
}
