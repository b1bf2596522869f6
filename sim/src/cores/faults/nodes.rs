//! Effects of faults on nodes: stop and continue, loss of power, cut networks, the disk. Called when faults begin and
//! end.

use std::time::Duration;

use super::super::{Happening, MS, World};
use crate::disk::Condition;
use crate::plan::{CutDirection, DiskFault};

impl World {
    /// The hosts of a rack, given as bits by host number.
    pub(super) fn rack(&self, bits: u64) -> Vec<u32> {
        (0..self.hosts.len() as u32).filter(|host| bits >> (host % 64) & 1 == 1).collect()
    }

    pub(super) fn power_up(&mut self, host: u32) {
        let entry = &mut self.hosts[host as usize];
        entry.down -= 1;
        if entry.down == 0 {
            self.boot_agent_later(host);
        }
    }

    pub(super) fn take_stopped(&mut self, index: u32) -> Option<u32> {
        let at = self.stopped_by.iter().position(|(fault, _)| *fault == index)?;
        Some(self.stopped_by.remove(at).1)
    }

    pub(in crate::cores) fn continue_agent(&mut self, host: u32, life: u32, depth: u32) {
        let now = self.now;
        let Some(agent) = self.agent_mut(host, life) else { return };
        if agent.stopped == 0 {
            return;
        }
        agent.stopped -= depth.min(agent.stopped);
        if agent.stopped == 0 {
            agent.continued_at = now;
            let link = agent.link;
            self.thaw_agent(host);
            self.reopen(link);
        }
    }

    pub(in crate::cores) fn continue_driver(&mut self, depth: u32) {
        if self.driver.stopped == 0 || !self.driver.is_alive() {
            return;
        }
        self.driver.stopped -= depth.min(self.driver.stopped);
        if self.driver.stopped == 0 {
            self.driver.continued_at = self.now;
            self.excuse_silence();
            self.thaw_driver();
            self.reopen_all();
        }
    }

    /// After a stop in which its peers may have given up their connections, the driver judges no silence for a while.
    fn excuse_silence(&mut self) {
        let deadlines = self.scenario.driver.deadlines;
        let stood_still = Duration::from_nanos(self.now - self.driver.stopped_at);
        if stood_still >= deadlines.breaking_pause() {
            self.driver.knows_from = self.now + deadlines.judged_after_pause().as_nanos() as u64;
        }
    }

    pub(in crate::cores) fn crash_host(&mut self, host: u32) {
        if let Some(agent) = self.hosts[host as usize].agent.take() {
            self.hosts[host as usize].gone_since = Some(self.now);
            self.end_peer(agent.link, false, false);
        }
        for process in std::mem::take(&mut self.hosts[host as usize].processes) {
            self.vanish(process);
        }
    }

    pub(super) fn cut(&mut self, host: u32, way: CutDirection, change: i32) {
        let entry = &mut self.hosts[host as usize];
        let (to_driver, from_driver, data) = match way {
            CutDirection::ToDriver => (true, false, false),
            CutDirection::FromDriver => (false, true, false),
            CutDirection::Driver => (true, true, false),
            CutDirection::Data => (false, false, true),
            CutDirection::All => (true, true, true),
        };
        for (is_cut, depth) in [
            (to_driver, &mut entry.cut_to_driver),
            (from_driver, &mut entry.cut_from_driver),
            (data, &mut entry.cut_data),
        ] {
            if is_cut {
                *depth = depth.saturating_add_signed(change);
            }
        }
        let is_whole = entry.cut_data == 0;
        if is_whole {
            self.release_held(host);
        }
        self.reopen_host(host);
    }

    /// Gives a host its next address. Connections to its workers end.
    pub(super) fn renumber(&mut self, host: u32) {
        self.hosts[host as usize].address += 1;
        for process in self.hosts[host as usize].processes.clone() {
            self.break_groups_of(process);
        }
    }

    /// Sets the disk of the driver's machine to the condition of the newest fault.
    pub(in crate::cores) fn set_disk(&mut self) {
        let mut conditions = self.disk_faults.iter().rev().filter_map(|(_, fault)| match fault {
            DiskFault::Slow | DiskFault::Hangs => None,
            DiskFault::Full => Some(Condition::Full),
            DiskFault::ReadOnly => Some(Condition::ReadOnly),
            DiskFault::FailsSyncs => Some(Condition::FailsSyncs),
        });
        self.state_dir.set_condition(conditions.next().unwrap_or_default());
    }

    /// The driver is gone: sets the time by which all other processes must have ended.
    pub(in crate::cores) fn everybody_goes(&mut self) {
        let deadlines = self.scenario.driver.deadlines;
        let alone = deadlines.orphan.max(deadlines.orphan_training.unwrap_or_default());
        let patience = deadlines.lost + alone + deadlines.grace * 3;
        let slack = 30_000 * MS;
        self.gone_by = Some(self.now + patience.as_nanos() as u64 + slack);
        self.agenda.push(self.now + MS, Happening::Check);
    }
}
