//! Execution of the plan's faults. The world calls it when a fault begins or ends.

mod nodes;
mod strike;

use super::{Happening, World};
use crate::plan::{FaultMoment, SimulatedFault};
use crate::trace::{TraceKind, TracePlace};

impl World {
    pub(super) fn schedule_plan(&mut self) {
        for (index, planned) in self.plan.iter().enumerate() {
            let is_kept = self.options.keep.as_ref().is_none_or(|keep| keep.contains(&index));
            if !is_kept {
                continue;
            }
            match planned.moment {
                FaultMoment::At(at_us) => {
                    self.agenda.push(self.now + at_us * 1_000, Happening::Fault(index as u32))
                }
                FaultMoment::AfterReset { number, after_us } => {
                    self.after_resets.push((number, after_us * 1_000, index as u32));
                }
                FaultMoment::AfterBatch { number, after_us } => {
                    self.after_batches.push((number, after_us * 1_000, index as u32));
                }
            }
        }
    }

    /// The driver has decided a reset: schedules the faults that wait for it.
    pub(super) fn release_faults_after_reset(&mut self) {
        let (number, now) = (self.oracle.resets, self.now);
        for (reset, after, index) in &self.after_resets {
            if *reset == number {
                self.agenda.push(now + after, Happening::Fault(*index));
            }
        }
    }

    /// The driver's journal was given a batch: schedules the faults that wait for it.
    pub(super) fn release_faults_after_batch(&mut self) {
        let (number, now) = (self.batches, self.now);
        for (batch, after, index) in &self.after_batches {
            if *batch == number {
                self.agenda.push(now + after, Happening::Fault(*index));
            }
        }
    }

    /// The process on a slot of a host, if there is one.
    fn process_on(&self, host: u32, slot: u32) -> Option<u32> {
        let host = &self.hosts[host as usize];
        let slot = slot % host.slots.max(1);
        let here = |process: &&u32| self.processes[**process as usize].id.slot == slot;
        host.processes.iter().find(here).copied()
    }

    pub(super) fn begin_fault(&mut self, index: u32) {
        let fault = self.plan[index as usize].fault;
        self.calm_before_fault = self.calm_for(self.driver.phase_since);
        self.faulted_at = self.now;
        if !fault.is_notice() {
            self.no_save_is_due_before_leaving();
        }
        // A driver may also die while it ends its job.
        if self.healed_at.is_some() || (self.is_over() && !fault.takes_the_driver()) {
            return;
        }
        if !fault.spares_the_job() {
            self.disturb();
        }
        let words = || format!("{index}: {fault:?}");
        self.record(TraceKind::Fault, place_of(&fault), (u64::from(index), 0), words);
        if let Some(for_us) = self.strike(index, fault) {
            self.agenda.push(self.now + for_us * 1_000, Happening::Mended(index));
        }
    }

    pub(super) fn end_fault(&mut self, index: u32) {
        if self.healed_at.is_some() {
            return;
        }
        let fault = self.plan[index as usize].fault;
        self.faulted_at = self.now;
        self.no_save_is_due_before_leaving();
        if !fault.spares_the_job() {
            self.disturb();
        }
        self.record(TraceKind::Mend, place_of(&fault), (u64::from(index), 0), || {
            format!("{fault:?}")
        });
        match fault {
            SimulatedFault::StopWorker { .. } => {
                if let Some(process) = self.take_stopped(index) {
                    self.continue_process(process, 1);
                }
            }
            SimulatedFault::HangThread { .. } => {
                if let Some(process) = self.take_stopped(index) {
                    self.continue_thread(process, 1);
                }
            }
            SimulatedFault::StopAgent { host, .. } => {
                if let Some(life) = self.take_stopped(index) {
                    self.continue_agent(host, life, 1);
                }
            }
            SimulatedFault::StarveAgent { host, .. } => {
                if let Some(life) = self.take_stopped(index) {
                    if let Some(agent) = self.agent_mut(host, life) {
                        agent.starved -= 1;
                    }
                    self.continue_agent(host, life, 1);
                }
            }
            SimulatedFault::CrashHost { host, .. } => self.power_up(host),
            SimulatedFault::Rack { hosts, .. } => {
                for host in self.rack(hosts) {
                    self.power_up(host);
                }
            }
            SimulatedFault::LateData { host, .. } => self.hosts[host as usize].data_delay = 0,
            SimulatedFault::Cut { host, way, .. } => {
                self.link_mended_at = Some(self.now);
                self.cut(host, way, -1);
            }
            SimulatedFault::SlowLink { host, .. } => self.hosts[host as usize].extra_delay = 0,
            SimulatedFault::SlowHost { host, .. } => self.hosts[host as usize].slow_times = 1,
            SimulatedFault::SlowData { host, from, .. } => self.mend_link(from, host),
            SimulatedFault::SickHost { host, .. } => self.mend_sick(host, 1),
            SimulatedFault::SlowSlot { host, slot, .. } => {
                self.hosts[host as usize].slow_slots.remove(&slot);
            }
            SimulatedFault::Discovery { .. } => self.lies.retain(|(other, _)| *other != index),
            SimulatedFault::Unlist { host, .. } => self.hosts[host as usize].unlisted -= 1,
            SimulatedFault::Slots { host, .. } => {
                let host = &mut self.hosts[host as usize];
                host.listed_slots = host.slots;
            }
            SimulatedFault::NoSpawn { host, .. } => self.hosts[host as usize].no_spawn -= 1,
            SimulatedFault::NoForming { host, is_told, .. } => {
                self.hosts[host as usize].no_forming[usize::from(is_told)] -= 1;
            }
            SimulatedFault::LoopbackDown { host, .. } => {
                self.hosts[host as usize].no_loopback -= 1;
                self.release_held(host);
            }
            SimulatedFault::OtherRelease { host, .. } => {
                self.hosts[host as usize].other_release -= 1;
            }
            SimulatedFault::HangStart { host, .. } => self.hosts[host as usize].hang_start -= 1,
            SimulatedFault::HangLane { host, .. } => {
                if let Some(life) = self.take_stopped(index) {
                    self.release_lane(host, life, 1);
                }
            }
            SimulatedFault::StopDriver { .. } => self.continue_driver(1),
            SimulatedFault::CrashDriver { .. }
            | SimulatedFault::CrashDriverAndWorker { .. }
            | SimulatedFault::LoseDriver { .. } => self.boot_driver(self.driver.life),
            SimulatedFault::CrashDriverAndHost { host, .. } => {
                self.power_up(host);
                self.boot_driver(self.driver.life);
            }
            SimulatedFault::Disk { .. } => {
                self.disk_faults.retain(|(other, _)| *other != index);
                self.disk_mended_at = self.now;
                self.set_disk();
            }
            SimulatedFault::DisplaceJournal { .. } => self.put_journal_back(),
            SimulatedFault::StopOnDeadDisk { .. } => self.stop_again_on_dead_disk(index),
            SimulatedFault::ReplaceDriver { .. } => self.continue_former_drivers(),
            SimulatedFault::StandBy { number, .. } => self.set_standby(number, false),
            SimulatedFault::NoProgram { host, .. } => self.hosts[host as usize].no_program -= 1,
            _ => {}
        }
    }
}

fn place_of(fault: &SimulatedFault) -> TracePlace {
    match *fault {
        SimulatedFault::KillWorker { host, slot }
        | SimulatedFault::CrashDriverAndWorker { host, slot, .. }
        | SimulatedFault::ExitWorker { host, slot }
        | SimulatedFault::RaiseWorker { host, slot }
        | SimulatedFault::StopWorker { host, slot, .. }
        | SimulatedFault::BreakData { host, slot }
        | SimulatedFault::HangThread { host, slot, .. }
        | SimulatedFault::RaiseLate { host, slot }
        | SimulatedFault::FlipBit { host, slot, .. }
        | SimulatedFault::OtherBatches { host, slot }
        | SimulatedFault::NoticeWorker { host, slot } => TracePlace { host, slot },
        SimulatedFault::KillAgent { host }
        | SimulatedFault::StopAgent { host, .. }
        | SimulatedFault::StarveAgent { host, .. }
        | SimulatedFault::DrainHost { host, .. }
        | SimulatedFault::CrashHost { host, .. }
        | SimulatedFault::CrashDriverAndHost { host, .. }
        | SimulatedFault::Cut { host, .. }
        | SimulatedFault::BreakLinks { host }
        | SimulatedFault::ForgedRefusals { host }
        | SimulatedFault::LateData { host, .. }
        | SimulatedFault::SlowLink { host, .. }
        | SimulatedFault::SlowHost { host, .. }
        | SimulatedFault::SlowSlot { host, .. }
        | SimulatedFault::SickHost { host, .. }
        | SimulatedFault::SlowData { host, .. }
        | SimulatedFault::Unlist { host, .. }
        | SimulatedFault::Slots { host, .. }
        | SimulatedFault::NoSpawn { host, .. }
        | SimulatedFault::NoProgram { host, .. }
        | SimulatedFault::LaunchFails { host }
        | SimulatedFault::NoForming { host, .. }
        | SimulatedFault::LoopbackDown { host, .. }
        | SimulatedFault::OtherRelease { host, .. }
        | SimulatedFault::HangStart { host, .. }
        | SimulatedFault::RenumberHost { host }
        | SimulatedFault::HangLane { host, .. } => TracePlace::agent(host),
        SimulatedFault::Discovery { .. }
        | SimulatedFault::StopDriver { .. }
        | SimulatedFault::CrashDriver { .. }
        | SimulatedFault::CrashDriverMidway { .. }
        | SimulatedFault::LoseDriver { .. }
        | SimulatedFault::Disk { .. }
        | SimulatedFault::DisplaceJournal { .. }
        | SimulatedFault::StopOnDeadDisk { .. }
        | SimulatedFault::Rack { .. }
        | SimulatedFault::ReplaceDriver { .. }
        | SimulatedFault::KillDriver
        | SimulatedFault::AskToStop
        | SimulatedFault::StandBy { .. }
        | SimulatedFault::HandOver { .. }
        | SimulatedFault::Interrupt => TracePlace::DRIVER,
    }
}
