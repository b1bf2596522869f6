//! Replaces members that hang or are slow, and reports the effect. Called by `stragglers`, `hangs`, `interrupt` and the
//! timer of rests.

use elastic_protocol::messages::StepTimes;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{HostName, ResetCause, Time, WorkerId};

use super::bounds::NotReplaced;
use super::{AwaitedEffect, MadeReplacement, cool_down_times};
use crate::core::DriverCore;
use crate::core::config::{OnHang, OnStraggler};
use crate::core::event::{EventKind, ReplacedFor};
use crate::core::phase::RoundPhase;
use crate::core::table::{SlotId, SlotRest};
use crate::core::timers::Timer;

impl DriverCore {
    /// Replaces members that are named as slow, as far as they may be. Called after each comparison: a spare slot may have
    /// come since the last one.
    pub(crate) fn answer_stragglers(&mut self, now: Time) {
        self.tell_effect();
        if self.config.on_straggler != OnStraggler::Replace || self.is_held() {
            return;
        }
        for (worker, is_host) in self.stragglers.slow_for_long(now) {
            if self.roster.is_at_rest(&worker) {
                continue;
            }
            // Two slow ranks of one host are its fault, one after the other as well.
            let is_host = is_host
                || self
                    .roster
                    .resting_of(&worker.host)
                    .any(|(_, rest)| rest.why == ReplacedFor::Slow);
            let worker = match is_planted(Bug::NeighbourReplaced) {
                true => self.round.alive().find(|it| **it != worker).unwrap_or(&worker).clone(),
                false => worker,
            };
            let slots = self.slots_with(&worker, is_host);
            match self.may_be_replaced(now, &worker, &slots, ReplacedFor::Slow) {
                Ok(()) => {
                    self.put_to_rest(now, &worker, &slots, ReplacedFor::Slow);
                    self.agenda.ask_review(now);
                }
                Err(reason) => self.tell_not_replaced(&worker, ReplacedFor::Slow, reason),
            }
        }
    }

    /// Stops a member that hangs. Another one takes its place.
    pub(crate) fn replace_hanging(&mut self, now: Time, worker: &WorkerId, cause: &ResetCause) {
        self.put_hanging_to_rest(now, worker);
        self.evict(now, std::slice::from_ref(worker), cause);
    }

    /// Puts the slot of a member that is to be stopped to rest, if enough workers are left without it; else it is refilled.
    pub(crate) fn put_hanging_to_rest(&mut self, now: Time, worker: &WorkerId) {
        if self.config.on_hang != OnHang::Replace || !self.round.is_member(worker) {
            return;
        }
        let slots = self.slots_with(worker, false);
        match self.may_be_replaced(now, worker, &slots, ReplacedFor::Hang) {
            Ok(()) => self.put_to_rest(now, worker, &slots, ReplacedFor::Hang),
            Err(reason) => self.tell_not_replaced(worker, ReplacedFor::Hang, reason),
        }
    }

    /// The slot of a member, or those of all members of its host.
    fn slots_with(&self, worker: &WorkerId, is_host: bool) -> Vec<SlotId> {
        let alive = self.round.alive().filter(|other| match is_host {
            true => other.host == worker.host,
            false => *other == worker,
        });
        alive.map(|worker| (worker.host.clone(), worker.slot)).collect()
    }

    fn put_to_rest(&mut self, now: Time, worker: &WorkerId, slots: &[SlotId], why: ReplacedFor) {
        let (Some(stamp), Some(rank)) = (self.round.stamp(), self.round.rank_of(worker)) else {
            return;
        };
        let is_of = |member: &&WorkerId| slots.contains(&(member.host.clone(), member.slot));
        let replaced = self.round.alive().filter(is_of);
        let ranks: Vec<u32> = replaced.filter_map(|worker| self.round.rank_of(worker)).collect();
        let members = self.round.alive().cloned().collect();
        let mut longest = 0.0_f64;
        for slot in slots {
            let rests = self.roster.slot(slot).map_or(0, |record| record.rests).saturating_add(1);
            let until = now + self.config.cool_down * cool_down_times(rests);
            self.roster.put_to_rest(slot, SlotRest { until, why });
            self.record_rest(&slot.0, slot.1);
            self.agenda.set(until, Timer::Rest(slot.clone()));
            longest = longest.max(until.ms_since(now) / 1e3);
        }
        let host = worker.host.clone();
        if self.replacements.recent.len() >= self.config.replacements_max as usize {
            self.replacements.recent.pop_front();
        }
        self.replacements.recent.push_back(MadeReplacement {
            at: now,
            host,
            why,
            ranks: ranks.clone(),
        });
        let step_us = match why {
            ReplacedFor::Slow => self.stragglers.step_us(),
            ReplacedFor::Hang => None,
        };
        let worker = worker.clone();
        self.replacements.awaited =
            Some(AwaitedEffect { worker: worker.clone(), stamp, members, step_us });
        let left = self.roster.seating().usable_without(slots);
        let members_left = self.round.alive().count() - ranks.len();
        let most = self.config.max_np.map_or(usize::MAX, |max| max as usize);
        let spares = left.min(most).saturating_sub(members_left);
        let spares = u32::try_from(spares.min(ranks.len())).unwrap_or(u32::MAX);
        let is_host = slots.len() > 1;
        self.want_health_check(now, &worker.host);
        let rest_s = longest;
        self.event(EventKind::WorkerReplaced { worker, rank, ranks, is_host, why, spares, rest_s });
    }

    fn tell_not_replaced(&mut self, worker: &WorkerId, why: ReplacedFor, reason: NotReplaced) {
        let Some(rank) = self.round.rank_of(worker) else { return };
        let text = reason.to_string();
        self.replacements.kept.retain(|worker, _| self.round.is_member(worker));
        if self.replacements.kept.insert(worker.clone(), reason.clone()) != Some(reason) {
            let (worker, reason) = (worker.clone(), text);
            self.event(EventKind::WorkerNotReplaced { worker, rank, why, reason });
        }
    }

    /// Reports the duration of steps after a replacement, once it is known.
    fn tell_effect(&mut self) {
        let Some(effect) = &self.replacements.awaited else { return };
        if self.round.stamp() == Some(effect.stamp)
            || !matches!(self.round.phase(), RoundPhase::Run)
        {
            return;
        }
        let all = self.round.alive().count();
        let Some(after_us) = self.stragglers.settled_step_us(all) else { return };
        let Some(effect) = self.replacements.awaited.take() else { return };
        let new = self.round.alive().filter(|worker| !effect.members.contains(*worker));
        let world_before = u32::try_from(effect.members.len()).unwrap_or(u32::MAX);
        let world_size = u32::try_from(all).unwrap_or(u32::MAX);
        self.event(EventKind::ReplacementTook {
            by: new.cloned().collect(),
            worker: effect.worker,
            world_before,
            world_size,
            before_ms: effect.step_us.map(StepTimes::shown_ms),
            after_ms: StepTimes::shown_ms(after_us),
        });
    }

    /// Ends the rest of a slot whose cool-down is over.
    pub(crate) fn handle_rest_over(&mut self, now: Time, slot: &SlotId) {
        if is_planted(Bug::RestNeverEnds) || self.waits_for_health(slot) {
            return;
        }
        if self.roster.end_rest(now, slot).is_none() {
            return;
        }
        self.forget_health_check(&slot.0);
        self.record_rest(&slot.0, slot.1);
        self.event(EventKind::SlotRested { host: slot.0.clone(), slot: slot.1 });
        self.agenda.ask_review(now);
    }

    /// Takes over the rests of a former driver. Each begins again, and each host counts as one replacement.
    pub(crate) fn restore_rests(
        &mut self,
        now: Time,
        rests: impl IntoIterator<Item = (SlotId, ReplacedFor)>,
    ) {
        for (slot, why) in rests {
            let until = now + self.config.cool_down;
            self.roster.put_to_rest(&slot, SlotRest { until, why });
            let recent = &mut self.replacements.recent;
            let is_counted = recent.iter().any(|made| made.host == slot.0);
            if !is_counted && recent.len() < self.config.replacements_max as usize {
                let (host, ranks) = (slot.0.clone(), Vec::new());
                recent.push_back(MadeReplacement { at: now, host, why, ranks });
            }
            self.want_health_check(now, &slot.0);
            self.agenda.set(until, Timer::Rest(slot));
        }
    }

    /// Slots at rest.
    pub fn slots_at_rest(&self) -> impl Iterator<Item = (&HostName, u32)> {
        let resting = self.roster.slots().filter(|(_, record)| record.rest.is_some());
        resting.map(|((host, slot), _)| (host, *slot))
    }

    /// The cause of a planned end by which members are replaced, and no other member leaves.
    pub(crate) fn replacement_cause(
        &self,
        added: &[WorkerId],
        removed: &[WorkerId],
    ) -> Option<ResetCause> {
        let worker = removed.first()?;
        let all_rest = removed.iter().all(|worker| self.roster.is_at_rest(worker));
        if !all_rest || removed.iter().any(|other| other.host != worker.host) {
            return None;
        }
        let mut resting = self.roster.resting_of(&worker.host);
        let (_, rest) = resting.find(|(slot, _)| *slot == worker.slot)?;
        let whose = match removed.len() {
            1 => format!("it {}", rest.why),
            all => format!("its host {} with {all} ranks", rest.why),
        };
        let by = match added {
            [] => "nobody takes its place".to_owned(),
            [new, ..] if added.len() == 1 => format!("{new} takes its place"),
            all => format!("{} workers take their places", all.len()),
        };
        let reason = format!("replaced, since {whose}; {by}");
        Some(ResetCause::WorkerLeaves { worker: worker.clone(), reason })
    }

    /// The slots that rest for a cool-down, in words, for the status.
    pub(crate) fn rests_in_words(&self, now: Time) -> Vec<String> {
        let rests = self
            .roster
            .slots()
            .filter_map(|((host, slot), record)| record.rest.map(|rest| (host, *slot, rest)));
        let mut words: Vec<(HostName, Vec<u32>, SlotRest)> = Vec::new();
        for (host, slot, rest) in rests {
            match words.last_mut() {
                Some((last, slots, known)) if last == host && known.why == rest.why => {
                    slots.push(slot);
                    known.until = known.until.max(rest.until);
                }
                _ => words.push((host.clone(), vec![slot], rest)),
            }
        }
        let text = |(host, slots, rest): (HostName, Vec<u32>, SlotRest)| {
            let slots: Vec<String> = slots.iter().map(u32::to_string).collect();
            let health = self.health_in_words(&host).map(|health| format!("; {health}"));
            format!(
                "{host}[{}] rests: its worker was replaced, since it {}; used last of all for {:.0} s more{}",
                slots.join(", "),
                rest.why,
                rest.until.ms_since(now) / 1e3,
                health.unwrap_or_default()
            )
        };
        words.into_iter().take(RESTS_SHOWN_MAX).map(text).collect()
    }
}

/// Most hosts at rest that the status names.
const RESTS_SHOWN_MAX: usize = 8;
