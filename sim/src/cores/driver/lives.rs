//! The lives of the driver's process: the newest, former ones that still exist, and the one that a node reaches. Part
//! of the simulated world.

use elastic_protocol::Term;
use rand::Rng;

use super::super::{MS, World};
use super::DriverLife;

/// Time within which a driver that can act again has sent its delayed messages.
const TOLD_WITHIN_NS: u64 = 3_000 * MS;

impl World {
    /// Acts as one life of the driver. Returns `None` if that process is gone.
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

    /// The life of the driver with a number, if its process exists.
    pub(in crate::cores) fn life(&self, life: u32) -> Option<&DriverLife> {
        [&self.driver].into_iter().chain(&self.former).find(|driver| driver.life == life)
    }

    /// Whether a life of the driver runs.
    pub(in crate::cores) fn life_runs(&self, life: u32) -> bool {
        self.life(life).is_some_and(DriverLife::runs)
    }

    /// Whether the driver has been able to act for that long. Without its disk it cannot, since decisions may wait
    /// for the disk.
    pub(in crate::cores) fn driver_acts_since(&self, passed: u64) -> bool {
        let driver = &self.driver;
        let since = driver.settled_at.max(driver.continued_at).max(self.disk_mended_at);
        driver.runs() && self.disk_faults.is_empty() && since + passed <= self.now
    }

    /// Whether the driver's messages may have been decided long ago: they wait for the journal.
    pub(in crate::cores) fn are_words_late(&self) -> bool {
        !self.driver_acts_since(TOLD_WITHIN_NS)
    }

    /// The term of a life of the driver, whether or not its process exists.
    pub(in crate::cores) fn term_of(&self, life: u32) -> Term {
        self.terms.get(life as usize).copied().unwrap_or_default()
    }

    /// The life of the driver that a node of a job reaches. If there are several, one of them is drawn. If the
    /// transport turns succeeded drivers away, the life's term is not below the last term that the node met.
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
}
