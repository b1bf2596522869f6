//! Succession of drivers: the process is killed, started again, or replaced while the former one still exists. The
//! successor goes on from the journal. Called for faults of the driver.

use elastic_driver::journal::GenerationImage;
use elastic_protocol::Term;
use rand::Rng;

use super::super::{Happening, MS, World};
use super::{DriverBirth, DriverLife, Tenancy};
use crate::trace::{TraceKind, TracePlace};

/// Range of the delay until the operator retries a driver that could not start.
const DRIVER_AGAIN_NS: (u64, u64) = (300 * MS, 2_000 * MS);

/// Longest time until a continued driver finds that its journal belongs to another.
pub(super) const FENCED_WITHIN_NS: u64 = 2_000 * MS;

impl World {
    /// Sends SIGKILL to the driver's process. Its knowledge of sessions is lost.
    pub(in crate::cores) fn kill_driver(&mut self) {
        self.end_driver(9, true);
    }

    /// The driver's process ends, since another driver goes on with its job.
    pub(super) fn end_for_standby(&mut self) {
        self.end_driver(0, false);
    }

    /// The driver's process ends in this way. With `may_lose_power`, its machine may lose power, too.
    fn end_driver(&mut self, how: u64, may_lose_power: bool) {
        self.begin_interregnum();
        let life = self.driver.life;
        self.record(TraceKind::Exit, TracePlace::DRIVER, (how, u64::from(life)), String::new);
        self.end_life(may_lose_power);
        self.reopen_all();
    }

    /// Whether the driver is killed before its next output. Kills it then.
    pub(crate) fn dies_midway(&mut self) -> bool {
        let Some((left, for_us)) = self.driver.dies_midway else { return false };
        if left > 0 {
            self.driver.dies_midway = Some((left - 1, for_us));
            return false;
        }
        let life = self.driver.life;
        self.kill_driver();
        self.driver.comes_back = true;
        self.agenda.push(self.now + for_us * 1_000, Happening::DriverBoot { life });
        true
    }

    /// Ends a driver at once. The batch in flight is stored or lost. With `may_lose_power`, its machine may lose
    /// power, too.
    fn end_life(&mut self, may_lose_power: bool) {
        let is_stored = self.machine.random_bool(0.5);
        let power = may_lose_power && self.machine.random_bool(0.5);
        if self.driver.life == self.newest {
            // The store is torn away first: what follows cannot write to it.
            self.state_dir.crash(power);
        }
        if let Some(cores) = self.driver.cores() {
            cores.journal.end(is_stored);
        }
        self.driver.seat = None;
        self.driver.stopped = 0;
        self.driver.frozen.clear();
        let life = self.driver.life;
        self.mend_dead_disk();
        for process in &mut self.processes {
            // Its order has not arrived, and its successors may know nothing of it.
            process.put_out_by = process.put_out_by.filter(|by| *by != life);
        }
        self.end_connections_of(life, self.scenario.death_is_told);
    }

    /// The operator starts the driver again. The driver takes over the job of its state directory, or begins one
    /// there.
    pub(in crate::cores) fn start_driver(&mut self) {
        self.mend_dead_disk();
        self.put_journal_back();
        self.lives += 1;
        let life = self.lives;
        let (seed, program) = (self.options.seed, &self.scenario.driver.program);
        let begun = Tenancy::begin(&self.state_dir, program, seed, (life, self.now));
        let mut tenancy = match begun {
            Ok(tenancy) => tenancy,
            Err(error) => {
                self.record(TraceKind::Journal, TracePlace::DRIVER, (0, 2), || error.to_string());
                return self.start_driver_later();
            }
        };
        let checked = tenancy.handle.take_complaint();
        self.demand(checked);
        let current = tenancy.tenure.image.current.clone();
        let birth = DriverBirth { life, at: self.now, ppm: self.driver_ppm };
        let origin = (tenancy, self.tape.recorder(life));
        let next = DriverLife::new(self.hub.as_ref(), &self.scenario, seed, birth, origin);
        let previous = std::mem::replace(&mut self.driver, next);
        self.newest = life;
        if previous.is_alive() {
            self.former.push(previous);
        }
        let (job, term) = (self.driver.job, self.driver.term);
        self.terms.resize(life as usize + 1, Term::default());
        self.terms[life as usize] = term;
        self.record(TraceKind::Start, TracePlace::DRIVER, (u64::from(life), term.0), String::new);
        self.driver_decides(|| format!("a driver begins term {term}"));
        let checked = self.oracle.driver_began(job, term);
        self.demand(checked);
        let checked = self.check_counters();
        self.demand(checked);
        if let Some(current) = current {
            self.recall_generation(&current);
        }
        self.reopen_all();
        self.drain_host_manager();
        self.drain_driver();
    }

    /// Schedules another start of a driver whose journal cannot be written at present.
    fn start_driver_later(&mut self) {
        if self.driver.is_alive() {
            // The living driver was to be replaced.
            self.kill_driver();
        }
        self.driver.comes_back = true;
        let life = self.driver.life;
        let wait = self.draw_ns(DRIVER_AGAIN_NS.0, DRIVER_AGAIN_NS.1);
        self.agenda.push(self.now + wait, Happening::DriverBoot { life });
    }

    /// The operator retries the start, if the driver is still needed.
    pub(in crate::cores) fn boot_driver(&mut self, life: u32) {
        if self.driver.life == life && !self.driver.is_alive() && self.driver.comes_back {
            self.start_driver();
        }
    }

    /// Restores the generation found in the journal. A former driver may have died before it announced that
    /// generation.
    fn recall_generation(&mut self, image: &GenerationImage) {
        let (stamp, job) = (image.formation.stamp, self.driver.job);
        let phase = self.driver.phase;
        let members = match self.oracle.members_told(job, self.driver.term, &image.formation) {
            Ok(members) => members,
            Err(reason) => return self.fail_safety(reason),
        };
        if self.oracle.knows(job, stamp) {
            let members = self.processes_of(&members);
            self.take_generation(stamp, members);
        } else {
            self.open_generation(stamp, &members);
        }
        self.driver.enter_phase(self.now, phase);
    }

    /// Continues stopped former drivers. Each finds that it has been replaced.
    pub(in crate::cores) fn continue_former_drivers(&mut self) {
        let lives: Vec<u32> = self.former.iter().map(|former| former.life).collect();
        for life in &lives {
            self.in_life(*life, |world| world.continue_driver(u32::MAX));
        }
        if lives.is_empty() || self.scenario.turns_away {
            return;
        }
        // A node that knows the successor may still meet the former driver.
        for host in 0..self.hosts.len() as u32 {
            if self.net.random_bool(0.6) {
                self.break_links(host);
            }
        }
    }

    /// Schedules the moment at which a continued former driver loses its journal, unless a write or a node tells it
    /// earlier.
    pub(in crate::cores) fn expect_fence(&mut self) {
        let life = self.driver.life;
        if life != self.newest {
            self.disturb();
            let at = self.now + self.draw_ns(0, FENCED_WITHIN_NS);
            self.agenda.push(at, Happening::Fenced { life });
        }
    }

    /// Ends a driver whose journal belongs to another.
    pub(crate) fn abandon(&mut self, reason: &str) {
        let life = self.driver.life;
        let is_newest = life == self.newest;
        if is_newest && !self.state_dir.was_told_of_another() {
            return self.fail_safety(format!("the driver gave its job up: {reason}"));
        }
        if is_newest {
            self.begin_interregnum();
        }
        self.record(TraceKind::Exit, TracePlace::DRIVER, (1, u64::from(life)), || {
            reason.to_owned()
        });
        let who = if is_newest { "the driver" } else { "a former driver" };
        self.driver_decides(|| format!("{who} ends: {reason}"));
        self.end_life(false);
        self.reopen_all();
        if is_newest {
            // The operator puts the journal back and starts the driver again.
            self.driver.comes_back = true;
            let wait = self.draw_ns(DRIVER_AGAIN_NS.0, DRIVER_AGAIN_NS.1);
            self.agenda.push(self.now + wait, Happening::DriverBoot { life });
        }
    }

    /// The operator ends driver processes that it does not need any more.
    pub(in crate::cores) fn end_former_drivers(&mut self) {
        let lives: Vec<u32> = self.former.iter().map(|former| former.life).collect();
        for life in lives {
            self.in_life(life, |world| world.abandon("its operator ends it"));
        }
    }
}
