//! Faults of the plan, carried out.

use super::{Happening, MS, World};
use crate::plan::{Fault, Moment, Way};
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

    /// The process on a slot of a host, if one is there.
    fn process_on(&self, host: u32, slot: u32) -> Option<u32> {
        let host = &self.hosts[host as usize];
        let slot = slot % host.slots.max(1);
        let here = |process: &&u32| self.processes[**process as usize].id.slot == slot;
        host.processes.iter().find(here).copied()
    }

    pub(super) fn begin_fault(&mut self, index: u32) {
        if self.healed_at.is_some() || self.is_over() {
            return;
        }
        let fault = self.plan[index as usize].fault;
        let words = || format!("{index}: {fault:?}");
        self.record(Kind::Fault, place_of(&fault), (u64::from(index), 0), words);
        if let Some(for_us) = self.strike(index, fault) {
            self.agenda.push(self.now + for_us * 1_000, Happening::Mended(index));
        }
    }

    /// Carries a fault out; how long it lasts, if it does.
    fn strike(&mut self, index: u32, fault: Fault) -> Option<u64> {
        let needs_driver = matches!(
            fault,
            Fault::CrashDriver { .. } | Fault::ReplaceDriver { .. } | Fault::StopDriver { .. }
        );
        if needs_driver && !self.driver.is_alive() {
            return None;
        }
        match fault {
            Fault::KillWorker { host, slot } => {
                let process = self.process_on(host, slot)?;
                self.kill_process(process);
                None
            }
            Fault::ExitWorker { host, slot } => {
                let process = self.process_on(host, slot)?;
                self.handle_exited(process, 1);
                None
            }
            Fault::RaiseWorker { host, slot } => {
                let process = self.process_on(host, slot)?;
                self.processes[process as usize].program.raises = true;
                None
            }
            Fault::StopWorker { host, slot, for_us } => {
                let process = self.process_on(host, slot)?;
                self.stop_process(process);
                let at = self.now + for_us * 1_000;
                self.stopped_by.push((index, process));
                self.agenda.push(at, Happening::Mended(index));
                None
            }
            Fault::NoticeWorker { host, slot } => {
                let process = self.process_on(host, slot)?;
                self.hosts[host as usize].has_closed_slots = true;
                self.handle_signalled(process, false);
                None
            }
            Fault::KillAgent { host } => {
                self.end_agent(host, false);
                self.boot_agent_later(host);
                None
            }
            Fault::StopAgent { host, for_us } => {
                let agent = self.hosts[host as usize].agent.as_mut()?;
                agent.stop();
                let link = agent.link;
                self.stopped_by.push((index, agent.life));
                self.reopen(link);
                Some(for_us)
            }
            Fault::DrainHost { host, for_us } => {
                self.drain_host(host);
                Some(for_us)
            }
            Fault::CrashHost { host, for_us } => {
                self.hosts[host as usize].down += 1;
                self.crash_host(host);
                Some(for_us)
            }
            Fault::Cut { host, way, for_us } => {
                self.cut(host, way, 1);
                Some(for_us)
            }
            Fault::BreakLinks { host } => {
                self.break_links(host);
                None
            }
            Fault::LateData { host, delay_us, for_us } => {
                self.hosts[host as usize].data_delay = delay_us * 1_000;
                Some(for_us)
            }
            Fault::BreakData { host, slot } => {
                let process = self.process_on(host, slot)?;
                self.break_groups_of(process);
                None
            }
            Fault::Rack { hosts, for_us } => {
                for host in self.rack(hosts) {
                    self.hosts[host as usize].down += 1;
                    self.crash_host(host);
                }
                Some(for_us)
            }
            Fault::SlowLink { host, delay_us, for_us } => {
                self.hosts[host as usize].extra_delay = delay_us * 1_000;
                Some(for_us)
            }
            Fault::SlowHost { host, times, for_us } => {
                self.hosts[host as usize].slow_times = times;
                Some(for_us)
            }
            Fault::Discovery { lie, for_us } => {
                self.lies.push((index, lie));
                Some(for_us)
            }
            Fault::Unlist { host, for_us } => {
                self.hosts[host as usize].unlisted += 1;
                Some(for_us)
            }
            Fault::Slots { host, slots, for_us } => {
                let host = &mut self.hosts[host as usize];
                host.listed_slots = slots.min(host.slots);
                Some(for_us)
            }
            Fault::NoSpawn { host, for_us } => {
                self.hosts[host as usize].no_spawn += 1;
                Some(for_us)
            }
            Fault::HangStart { host, for_us } => {
                self.hosts[host as usize].hang_start += 1;
                Some(for_us)
            }
            Fault::StopDriver { for_us } => {
                self.driver.stopped += 1;
                if let Some(node) = self.driver.node() {
                    node.set_stopped(true);
                }
                self.reopen_all();
                Some(for_us)
            }
            Fault::CrashDriver { for_us } => {
                self.kill_driver();
                self.driver.comes_back = true;
                Some(for_us)
            }
            Fault::ReplaceDriver { for_us } => {
                self.strike(index, Fault::StopDriver { for_us });
                self.start_driver();
                Some(for_us)
            }
            Fault::KillDriver => {
                self.kill_driver();
                self.everybody_goes();
                None
            }
            Fault::Interrupt => {
                self.stop_job();
                None
            }
        }
    }

    pub(super) fn end_fault(&mut self, index: u32) {
        if self.healed_at.is_some() {
            return;
        }
        let fault = self.plan[index as usize].fault;
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
            Fault::CrashDriver { .. } if self.driver.comes_back => self.start_driver(),
            Fault::ReplaceDriver { .. } => self.continue_former_drivers(),
            _ => {}
        }
    }

    /// The hosts of a rack, by the bits of its number.
    fn rack(&self, bits: u64) -> Vec<u32> {
        (0..self.hosts.len() as u32).filter(|host| bits >> (host % 64) & 1 == 1).collect()
    }

    fn power_up(&mut self, host: u32) {
        let entry = &mut self.hosts[host as usize];
        entry.down -= 1;
        if entry.down == 0 {
            self.boot_agent_later(host);
        }
    }

    fn take_stopped(&mut self, index: u32) -> Option<u32> {
        let at = self.stopped_by.iter().position(|(fault, _)| *fault == index)?;
        Some(self.stopped_by.remove(at).1)
    }

    pub(super) fn continue_agent(&mut self, host: u32, life: u32, depth: u32) {
        let Some(agent) = self.agent_mut(host, life) else { return };
        if agent.stopped == 0 {
            return;
        }
        agent.stopped -= depth.min(agent.stopped);
        if agent.stopped == 0 {
            let link = agent.link;
            self.thaw_agent(host);
            self.reopen(link);
        }
    }

    pub(super) fn continue_driver(&mut self, depth: u32) {
        if self.driver.stopped == 0 || !self.driver.is_alive() {
            return;
        }
        self.driver.stopped -= depth.min(self.driver.stopped);
        if self.driver.stopped == 0 {
            self.driver.continued_at = self.now;
            self.thaw_driver();
            self.reopen_all();
        }
    }

    pub(super) fn crash_host(&mut self, host: u32) {
        if let Some(agent) = self.hosts[host as usize].agent.take() {
            self.end_peer(agent.link, false, false);
        }
        for process in std::mem::take(&mut self.hosts[host as usize].processes) {
            self.vanish(process);
        }
    }

    fn cut(&mut self, host: u32, way: Way, change: i32) {
        let entry = &mut self.hosts[host as usize];
        let (to_driver, from_driver, data) = match way {
            Way::ToDriver => (true, false, false),
            Way::FromDriver => (false, true, false),
            Way::Driver => (true, true, false),
            Way::Data => (false, false, true),
            Way::All => (true, true, true),
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

    /// The driver is gone: everybody must be, too, after a while.
    pub(super) fn everybody_goes(&mut self) {
        let deadlines = self.scenario.driver.deadlines;
        let patience = deadlines.lost + deadlines.orphan + deadlines.grace * 3;
        let slack = 30_000 * MS;
        self.gone_by = Some(self.now + patience.as_nanos() as u64 + slack);
        self.agenda.push(self.now + MS, Happening::Check);
    }
}

fn place_of(fault: &Fault) -> Place {
    match *fault {
        Fault::KillWorker { host, slot }
        | Fault::ExitWorker { host, slot }
        | Fault::RaiseWorker { host, slot }
        | Fault::StopWorker { host, slot, .. }
        | Fault::BreakData { host, slot }
        | Fault::NoticeWorker { host, slot } => Place { host, slot },
        Fault::KillAgent { host }
        | Fault::StopAgent { host, .. }
        | Fault::DrainHost { host, .. }
        | Fault::CrashHost { host, .. }
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
        | Fault::Rack { .. }
        | Fault::ReplaceDriver { .. }
        | Fault::KillDriver
        | Fault::Interrupt => Place::DRIVER,
    }
}
