//! Worker processes: started by an agent, signalled, stopped, ended.

use std::collections::VecDeque;
use std::net::SocketAddr;

use elastic_protocol::{Deadlines, ExitStatus, NodeId, Stamp, WorkerId};
use elastic_worker::state::core::{StateConfig, StateCore};

use super::driver::job_id;
use super::network::{Link, Owner};
use super::program::Program;
use super::seats::StateSeat;
use super::{Happening, MS, World};
use crate::clock::NodeClock;
use crate::trace::{Kind, Place};

/// A worker's process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: WorkerId,
    pub(super) host: u32,
    /// Whose worker it is.
    pub(super) job: u32,
    /// Which life of the agent started it.
    agent_life: u32,
    pub(super) link: u32,
    pub(super) place: Place,
    pub(super) state: StateSeat,
    pub(super) clock: NodeClock,
    pub(super) armed: u64,
    pub(super) stopped: u32,
    pub(super) frozen: Vec<Happening>,
    /// How it ended, once it has.
    pub(super) end: Option<ExitStatus>,
    pub(super) is_alive: bool,
    /// Whether it has come to the library, which takes SIGTERM for it.
    pub(super) has_booted: bool,
    /// Whether it never will.
    pub(super) hangs: bool,
    /// Whether it is a script, which knows nothing of the library and lives for one generation.
    pub(super) is_script: bool,
    /// Whether somebody wants it to go, so that its state may go with it.
    pub(super) is_leaving: bool,
    pub(super) program: Program,
    /// A signal that waits until it runs again.
    pending_terminate: bool,
}

impl Process {
    /// Whether it has ended, or is about to.
    pub(super) fn has_died(&self) -> bool {
        !self.is_alive
    }

    /// How many samples its last commit has seen.
    pub(super) fn saved_progress(&self) -> Option<u64> {
        self.is_alive.then(|| self.program.saved.as_ref().map(|saved| saved.model.samples))?
    }

    /// Whether it is there to stay: nobody has told it, or its host, to go.
    pub(super) fn stays(&self) -> bool {
        self.is_alive
            && self.stopped == 0
            && !self.is_leaving
            && !self.state.is_exited()
            && !self.program.is_exiting()
    }
}

impl World {
    /// A process is there; its number and its process id are the answer.
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
        let hangs = entry.hang_start > 0;
        let clock = NodeClock::new(self.now, entry.ppm);
        let place = Place { host, slot: id.slot };
        self.record(Kind::Start, place, (id.incarnation.0, u64::from(pid)), || id.to_string());
        let port = 10_000 + (index % 50_000) as u16;
        let config = StateConfig {
            job: job_id(self.options.seed, job),
            worker: id.clone(),
            pid,
            data_address: SocketAddr::from(([10, (host >> 8) as u8, host as u8, 1], port)),
            deadlines: Deadlines::default(),
        };
        let state = match self.hub {
            None => StateSeat::Core(Box::new(StateCore::new(config, clock.local(self.now)))),
            Some(_) => {
                let config = Some(Box::new(config));
                StateSeat::Actor { config, node: None, is_exited: false }
            }
        };
        let owner = Owner::Worker { process: index };
        let node = Some(NodeId::worker(&id));
        let incarnation = id.incarnation.0;
        self.processes.push(Process {
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
            frozen: Vec::new(),
            end: None,
            is_alive: true,
            has_booted: false,
            hangs,
            is_script,
            is_leaving: false,
            program: Program::default(),
            pending_terminate: false,
        });
        self.hosts[host as usize].processes.push(index);
        let boot = self.draw_ns(self.scenario.boot_ns / 2, self.scenario.boot_ns);
        let boot_at = self.now + boot * self.hosts[host as usize].slow_times.min(4);
        let dial_at = if hangs || is_script { u64::MAX } else { boot_at };
        let link = self.add_link(Link::new(owner, host, node, place).of_job(job), dial_at);
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
        entry.is_leaving = true;
        let place = entry.place;
        if kills {
            self.record(Kind::Signal, place, (9, 0), String::new);
            return self.end_process(process, ExitStatus::Signal(9), false);
        }
        if entry.stopped > 0 {
            entry.pending_terminate = true;
            return;
        }
        let has_booted = entry.has_booted;
        self.record(Kind::Signal, place, (15, 0), String::new);
        if stubborn {
            return;
        }
        if has_booted {
            self.terminate_state(process);
        } else {
            self.end_process(process, ExitStatus::Signal(15), false);
        }
    }

    /// SIGKILL.
    pub(super) fn kill_process(&mut self, process: u32) {
        self.end_process(process, ExitStatus::Signal(9), false);
    }

    /// SIGSTOP.
    pub(super) fn stop_process(&mut self, process: u32) {
        let entry = &mut self.processes[process as usize];
        if entry.is_alive {
            entry.stopped += 1;
            if let Some(node) = entry.state.node() {
                node.set_stopped(true);
            }
            let (place, link) = (entry.place, entry.link);
            self.record(Kind::Signal, place, (19, 0), String::new);
            self.reopen(link);
        }
    }

    /// SIGCONT.
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
        if let Some(node) = entry.state.node() {
            node.set_stopped(false);
        }
        let (place, link) = (entry.place, entry.link);
        let frozen = std::mem::take(&mut entry.frozen);
        if frozen.iter().any(|happening| matches!(happening, Happening::StateTimer { .. })) {
            entry.armed = now;
        }
        let terminates = std::mem::take(&mut entry.pending_terminate);
        self.record(Kind::Signal, place, (18, 0), String::new);
        if terminates {
            self.agenda.push(now, Happening::Signalled { process, kills: false });
        }
        for happening in frozen {
            self.agenda.push(now, happening);
        }
        self.reopen(link);
    }

    /// The program's `main` has returned.
    pub(super) fn handle_exited(&mut self, process: u32, code: i32) {
        if self.freeze(process, Happening::Exited { process, code }) {
            return;
        }
        self.end_process(process, ExitStatus::Code(code), true);
    }

    /// A process ends: its agent sees it, the driver's link breaks, collectives of its group break.
    pub(super) fn end_process(&mut self, process: u32, status: ExitStatus, is_clean: bool) {
        if !self.processes[process as usize].is_alive {
            return;
        }
        self.check_end(process);
        self.disturb();
        let entry = &mut self.processes[process as usize];
        entry.is_alive = false;
        entry.state.end();
        entry.end = Some(status);
        let (place, host, life, link) = (entry.place, entry.host, entry.agent_life, entry.link);
        let code = u64::from(status.shell_code().unsigned_abs());
        self.record(Kind::Exit, place, (code, u64::from(process)), || status.to_string());
        self.hosts[host as usize].processes.retain(|other| *other != process);
        let is_told = self.scenario.death_is_told;
        self.end_peer(link, is_clean, is_told);
        self.break_groups_of(process);
        if self.agent_mut(host, life).is_some() {
            let wait = self.draw_ns(100_000, 2 * MS);
            self.agenda.push(self.now + wait, Happening::Reaped { host, life, process });
        }
        self.expect_notice(process);
    }

    /// A host loses power: nobody is told anything.
    pub(super) fn vanish(&mut self, process: u32) {
        self.disturb();
        let entry = &mut self.processes[process as usize];
        entry.is_alive = false;
        entry.state.end();
        entry.end = Some(ExitStatus::Signal(9));
        let (place, link) = (entry.place, entry.link);
        self.record(Kind::Exit, place, (u64::MAX, u64::from(process)), String::new);
        self.end_peer(link, false, false);
        self.expect_notice(process);
    }

    /// Puts off what comes to a process that is stopped; true if it is stopped or dead.
    pub(super) fn freeze(&mut self, process: u32, happening: Happening) -> bool {
        let entry = &mut self.processes[process as usize];
        if !entry.is_alive {
            return true;
        }
        if entry.stopped > 0 {
            entry.frozen.push(happening);
            return true;
        }
        false
    }

    /// G-12: the driver must have ended the generation of a dead member within the time of a silent host.
    pub(super) fn expect_notice(&mut self, process: u32) {
        if self.driver.members.contains(&process) {
            let deadlines = self.scenario.driver.deadlines;
            let bound = deadlines.lost + deadlines.suspect * 2;
            let at = self.now + bound.as_nanos() as u64;
            let generation = self.driver.stamp;
            self.agenda.push(at, Happening::Noticed { process, generation });
        }
    }

    pub(super) fn check_noticed(&mut self, process: u32, generation: Stamp) {
        use super::driver::Phase;
        // Another job's generation may have the same number.
        let is_under_way = self.driver.stamp == generation
            && self.driver.job == self.processes[process as usize].job
            && matches!(self.driver.phase, Phase::Form | Phase::Run);
        if !is_under_way || self.is_over() {
            return;
        }
        let is_excused = !self.driver_acts_since(4_000 * MS)
            || self.processes[process as usize].program.has_returned();
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
}

/// A queue between two threads: what is put in comes out in order.
#[derive(Debug)]
pub(super) struct Hop<T> {
    /// With the moment when each is there.
    pub(super) items: VecDeque<(u64, T)>,
    pub(super) last_at: u64,
}

impl<T> Default for Hop<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), last_at: 0 }
    }
}
