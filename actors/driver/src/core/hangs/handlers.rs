//! Handles members' reports of standstills, and agents' looks at their processes. Finds the members that wait and the
//! members that they wait for. Called by the handlers of workers' and agents' messages, and by the timer of hangs.

use std::collections::{BTreeMap, BTreeSet};

use elastic_protocol::messages::{CollectivePosition, DriverToAgent, ProcessSight, StatusReport};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Stamp, Time, WorkerId};

use super::limits::WaitClass;
use super::naming::may_show_its_stack;
use super::{
    AwaitedMember, LOOK_AFTER, LOOK_AFTER_MAX, Naming, REVIEW_AFTER, StillMember, WaitForMembers,
};
use crate::core::DriverCore;
use crate::core::config::OnHang;
use crate::core::event::EventKind;
use crate::core::losses::last_heard;
use crate::core::output::DriverOutput;
use crate::core::phase::RoundPhase;
use crate::core::table::{PeerLink, Stance};
use crate::core::timers::Timer;

/// The present wait: number of waiting members, and the members that they wait for.
struct PresentWait {
    since: Time,
    operation: String,
    waiters: usize,
    awaited: BTreeMap<WorkerId, AwaitedMember>,
}

/// A member whose training thread stands still, by its name.
type StandingMember<'a> = (&'a WorkerId, &'a StillMember);

impl DriverCore {
    /// Takes a worker's report that its training thread stands still, or goes on.
    pub(crate) fn handle_standstill(
        &mut self,
        now: Time,
        worker: &WorkerId,
        stamp: Stamp,
        position: Option<CollectivePosition>,
        for_ms: u64,
    ) {
        if self.round.stamp() != Some(stamp) || !self.round.is_member(worker) {
            return self.drop_message();
        }
        self.hangs.turn_to(Some(stamp));
        match position {
            Some(position) => {
                let since = last_heard(now, for_ms);
                self.hangs.still.insert(worker.clone(), StillMember { position, since });
            }
            None => {
                self.hangs.still.remove(worker);
            }
        }
        self.ask_hang_review(now);
    }

    /// Takes an agent's look at a process.
    pub(crate) fn handle_inspected(&mut self, now: Time, worker: &WorkerId, sight: ProcessSight) {
        if self.is_by_restart() {
            return self.handle_activity(now, worker, sight);
        }
        if self.is_silent(worker) {
            self.hangs.silent.insert(worker.clone(), sight);
            return;
        }
        let Some(wait) = self.hangs.wait.as_mut() else { return };
        let Some(member) = wait.awaited.get_mut(worker) else { return };
        wait.was_by_force |= sight.is_by_force();
        let forced_since = member.forced_since.unwrap_or(now);
        member.forced_since = sight.is_by_force().then_some(forced_since);
        // A look without the stacks, asked for before, may come first.
        let is_enough =
            self.config.on_hang == OnHang::Tell || sight.has_stack() || !may_show_its_stack(&sight);
        member.take_sight(sight);
        if let Naming::Looking { .. } = member.naming {
            self.answer_look(now, worker, is_enough);
        }
        self.review_hangs(now);
    }

    /// Asks for a review if members stand still as the phase changes: they may hold up the next generation.
    pub(crate) fn look_for_hangs(&mut self, now: Time) {
        if !self.hangs.still.is_empty() {
            self.ask_hang_review(now);
        }
    }

    /// Asks for a review a moment from now: members mostly stand still, and go on, at the same time.
    fn ask_hang_review(&mut self, now: Time) {
        let at = *self.hangs.review_at.get_or_insert(now + REVIEW_AFTER);
        self.agenda.set(at, Timer::Hang);
    }

    fn is_silent(&self, worker: &WorkerId) -> bool {
        self.roster.worker(worker).is_some_and(|record| record.link == PeerLink::Silent)
    }

    /// Has the agent look at the process of a silent worker whose host is heard, so that the activity of the process is
    /// known when the worker is given up.
    pub(crate) fn look_at_silent(&mut self, worker: &WorkerId) {
        self.hangs.silent.remove(worker);
        self.look_at(worker, false);
    }

    /// Takes the last sight of the process of a silent worker that is given up, in words. A process that was stopped is also
    /// named as hanging, with the collective that the others wait in.
    pub(crate) fn take_silent_doing(
        &mut self,
        worker: &WorkerId,
        silent_ms: u64,
    ) -> Option<String> {
        let sight = self.hangs.silent.remove(worker)?;
        let doing = sight.to_string();
        if sight.is_by_force() && !self.is_named(worker) && !is_planted(Bug::HangNeverNamed) {
            self.name_silent(worker, silent_ms, doing.clone());
        }
        Some(doing)
    }

    /// Determines the members that wait and those that they wait for. Acts on a wait that lasts too long.
    pub(crate) fn review_hangs(&mut self, now: Time) {
        self.hangs.review_at = None;
        let present = match self.round.phase() {
            RoundPhase::Run => self.present_wait(),
            phase @ (RoundPhase::Gather(_)
            | RoundPhase::Pausing { .. }
            | RoundPhase::Stopping { .. })
                if !is_planted(Bug::HangForgottenAtEnd) =>
            {
                phase.waiting_for().and_then(|late| self.wait_for_end(late))
            }
            _ => {
                self.hangs.wait = None;
                return;
            }
        };
        self.hangs.turn_to(self.round.stamp());
        self.follow_wait(now, present);
        self.look_at_awaited(now);
        self.name_hanging(now);
        if let Some(at) = self.hangs.due_at() {
            self.agenda.set(at.max(now), Timer::Hang);
        }
        // The limit of a wait may come before the next look.
        if let Some(at) = self.next_limit().filter(|at| *at > now) {
            self.agenda.set(at, Timer::Hang);
        }
    }

    /// The wait as the reports show it now.
    fn present_wait(&self) -> Option<PresentWait> {
        let finished = self.round.alive().filter_map(|worker| {
            let record = self.roster.worker(worker)?;
            (record.stance == Stance::Finished).then_some((worker, record.since))
        });
        let finished: BTreeMap<&WorkerId, Time> = finished.collect();
        let current = self.round.current()?;
        let is_training =
            |worker: &WorkerId| current.alive.contains(worker) && !finished.contains_key(worker);
        let still = self.hangs.still.iter().filter(|(worker, _)| is_training(worker));
        let (waiting, outside): (Vec<_>, Vec<_>) =
            still.partition(|(_, member)| member.position.inside.is_some());
        // A member that stands still in another collective than most is awaited only if nobody else is: a sub-group whose
        // ranks have not all come holds up only the others of its group.
        let all_wait = outside.is_empty() && finished.is_empty();
        let all_wait = all_wait && waiting.len() == current.alive.len();
        let (waiting, elsewhere) = match all_wait && !is_planted(Bug::OtherCollectiveIgnored) {
            true => by_collective(waiting),
            false => (waiting, Vec::new()),
        };
        let first = waiting.iter().min_by_key(|(_, member)| member.since)?;
        let inside = first.1.position.inside.as_ref()?;
        let operation = inside.named(first.1.position.entered);
        let since = first.1.since;
        let standing = |(worker, still): StandingMember<'_>| {
            (worker.clone(), AwaitedMember::new(since.max(still.since), Some(still)))
        };
        let gone = finished
            .iter()
            .map(|(worker, at)| ((*worker).clone(), AwaitedMember::new(since.max(*at), None)));
        let mut awaited: BTreeMap<WorkerId, AwaitedMember> =
            outside.into_iter().chain(elsewhere).map(standing).chain(gone).collect();
        if is_planted(Bug::WaiterNamed) {
            awaited = waiting.iter().copied().map(standing).collect();
        }
        if awaited.is_empty() {
            return None;
        }
        Some(PresentWait { since, operation, waiters: waiting.len(), awaited })
    }

    /// The wait for members that stand still as a generation ends, while the others have come to rest or wait in a collective. Only
    /// `late` members are awaited.
    fn wait_for_end(&self, late: &BTreeSet<WorkerId>) -> Option<PresentWait> {
        let (began_at, operation) = match self.round.phase() {
            RoundPhase::Gather(gather) => (gather.since, "the barrier of the next generation"),
            _ => (self.round.interrupt_since(), "the barrier of a planned stop"),
        };
        let is_inside = |member: &StillMember| member.position.inside.is_some();
        let outside = self.hangs.still.iter().filter(|(worker, still)| {
            late.contains(*worker) && self.round.is_member(worker) && !is_inside(still)
        });
        let awaited: BTreeMap<WorkerId, AwaitedMember> = outside
            .map(|(worker, still)| {
                (worker.clone(), AwaitedMember::new(began_at.max(still.since), Some(still)))
            })
            .collect();
        let is_in_collective =
            |worker: &&WorkerId| self.hangs.still.get(*worker).is_some_and(is_inside);
        let rests = |worker: &&WorkerId| !late.contains(*worker);
        let waiters = match self.round.phase() {
            // Its members answer before they rest.
            RoundPhase::Pausing { .. } => self.round.alive().filter(is_in_collective).count(),
            RoundPhase::Stopping { .. } => {
                self.round.alive().filter(|it| rests(it) || is_in_collective(it)).count()
            }
            _ => self.round.alive().filter(rests).count(),
        };
        if awaited.is_empty() || waiters == 0 {
            return None;
        }
        Some(PresentWait { since: began_at, operation: operation.to_owned(), waiters, awaited })
    }

    /// Takes the present wait over: goes on with the one under way, or ends it and begins another.
    fn follow_wait(&mut self, now: Time, present: Option<PresentWait>) {
        let goes_on = match (&self.hangs.wait, &present) {
            (Some(wait), Some(present)) => {
                present.awaited.keys().any(|worker| wait.awaited.contains_key(worker))
            }
            _ => false,
        };
        let former = self.hangs.wait.take();
        if let Some(former) = former.as_ref().filter(|_| !goes_on) {
            self.end_wait(now, former);
        }
        let Some(present) = present else { return };
        let mut known = former.filter(|_| goes_on);
        let since = known.as_ref().map_or(present.since, |wait| wait.since);
        let mut awaited = present.awaited;
        for (worker, member) in &mut awaited {
            let known = known.as_mut().and_then(|wait| wait.awaited.remove(worker));
            if let Some(known) = known {
                let (section, inside) = (member.section.take(), member.inside.take());
                let has_finished = member.has_finished;
                *member = AwaitedMember { section, inside, has_finished, ..known };
            }
        }
        // Some of the awaited members may have come.
        if let Some(known) = &known {
            self.tell_going_on(now, known, false);
        }
        let (look_at, look_after) = match &known {
            Some(wait) => (wait.look_at, wait.look_after),
            None => ((since + LOOK_AFTER).max(now), LOOK_AFTER),
        };
        let (operation, waiters) = (present.operation, present.waiters);
        let was_by_force = known.is_some_and(|wait| wait.was_by_force);
        self.hangs.wait = Some(WaitForMembers {
            since,
            operation,
            waiters,
            awaited,
            was_by_force,
            look_at,
            look_after,
        });
    }

    /// Handles the end of a wait that ended by itself.
    fn end_wait(&mut self, now: Time, wait: &WaitForMembers) {
        let kind = |(worker, member)| self.awaited_state(worker, member).kind();
        let mut kinds: BTreeSet<WaitClass<'_>> = wait.awaited.iter().map(kind).collect();
        // The end of a generation ends waits, too.
        let trains = matches!(self.round.phase(), RoundPhase::Run);
        if wait.was_by_force || !trains {
            kinds.clear();
        }
        // Of several members, each has made the others wait.
        for kind in &kinds {
            self.hangs.usual.learn(*kind, now.since(wait.since));
        }
        self.tell_going_on(now, wait, kinds.contains(&WaitClass::Step));
    }

    fn tell_going_on(&mut self, now: Time, wait: &WaitForMembers, usual: bool) {
        let named = wait.awaited.iter().filter(|(_, member)| member.naming == Naming::Done);
        let ms = now.ms_since(wait.since);
        let gone_on: Vec<WorkerId> = named.map(|(worker, _)| worker.clone()).collect();
        for worker in gone_on {
            self.event(EventKind::StallEnded { worker, ms, usual });
        }
    }

    /// Has the agents look at the processes of the awaited members, if it is time.
    fn look_at_awaited(&mut self, now: Time) {
        let Some(wait) = self.hangs.wait.as_mut().filter(|wait| wait.look_at <= now) else {
            return;
        };
        wait.look_at = now + wait.look_after;
        wait.look_after = (wait.look_after * 2).min(LOOK_AFTER_MAX);
        let named = wait.awaited.keys().take(StatusReport::AWAITED_MAX);
        for worker in named.cloned().collect::<Vec<_>>() {
            self.look_at(&worker, false);
        }
    }

    pub(crate) fn look_at(&mut self, worker: &WorkerId, with_stack: bool) {
        if let Some(agent) = self.roster.agent_of(worker) {
            let message = DriverToAgent::Inspect { worker: worker.clone(), with_stack };
            self.output(DriverOutput::ToAgent { to: agent, message });
        }
    }
}

/// Divides members that all stand still in collectives: those in the collective in which most wait, and those in other
/// ones. A group whose ranks are all in its collective waits for nobody, and its ranks go on when it is done. They belong
/// to neither part.
fn by_collective<'a>(
    inside: Vec<StandingMember<'a>>,
) -> (Vec<StandingMember<'a>>, Vec<StandingMember<'a>>) {
    let group_of = |(_, still): &StandingMember<'a>| {
        still.position.inside.as_ref().map(|inside| (inside.group, inside.ranks))
    };
    let mut groups: BTreeMap<(u64, u32), usize> = BTreeMap::new();
    for group in inside.iter().filter_map(group_of) {
        *groups.entry(group).or_default() += 1;
    }
    let lacks_somebody = |(group, ranks): (u64, u32), here: usize| {
        let is_of_all = group == 0;
        is_of_all || ranks == 0 || here < ranks as usize
    };
    groups.retain(|group, here| lacks_somebody(*group, *here));
    // Of two with as many, the group of all ranks comes first.
    let most = groups.iter().max_by_key(|((group, _), here)| (**here, *group == 0));
    let Some(most) = most.map(|(group, _)| *group) else { return (inside, Vec::new()) };
    let of = |members: &[StandingMember<'a>], is_wanted: &dyn Fn((u64, u32)) -> bool| {
        let wanted = members.iter().copied();
        wanted.filter(|member| group_of(member).is_some_and(is_wanted)).collect::<Vec<_>>()
    };
    let waiting = of(&inside, &|group| group == most);
    let elsewhere = of(&inside, &|group| group != most && groups.contains_key(&group));
    (waiting, elsewhere)
}
