//! Hangs: the simulated training threads stand still, and the simulated agents look at them. The oracle checks the members that
//! the driver names. A member that stands still is named in time. A member that waits itself is never named, and none is named
//! too early. Called by `bounds` and with the driver's events.

use elastic_agent::ProcessEvent;
use elastic_driver::OnHang;
use elastic_protocol::WorkerId;
use elastic_protocol::messages::{
    CollectivePosition, CurrentCollective, HangGrounds, HangSureness, ProcessActivity,
    ProcessCounters, ProcessSight, RecordedCollectives, TrainingSection,
};

use super::driver::ObservedPhase;
use super::program::ProgramStage;
use super::{Happening, MS, NONE, World};
use crate::dataset::mix;

/// Longest time that an agent takes to look at a process.
const LOOK_NS: u64 = 300 * MS;

/// Processor time of a step beside its computation, and how often a step wakes the main thread.
const CPU_MS_OF_STEP: u64 = 100;
const SWITCHES_OF_STEP: u64 = 20;

/// Time for which an agent watches a process, in milliseconds.
const WATCHED_MS: u64 = 200;

/// Allowance for reports on their way, with delays and retransmissions.
const ON_THE_WAY_NS: u64 = 5_000 * MS;

/// Longest time from the limit of a wait to its naming: the thread counts as still after half a second, and the stack may take
/// two seconds.
const NAMED_AFTER_NS: u64 = 3_000 * MS + ON_THE_WAY_NS;

/// Shortest wait that is a hang where the operator has set no bound, for a process that is not stopped.
const WAITING_MS: u64 = 10_000;

/// Shortest wait that is a hang for a process in a section for which nobody has waited before.
const COLD_MS: u64 = 120_000;

/// Inactivity after which a script is named, unless the operator has set a shorter bound.
const INACTIVE_NS: u64 = 60_000 * MS;

/// Longest and shortest interval between two looks at all scripts of a generation.
const LOOK_EVERY_NS: u64 = 10_000 * MS;
const LOOK_EVERY_MIN_NS: u64 = 3_000 * MS;

/// Three looks at all scripts, after which their counters are known.
const LOOKED_AT_NS: u64 = 30_000 * MS;

/// Time for which members that are compared may have been seen before a link between them was mended: the driver's bound, and
/// the reports' way.
const COMPARED_NS: u64 = 2_000 * MS + ON_THE_WAY_NS;

/// Longest time until the driver knows that a thread goes on.
const GOES_ON_NS: u64 = 2_500 * MS;

/// Shortest hang as a multiple of the longest usual wait.
const FACTOR: u64 = 3;

/// The oracle's knowledge of hangs under the driver's present life.
#[derive(Debug, Default)]
pub(super) struct HangWatch {
    /// The driver's life.
    life: u32,
    /// The longest wait of a step that ended by itself, in milliseconds.
    longest_ms: u64,
    /// Whether a wait for a thread in a section may have ended.
    knows_section: bool,
    /// A wait that has ended just now: its end in world time, and how long it was. Of several the longest.
    ended_wait: Option<(u64, u64)>,
    /// The member that others wait for, with the world time since when; unset while nobody waits.
    awaited_since: Option<(u32, u64)>,
    /// The script that hangs alone, with the world time since when.
    hangs_since: Option<(u32, u64)>,
}

impl World {
    /// Position of a process's training thread among its collectives.
    pub(crate) fn position_of(&self, process: u32) -> CollectivePosition {
        let program = &self.processes[process as usize].program;
        let is_in_step = program.stage == ProgramStage::Reducing;
        let (kind, group) = ("all_reduce".to_owned(), 0);
        let of_all = CurrentCollective { kind, is_of_all: true, group, ranks: 0 };
        // In a group of two, whose other rank does not come.
        let (kind, group) = ("barrier".to_owned(), 1 + u64::from(process));
        let of_part = CurrentCollective { kind, is_of_all: false, group, ranks: 2 };
        let elsewhere = self.hangs_in_another_collective(process).then_some(of_part);
        let inside = is_in_step.then_some(of_all).or(elsewhere);
        let section = self.hangs_in_section(process).then(|| {
            let name = "evaluation".to_owned();
            TrainingSection { name, within_ms: None }
        });
        CollectivePosition { entered: u64::from(program.operation), inside, section }
    }

    /// Whether the thread of a process hangs in a section that the program has named. A thread that hangs inside a
    /// collective can neither enter nor leave one.
    fn hangs_in_section(&self, process: u32) -> bool {
        let entry = &self.processes[process as usize];
        let is_inside = entry.program.stage == ProgramStage::Reducing;
        entry.thread_hangs > 0 && !is_inside && may_hang_in_section(&entry.id)
    }

    /// Whether the thread of a process hangs in a collective of a sub-group, while the others are in one of all.
    fn hangs_in_another_collective(&self, process: u32) -> bool {
        let entry = &self.processes[process as usize];
        entry.thread_hangs > 0
            && entry.program.stage == ProgramStage::Computing
            && may_hang_in_another_collective(&entry.id)
    }

    /// Notes that the thread of a process goes on.
    pub(super) fn note_thread_goes_on(&mut self, process: u32) {
        self.turn_hang_watch();
        self.hangs.knows_section |= self.hangs_in_section(process);
    }

    /// The sight that an agent has of a process.
    fn sight_of(&self, process: u32, with_stack: bool) -> ProcessSight {
        let entry = &self.processes[process as usize];
        let computes = entry.program.stage == ProgramStage::Computing && entry.thread_hangs == 0;
        let activity = match (entry.stopped > 0, computes) {
            (true, _) => ProcessActivity::Stopped,
            (false, true) => ProcessActivity::Working,
            (false, false) => ProcessActivity::Waiting,
        };
        let paces = &entry.program.paces;
        let computes_ns = if computes { self.now - paces.computes_since } else { 0 };
        let computed_ns = paces.computed_ns + computes_ns;
        let shows = with_stack && activity != ProcessActivity::Stopped;
        ProcessSight {
            cpu_ms: if computes { WATCHED_MS } else { 0 },
            waits_in: self.waits_in(process),
            stack: if shows { stack_of(&entry.id) } else { String::new() },
            native_stack: if shows { native_stack_of(&entry.id) } else { String::new() },
            counters: ProcessCounters {
                cpu_ms: u64::from(entry.program.operation) * CPU_MS_OF_STEP + computed_ns / MS,
                moved_bytes: 0,
                switches: u64::from(entry.program.operation) * SWITCHES_OF_STEP,
            },
            collectives: self.recorded_of(process),
            ..ProcessSight::new(activity, WATCHED_MS)
        }
    }

    /// The counts that the framework of a script has recorded; none before the script has its group.
    fn recorded_of(&self, process: u32) -> Option<RecordedCollectives> {
        let program = &self.processes[process as usize].program;
        let entered = u64::from(program.operation);
        let is_inside = program.stage == ProgramStage::Reducing;
        let completed = entered - u64::from(is_inside);
        let is_recorded = self.scripts_are_recorded() && entered > 0;
        is_recorded.then_some(RecordedCollectives { entered, completed })
    }

    /// Whether the framework of the scripts records their collectives.
    fn scripts_are_recorded(&self) -> bool {
        !self.options.job.is_in_process() && self.scenario.scripts_are_recorded
    }

    /// The wait of a script, as its agent sees it. None for a program that uses the library: nobody looks at its wait, since it
    /// reports its own position.
    fn waits_in(&self, process: u32) -> Option<String> {
        let entry = &self.processes[process as usize];
        let is_in_collective = entry.program.stage == ProgramStage::Reducing;
        let waits_in = if is_in_collective { "an event" } else { "a lock" };
        entry.is_script.then(|| waits_in.to_owned())
    }

    /// An agent begins to look at a process.
    pub(crate) fn agent_inspects(&mut self, host: u32, worker: &WorkerId, with_stack: bool) {
        let Some(process) = self.process_of(self.job_of_agent(host), worker) else { return };
        let life = self.hosts[host as usize].lives;
        let at = self.now + mix(self.now, u64::from(process)) % LOOK_NS;
        self.agenda.push(at, Happening::Inspected { host, life, process, with_stack });
    }

    /// An agent has looked at a process. There is no answer if the process has ended.
    pub(super) fn handle_inspected(
        &mut self,
        (host, life): (u32, u32),
        process: u32,
        with_stack: bool,
    ) {
        if !self.processes[process as usize].is_alive {
            return;
        }
        let sight = Box::new(self.sight_of(process, with_stack));
        let worker = self.processes[process as usize].id.clone();
        let Some(agent) = self.agent_mut(host, life) else { return };
        if agent.stopped > 0 {
            let again = Happening::Inspected { host, life, process, with_stack };
            return agent.frozen.push(again);
        }
        match agent.node() {
            Some(node) => node.process_event(ProcessEvent::Inspected { worker, sight }),
            None => self.with_agent(host, life, |core, _now| core.handle_inspected(&worker, sight)),
        }
    }

    /// Checks a member that the driver names as hanging: others wait for it, and it does not wait itself. It is named only
    /// after a wait that is longer than usual, and with its stack if a stack is wanted.
    pub(super) fn check_stalled(
        &mut self,
        worker: &WorkerId,
        late_ms: u64,
        stack: Option<&str>,
        native_stack: Option<&str>,
    ) -> Result<(), String> {
        let Some(process) = self.process_of(self.driver.job, worker) else {
            return Err(format!("hangs: {worker} is said to hang, and there is no such worker"));
        };
        self.turn_hang_watch();
        let entry = &self.processes[process as usize];
        let waits = entry.program.stage == ProgramStage::Reducing
            && entry.program.waits_since + GOES_ON_NS < self.now
            && entry.program.stamp == self.driver.stamp;
        if waits && self.heard_all_the_time(process) {
            return Err(format!("hangs: {worker} is said to hang, and waits for others itself"));
        }
        // As a generation ends, the others have come to rest, and wait in no collective.
        let ends = self.driver.phase == ObservedPhase::Gather || self.has_resting_member();
        let waited_ns = self.longest_wait_ns();
        if late_ms * MS > waited_ns + GOES_ON_NS && self.driver_acts_since(ON_THE_WAY_NS) && !ends {
            let waited_ms = waited_ns / MS;
            return Err(format!(
                "hangs: others are said to have waited {late_ms} ms for {worker}, and nobody has for more than {waited_ms} ms"
            ));
        }
        let config = &self.scenario.driver;
        // The driver may have heard of a stop, and not of its end.
        let was_stopped = entry.continued_at.is_some_and(|at| at + ON_THE_WAY_NS > self.now);
        let is_stopped = entry.stopped > 0 || was_stopped || entry.program.has_returned();
        if config.hang_timeout.is_none() && !is_stopped {
            let least_ms = match (self.hangs_in_section(process), self.hangs.knows_section) {
                (true, false) => COLD_MS,
                // The driver may still take it for one in the section.
                (_, true) if may_hang_in_section(worker) => WAITING_MS,
                // A member that has not committed yet has other usual waits.
                _ => WAITING_MS.max(self.hangs.longest_ms * FACTOR).min(COLD_MS),
            };
            if late_ms < least_ms {
                return Err(format!(
                    "hangs: {worker} is said to hang after {late_ms} ms, and {least_ms} ms are usual"
                ));
            }
        }
        let wants_stack = config.on_hang != OnHang::Tell && !is_stopped;
        for (shown, expected) in
            [(stack, stack_of(worker)), (native_stack, native_stack_of(worker))]
        {
            match shown {
                Some(stack) if stack != expected => {
                    return Err(format!("hangs: {worker} is shown with another stack: {stack}"));
                }
                None if wants_stack && self.agent_answers(process) => {
                    return Err(format!("hangs: {worker} hangs, and its stack is not shown"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks a member that the driver names since it is silent: somebody has stopped it, or had a short while ago.
    pub(super) fn check_silent(&self, worker: &WorkerId) -> Result<(), String> {
        let Some(process) = self.process_of(self.driver.job, worker) else {
            return Err(format!("hangs: {worker} is said to be stopped, and there is none"));
        };
        let entry = &self.processes[process as usize];
        let was_stopped = entry.continued_at.is_some_and(|at| at + ON_THE_WAY_NS > self.now);
        // A driver that stood still names what an agent saw before.
        let is_excused = !self.driver_acts_since(ON_THE_WAY_NS);
        match entry.stopped > 0 || was_stopped || is_excused {
            true => Ok(()),
            false => Err(format!("hangs: {worker} is said to be stopped, and is not")),
        }
    }

    /// Checks a script that the driver names: it hangs, or did a short while ago, and is shown with its own stack.
    pub(super) fn check_inactive(
        &mut self,
        worker: &WorkerId,
        grounds: &HangGrounds,
        native_stack: Option<&str>,
    ) -> Result<(), String> {
        let Some(process) = self.process_of(self.driver.job, worker) else {
            return Err(format!("inactivity: {worker} is said to hang, and there is none"));
        };
        let entry = &self.processes[process as usize];
        let lately = |at: Option<u64>| at.is_some_and(|at| at + LOOKED_AT_NS > self.now);
        let hangs = entry.thread_hangs > 0
            // The others have formed the group already, and its links are cut.
            || entry.program.stage == ProgramStage::Forming
            || entry.stopped > 0
            || entry.hangs
            || !entry.is_alive
            || lately(entry.continued_at)
            || lately(entry.thread_continued_at);
        // Some were looked at before another went on, and some after it.
        let members = self.driver.members.iter();
        let has_gone_on = members
            .filter_map(|member| self.processes.get(*member as usize))
            .any(|member| lately(member.continued_at) || lately(member.thread_continued_at));
        let was_mended = self.link_mended_at.is_some_and(|at| at + COMPARED_NS > self.now);
        let hangs = hangs || has_gone_on || was_mended;
        if !hangs && grounds.sureness != HangSureness::Possible {
            return Err(format!("inactivity: {worker} is said to hang, and does not: {grounds}"));
        }
        match native_stack.filter(|stack| *stack != native_stack_of(worker)) {
            Some(stack) => {
                Err(format!("inactivity: {worker} is shown with another stack: {stack}"))
            }
            None => Ok(()),
        }
    }

    /// Checks that a script is named that hangs alone, while all others wait for it.
    fn check_inactive_is_named(&mut self) -> Result<(), String> {
        let hanging = self.hanging_script();
        let since = match (self.hangs.hangs_since, hanging) {
            (Some((known, since)), Some(process)) if known == process => since,
            _ => self.now,
        };
        self.hangs.hangs_since = hanging.map(|process| (process, since));
        let Some(process) = hanging else { return Ok(()) };
        if self.now - since < self.inactive_bound() {
            return Ok(());
        }
        let (now, id) =
            (self.driver.clock.local(self.now), self.processes[process as usize].id.clone());
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        let status = cores.driver.status(now, &|time| time.to_string());
        let is_it = |host, slot| host == &id.host && slot == id.slot;
        match status.stalled.iter().any(|stalled| is_it(&stalled.host, stalled.slot)) {
            true => Ok(()),
            false => Err(format!(
                "inactivity: {id} alone has hung for {} ms, and is not named: {:?}",
                (self.now - since) / MS,
                status.stalled
            )),
        }
    }

    /// Longest time until a script that hangs alone, while all others wait for it, is named. It is the sum of the inactivity
    /// required, one look until the script is known to be inactive, one look that finds it inactive for long enough, and the
    /// time for its stacks.
    fn inactive_bound(&self) -> u64 {
        let cap = self.scenario.driver.hang_timeout.map(|cap| cap.as_nanos() as u64);
        let limit = cap.map_or(INACTIVE_NS, |cap| cap.min(INACTIVE_NS));
        let look_every = (limit / 4).clamp(LOOK_EVERY_MIN_NS, LOOK_EVERY_NS);
        limit + look_every * 2 + NAMED_AFTER_NS
    }

    /// The script that hangs while all others wait in a collective and their agents answer. There are at least two others if no
    /// recorder tells which members have not entered the collective. Nothing is said of a generation with a member that was never
    /// started.
    fn hanging_script(&self) -> Option<u32> {
        let members = &self.driver.members;
        let is_there = !self.keeps_processes()
            && self.driver.phase == ObservedPhase::Run
            && self.driver_acts_since(self.inactive_bound())
            && !members.contains(&NONE)
            && members.len() > if self.scripts_are_recorded() { 1 } else { 2 };
        let hangs = |process: u32| {
            let entry = &self.processes[process as usize];
            entry.thread_hangs > 0 && entry.program.stage != ProgramStage::Reducing
        };
        let waits = |process: u32| {
            let entry = &self.processes[process as usize];
            entry.thread_hangs == 0
                && entry.program.stage == ProgramStage::Reducing
                && entry.program.stamp == self.driver.stamp
        };
        let is_seen = |process: u32| {
            let entry = &self.processes[process as usize];
            entry.is_alive && entry.stopped == 0 && self.agent_answers(process)
        };
        let hanging = members.iter().copied().find(|process| is_there && hangs(*process))?;
        let all = members
            .iter()
            .all(|process| is_seen(*process) && (*process == hanging || waits(*process)));
        all.then_some(hanging)
    }

    /// Notes that a wait has ended by itself, and whether the driver counts it among the usual ones of steps.
    pub(super) fn note_stall_ended(&mut self, ms: f64, usual: bool) {
        self.turn_hang_watch();
        if usual {
            self.hangs.longest_ms = self.hangs.longest_ms.max(ms as u64);
        }
    }

    /// Checks that a member is named for which others wait beyond the operator's bound. Called at each check in time.
    pub(super) fn check_hang_is_named(&mut self) -> Result<(), String> {
        self.turn_hang_watch();
        self.check_inactive_is_named()?;
        let Some(bound) = self.scenario.driver.hang_timeout else { return Ok(()) };
        let awaited = self.awaited_member().or_else(|| self.member_late_for_rest());
        let since = match (self.hangs.awaited_since, awaited) {
            (Some((known, since)), Some(process)) if known == process => since,
            _ => self.now,
        };
        self.hangs.awaited_since = awaited.map(|process| (process, since));
        let (Some(process), lasted) = (awaited, self.now - since) else { return Ok(()) };
        if lasted < bound.as_nanos() as u64 + NAMED_AFTER_NS {
            return Ok(());
        }
        let now = self.driver.clock.local(self.now);
        let id = self.processes[process as usize].id.clone();
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        let status = cores.driver.status(now, &|time| time.to_string());
        let is_it = |host, slot| host == &id.host && slot == id.slot;
        let is_named = status.stalled.iter().any(|stalled| is_it(&stalled.host, stalled.slot));
        match is_named {
            true => Ok(()),
            false => Err(format!(
                "hangs: others have waited for {id} for {} ms, and it is not named: {:?}",
                lasted / MS,
                status.stalled
            )),
        }
    }

    /// Whether a member of the generation formed last has come to rest.
    fn has_resting_member(&self) -> bool {
        let entries = self.driver.members.iter().filter_map(|it| self.processes.get(*it as usize));
        entries.into_iter().any(|entry| entry.is_alive && entry.program.is_at_rest())
    }

    /// Whether the driver waits for this worker as a generation ends.
    fn holds_up_next(&self, worker: &WorkerId) -> bool {
        let Some(cores) = self.driver.cores_here() else {
            return self.driver.phase == ObservedPhase::Gather;
        };
        let status =
            cores.driver.status(self.driver.clock.local(self.now), &|time| time.to_string());
        let id = worker.to_string();
        status.awaited.iter().any(|it| it.worker == id && it.why.starts_with("to "))
    }

    /// The member whose thread hangs outside of all collectives while another one has come to rest after the end of their
    /// generation, if both are heard.
    fn member_late_for_rest(&self) -> Option<u32> {
        let is_there = self.driver.phase == ObservedPhase::Gather
            && self.driver_acts_since(ON_THE_WAY_NS)
            && self.keeps_processes();
        // A member whose process was never started has no entry.
        let exists = |process: &u32| (*process as usize) < self.processes.len();
        let members = || self.driver.members.iter().copied().filter(|it| is_there && exists(it));
        let is_heard = |process: u32| {
            let entry = &self.processes[process as usize];
            entry.is_alive && entry.stopped == 0 && self.heard_all_the_time(process)
        };
        let rests = |process: u32| {
            is_heard(process) && self.processes[process as usize].program.is_at_rest()
        };
        let has_rested = members().any(rests);
        members().find(|process| {
            let entry = &self.processes[*process as usize];
            has_rested
                && is_heard(*process)
                && entry.thread_hangs > 0
                && entry.program.stage == ProgramStage::Computing
                && entry.program.stamp == self.driver.stamp
                && !self.hangs_in_another_collective(*process)
                && self.holds_up_next(&entry.id)
        })
    }

    /// The member whose thread hangs outside of all collectives while another one waits, if everybody is heard.
    fn awaited_member(&self) -> Option<u32> {
        let is_there = self.driver.phase == ObservedPhase::Run
            && self.driver_acts_since(ON_THE_WAY_NS)
            && self.keeps_processes();
        let members = || self.driver.members.iter().copied().filter(|_| is_there);
        let in_stage = |process: u32, stage: ProgramStage| {
            let entry = &self.processes[process as usize];
            entry.is_alive
                && entry.stopped == 0
                && entry.program.stage == stage
                && entry.program.stamp == self.driver.stamp
                && entry.program.aborted < self.driver.stamp
                && self.heard_all_the_time(process)
        };
        let has_waiter = members().any(|process| in_stage(process, ProgramStage::Reducing));
        // A thread in another collective is named only if all others wait in one. Otherwise it may be waiting itself.
        let all_wait_for = |hanging: u32| {
            let mut others = members().filter(|process| *process != hanging);
            others.all(|process| in_stage(process, ProgramStage::Reducing))
        };
        members().find(|process| {
            has_waiter
                && (!self.hangs_in_another_collective(*process) || all_wait_for(*process))
                && self.processes[*process as usize].thread_hangs > 0
                && in_stage(*process, ProgramStage::Computing)
        })
    }

    /// Longest time that a member of the generation has waited in its present collective, or in one that has just ended, in
    /// nanoseconds.
    fn longest_wait_ns(&self) -> u64 {
        let waits = self.driver.members.iter().filter_map(|process| {
            let program = &self.processes.get(*process as usize)?.program;
            let is_in_it =
                program.stage == ProgramStage::Reducing && program.stamp == self.driver.stamp;
            is_in_it.then(|| self.now - program.waits_since)
        });
        // The driver may not have heard yet that a wait has ended.
        let ended = self.hangs.ended_wait.filter(|(at, _)| at + GOES_ON_NS > self.now);
        waits.chain(ended.map(|(_, lasted)| lasted)).max().unwrap_or_default()
    }

    /// Notes that a process is in no collective any more: it has ended or failed, or the process has.
    pub(super) fn note_collective_ended(&mut self, process: u32) {
        if self.processes[process as usize].program.stage != ProgramStage::Reducing {
            return;
        }
        let lasted = self.now - self.processes[process as usize].program.waits_since;
        let recent = self.hangs.ended_wait.filter(|(at, _)| at + GOES_ON_NS > self.now);
        if recent.is_none_or(|(_, longest)| lasted >= longest) {
            self.hangs.ended_wait = Some((self.now, lasted));
        }
    }

    /// Whether the driver has heard a worker without a gap.
    fn heard_all_the_time(&self, process: u32) -> bool {
        let link = self.processes[process as usize].link;
        let entry = &self.links[link as usize];
        entry.is_in_touch()
            && entry.life == self.driver.life
            && !self.was_deaf(link, ON_THE_WAY_NS)
            && self.driver_acts_since(ON_THE_WAY_NS)
    }

    /// Whether the agent of a process answers the driver.
    fn agent_answers(&self, process: u32) -> bool {
        let entry = &self.processes[process as usize];
        let host = &self.hosts[entry.host as usize];
        host.extra_delay == 0
            && host.agent.as_ref().is_some_and(|agent| {
                let link = &self.links[agent.link as usize];
                agent.stopped == 0
                    && agent.life == entry.agent_life
                    && link.is_in_touch()
                    && link.life == self.driver.life
                    && !self.was_deaf(agent.link, ON_THE_WAY_NS)
            })
            && self.driver_acts_since(ON_THE_WAY_NS)
    }

    fn turn_hang_watch(&mut self) {
        if self.hangs.life != self.driver.life {
            self.hangs = HangWatch { life: self.driver.life, ..HangWatch::default() };
        }
    }
}

/// Whether a worker's thread is in a section whenever it hangs: so it is for every other worker.
const fn may_hang_in_section(worker: &WorkerId) -> bool {
    worker.incarnation.0 % 2 == 1
}

/// Whether a worker's thread is in a collective of a sub-group whenever it hangs between steps.
const fn may_hang_in_another_collective(worker: &WorkerId) -> bool {
    worker.incarnation.0.is_multiple_of(4)
}

fn native_stack_of(worker: &WorkerId) -> String {
    format!("step ({worker})\n")
}

fn stack_of(worker: &WorkerId) -> String {
    format!("File \"{worker}\", line 1 in step")
}
