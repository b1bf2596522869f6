//! The driver's process is killed, started again, or replaced while the former one still stands: who comes next goes
//! on with what the journal says.

use elastic_driver::journal::GenerationImage;
use elastic_protocol::Term;
use rand::Rng;

use super::super::{Happening, MS, World};
use super::{Birth, DriverLife, Tenancy};
use crate::trace::{Kind, Place};

/// How long its operator takes to start a driver again that could not begin.
const DRIVER_AGAIN_NS: (u64, u64) = (300 * MS, 2_000 * MS);

/// How long a driver that goes on may take to find that another has its journal.
pub(super) const FENCED_WITHIN_NS: u64 = 2_000 * MS;

impl World {
    /// SIGKILL to the driver's process; what it knew of its sessions goes with it.
    pub(in crate::cores) fn kill_driver(&mut self) {
        self.begin_interregnum();
        let life = self.driver.life;
        self.record(Kind::Exit, Place::DRIVER, (9, u64::from(life)), String::new);
        self.end_life(true);
        self.reopen_all();
    }

    /// Whether the driver is killed before it gets the next thing done.
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

    /// A driver ends at once: what it was writing is there or not. `may_lose_power`: its machine may go, too.
    fn end_life(&mut self, may_lose_power: bool) {
        let is_stored = self.machine.random_bool(0.5);
        let power = may_lose_power && self.machine.random_bool(0.5);
        if self.driver.life == self.newest {
            // A store that is torn away cannot be written in what follows.
            self.state_dir.crash(power);
        }
        if let Some(cores) = self.driver.cores() {
            cores.journal.end(is_stored);
        }
        self.driver.seat = None;
        self.driver.stopped = 0;
        self.driver.frozen.clear();
        let life = self.driver.life;
        self.end_sessions_of(life);
    }

    /// The driver's operator starts it again. It takes over the job of its state directory, or begins one there.
    pub(in crate::cores) fn start_driver(&mut self) {
        self.lives += 1;
        let life = self.lives;
        let (seed, program) = (self.options.seed, &self.scenario.driver.program);
        let begun = Tenancy::begin(&self.state_dir, program, seed, life);
        let mut tenancy = match begun {
            Ok(tenancy) => tenancy,
            Err(error) => {
                self.record(Kind::Journal, Place::DRIVER, (0, 2), || error.to_string());
                return self.start_driver_later();
            }
        };
        let checked = tenancy.handle.take_complaint();
        self.demand(checked);
        let current = tenancy.tenure.image.current.clone();
        let birth = Birth { life, at: self.now, ppm: self.driver_ppm };
        let next = DriverLife::new(self.hub.as_ref(), &self.scenario, seed, birth, tenancy);
        let previous = std::mem::replace(&mut self.driver, next);
        self.newest = life;
        if previous.is_alive() {
            self.former.push(previous);
        }
        let (job, term) = (self.driver.job, self.driver.term);
        self.terms.resize(life as usize + 1, Term::default());
        self.terms[life as usize] = term;
        self.record(Kind::Start, Place::DRIVER, (u64::from(life), term.0), String::new);
        let checked = self.oracle.driver_began(job, term);
        self.demand(checked);
        if let Some(current) = current {
            self.recall_generation(&current);
        }
        self.reopen_all();
        self.drain_host_manager();
        self.drain_driver();
    }

    /// It could not begin: its journal cannot be written at present.
    fn start_driver_later(&mut self) {
        if self.driver.is_alive() {
            // It was to be replaced.
            self.kill_driver();
        }
        self.driver.comes_back = true;
        let life = self.driver.life;
        let wait = self.draw_ns(DRIVER_AGAIN_NS.0, DRIVER_AGAIN_NS.1);
        self.agenda.push(self.now + wait, Happening::DriverBoot { life });
    }

    /// The driver's operator tries once more, if it is still needed.
    pub(in crate::cores) fn boot_driver(&mut self, life: u32) {
        if self.driver.life == life && !self.driver.is_alive() && self.driver.comes_back {
            self.start_driver();
        }
    }

    /// The generation that a driver has found in its journal. A former one may have died before it told anybody.
    fn recall_generation(&mut self, image: &GenerationImage) {
        let (stamp, job) = (image.formation.stamp, self.driver.job);
        let phase = self.driver.phase;
        let members = match self.oracle.members_told(job, &image.formation) {
            Ok(members) => members,
            Err(reason) => return self.fail_safety(reason),
        };
        if self.oracle.knows(job, stamp) {
            let members = self.processes_of(&members);
            self.take_generation(stamp, members);
        } else {
            self.open_generation(stamp, &members);
        }
        self.driver.phase = phase;
    }

    /// Former drivers that stood still go on: each finds that it has been replaced.
    pub(in crate::cores) fn continue_former_drivers(&mut self) {
        let lives: Vec<u32> = self.former.iter().map(|former| former.life).collect();
        for life in &lives {
            self.in_life(*life, |world| world.continue_driver(u32::MAX));
        }
        if lives.is_empty() || self.scenario.turns_away {
            return;
        }
        // Who knows the next one may meet it all the same.
        for host in 0..self.hosts.len() as u32 {
            if self.net.random_bool(0.6) {
                self.break_links(host);
            }
        }
    }

    /// A former driver goes on: that its journal is another's it finds when it writes, or is told.
    pub(in crate::cores) fn expect_fence(&mut self) {
        let life = self.driver.life;
        if life != self.newest {
            self.disturb();
            let at = self.now + self.draw_ns(0, FENCED_WITHIN_NS);
            self.agenda.push(at, Happening::Fenced { life });
        }
    }

    /// A driver acts no more: another has its journal.
    pub(crate) fn abandon(&mut self, reason: &str) {
        let life = self.driver.life;
        if life == self.newest {
            return self.fail_safety(format!("the driver gave its job up: {reason}"));
        }
        self.record(Kind::Exit, Place::DRIVER, (1, u64::from(life)), || reason.to_owned());
        self.end_life(false);
        self.reopen_all();
    }

    /// The driver's operator ends processes that it does not need any more.
    pub(in crate::cores) fn end_former_drivers(&mut self) {
        let lives: Vec<u32> = self.former.iter().map(|former| former.life).collect();
        for life in lives {
            self.in_life(life, |world| world.abandon("its operator ends it"));
        }
    }
}
