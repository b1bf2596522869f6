//! The lives of the driver's process: killed, started again, or replaced while the former one still stands.

use elastic_protocol::Term;

use super::super::network::End;
use super::super::{Happening, MS, World};
use super::{Birth, DriverLife};
use crate::trace::{Kind, Place};

impl World {
    /// Does something as one life of the driver; none if that process is gone.
    pub(crate) fn in_life<R>(&mut self, life: u32, act: impl FnOnce(&mut Self) -> R) -> Option<R> {
        if self.driver.life == life {
            return self.driver.is_alive().then(|| act(self));
        }
        let index = self.former.iter().position(|former| former.life == life)?;
        std::mem::swap(&mut self.driver, &mut self.former[index]);
        let result = act(self);
        std::mem::swap(&mut self.driver, &mut self.former[index]);
        self.former.retain(DriverLife::is_alive);
        Some(result)
    }

    /// The life of the driver with a number, if its process is there.
    pub(in crate::cores) fn life(&self, life: u32) -> Option<&DriverLife> {
        [&self.driver].into_iter().chain(&self.former).find(|driver| driver.life == life)
    }

    /// Whether a life of the driver runs.
    pub(in crate::cores) fn life_runs(&self, life: u32) -> bool {
        self.life(life).is_some_and(DriverLife::runs)
    }

    /// The life of the driver that a node of a job reaches: if there are several, one of them.
    pub(in crate::cores) fn life_in_reach(&mut self, job: Option<u32>) -> Option<u32> {
        use rand::Rng;

        let answers = |driver: &&DriverLife| {
            driver.runs() && !driver.has_left && job.is_none_or(|job| job == driver.job)
        };
        let lives: Vec<u32> = [&self.driver]
            .into_iter()
            .chain(&self.former)
            .filter(answers)
            .map(|driver| driver.life)
            .collect();
        match lives.len() {
            0 | 1 => lives.first().copied(),
            count => Some(lives[self.net.random_range(0..count)]),
        }
    }

    /// SIGKILL to the driver's process; what it knew of its sessions goes with it.
    pub(in crate::cores) fn kill_driver(&mut self) {
        self.driver.seat = None;
        self.driver.stopped = 0;
        self.driver.frozen.clear();
        let life = self.driver.life;
        self.record(Kind::Exit, Place::DRIVER, (9, u64::from(life)), String::new);
        self.end_sessions_of(life);
        self.reopen_all();
    }

    /// A process of the driver is gone: those who had sessions with it are told by the network, or by silence.
    fn end_sessions_of(&mut self, life: u32) {
        for index in 0..self.links.len() as u32 {
            let link = &mut self.links[index as usize];
            if link.life != life || link.driver.session == 0 {
                continue;
            }
            let session = std::mem::take(&mut link.driver.session);
            if link.is_alive && self.scenario.death_is_told {
                let delay = self.draw_ns(50_000, 2 * MS);
                let forget = Happening::Forget { link: index, end: End::Peer, session };
                self.agenda.push(self.now + delay, forget);
            }
        }
    }

    /// A driver has ended: it closes its sessions.
    pub(in crate::cores) fn close_links_of(&mut self, life: u32) {
        for index in 0..self.links.len() as u32 {
            let link = &mut self.links[index as usize];
            if link.life != life {
                continue;
            }
            let session = std::mem::take(&mut link.driver.session);
            if session != 0 && link.is_alive {
                let delay = self.draw_ns(50_000, 2 * MS);
                let forget = Happening::Forget { link: index, end: End::Peer, session };
                self.agenda.push(self.now + delay, forget);
            }
        }
    }

    /// The driver's operator starts it again. It has nothing of its predecessor's to go on from: another job.
    pub(in crate::cores) fn start_driver(&mut self) {
        self.lives += 1;
        let life = self.lives;
        let birth = Birth { life, job: life, at: self.now, ppm: self.driver_ppm };
        let next = DriverLife::new(self.hub.as_ref(), &self.scenario, self.options.seed, birth);
        let previous = std::mem::replace(&mut self.driver, next);
        if previous.is_alive() {
            self.former.push(previous);
        }
        self.record(Kind::Start, Place::DRIVER, (u64::from(life), 0), String::new);
        self.oracle.job_began(Term(u64::from(life)));
        self.reopen_all();
        self.drain_host_manager();
        self.drain_driver();
    }

    /// Former drivers that stood still go on: each finds that it has been replaced.
    pub(in crate::cores) fn continue_former_drivers(&mut self) {
        let lives: Vec<u32> = self.former.iter().map(|former| former.life).collect();
        for life in lives {
            self.in_life(life, |world| world.continue_driver(u32::MAX));
        }
    }

    /// The driver's operator ends processes that it does not need any more.
    pub(in crate::cores) fn end_former_drivers(&mut self) {
        for former in std::mem::take(&mut self.former) {
            let life = u64::from(former.life);
            self.record(Kind::Exit, Place::DRIVER, (9, life), String::new);
            drop(former.seat);
            self.end_sessions_of(former.life);
        }
        self.reopen_all();
    }
}
