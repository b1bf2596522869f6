//! Faults of the plan, carried out.

mod nodes;
mod strike;

use super::{Happening, World};
use crate::plan::{Fault, Moment};
use crate::trace::{Kind, Place};

impl World {
    pub(super) fn schedule_plan(&mut self) {
        for (index, planned) in self.plan.iter().enumerate() {
            let is_kept = self.options.keep.as_ref().is_none_or(|keep| keep.contains(&index));
            if !is_kept {
                continue;
            }
            match planned.moment {
                Moment::At(at_us) => {
                    self.agenda.push(at_us * 1_000, Happening::Fault(index as u32))
                }
                Moment::AfterReset { number, after_us } => {
                    self.after_resets.push((number, after_us * 1_000, index as u32));
                }
                Moment::AfterBatch { number, after_us } => {
                    self.after_batches.push((number, after_us * 1_000, index as u32));
                }
            }
        }
    }

    /// The driver has decided a reset: faults that wait for it come after it.
    pub(super) fn release_faults_after_reset(&mut self) {
        let (number, now) = (self.oracle.resets, self.now);
        for (reset, after, index) in &self.after_resets {
            if *reset == number {
                self.agenda.push(now + after, Happening::Fault(*index));
            }
        }
    }

    /// The driver's journal was given a batch: faults that wait for it come after it.
    pub(super) fn release_faults_after_batch(&mut self) {
        let (number, now) = (self.batches, self.now);
        for (batch, after, index) in &self.after_batches {
            if *batch == number {
                self.agenda.push(now + after, Happening::Fault(*index));
            }
        }
    }

    /// The process on a slot of a host, if one is there.
    fn process_on(&self, host: u32, slot: u32) -> Option<u32> {
        let host = &self.hosts[host as usize];
        let slot = slot % host.slots.max(1);
        let here = |process: &&u32| self.processes[**process as usize].id.slot == slot;
        host.processes.iter().find(here).copied()
    }

    pub(super) fn begin_fault(&mut self, index: u32) {
        let fault = self.plan[index as usize].fault;
        // A driver may die while it ends its job, too.
        if self.healed_at.is_some() || (self.is_over() && !fault.takes_the_driver()) {
            return;
        }
        if !fault.is_the_drivers_alone() {
            self.disturb();
        }
        let words = || format!("{index}: {fault:?}");
        self.record(Kind::Fault, place_of(&fault), (u64::from(index), 0), words);
        if let Some(for_us) = self.strike(index, fault) {
            self.agenda.push(self.now + for_us * 1_000, Happening::Mended(index));
        }
    }

    pub(super) fn end_fault(&mut self, index: u32) {
        if self.healed_at.is_some() {
            return;
        }
        let fault = self.plan[index as usize].fault;
        if !fault.is_the_drivers_alone() {
            self.disturb();
        }
        self.record(Kind::Mend, place_of(&fault), (u64::from(index), 0), || format!("{fault:?}"));
        match fault {
            Fault::StopWorker { .. } => {
                if let Some(process) = self.take_stopped(index) {
                    self.continue_process(process, 1);
                }
            }
            Fault::StopAgent { host, .. } => {
                if let Some(life) = self.take_stopped(index) {
                    self.continue_agent(host, life, 1);
                }
            }
            Fault::CrashHost { host, .. } => self.power_up(host),
            Fault::Rack { hosts, .. } => {
                for host in self.rack(hosts) {
                    self.power_up(host);
                }
            }
            Fault::LateData { host, .. } => self.hosts[host as usize].data_delay = 0,
            Fault::Cut { host, way, .. } => self.cut(host, way, -1),
            Fault::SlowLink { host, .. } => self.hosts[host as usize].extra_delay = 0,
            Fault::SlowHost { host, .. } => self.hosts[host as usize].slow_times = 1,
            Fault::Discovery { .. } => self.lies.retain(|(other, _)| *other != index),
            Fault::Unlist { host, .. } => self.hosts[host as usize].unlisted -= 1,
            Fault::Slots { host, .. } => {
                let host = &mut self.hosts[host as usize];
                host.listed_slots = host.slots;
            }
            Fault::NoSpawn { host, .. } => self.hosts[host as usize].no_spawn -= 1,
            Fault::HangStart { host, .. } => self.hosts[host as usize].hang_start -= 1,
            Fault::StopDriver { .. } => self.continue_driver(1),
            Fault::CrashDriver { .. }
            | Fault::CrashDriverAndWorker { .. }
            | Fault::LoseDriver { .. } => self.boot_driver(self.driver.life),
            Fault::CrashDriverAndHost { host, .. } => {
                self.power_up(host);
                self.boot_driver(self.driver.life);
            }
            Fault::Disk { .. } => {
                self.disk_faults.retain(|(other, _)| *other != index);
                self.disk_mended_at = self.now;
                self.set_disk();
            }
            Fault::ReplaceDriver { .. } => self.continue_former_drivers(),
            _ => {}
        }
    }
}

fn place_of(fault: &Fault) -> Place {
    match *fault {
        Fault::KillWorker { host, slot }
        | Fault::CrashDriverAndWorker { host, slot, .. }
        | Fault::ExitWorker { host, slot }
        | Fault::RaiseWorker { host, slot }
        | Fault::StopWorker { host, slot, .. }
        | Fault::BreakData { host, slot }
        | Fault::NoticeWorker { host, slot } => Place { host, slot },
        Fault::KillAgent { host }
        | Fault::StopAgent { host, .. }
        | Fault::DrainHost { host, .. }
        | Fault::CrashHost { host, .. }
        | Fault::CrashDriverAndHost { host, .. }
        | Fault::Cut { host, .. }
        | Fault::BreakLinks { host }
        | Fault::LateData { host, .. }
        | Fault::SlowLink { host, .. }
        | Fault::SlowHost { host, .. }
        | Fault::Unlist { host, .. }
        | Fault::Slots { host, .. }
        | Fault::NoSpawn { host, .. }
        | Fault::HangStart { host, .. } => Place::agent(host),
        Fault::Discovery { .. }
        | Fault::StopDriver { .. }
        | Fault::CrashDriver { .. }
        | Fault::CrashDriverMidway { .. }
        | Fault::LoseDriver { .. }
        | Fault::Disk { .. }
        | Fault::Rack { .. }
        | Fault::ReplaceDriver { .. }
        | Fault::KillDriver
        | Fault::Interrupt => Place::DRIVER,
    }
}
