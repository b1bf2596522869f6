//! What the driver tells of itself: the oracle's view of it.

use elastic_driver::EventKind;
use elastic_protocol::JobResult;

use super::super::network::Owner;
use super::super::processes::Process;
use super::super::{Happening, MS, World};
use super::Phase;
use crate::dataset::mix;
use crate::trace::{Kind, Place};

/// How long the word that a change was undone may take to a member that is in reach.
const RESUMPTION_NS: u64 = 5_000 * MS;

impl World {
    pub(crate) fn driver_event(&mut self, kind: EventKind) {
        let words = if self.trace.wants_words() { format!("{kind:?}") } else { String::new() };
        let (code, number) = match &kind {
            EventKind::ResetDecided { way, .. } => (1, way.len() as u64),
            EventKind::GenerationRunning { world_size } => (2, u64::from(*world_size)),
            EventKind::JobEnded { result } => (3, result.code.unsigned_abs().into()),
            EventKind::ResetDone { .. } => (4, 0),
            EventKind::ResetCalledOff { .. } => (5, 0),
            EventKind::HostsChanged { hosts } => (6, hosts.len() as u64),
            EventKind::Warning { message } => (7, message.len() as u64),
            EventKind::WorkerExited { expected, .. } => (8, u64::from(*expected)),
            _ => (9, 0),
        };
        self.record(Kind::Log, Place::DRIVER, (code, number), || words);
        match kind {
            EventKind::ResetDecided { cause, .. } => {
                let checked = self.check_interregnum(&format!("a reset is decided ({cause})"));
                self.demand(checked);
                self.driver.phase = Phase::Gather;
                self.oracle.resets += 1;
                self.record(Kind::Reset, Place::DRIVER, (self.oracle.resets, 0), String::new);
                self.release_faults_after_reset();
            }
            EventKind::WorkerStopped { worker, reason } => {
                let checked = self.check_interregnum(&format!("{worker} is stopped ({reason})"));
                self.demand(checked);
                if let Some(process) = self.process_called(&worker) {
                    let checked = self.check_stop(process, &reason);
                    self.demand(checked);
                }
            }
            EventKind::ResetCalledOff { .. } => self.expect_resumption(),
            EventKind::GenerationRunning { .. } => {
                self.driver.phase = Phase::Run;
                let generation = self.driver.stamp.generation.0;
                self.record(Kind::Run, Place::DRIVER, (generation, 0), String::new);
            }
            EventKind::JobEnded { result } => {
                self.driver.phase = Phase::Over;
                if self.driver.result.is_some() {
                    self.fail_safety("G-10: the job ended twice".to_owned());
                }
                let checked = self.check_result(&result);
                self.demand(checked);
                self.driver.result = Some(result);
            }
            _ => {}
        }
    }

    pub(crate) fn driver_ended(&mut self, result: JobResult) {
        let code = mix(u64::from(result.code.unsigned_abs()), result.reason.len() as u64);
        self.record(Kind::Ended, Place::DRIVER, (code, 0), || format!("{result:?}"));
        if self.driver.has_left {
            return self.fail_safety("G-10: the driver gave two results".to_owned());
        }
        self.driver.has_left = true;
        self.driver.result = Some(result);
        self.close_links_of(self.driver.life);
        self.driver.seat = None;
        if self.driver.life == self.newest {
            self.end_former_drivers();
            self.everybody_goes();
        }
        self.reopen_all();
    }

    /// The process of a worker that the driver's events name.
    fn process_called(&self, worker: &str) -> Option<u32> {
        let (_, number) = worker.rsplit_once('#')?;
        let link = self.link_of_incarnation(self.driver.job, number.parse().ok()?)?;
        match self.links[link as usize].owner {
            Owner::Worker { process } => Some(process),
            Owner::Agent { .. } => None,
        }
    }

    /// The driver has a worker end: G-5, nobody is put out for being late who alone holds what was acknowledged.
    fn check_stop(&mut self, process: u32, reason: &str) -> Result<(), String> {
        let entry = &mut self.processes[process as usize];
        if reason == "its host was blacklisted" {
            // What is on a blacklisted host goes with it: that is what the user has asked for.
            entry.is_leaving = true;
        }
        let acknowledged = self.oracle.acknowledged(self.driver.job);
        let holds = |process: &Process| {
            process.stays()
                && process.job == self.driver.job
                && acknowledged.is_some()
                && process.saved_progress() >= acknowledged
        };
        let entry = &self.processes[process as usize];
        if !reason.contains("deadline passed") || !holds(entry) {
            return Ok(());
        }
        let mut others = self.hosts.iter().flat_map(|host| &host.processes);
        let is_held_by_others =
            others.any(|other| *other != process && holds(&self.processes[*other as usize]));
        let entry = &mut self.processes[process as usize];
        // Whoever is put out after it cannot count on it.
        entry.is_leaving = true;
        if is_held_by_others {
            return Ok(());
        }
        Err(format!(
            "G-5: {} alone holds the acknowledged commit at {} samples and is put out: {reason}",
            entry.id,
            acknowledged.unwrap_or_default()
        ))
    }

    /// A change was undone: members that were told to pause must be told to go on.
    fn expect_resumption(&mut self) {
        let since = self.now;
        for process in self.driver.members.clone() {
            let is_there = self.processes.get(process as usize);
            if is_there.is_some_and(|process| process.program.pause_flag) {
                let at = since + RESUMPTION_NS;
                self.agenda.push(at, Happening::Resumed { process, since });
            }
        }
    }

    /// Whoever was paused for a change that was undone trains again by now, or is out of reach.
    pub(in crate::cores) fn check_resumed(&mut self, process: u32, since: u64) {
        let entry = &self.processes[process as usize];
        let host = &self.hosts[entry.host as usize];
        let program = &entry.program;
        let is_paused = entry.is_alive
            && program.pause_flag
            && program.paused_since <= since
            && program.stamp == self.driver.stamp
            && self.driver.phase == Phase::Run;
        if !is_paused || self.is_over() {
            return;
        }
        let is_cut = host.cut_to_driver > 0 || host.cut_from_driver > 0;
        let has_session = self.links[entry.link as usize].peer.session != 0;
        let is_excused =
            entry.stopped > 0 || is_cut || !has_session || !self.driver_acts_since(RESUMPTION_NS);
        if is_excused {
            let at = self.now + RESUMPTION_NS;
            return self.agenda.push(at, Happening::Resumed { process, since });
        }
        let id = entry.id.clone();
        self.fail_safety(format!(
            "G-9: {id} was told to pause for a change that was undone, and is not told to go on"
        ));
    }
}
