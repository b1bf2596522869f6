//! Names members for which others have waited for too long, and answers as the operator wants (`--on-hang`). Called by
//! `handlers` at each review.

use std::time::Duration;

use elastic_protocol::messages::{ProcessActivity, ProcessSight, StatusReport};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{ResetCause, Time, WorkerId};

use super::limits::AwaitedState;
use super::{AwaitedMember, Naming, STACK_WITHIN, STOPPED_FOR};
use crate::core::DriverCore;
use crate::core::config::OnHang;
use crate::core::phase::RoundPhase;

impl DriverCore {
    /// Longest time that others may wait for a member before it is named.
    fn limit_of(&self, worker: &WorkerId, member: &AwaitedMember) -> Duration {
        self.hangs.usual.limit(self.awaited_state(worker, member), self.config.hang_timeout)
    }

    /// The facts about a member on which the limit of the wait for it depends.
    pub(super) fn awaited_state<'a>(
        &self,
        worker: &WorkerId,
        member: &'a AwaitedMember,
    ) -> AwaitedState<'a> {
        let began_at = self.round.current().map(|current| current.formation.step);
        let record = self.roster.worker(worker);
        let has_committed = record.is_some_and(|record| Some(record.step) > began_at);
        let (sight, section) = (member.sight.as_ref(), member.section.as_ref());
        AwaitedState { sight, has_committed, section }
    }

    /// Time from which a member counts as hanging.
    fn hangs_from(&self, worker: &WorkerId, member: &AwaitedMember) -> Time {
        let limit = member.since + self.limit_of(worker, member);
        member.forced_since.map_or(limit, |since| limit.max(since + STOPPED_FOR))
    }

    /// Handles the answer to the last look before a member is named. Its present activity may allow it more time.
    pub(super) fn answer_look(&mut self, now: Time, worker: &WorkerId, is_enough: bool) {
        let Some(wait) = &self.hangs.wait else { return };
        let Some(member) = wait.awaited.get(worker) else { return };
        let naming = match now < self.hangs_from(worker, member) {
            true => Naming::NotYet,
            false if is_enough => Naming::Looking { until: now },
            false => return,
        };
        let wait = self.hangs.wait.as_mut();
        if let Some(member) = wait.and_then(|wait| wait.awaited.get_mut(worker)) {
            member.naming = naming;
        }
    }

    /// Time at which the next limit passes.
    pub(super) fn next_limit(&self) -> Option<Time> {
        let wait = self.hangs.wait.as_ref()?;
        let waiting = wait.awaited.iter().filter(|(_, member)| member.naming == Naming::NotYet);
        waiting.map(|(worker, member)| self.hangs_from(worker, member)).min()
    }

    /// Names the members for which others have waited for too long.
    pub(super) fn name_hanging(&mut self, now: Time) {
        if is_planted(Bug::HangNeverNamed) {
            return;
        }
        let Some(wait) = &self.hangs.wait else { return };
        let wants_stack = self.config.on_hang != OnHang::Tell;
        let mut steps = Vec::new();
        // A member that is looked at is named in the end, also where others come before it meanwhile: its look has an end.
        let mut begun = wait.awaited.values().filter(|it| it.naming != Naming::NotYet).count();
        let (most, most_begun) = match is_planted(Bug::LookBehindOthersForgotten) {
            true => (StatusReport::AWAITED_MAX, usize::MAX),
            false => (usize::MAX, StatusReport::AWAITED_MAX),
        };
        for (worker, member) in wait.awaited.iter().take(most) {
            if member.naming == Naming::NotYet {
                if begun >= most_begun || now < self.hangs_from(worker, member) {
                    continue;
                }
                begun += 1;
            }
            let naming = match member.naming {
                Naming::NotYet if member.is_worth_a_look(wants_stack) => {
                    Naming::Looking { until: now + STACK_WITHIN }
                }
                Naming::Looking { until } if now < until => continue,
                Naming::NotYet | Naming::Looking { .. } => Naming::Done,
                Naming::Done => continue,
            };
            steps.push((worker.clone(), naming));
        }
        for (worker, naming) in steps {
            let Some(wait) = &mut self.hangs.wait else { return };
            let Some(member) = wait.awaited.get_mut(&worker) else { continue };
            member.naming = naming;
            match naming {
                Naming::Looking { .. } => self.look_at(&worker, wants_stack),
                Naming::Done | Naming::NotYet => self.name(now, &worker),
            }
        }
        self.replace_named(now);
    }

    /// Replaces members that were named, and for which others have waited for long enough since.
    fn replace_named(&mut self, now: Time) {
        let Some(wait) = &mut self.hangs.wait else { return };
        let is_due =
            |member: &mut AwaitedMember| member.replace_at.take_if(|at| *at <= now).is_some();
        let due = wait
            .awaited
            .iter_mut()
            .filter_map(|(worker, member)| is_due(member).then(|| worker.clone()));
        for worker in due.collect::<Vec<_>>() {
            if self.is_needed_for_its_commit(now, &worker) {
                continue;
            }
            if let Some(cause) = self.hang_cause(now, &worker) {
                self.replace_hanging(now, &worker, &cause);
            }
        }
    }

    /// A hang as the cause of a reset.
    fn hang_cause(&self, now: Time, worker: &WorkerId) -> Option<ResetCause> {
        let stalled = self.stalled(now, worker)?;
        let waiting = self.hangs.wait.as_ref().map_or(0, |wait| wait.waiters);
        let others = if waiting == 1 { "other" } else { "others" };
        let error = format!(
            "it hung: {waiting} {others} had waited for {} ms in {}, and it {}",
            stalled.late_ms, stalled.operation, stalled.doing
        );
        Some(ResetCause::WorkerFailed { worker: worker.clone(), error })
    }

    /// Names a member as hanging, and answers as the operator wants.
    fn name(&mut self, now: Time, worker: &WorkerId) {
        let Some(stalled) = self.stalled(now, worker) else { return };
        let waiting = self.hangs.wait.as_ref().map_or(0, |wait| wait.waiters);
        self.tell_stalled(worker.clone(), waiting, stalled);
        match self.config.on_hang {
            OnHang::Tell | OnHang::Dump => {}
            OnHang::Restart => {
                if self.is_needed_for_its_commit(now, worker) {
                    return;
                }
                if let Some(cause) = self.hang_cause(now, worker) {
                    self.evict(now, std::slice::from_ref(worker), &cause);
                }
            }
            OnHang::Replace => self.ask_to_replace(now, worker),
        }
    }

    /// Whether the next generation would begin from an earlier commit without this member, since only it holds the last one (G-5). It
    /// is waited for until the elastic timeout then.
    fn is_needed_for_its_commit(&mut self, now: Time, worker: &WorkerId) -> bool {
        matches!(self.round.phase(), RoundPhase::Gather(_))
            && self.are_last_holders(now, std::slice::from_ref(worker))
    }

    /// Sets the time at which a member that was named just now is to be replaced.
    fn ask_to_replace(&mut self, now: Time, worker: &WorkerId) {
        let Some(member) = self.hangs.wait.as_ref().and_then(|wait| wait.awaited.get(worker))
        else {
            return;
        };
        let state = self.awaited_state(worker, member);
        let after = self.hangs.usual.replaced_after(state, self.config.hang_timeout);
        let at = (member.since + after).max(now);
        let wait = self.hangs.wait.as_mut();
        if let Some(member) = wait.and_then(|wait| wait.awaited.get_mut(worker)) {
            member.replace_at = Some(at);
        }
    }
}

impl AwaitedMember {
    pub(super) fn take_sight(&mut self, mut sight: ProcessSight) {
        if let Some(former) = self.sight.take() {
            sight.keep_stacks_of(former);
        }
        self.sight = Some(sight);
    }

    /// Whether a look would show more before the member is named.
    fn is_worth_a_look(&self, wants_stack: bool) -> bool {
        let shows_more =
            |sight: &ProcessSight| sight.is_by_force() || wants_stack && may_show_its_stack(sight);
        !self.has_finished && self.sight.as_ref().is_none_or(shows_more)
    }
}

/// Whether a process would answer the signal that makes it show its stack. A process that stands still by force would not.
pub(super) fn may_show_its_stack(sight: &ProcessSight) -> bool {
    matches!(sight.activity, ProcessActivity::Waiting | ProcessActivity::Working)
}
