//! Awaited and hanging workers as the status and events show them. Called by `status`, `naming`, and
//! the naming of members by restart (`inactivity`).

use elastic_protocol::messages::{AwaitedWorker, ProcessSight, StalledWorker, StatusReport};
use elastic_protocol::{Time, WorkerId};

use super::{AwaitedMember, Naming, WaitForMembers};
use crate::core::DriverCore;
use crate::core::event::EventKind;
use crate::core::phase::RoundPhase;

impl DriverCore {
    /// A member for which others wait, as the status shows it.
    pub(super) fn stalled(&self, now: Time, worker: &WorkerId) -> Option<StalledWorker> {
        let wait = self.hangs.wait.as_ref()?;
        let member = wait.awaited.get(worker)?;
        let shown = |stack: fn(&ProcessSight) -> &String| {
            member.sight.as_ref().map(stack).filter(|stack| !stack.is_empty()).cloned()
        };
        Some(StalledWorker {
            rank: self.round.rank_of(worker)?,
            host: worker.host.clone(),
            slot: worker.slot,
            pid: self.pid_of(worker),
            operation: wait.operation.clone(),
            late_ms: waited_ms(now, member.since),
            doing: member.doing(),
            stack: shown(|sight| &sight.stack),
            native_stack: shown(|sight| &sight.native_stack),
            grounds: None,
        })
    }

    /// Reports that a worker hangs, as the status shows it. `waiting` is the number of others that wait.
    pub(crate) fn tell_stalled(
        &mut self,
        worker: WorkerId,
        waiting: usize,
        stalled: StalledWorker,
    ) {
        let StalledWorker { rank, pid, operation, late_ms, doing, stack, native_stack, .. } =
            stalled;
        let grounds = stalled.grounds;
        self.event(EventKind::WorkerStalled {
            worker,
            rank,
            pid,
            operation,
            waiting,
            late_ms,
            doing,
            stack,
            native_stack,
            grounds,
            silent_ms: None,
        });
    }

    /// Whether a member was named for which others wait.
    pub(super) fn is_named(&self, worker: &WorkerId) -> bool {
        let member = self.hangs.wait.as_ref().and_then(|wait| wait.awaited.get(worker));
        member.is_some_and(|member| member.naming == Naming::Done)
    }

    /// Names as hanging a stopped member that is given up for its silence. It does not report its standstill, so the members
    /// that wait for it may not be known yet.
    pub(super) fn name_silent(&mut self, worker: &WorkerId, silent_ms: u64, doing: String) {
        let Some(rank) = self.round.rank_of(worker) else { return };
        let others = self.hangs.still.iter().filter(|(other, _)| *other != worker);
        let waiting =
            others.filter_map(|(_, still)| Some((still, still.position.inside.as_ref()?)));
        let waiting: Vec<_> = waiting.collect();
        let first = waiting.iter().min_by_key(|(still, _)| still.since);
        let step = self.roster.worker(worker).map_or(0, |record| record.step.0);
        let operation = match first {
            Some((still, inside)) => inside.named(still.position.entered),
            None => format!("the collectives after step {step}"),
        };
        self.event(EventKind::WorkerStalled {
            worker: worker.clone(),
            rank,
            pid: self.pid_of(worker),
            operation,
            waiting: waiting.len(),
            late_ms: silent_ms,
            doing,
            stack: None,
            native_stack: None,
            grounds: None,
            silent_ms: Some(silent_ms),
        });
    }

    /// The process of a worker.
    pub(crate) fn pid_of(&self, worker: &WorkerId) -> Option<u32> {
        self.roster.worker(worker).and_then(|record| record.pid)
    }

    /// Workers that hang.
    pub(crate) fn stalled_workers(&self, now: Time) -> Vec<StalledWorker> {
        let Some(wait) = self.present_hang() else {
            return self.inactive_workers(now);
        };
        let named = wait.awaited.iter().filter(|(_, member)| member.naming == Naming::Done);
        named
            .take(StatusReport::AWAITED_MAX)
            .filter_map(|(worker, _)| self.stalled(now, worker))
            .collect()
    }

    /// Workers that others, or the job, wait for.
    pub(crate) fn awaited_workers(&self, now: Time) -> Vec<AwaitedWorker> {
        let named = |worker: &WorkerId, why: String, since: Time| AwaitedWorker {
            worker: worker.to_string(),
            host: worker.host.clone(),
            why,
            for_ms: waited_ms(now, since),
        };
        if let Some(wait) = self.present_hang().filter(|_| self.trains()) {
            let awaited = wait.awaited.iter().take(StatusReport::AWAITED_MAX);
            let why = |member: &AwaitedMember| {
                let WaitForMembers { waiters, operation, .. } = wait;
                let wait = if *waiters == 1 {
                    "1 other waits"
                } else {
                    &*format!("{waiters} others wait")
                };
                format!("{wait} for it in {operation}; it {}", member.doing())
            };
            return awaited
                .map(|(worker, member)| named(worker, why(member), member.since))
                .collect();
        }
        let phase = self.round.phase();
        let awaited = phase.waiting_for().into_iter().flatten().take(StatusReport::AWAITED_MAX);
        let (why, since) = match phase {
            RoundPhase::Gather(gather) => ("to come to rest", gather.since),
            _ => ("to stop at one step", self.round.interrupt_since()),
        };
        let still = |worker: &WorkerId| self.present_hang()?.awaited.get(worker);
        let why = |worker: &WorkerId| match still(worker) {
            Some(member) => format!("{why}; it {}", member.doing()),
            None => why.to_owned(),
        };
        awaited.map(|worker| named(worker, why(worker), since)).collect()
    }

    /// The wait for members, if it is one of this generation and no other one forms.
    fn present_hang(&self) -> Option<&WaitForMembers> {
        let forms = matches!(self.round.phase(), RoundPhase::Form { .. } | RoundPhase::Sync { .. });
        let is_present = !forms && self.hangs.stamp == self.round.stamp();
        self.hangs.wait.as_ref().filter(|_| is_present)
    }

    fn trains(&self) -> bool {
        matches!(self.round.phase(), RoundPhase::Run)
    }
}

impl AwaitedMember {
    /// Present activity of the awaited member, in words that follow its name.
    fn doing(&self) -> String {
        let doing = match &self.sight {
            _ if self.has_finished => "has finished, and calls no further collective".to_owned(),
            Some(sight) => sight.to_string(),
            None if self.inside.is_some() => "waits".to_owned(),
            None => "is in its own code".to_owned(),
        };
        let doing = match &self.inside {
            Some(inside) => format!("is in another collective, {inside}, and {doing}"),
            None => doing,
        };
        match &self.section {
            Some(section) => format!("{doing} (in its section {:?})", section.name),
            None => doing,
        }
    }
}

fn waited_ms(now: Time, since: Time) -> u64 {
    u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX)
}
