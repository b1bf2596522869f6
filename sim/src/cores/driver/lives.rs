//! The lives of the driver's process: the newest, and former ones that are still there; whom they reach.

use elastic_protocol::Term;
use rand::Rng;

use super::super::network::End;
use super::super::{Happening, MS, World};
use super::DriverLife;

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

    /// Whether the driver has been able to act for so long: what it decides may wait for its disk.
    pub(in crate::cores) fn driver_acts_since(&self, passed: u64) -> bool {
        let driver = &self.driver;
        let since = driver.settled_at.max(driver.continued_at).max(self.disk_mended_at);
        driver.runs() && self.disk_faults.is_empty() && since + passed <= self.now
    }

    /// The term of a life of the driver, whether or not its process is there.
    pub(in crate::cores) fn term_of(&self, life: u32) -> Term {
        self.terms.get(life as usize).copied().unwrap_or_default()
    }

    /// The life of the driver that a node of a job reaches: if there are several, one of them. Where the transport
    /// turns those away that were succeeded, it is of no earlier term than the last that was met.
    pub(in crate::cores) fn life_in_reach(&mut self, job: Option<u32>, met: Term) -> Option<u32> {
        let turns_away = self.scenario.turns_away;
        let answers = |driver: &&DriverLife| {
            driver.runs()
                && !driver.has_left
                && job.is_none_or(|job| job == driver.job)
                && !(turns_away && job.is_some() && driver.term < met)
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

    /// A process of the driver is gone: those who had sessions with it are told by the network, or by silence.
    pub(super) fn end_sessions_of(&mut self, life: u32) {
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
}
