//! Start of each fault: carries out its first effect. Called by `begin_fault`.

use super::super::{Happening, World};
use crate::plan::{DiskFault, SimulatedFault};

/// Time until a driver leads that stood by as the job's operator ended the one before, in microseconds.
const STANDBY_LEADS_US: u64 = 500_000;

impl World {
    /// Carries a fault out. Returns its duration in microseconds, if the caller is to end it.
    pub(super) fn strike(&mut self, index: u32, fault: SimulatedFault) -> Option<u64> {
        let needs_driver =
            fault.takes_the_driver() || matches!(fault, SimulatedFault::StopDriver { .. });
        if needs_driver && !self.driver.is_alive() {
            return None;
        }
        match fault {
            SimulatedFault::KillWorker { host, slot } => {
                let process = self.process_on(host, slot)?;
                self.kill_process(process);
                None
            }
            SimulatedFault::ExitWorker { host, slot } => {
                let process = self.process_on(host, slot)?;
                self.handle_exited(process, 1);
                None
            }
            SimulatedFault::RaiseWorker { host, slot } => {
                let process = self.process_on(host, slot)?;
                self.processes[process as usize].program.raises = true;
                None
            }
            SimulatedFault::StopWorker { host, slot, for_us } => {
                let process = self.process_on(host, slot)?;
                self.stop_process(process);
                let at = self.now + for_us * 1_000;
                self.stopped_by.push((index, process));
                self.agenda.push(at, Happening::Mended(index));
                None
            }
            SimulatedFault::HangThread { host, slot, for_us } => {
                let process = self.process_on(host, slot)?;
                self.processes[process as usize].thread_hangs += 1;
                self.stopped_by.push((index, process));
                Some(for_us)
            }
            SimulatedFault::RaiseLate { host, slot } => {
                let process = self.process_on(host, slot)?;
                self.processes[process as usize].program.raises_late = true;
                None
            }
            SimulatedFault::FlipBit { host, slot, bit } => {
                let process = self.process_on(host, slot)?;
                self.flip_bit(process, bit);
                None
            }
            SimulatedFault::OtherBatches { host, slot } => {
                let process = self.process_on(host, slot)?;
                self.draw_other_batches(process);
                None
            }
            SimulatedFault::NoticeWorker { host, slot } => {
                let process = self.process_on(host, slot)?;
                self.hosts[host as usize].has_closed_slots = true;
                self.note_notice(process);
                // A worker that ignores SIGTERM stays with its commit: the notice is no order, so no SIGKILL follows
                // it.
                if !self.scenario.stubborn {
                    self.handle_signalled(process, false);
                }
                None
            }
            SimulatedFault::RenumberHost { host } => {
                self.renumber(host);
                None
            }
            SimulatedFault::HangLane { host, for_us } => {
                let life = self.hosts[host as usize].agent.as_ref()?.life;
                self.hang_lane(host, life);
                self.stopped_by.push((index, life));
                Some(for_us)
            }
            SimulatedFault::KillAgent { host } => {
                self.end_agent(host, false);
                self.boot_agent_later(host);
                None
            }
            SimulatedFault::StopAgent { host, for_us } => {
                let (now, agent) = (self.now, self.hosts[host as usize].agent.as_mut()?);
                agent.stop(now);
                let link = agent.link;
                self.stopped_by.push((index, agent.life));
                self.reopen(link);
                Some(for_us)
            }
            SimulatedFault::StarveAgent { host, for_us } => {
                let (now, agent) = (self.now, self.hosts[host as usize].agent.as_mut()?);
                agent.stop(now);
                agent.starved += 1;
                let link = agent.link;
                self.stopped_by.push((index, agent.life));
                self.reopen(link);
                Some(for_us)
            }
            SimulatedFault::DrainHost { host, for_us } => {
                self.drain_host(host);
                Some(for_us)
            }
            SimulatedFault::CrashHost { host, for_us } => {
                self.hosts[host as usize].down += 1;
                self.crash_host(host);
                Some(for_us)
            }
            SimulatedFault::Cut { host, way, for_us } => {
                self.cut(host, way, 1);
                Some(for_us)
            }
            SimulatedFault::BreakLinks { host } => {
                self.break_links(host);
                None
            }
            SimulatedFault::ForgedRefusals { host } => {
                self.forge_refusals(host);
                None
            }
            SimulatedFault::LateData { host, delay_us, for_us } => {
                self.hosts[host as usize].data_delay = delay_us * 1_000;
                Some(for_us)
            }
            SimulatedFault::BreakData { host, slot } => {
                let process = self.process_on(host, slot)?;
                self.break_groups_of(process);
                None
            }
            SimulatedFault::Rack { hosts, for_us } => {
                for host in self.rack(hosts) {
                    self.hosts[host as usize].down += 1;
                    self.crash_host(host);
                }
                Some(for_us)
            }
            SimulatedFault::SlowLink { host, delay_us, for_us } => {
                self.hosts[host as usize].extra_delay = delay_us * 1_000;
                Some(for_us)
            }
            SimulatedFault::SlowHost { host, times, for_us } => {
                self.hosts[host as usize].slow_times = times;
                Some(for_us)
            }
            SimulatedFault::SlowData { host, from, times, for_us } => {
                self.slow_link(from, host, times);
                Some(for_us)
            }
            SimulatedFault::SickHost { host, for_us } => {
                self.hosts[host as usize].sick += 1;
                Some(for_us)
            }
            SimulatedFault::SlowSlot { host, slot, times, for_us } => {
                self.hosts[host as usize].slow_slots.insert(slot, times);
                Some(for_us)
            }
            SimulatedFault::Discovery { lie, for_us } => {
                self.lies.push((index, lie));
                Some(for_us)
            }
            SimulatedFault::Unlist { host, for_us } => {
                self.hosts[host as usize].unlisted += 1;
                Some(for_us)
            }
            SimulatedFault::Slots { host, slots, for_us } => {
                let host = &mut self.hosts[host as usize];
                host.listed_slots = slots.min(host.slots);
                Some(for_us)
            }
            SimulatedFault::NoSpawn { host, for_us } => {
                self.hosts[host as usize].no_spawn += 1;
                Some(for_us)
            }
            SimulatedFault::NoForming { host, is_told, for_us } => {
                self.hosts[host as usize].no_forming[usize::from(is_told)] += 1;
                Some(for_us)
            }
            SimulatedFault::LoopbackDown { host, for_us } => {
                self.hosts[host as usize].no_loopback += 1;
                Some(for_us)
            }
            SimulatedFault::OtherRelease { host, for_us } => {
                self.hosts[host as usize].other_release += 1;
                Some(for_us)
            }
            SimulatedFault::HangStart { host, for_us } => {
                self.hosts[host as usize].hang_start += 1;
                Some(for_us)
            }
            SimulatedFault::StopDriver { for_us } => {
                self.begin_interregnum();
                if self.driver.stopped == 0 {
                    self.driver.stopped_at = self.now;
                }
                self.driver.stopped += 1;
                if let Some(node) = self.driver.node() {
                    node.set_stopped(true);
                }
                self.reopen_all();
                Some(for_us)
            }
            SimulatedFault::CrashDriver { for_us } => {
                self.kill_driver();
                self.driver.comes_back = true;
                Some(for_us)
            }
            SimulatedFault::CrashDriverMidway { outputs, for_us } => {
                self.driver.dies_midway = Some((outputs, for_us));
                None
            }
            SimulatedFault::CrashDriverAndWorker { host, slot, for_us } => {
                self.strike(index, SimulatedFault::KillWorker { host, slot });
                self.strike(index, SimulatedFault::CrashDriver { for_us })
            }
            SimulatedFault::CrashDriverAndHost { host, for_us } => {
                self.strike(index, SimulatedFault::CrashHost { host, for_us });
                self.strike(index, SimulatedFault::CrashDriver { for_us })
            }
            SimulatedFault::LoseDriver { for_us } => {
                self.kill_driver();
                self.end_former_drivers();
                self.state_dir.lose();
                self.driver.comes_back = true;
                Some(for_us)
            }
            SimulatedFault::Disk { fault, for_us } => {
                self.disk_faults.push((index, fault));
                self.set_disk();
                Some(for_us)
            }
            SimulatedFault::DisplaceJournal { by, for_us } => {
                if !self.driver.is_alive() || !self.state_dir.displace(by) {
                    return None;
                }
                Some(for_us)
            }
            SimulatedFault::StopOnDeadDisk { hangs, again_us } => {
                if !self.driver.runs() || self.driver.dead_disk.is_some() || self.has_standby() {
                    return None;
                }
                let fault = if hangs { DiskFault::Hangs } else { DiskFault::Full };
                self.disk_faults.push((index, fault));
                self.set_disk();
                self.stop_on_dead_disk(index);
                again_us
            }
            SimulatedFault::ReplaceDriver { for_us } => {
                self.begin_interregnum();
                self.strike(index, SimulatedFault::StopDriver { for_us });
                self.start_driver();
                Some(for_us)
            }
            SimulatedFault::KillDriver => {
                self.kill_driver();
                self.driver.comes_back = false;
                self.end_former_drivers();
                self.everybody_goes();
                None
            }
            SimulatedFault::Interrupt if self.has_standby() => {
                self.ask_to_hand_over(0, STANDBY_LEADS_US);
                None
            }
            SimulatedFault::Interrupt => {
                self.note_stop_asked();
                self.stop_job();
                None
            }
            SimulatedFault::AskToStop => {
                self.note_stop_asked();
                self.ask_to_stop();
                None
            }
            SimulatedFault::StandBy { number, for_us } => {
                self.set_standby(number, true);
                Some(for_us)
            }
            SimulatedFault::HandOver { number, for_us } => {
                self.ask_to_hand_over(number, for_us);
                None
            }
            SimulatedFault::LaunchFails { host } => {
                self.launch_fails(host);
                None
            }
            SimulatedFault::NoProgram { host, for_us } => {
                let host = &mut self.hosts[host as usize];
                (host.no_program, host.has_lacked_program) = (host.no_program + 1, true);
                Some(for_us)
            }
        }
    }
}
