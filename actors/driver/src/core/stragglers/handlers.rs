//! Takes the step times of members, and reviews them: names slow members, and tells of members that are fast again. Called
//! by the handlers of workers' messages, and by the timer of stragglers.

use std::collections::BTreeMap;

use elastic_protocol::messages::{StatusReport, StepTimes};
use elastic_protocol::{Stamp, Time, WorkerId};

use super::scoring::{MemberPace, PaceScore};
use super::{NamedStraggler, REVIEW_AFTER};
use crate::core::DriverCore;
use crate::core::config::OnStraggler;
use crate::core::event::EventKind;
use crate::core::phase::RoundPhase;
use crate::core::timers::Timer;

impl DriverCore {
    /// Takes the step times that a member of the present generation reports.
    pub(crate) fn handle_step_times(
        &mut self,
        now: Time,
        worker: &WorkerId,
        stamp: Stamp,
        times: StepTimes,
    ) {
        if !self.round.is_member(worker) {
            return;
        }
        let round = &self.round;
        self.stragglers.turn_to(Some(stamp), |worker| round.is_member(worker));
        match self.stragglers.paces.get_mut(worker) {
            Some(pace) => pace.take(times),
            None => {
                self.stragglers.paces.insert(worker.clone(), MemberPace::new(times));
            }
        }
        self.tell_step_shares_in_turn(now);
        if self.config.on_straggler != OnStraggler::Off {
            let at = *self.stragglers.review_at.get_or_insert(now + REVIEW_AFTER);
            self.agenda.set(at, Timer::Straggler);
        }
    }

    /// Compares the members, names slow ones, and tells of those that are fast again.
    pub(crate) fn review_stragglers(&mut self, now: Time) {
        self.stragglers.review_at = None;
        let trains = matches!(self.round.phase(), RoundPhase::Run);
        if !trains || self.stragglers.stamp != self.round.stamp() {
            return;
        }
        let scores = self.look_at_paces(now);
        self.tell_recovered(now);
        let slow = |(worker, pace): (&WorkerId, &MemberPace)| {
            let since = pace.slow_since(now)?;
            let is_named = self.stragglers.named.contains_key(worker);
            (!is_named).then(|| (worker.clone(), since))
        };
        let due: Vec<(WorkerId, Time)> = self.stragglers.paces.iter().filter_map(slow).collect();
        for (worker, since) in due {
            // It may have been named with its host meanwhile.
            if !self.stragglers.named.contains_key(&worker) {
                self.name_straggler(now, &worker, since, &scores);
            }
        }
        self.review_links(now);
        self.answer_stragglers(now);
        self.rebalance(now);
    }

    /// Scores all members, and looks at those that have reported new times.
    fn look_at_paces(&mut self, now: Time) -> BTreeMap<WorkerId, PaceScore> {
        self.stragglers.paces.retain(|worker, _| self.round.is_member(worker));
        let peers = self.stragglers.peers();
        let mut scores = BTreeMap::new();
        for (worker, pace) in &mut self.stragglers.paces {
            let score = peers.score(pace);
            pace.look(now, score);
            scores.extend(score.map(|score| (worker.clone(), score)));
        }
        scores
    }

    /// Names a member that has been slow for long enough, or its host with all of its members that are slow.
    fn name_straggler(
        &mut self,
        now: Time,
        worker: &WorkerId,
        since: Time,
        scores: &BTreeMap<WorkerId, PaceScore>,
    ) {
        let is_host = self.stragglers.is_fault_of(&worker.host);
        let slow: Vec<WorkerId> = match is_host {
            true => self.stragglers.slow_of(&worker.host).cloned().collect(),
            false => vec![worker.clone()],
        };
        for slow in &slow {
            let named = NamedStraggler { since, is_host };
            self.stragglers.named.entry(slow.clone()).or_insert(named).is_host = is_host;
        }
        let (Some(score), Some(rank)) = (scores.get(worker), self.round.rank_of(worker)) else {
            return;
        };
        let ranks = slow.iter().filter_map(|worker| self.round.rank_of(worker));
        self.event(EventKind::StragglerFound {
            worker: worker.clone(),
            rank,
            ranks: ranks.take(StatusReport::AWAITED_MAX).collect(),
            is_host,
            factor: score.factor,
            own_factor: score.own_factor,
            compute_ms: StepTimes::shown_ms(score.compute_us),
            peers_ms: StepTimes::shown_ms(score.peers_us),
            slow_ms: now.ms_since(since),
        });
        self.tell_step_shares(now);
    }

    /// Tells of members that were named and are fast again.
    fn tell_recovered(&mut self, now: Time) {
        let is_fast = |worker: &WorkerId| {
            self.stragglers.paces.get(worker).is_some_and(|pace| pace.is_fast(now))
        };
        let named = self.stragglers.named.iter().filter(|(worker, _)| is_fast(worker));
        let recovered: Vec<(WorkerId, Time)> =
            named.map(|(worker, named)| (worker.clone(), named.since)).collect();
        for (worker, since) in recovered {
            self.stragglers.named.remove(&worker);
            let Some(rank) = self.round.rank_of(&worker) else { continue };
            self.event(EventKind::StragglerRecovered { worker, rank, ms: now.ms_since(since) });
        }
    }
}
