//! Deals shards anew for slow members, deals evenly again once they are fast, and reports the effect. Called by
//! `stragglers`, `gather`, `interrupt` and `takeover`.

use std::collections::BTreeMap;

use elastic_protocol::messages::{JobShards, StepTimes};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{ResetCause, Time, WorkerId};

use super::bounds::NotRebalanced;
use super::dealing::{EQUAL_PACE, deal_by_pace, longest};
use super::{AwaitedDeal, GAIN_PERCENT, PACE_MAX, WantedDeal};
use crate::core::DriverCore;
use crate::core::config::OnStraggler;
use crate::core::event::EventKind;
use crate::core::phase::RoundPhase;
use crate::journal::JournalRecord;

impl DriverCore {
    /// Deals the shards of the members anew, if steps get shorter by that. Called after each comparison.
    pub(crate) fn rebalance(&mut self, now: Time) {
        self.tell_deal_effect();
        if self.config.on_straggler != OnStraggler::Rebalance
            || self.is_held()
            || self.rebalancing.wanted.is_some()
        {
            return;
        }
        let slow: Vec<WorkerId> =
            self.stragglers.slow_for_long(now).into_iter().map(|(worker, _)| worker).collect();
        let paces = self.measured_paces(now, &slow);
        if let Err(reason) = self.try_rebalance(now, &slow, paces) {
            let untold = |worker: &&WorkerId| {
                let is_done = matches!(reason, Some(NotRebalanced::NoGain { .. }));
                !(is_done && self.rebalancing.paces.contains_key(*worker))
            };
            let slow: Vec<WorkerId> = slow.iter().filter(untold).cloned().collect();
            for worker in slow.iter().filter(|_| reason.is_some()) {
                self.tell_not_rebalanced(worker, reason.clone());
            }
        }
    }

    /// The paces by which shards would be dealt now: those of slow members, and of members that were slow and are not as fast
    /// as the others again.
    fn measured_paces(&self, now: Time, slow: &[WorkerId]) -> BTreeMap<WorkerId, u32> {
        let mut paces = BTreeMap::new();
        for worker in self.round.alive() {
            let known = self.rebalancing.paces.get(worker).copied();
            if known.is_none() && !slow.contains(worker) || self.stragglers.is_fast(worker, now) {
                continue;
            }
            let slowness = self.stragglers.slowness_of(worker).or(known);
            let pace = slowness.map(|pace| pace.min(PACE_MAX)).filter(|pace| *pace > EQUAL_PACE);
            let worker = match is_planted(Bug::NeighbourCarriesLess) {
                true => self.round.alive().find(|it| *it != worker).unwrap_or(worker),
                false => worker,
            };
            paces.extend(pace.map(|pace| (worker.clone(), pace)));
        }
        paces
    }

    /// Deals anew if a deal by these paces is enough of a gain. An error has the reason against it, if a slow member should
    /// carry fewer shards.
    fn try_rebalance(
        &mut self,
        now: Time,
        slow: &[WorkerId],
        paces: BTreeMap<WorkerId, u32>,
    ) -> Result<(), Option<NotRebalanced>> {
        let Some(shards) = self.config.shards else { return Err(Some(NotRebalanced::NoShards)) };
        let members: Vec<WorkerId> = self.members_by_rank();
        if paces.is_empty() && self.rebalancing.paces.is_empty() || members.len() > shards as usize
        {
            return Err(None);
        }
        if !self.stragglers.all_carry_shards(members.len()) {
            return Err(Some(NotRebalanced::NotCarried));
        }
        if slow.iter().any(|worker| !self.stragglers.is_sure(worker)) {
            return Err(Some(NotRebalanced::TooFewSamples));
        }
        let (Some(before_us), Some(compute_us)) =
            (self.stragglers.settled_step_us(members.len()), self.stragglers.longest_compute_us())
        else {
            return Err(None);
        };
        let by_rank: Vec<u32> =
            members.iter().map(|it| paces.get(it).copied().unwrap_or(EQUAL_PACE)).collect();
        let (present, next) = (self.counts_now(), deal_by_pace(shards, &by_rank));
        // Only the computation of the slowest rank changes; the rest of the step stays as long as it is.
        let compute_after = compute_us.saturating_mul(longest(&next, &by_rank))
            / longest(&present, &by_rank).max(1);
        let predicted_us = before_us.saturating_sub(compute_us).saturating_add(compute_after);
        if before_us.saturating_mul(100) < predicted_us.saturating_mul(100 + GAIN_PERCENT) {
            self.forget_paces(&paces);
            return Err(Some(NotRebalanced::NoGain { shards, world: members.len() }));
        }
        self.rebalancing.may_deal(now, &self.config)?;
        let cause = ResetCause::ShardsRebalanced { workers: Vec::new(), shard_counts: Vec::new() };
        if let (Some(limit), Some(_)) =
            (self.config.reset_limit, self.restart_budget().spent_by(&cause))
        {
            return Err(Some(NotRebalanced::ResetLimit { limit }));
        }
        self.deal_anew(now, paces, next, before_us, predicted_us);
        Ok(())
    }

    /// Forgets the paces of members that are as fast as the others again. They alone are not worth a reset: the next generation
    /// is dealt without them.
    fn forget_paces(&mut self, measured: &BTreeMap<WorkerId, u32>) {
        let before = self.rebalancing.paces.len();
        self.rebalancing.paces.retain(|worker, _| measured.contains_key(worker));
        if self.rebalancing.paces.len() < before {
            self.record_paces();
        }
    }

    fn deal_anew(
        &mut self,
        now: Time,
        paces: BTreeMap<WorkerId, u32>,
        counts: Vec<u32>,
        before_us: u64,
        predicted_us: u64,
    ) {
        let Some(stamp) = self.round.stamp() else { return };
        let counts_before = self.counts_now();
        let former = std::mem::replace(&mut self.rebalancing.paces, paces);
        let present = &self.rebalancing.paces;
        let has_changed = |worker: &WorkerId| former.get(worker) != present.get(worker);
        let mut workers: Vec<WorkerId> = self.members_by_rank();
        workers.retain(has_changed);
        let ranks = workers.iter().filter_map(|worker| self.round.rank_of(worker)).collect();
        let factors = self.rebalancing.paces_of(&workers);
        let factors = factors.into_iter().map(|pace| f64::from(pace) / f64::from(EQUAL_PACE));
        self.rebalancing.recent.push_back(now);
        self.rebalancing.kept.clear();
        self.record_paces();
        let deal = WantedDeal { workers: workers.clone(), counts: counts.clone() };
        let awaited = AwaitedDeal { deal: deal.clone(), stamp, before_us, predicted_us };
        self.rebalancing.awaited = Some(awaited);
        self.rebalancing.wanted = Some(deal);
        self.event(EventKind::ShardsRebalanced {
            workers,
            ranks,
            factors: factors.collect(),
            counts_before,
            shard_counts: counts,
            before_ms: StepTimes::shown_ms(before_us),
            predicted_ms: StepTimes::shown_ms(predicted_us),
        });
        self.agenda.ask_review(now);
    }

    fn record_paces(&mut self) {
        let paces = self.rebalancing.paces.iter().map(|(worker, pace)| (worker.clone(), *pace));
        let recent = u32::try_from(self.rebalancing.recent.len()).unwrap_or(u32::MAX);
        self.record(&JournalRecord::ShardsRebalanced { paces: paces.collect(), recent });
    }

    fn tell_not_rebalanced(&mut self, worker: &WorkerId, reason: Option<NotRebalanced>) {
        let (Some(rank), Some(reason)) = (self.round.rank_of(worker), reason) else { return };
        let text = reason.to_string();
        self.rebalancing.kept.retain(|worker, _| self.round.is_member(worker));
        if self.rebalancing.kept.insert(worker.clone(), reason.clone()) != Some(reason) {
            let (worker, reason) = (worker.clone(), text);
            self.event(EventKind::NotRebalanced { worker, rank, reason });
        }
    }

    /// Reports the duration of steps with a new deal, once it is known. It is not reported if the shards were dealt otherwise
    /// meanwhile.
    fn tell_deal_effect(&mut self) {
        let Some(awaited) = &self.rebalancing.awaited else { return };
        if self.round.stamp() == Some(awaited.stamp)
            || !matches!(self.round.phase(), RoundPhase::Run)
        {
            return;
        }
        let is_dealt = self.counts_now() == awaited.deal.counts;
        let all = self.round.alive().count();
        let Some(after_us) = self.stragglers.settled_step_us(all) else { return };
        let Some(awaited) = self.rebalancing.awaited.take().filter(|_| is_dealt) else { return };
        self.event(EventKind::RebalanceTook {
            workers: awaited.deal.workers,
            shard_counts: awaited.deal.counts,
            before_ms: StepTimes::shown_ms(awaited.before_us),
            predicted_ms: StepTimes::shown_ms(awaited.predicted_us),
            after_ms: StepTimes::shown_ms(after_us),
        });
    }

    /// The members of the present generation, by rank.
    fn members_by_rank(&self) -> Vec<WorkerId> {
        let table = self.round.current().map(|current| current.assignment.members());
        table.into_iter().flatten().map(|member| member.worker).collect()
    }

    /// The number of shards of each rank of the present generation; empty if the driver knows none.
    pub(crate) fn counts_now(&self) -> Vec<u32> {
        let Some(current) = self.round.current() else { return Vec::new() };
        let world = current.assignment.world_size();
        match &current.formation.shards {
            JobShards::Unsaid => Vec::new(),
            JobShards::Even(shards) if world > *shards => Vec::new(),
            JobShards::Even(shards) => deal_by_pace(*shards, &vec![EQUAL_PACE; world as usize]),
            JobShards::Counted(counts) => counts.clone(),
        }
    }

    /// The deal of a generation that is formed now. The interrupt for another deal has served its purpose then.
    pub(crate) fn deal_for(&mut self, members: &[WorkerId]) -> JobShards {
        self.rebalancing.wanted = None;
        let roster = &self.roster;
        self.rebalancing.paces.retain(|worker, _| roster.has_worker(worker));
        self.rebalancing.deal_for(self.config.shards, members)
    }

    /// The cause of a planned end by which shards are dealt anew, while no member comes or leaves.
    pub(crate) fn rebalance_cause(&self) -> Option<ResetCause> {
        let WantedDeal { workers, counts } = self.rebalancing.wanted()?.clone();
        Some(ResetCause::ShardsRebalanced { workers, shard_counts: counts })
    }

    /// Takes over the paces of a former driver. Each of its deals within an hour counts as made now.
    pub(crate) fn restore_paces(&mut self, now: Time, paces: BTreeMap<WorkerId, u32>, deals: u32) {
        if self.config.on_straggler == OnStraggler::Rebalance {
            self.rebalancing.paces = paces;
            let deals = deals.min(self.config.rebalances_max) as usize;
            self.rebalancing.recent = std::iter::repeat_n(now, deals).collect();
        }
    }
}
