//! How each fault begins.

use super::super::{Happening, World};
use crate::plan::Fault;

impl World {
    /// Carries a fault out; how long it lasts, if it does.
    pub(super) fn strike(&mut self, index: u32, fault: Fault) -> Option<u64> {
        let needs_driver = fault.takes_the_driver() || matches!(fault, Fault::StopDriver { .. });
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
            Fault::CrashDriverMidway { outputs, for_us } => {
                self.driver.dies_midway = Some((outputs, for_us));
                None
            }
            Fault::CrashDriverAndWorker { host, slot, for_us } => {
                self.strike(index, Fault::KillWorker { host, slot });
                self.strike(index, Fault::CrashDriver { for_us })
            }
            Fault::CrashDriverAndHost { host, for_us } => {
                self.strike(index, Fault::CrashHost { host, for_us });
                self.strike(index, Fault::CrashDriver { for_us })
            }
            Fault::LoseDriver { for_us } => {
                self.kill_driver();
                self.end_former_drivers();
                self.state_dir.lose();
                self.driver.comes_back = true;
                Some(for_us)
            }
            Fault::Disk { fault, for_us } => {
                self.disk_faults.push((index, fault));
                self.set_disk();
                Some(for_us)
            }
            Fault::ReplaceDriver { for_us } => {
                self.begin_interregnum();
                self.strike(index, Fault::StopDriver { for_us });
                self.start_driver();
                Some(for_us)
            }
            Fault::KillDriver => {
                self.kill_driver();
                self.driver.comes_back = false;
                self.end_former_drivers();
                self.everybody_goes();
                None
            }
            Fault::Interrupt => {
                self.stop_job();
                None
            }
        }
    }
}
