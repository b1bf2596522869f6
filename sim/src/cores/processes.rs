//! Worker processes: started by an agent, signalled, stopped, ended. Part of the simulated world.

use std::collections::VecDeque;
use std::net::SocketAddr;

use elastic_protocol::messages::{JobPhase, LibraryTrace};
use elastic_protocol::{Deadlines, ExitStatus, NodeId, Stamp, WorkerId};
use elastic_worker::state::core::{StateConfig, StateCore};

use super::driver::job_id;
use super::network::LinkOwner;
use super::program::TrainingProgram;
use super::seats::StateSeat;
use super::stops::Stopping;
use super::{Happening, MS, World};
use crate::clock::NodeClock;
use crate::trace::{TraceKind, TracePlace};

/// Time allowed beside the waits after which a continued driver notices a death.
const NOTICE_SLACK_NS: u64 = 4_000 * MS;

/// Time within which an agent that runs again has reported the events of its pause.
pub(super) const CATCH_UP_NS: u64 = 2_000 * MS;

/// Exit status of a process whose library the driver has refused.
pub(super) const REFUSED_STATUS: ExitStatus = ExitStatus::Code(1);

/// A worker's process.
#[derive(Debug)]
pub(super) struct SimulatedProcess {
    pub(super) id: WorkerId,
    pid: u32,
    pub(super) host: u32,
    /// The job of the worker.
    pub(super) job: u32,
    /// The life of the agent that started the process.
    pub(super) agent_life: u32,
    pub(super) link: u32,
    pub(super) place: TracePlace,
    pub(super) state: StateSeat,
    pub(super) clock: NodeClock,
    pub(super) armed: u64,
    pub(super) stopped: u32,
    /// World time at which it went on after it had been stopped.
    pub(super) continued_at: Option<u64>,
    pub(super) frozen: Vec<Happening>,
    /// Number of faults that block the training thread; `thread_frozen` keeps its events meanwhile.
    pub(super) thread_hangs: u32,
    thread_frozen: Vec<Happening>,
    /// World time at which its training thread went on after it had hung.
    pub(super) thread_continued_at: Option<u64>,
    /// Exit status, once the process has ended.
    pub(super) end: Option<ExitStatus>,
    pub(super) is_alive: bool,
    /// Whether the process has come to the library, which handles SIGTERM from then on.
    pub(super) has_booted: bool,
    /// Whether the process never comes to the library.
    pub(super) hangs: bool,
    /// Whether the process's library is of another release than the driver, which refuses it.
    pub(super) is_of_other_release: bool,
    /// Whether the process is a script, which knows nothing of the library and lives for one generation.
    pub(super) is_script: bool,
    /// Whether the process was told to leave. Its state may be lost with it.
    pub(super) is_leaving: bool,
    /// Whether that is only because its host was blacklisted, and a driver may take it back with its host.
    leaves_with_host: bool,
    /// The life of the driver that has decided to put the process out, until its order arrives. The order waits for the
    /// driver's journal, and is never given if the driver ends before that.
    pub(super) put_out_by: Option<u32>,
    pub(super) program: TrainingProgram,
    /// The address of its host at which the process listens for its peers, as it has told its State.
    pub(super) address: u8,
    /// Whether SIGTERM is pending until the process continues.
    pending_terminate: bool,
    pub(super) stopping: Stopping,
}

impl SimulatedProcess {
    /// Whether the process has ended.
    pub(super) fn has_died(&self) -> bool {
        !self.is_alive
    }

    /// The process's use of the library.
    pub(super) fn library(&self) -> LibraryTrace {
        if self.is_of_other_release && self.end == Some(REFUSED_STATUS) {
            return LibraryTrace::Refused("elastic-node 0.0.0, simulated".to_owned());
        }
        match self.has_booted && !self.is_script {
            true => LibraryTrace::Used,
            false => LibraryTrace::Unseen,
        }
    }

    /// The process id.
    pub(super) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Samples of the process's last commit.
    pub(super) fn saved_progress(&self) -> Option<u64> {
        self.is_alive.then(|| self.program.saved.as_ref().map(|saved| saved.model.samples))?
    }

    /// Notes that the process itself is told to leave, whatever becomes of its host.
    pub(super) const fn note_told_to_leave(&mut self) {
        (self.is_leaving, self.leaves_with_host) = (true, false);
    }

    /// Notes that its host is blacklisted: the process leaves with it, unless a driver takes both back.
    pub(super) const fn note_host_blacklisted(&mut self) {
        self.leaves_with_host |= !self.is_leaving;
        self.is_leaving = true;
    }

    /// Notes that the process is a member again, and so does not leave with its host.
    pub(super) const fn note_taken_back(&mut self) {
        self.is_leaving &= !self.leaves_with_host;
        self.leaves_with_host = false;
    }

    /// Whether the process was told to leave, or is about to be told.
    pub(super) const fn is_to_leave(&self) -> bool {
        self.is_leaving || self.put_out_by.is_some()
    }

    /// Whether the process runs and is there to stay: neither it nor its host was told to go.
    pub(super) fn stays(&self) -> bool {
        self.is_alive
            && self.stopped == 0
            && self.thread_hangs == 0
            && !self.is_to_leave()
            && !self.state.is_exited()
            && !self.program.is_exiting()
    }
}

/// Address at which a process listens for its peers. `address` numbers the addresses of its host.
pub(super) fn data_address(host: u32, address: u8, process: u32) -> SocketAddr {
    let port = 10_000 + (process % 50_000) as u16;
    SocketAddr::from(([10, (host >> 8) as u8, host as u8, address], port))
}

impl World {
    /// Starts a process. Returns its number and its process id.
    pub(super) fn start_process(
        &mut self,
        host: u32,
        (agent_life, job): (u32, u32),
        id: WorkerId,
        is_script: bool,
    ) -> (u32, u32) {
        self.disturb();
        let index = self.processes.len() as u32;
        let pid = 1_000 + index;
        let entry = &self.hosts[host as usize];
        let (hangs, address) = (entry.hang_start > 0, entry.address);
        let is_of_other_release = entry.other_release > 0 && !is_script;
        let clock = NodeClock::new(self.now, entry.ppm);
        let place = TracePlace { host, slot: id.slot };
        self.record(TraceKind::Start, place, (id.incarnation.0, u64::from(pid)), || id.to_string());
        let config = StateConfig {
            job: job_id(self.options.seed, job),
            worker: id.clone(),
            pid,
            data_address: data_address(host, address, index),
            deadlines: Deadlines::default(),
        };
        let state = match self.hub {
            None => StateSeat::Core(Box::new(StateCore::new(config, clock.local(self.now)))),
            Some(_) => {
                let config = Some(Box::new(config));
                StateSeat::Actor { config, node: None, is_exited: false }
            }
        };
        let owner = LinkOwner::Worker { process: index };
        let node = Some(NodeId::worker(&id));
        let incarnation = id.incarnation.0;
        self.processes.push(SimulatedProcess {
            pid,
            id,
            host,
            job,
            agent_life,
            link: self.links.len() as u32,
            place,
            state,
            clock,
            armed: u64::MAX,
            stopped: 0,
            continued_at: None,
            frozen: Vec::new(),
            thread_hangs: 0,
            thread_continued_at: None,
            thread_frozen: Vec::new(),
            end: None,
            is_alive: true,
            has_booted: false,
            hangs,
            is_of_other_release,
            is_script,
            is_leaving: false,
            leaves_with_host: false,
            put_out_by: None,
            address,
            program: TrainingProgram::default(),
            pending_terminate: false,
            stopping: Stopping::default(),
        });
        self.hosts[host as usize].processes.push(index);
        let boot = self.draw_ns(self.scenario.boot_ns / 2, self.scenario.boot_ns);
        let boot_at = self.now + boot * self.hosts[host as usize].slow_times.min(4);
        let never_dials = hangs || is_script || is_of_other_release;
        let dial_at = if never_dials { u64::MAX } else { boot_at };
        let link = self.new_link(owner, host, node, place).of_job(job);
        let link = self.add_link(link, dial_at);
        self.know(job, incarnation, link);
        if !hangs {
            self.agenda.push(boot_at, Happening::Booted { process: index });
        }
        (index, pid)
    }

    pub(super) fn handle_signalled(&mut self, process: u32, kills: bool) {
        let stubborn = self.scenario.stubborn;
        let entry = &mut self.processes[process as usize];
        if !entry.is_alive {
            return;
        }
        entry.note_told_to_leave();
        let place = entry.place;
        if kills {
            self.record(TraceKind::Signal, place, (9, 0), String::new);
            return self.end_process(process, ExitStatus::Signal(9), false);
        }
        if entry.stopped > 0 {
            entry.pending_terminate = true;
            return;
        }
        let has_booted = entry.has_booted;
        self.record(TraceKind::Signal, place, (15, 0), String::new);
        if stubborn {
            return;
        }
        if has_booted {
            self.terminate_state(process);
        } else {
            self.end_process(process, ExitStatus::Signal(15), false);
        }
    }

    /// Sends SIGKILL.
    pub(super) fn kill_process(&mut self, process: u32) {
        self.end_process(process, ExitStatus::Signal(9), false);
    }

    /// Sends SIGSTOP.
    pub(super) fn stop_process(&mut self, process: u32) {
        let entry = &mut self.processes[process as usize];
        if entry.is_alive {
            entry.stopped += 1;
            if let Some(node) = entry.state.node() {
                node.set_stopped(true);
            }
            let (place, link) = (entry.place, entry.link);
            self.record(TraceKind::Signal, place, (19, 0), String::new);
            self.reopen(link);
        }
    }

    /// Sends SIGCONT.
    pub(super) fn continue_process(&mut self, process: u32, depth: u32) {
        let now = self.now;
        let entry = &mut self.processes[process as usize];
        if !entry.is_alive || entry.stopped == 0 {
            return;
        }
        entry.stopped -= depth.min(entry.stopped);
        if entry.stopped > 0 {
            return;
        }
        entry.continued_at = Some(now);
        if let Some(node) = entry.state.node() {
            node.set_stopped(false);
        }
        let (place, link) = (entry.place, entry.link);
        let frozen = std::mem::take(&mut entry.frozen);
        if frozen.iter().any(|happening| matches!(happening, Happening::StateTimer { .. })) {
            entry.armed = now;
        }
        let terminates = std::mem::take(&mut entry.pending_terminate);
        self.record(TraceKind::Signal, place, (18, 0), String::new);
        if terminates {
            self.agenda.push(now, Happening::Signalled { process, kills: false });
        }
        for happening in frozen {
            self.agenda.push(now, happening);
        }
        self.reopen(link);
    }

    /// Lets a training thread go on.
    pub(super) fn continue_thread(&mut self, process: u32, depth: u32) {
        let now = self.now;
        self.note_thread_goes_on(process);
        let entry = &mut self.processes[process as usize];
        if entry.thread_hangs == 0 {
            return;
        }
        entry.thread_hangs -= depth.min(entry.thread_hangs);
        if entry.thread_hangs > 0 || !entry.is_alive {
            return;
        }
        entry.thread_continued_at = Some(now);
        for happening in std::mem::take(&mut entry.thread_frozen) {
            self.agenda.push(now, happening);
        }
    }

    /// The program's `main` has returned: ends the process.
    pub(super) fn handle_exited(&mut self, process: u32, code: i32) {
        if self.freeze(process, Happening::Exited { process, code }) {
            return;
        }
        self.end_process(process, ExitStatus::Code(code), true);
    }

    /// Ends a process. Its agent sees that, the driver's link breaks, and collectives of its group break.
    pub(super) fn end_process(&mut self, process: u32, status: ExitStatus, is_clean: bool) {
        if !self.processes[process as usize].is_alive {
            return;
        }
        self.check_end(process);
        self.note_collective_ended(process);
        self.disturb();
        let entry = &mut self.processes[process as usize];
        entry.is_alive = false;
        entry.stopping.ended_at = Some(self.now);
        entry.state.end();
        entry.end = Some(status);
        let (place, host, life, link) = (entry.place, entry.host, entry.agent_life, entry.link);
        let code = u64::from(status.shell_code().unsigned_abs());
        self.record(TraceKind::Exit, place, (code, u64::from(process)), || status.to_string());
        self.hosts[host as usize].processes.retain(|other| *other != process);
        let entry = &self.processes[process as usize];
        let held_lock = entry.has_booted && !entry.is_script && !is_clean;
        if held_lock && self.scenario.clearing_ns > 0 {
            // The kernel lets go of the lock first.
            let (seen, clearing) =
                (self.draw_ns(20_000, 500_000), self.draw_ns(0, self.scenario.clearing_ns));
            self.end_peer(link, false, false);
            self.agenda.push(self.now + seen, Happening::Dying { host, life, process });
            self.agenda.push(self.now + clearing, Happening::Cleared { host, life, process });
        } else {
            let is_told = self.scenario.death_is_told;
            self.end_peer(link, is_clean, is_told);
            self.handle_cleared(host, life, process);
        }
        self.expect_notice(process);
    }

    /// The memory of a dead process is cleared: its peers' connections break, and its agent gets its exit status.
    pub(super) fn handle_cleared(&mut self, host: u32, life: u32, process: u32) {
        self.break_groups_of(process);
        if self.agent_mut(host, life).is_some() {
            let wait = self.draw_ns(100_000, 2 * MS);
            self.agenda.push(self.now + wait, Happening::Reaped { host, life, process });
        }
    }

    /// Ends a process whose host has lost power. No other node is told.
    pub(super) fn vanish(&mut self, process: u32) {
        self.note_collective_ended(process);
        self.disturb();
        let entry = &mut self.processes[process as usize];
        entry.is_alive = false;
        entry.stopping.ended_at = Some(self.now);
        entry.state.end();
        entry.end = Some(ExitStatus::Signal(9));
        let (place, link) = (entry.place, entry.link);
        self.record(TraceKind::Exit, place, (u64::MAX, u64::from(process)), String::new);
        self.end_peer(link, false, false);
        self.expect_notice(process);
    }

    /// Postpones an event for a stopped process. True if the process is stopped or dead.
    pub(super) fn freeze(&mut self, process: u32, happening: Happening) -> bool {
        let entry = &mut self.processes[process as usize];
        if !entry.is_alive {
            return true;
        }
        if entry.stopped > 0 {
            entry.frozen.push(happening);
            return true;
        }
        if entry.thread_hangs > 0 && happening.is_of_a_thread() {
            entry.thread_frozen.push(happening);
            return true;
        }
        false
    }

    /// Schedules a check of G-12: the driver must end the generation of a dead member within the time of a silent
    /// host.
    pub(super) fn expect_notice(&mut self, process: u32) {
        if self.driver.members.contains(&process) {
            let deadlines = self.scenario.driver.deadlines;
            let bound = deadlines.lost + deadlines.suspect * 2;
            let at = self.now + bound.as_nanos() as u64;
            let generation = self.driver.stamp;
            self.agenda.push(at, Happening::Noticed { process, generation });
        }
    }

    /// Longest time until a continued driver notices a death. After a pause of its own it judges no silence for twice `lost` and 2 s,
    /// then it waits for `lost`.
    fn notice_ns(&self) -> u64 {
        3 * self.scenario.driver.deadlines.lost.as_nanos() as u64 + NOTICE_SLACK_NS
    }

    pub(super) fn check_noticed(&mut self, process: u32, generation: Stamp) {
        use super::driver::ObservedPhase;
        // Another job's generation may have the same number.
        let is_under_way = self.driver.stamp == generation
            && self.driver.job == self.processes[process as usize].job
            && matches!(self.driver.phase, ObservedPhase::Form | ObservedPhase::Run);
        if !is_under_way || self.is_over() {
            return;
        }
        let host = self.processes[process as usize].host;
        let agent = self.hosts[host as usize].agent.as_ref();
        // A starved agent that was killed is waited for as a silent one, and the next agent waits with it.
        let lost_ns = self.scenario.driver.deadlines.lost.as_nanos() as u64;
        let gone_at = self.hosts[host as usize].starved_gone_at;
        let was_starved = gone_at > 0 && self.now < gone_at + lost_ns + CATCH_UP_NS;
        let is_awaited = agent.is_none_or(|agent| {
            let seen_from = agent.continued_at.max(agent.starved_until);
            agent.waits_for_its_machine() || self.now < seen_from + CATCH_UP_NS
        });
        // By restart nobody but the agent sees a death, and a starved one is waited for.
        let is_unseen = !self.keeps_processes() && (is_awaited || was_starved);
        let is_excused = is_unseen
            || !self.driver_acts_since(self.notice_ns())
            || self.processes[process as usize].program.has_returned()
            || self.job_fails()
            || self.is_at_reset_limit();
        if is_excused {
            let at = self.now + 5_000 * MS;
            if !self.processes[process as usize].program.has_returned() {
                self.agenda.push(at, Happening::Noticed { process, generation });
            }
            return;
        }
        let id = self.processes[process as usize].id.clone();
        self.fail_safety(format!(
            "G-12: {id} is dead, and generation {} still goes on with it",
            generation.generation
        ));
    }

    /// Whether one more reset fails the job. A driver of actors cannot be asked whether it has decided so.
    fn is_at_reset_limit(&self) -> bool {
        let resets = self.oracle.resets_of(self.driver.job);
        self.scenario.driver.reset_limit.is_some_and(|max| resets >= u64::from(max))
    }

    /// Whether the driver has decided that the job fails, and waits for last words until it says so.
    fn job_fails(&self) -> bool {
        let now = self.driver.clock.local(self.now);
        let glance = self.driver.cores_here().map(|cores| cores.driver.glance(now));
        glance.is_some_and(|glance| glance.phase == JobPhase::Failed)
    }
}

/// A queue between two threads, in order.
#[derive(Debug)]
pub(super) struct Hop<T> {
    /// Items with the world time of their arrival.
    pub(super) items: VecDeque<(u64, T)>,
    pub(super) last_at: u64,
}

impl<T> Default for Hop<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), last_at: 0 }
    }
}
