//! Rebalancing: the oracle checks the deals of shards that the driver makes for slow members. A member that carries fewer
//! shards has been slow. No other member loses shards for it. The cool-down and the bound hold. A member that alone is slow for
//! long carries fewer shards.

use std::collections::BTreeSet;

use elastic_driver::OnStraggler;
use elastic_protocol::WorkerId;

use super::stragglers::SLOW_NS_MIN;
use super::{MS, World};

/// Longest cool-down as a multiple of the first one.
const COOL_DOWN_TIMES_MAX: u32 = 12;

/// The oracle's knowledge of deals under the driver's present life.
#[derive(Debug, Default)]
pub(super) struct RebalanceWatch {
    /// The driver's life.
    life: u32,
    /// The world times of the deals.
    made: Vec<u64>,
    /// Slow members for which the driver has said why they carry no fewer shards.
    refused: BTreeSet<WorkerId>,
}

/// A deal of shards, as the driver reports it.
pub(super) struct DealTold<'a> {
    pub(super) workers: &'a [WorkerId],
    pub(super) ranks: &'a [u32],
    pub(super) factors: &'a [f64],
    pub(super) before: &'a [u32],
    pub(super) counts: &'a [u32],
}

impl World {
    fn turn_rebalance_watch(&mut self) {
        if self.rebalancing.life != self.driver.life {
            self.rebalancing =
                RebalanceWatch { life: self.driver.life, ..RebalanceWatch::default() };
        }
    }

    /// The driver says why a slow member carries no fewer shards.
    pub(super) fn note_not_rebalanced(&mut self, worker: &WorkerId) {
        self.turn_rebalance_watch();
        self.rebalancing.refused.insert(worker.clone());
    }

    /// Checks a deal of shards.
    pub(super) fn check_dealt(&mut self, told: &DealTold<'_>) -> Result<(), String> {
        self.turn_rebalance_watch();
        let DealTold { workers, ranks, factors, before, counts } = *told;
        let what = format!("rebalancing: {counts:?} instead of {before:?}");
        let shards: u32 = counts.iter().sum();
        let fits = counts.len() == self.driver.members.len() && counts.len() == before.len();
        if Some(shards) != self.scenario.driver.shards || counts.contains(&0) || !fits {
            return Err(format!("{what}, of {:?} shards", self.scenario.driver.shards));
        }
        for (worker, _) in workers.iter().zip(factors).filter(|(_, factor)| **factor > 1.0) {
            let process = self.process_of(self.driver.job, worker);
            let slow_ns = process.map_or(0, |process| self.slow_ns(process));
            // One whose pace was taken over or measured again may be about to recover.
            let is_first = self.rebalancing.made.is_empty() && self.driver.life == 1;
            if slow_ns < SLOW_NS_MIN && is_first {
                return Err(format!("{what}: {worker} has been slow for {} ms", slow_ns / MS));
            }
        }
        let (most, least) = (before.iter().max(), before.iter().min());
        let was_even = most.zip(least).is_some_and(|(most, least)| most - least <= 1);
        if let ([rank], [factor]) = (ranks, factors)
            && *factor > 1.0
            && was_even
        {
            let pairs = (0_u32..).zip(before.iter().zip(counts));
            for (other, (before, now)) in pairs {
                let is_wrong = if other == *rank { now >= before } else { now < before };
                if is_wrong {
                    return Err(format!(
                        "{what}: rank {rank} has become slow, and rank {other} carries {now} shards"
                    ));
                }
            }
        }
        let config = &self.scenario.driver;
        let deals = u32::try_from(self.rebalancing.made.len()).unwrap_or(u32::MAX);
        if let Some(last) = self.rebalancing.made.last() {
            let times = (1 << (deals - 1).min(16)).min(COOL_DOWN_TIMES_MAX);
            // Clocks deviate by up to one per cent.
            let cool_down = config.rebalance_cool_down * times * 98 / 100;
            if u128::from(self.now - last) < cool_down.as_nanos() {
                let pause = (self.now - last) / MS;
                return Err(format!(
                    "{what}: {pause} ms after the deal before, the cool-down is longer"
                ));
            }
        }
        if deals >= config.rebalances_max {
            return Err(format!("{what}: after {deals} deals within an hour, which is the bound"));
        }
        self.rebalancing.made.push(self.now);
        self.membership_is_to_change();
        Ok(())
    }

    /// Checks that the members of a host that alone has been slow for long carry fewer shards than others, or that the driver
    /// has said why not.
    pub(super) fn check_carries_fewer(&mut self, host: u32) -> Result<(), String> {
        self.turn_rebalance_watch();
        let config = &self.scenario.driver;
        let watch = &self.rebalancing;
        let cool_down = u64::try_from(config.rebalance_cool_down.as_nanos()).unwrap_or(u64::MAX);
        let quiet_ns = cool_down.saturating_mul(u64::from(COOL_DOWN_TIMES_MAX));
        let is_bound = watch.made.len() >= config.rebalances_max as usize
            || watch.made.last().is_some_and(|last| last + quiet_ns > self.now)
            // A successor counts the deals of the driver before it.
            || self.driver.life > 1;
        if config.on_straggler != OnStraggler::Rebalance || config.shards.is_none() || is_bound {
            return Ok(());
        }
        let now = self.driver.clock.local(self.now);
        let name = self.hosts[host as usize].name.clone();
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        let status = cores.driver.status(now, &|time| time.to_string());
        let members = || status.workers.iter().filter(|worker| worker.rank.is_some());
        let most = members().filter(|it| it.host != name).filter_map(|it| it.shards).max();
        let is_told = watch.refused.iter().any(|worker| worker.host == name);
        for worker in members().filter(|worker| worker.host == name) {
            if worker.shards > Some(1) && worker.shards >= most && !is_told {
                return Err(format!(
                    "rebalancing: host {name} alone is slow for long, its slot {} carries {:?} shards, others at most {most:?}",
                    worker.slot, worker.shards
                ));
            }
        }
        Ok(())
    }
}
