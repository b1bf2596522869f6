//! The host manager's outputs, and the simulated discovery script. Part of the simulated world.

use elastic_host_manager::{
    DiscoveryError, HostEntry, HostManagerOutput, HostState, HostsSnapshot,
};
use elastic_protocol::{ExitStatus, HostName};

use super::super::agents::SimulatedHost;
use super::super::{Happening, MS, World};
use super::LocalMessage;
use crate::plan::DiscoveryFault;
use crate::trace::{TraceKind, TracePlace};

impl World {
    pub(in crate::cores) fn drain_host_manager(&mut self) {
        while let Some(output) =
            self.driver.cores().and_then(|cores| cores.host_manager.poll_output())
        {
            self.put_out(TracePlace::DRIVER, "host_manager", &output);
            match output {
                HostManagerOutput::RunDiscovery { timeout } => {
                    self.discover(timeout.as_nanos() as u64);
                }
                HostManagerOutput::HostsChanged(snapshot) => {
                    self.driver.hosts_since = self.now;
                    let now = self.driver.clock.local(self.now);
                    let cooldown = self.scenario.host_manager.cooldown;
                    let checked = self.driver.cooldowns.check(now, cooldown, &snapshot);
                    self.demand(checked);
                    self.local(LocalMessage::Hosts(snapshot));
                }
                HostManagerOutput::Fatal(failure) => {
                    let reason = failure.to_string();
                    self.local(LocalMessage::Fatal { reason, hint: failure.hint });
                }
            }
        }
        let (now, life, clock) = (self.now, self.driver.life, self.driver.clock);
        let checked = self.driver.cores().map_or(Ok(()), |cores| cores.host_manager.check());
        self.demand(checked);
        let Some(cores) = self.driver.cores() else { return };
        if let Some(at) = cores.host_manager.poll_timeout() {
            let at = clock.world(at).max(now);
            if at < cores.host_manager_armed {
                cores.host_manager_armed = at;
                self.agenda.push(at, Happening::HostManagerTimer { life });
            }
        }
    }

    pub(in crate::cores) fn discover(&mut self, timeout_ns: u64) {
        self.driver.polls += 1;
        self.driver_decides(|| format!("discover within {} ms", timeout_ns / MS));
        let (life, poll) = (self.driver.life, self.driver.polls);
        let takes = if self.lie() == Some(DiscoveryFault::Hang) && poll > 1 {
            timeout_ns
        } else {
            self.draw_ns(5 * MS, 200 * MS).min(timeout_ns)
        };
        self.agenda.push(self.now + takes, Happening::Discovered { life, poll });
    }

    fn lie(&self) -> Option<DiscoveryFault> {
        self.lies.last().map(|(_, lie)| *lie)
    }

    pub(in crate::cores) fn handle_discovered(&mut self, life: u32, poll: u64) {
        if self.driver.stopped > 0 {
            return self.driver.frozen.push(Happening::Discovered { life, poll });
        }
        // The first poll always succeeds: the host manager's own tests cover a first poll that fails and ends the
        // job.
        let lie = if poll == 1 { None } else { self.lie() };
        let result = self.discovery_answer(lie);
        let code = lie.map_or(0, |lie| lie as u64 + 1);
        self.record(TraceKind::Discovery, TracePlace::DRIVER, (poll, code), || {
            format!("{result:?}")
        });
        let has_failed = matches!(
            lie,
            Some(DiscoveryFault::Fail | DiscoveryFault::Hang | DiscoveryFault::Garbage)
        );
        if let Some(actors) = self.driver.actors() {
            actors.hosts_must_stay = has_failed;
            if let Some(answer) = actors.discovery.take() {
                let _taken = answer.send(result).is_ok();
            }
            return;
        }
        let now = self.driver_now();
        let Some(cores) = self.driver.cores() else { return };
        let before = cores.host_manager.snapshot();
        cores.host_manager.handle_discovery(now, result);
        let after = cores.host_manager.snapshot();
        if lie == Some(DiscoveryFault::Unclear) {
            let checked = self.check_unclear(&before, &after);
            self.demand(checked);
        }
        if lie.is_none() {
            let checked = self.check_list(&before, &after);
            self.demand(checked);
        }
        if has_failed && before.hosts.len() != after.hosts.len() {
            self.fail_safety("H-15: a discovery that failed changed the list of hosts".to_owned());
        }
        self.drain_host_manager();
    }

    fn discovery_answer(&self, lie: Option<DiscoveryFault>) -> Result<String, DiscoveryError> {
        let command = "discover".to_owned();
        let stderr = "simulated".to_owned();
        match lie {
            Some(DiscoveryFault::Fail) => {
                Err(DiscoveryError::Failed { command, status: ExitStatus::Code(1), stderr })
            }
            Some(DiscoveryFault::Hang) => {
                let limit = self.scenario.host_manager.script_timeout;
                Err(DiscoveryError::TimedOut { command, limit, stderr })
            }
            Some(DiscoveryFault::Garbage) => Ok("<html>\n\u{7}:1\n".to_owned()),
            Some(DiscoveryFault::Nothing) => Ok(String::new()),
            Some(DiscoveryFault::Unclear) => Ok(self.unclear_hosts()),
            Some(DiscoveryFault::HalfGarbage) => {
                Ok(format!("h9999999:nine\n{}", self.listed_hosts()))
            }
            None => Ok(self.listed_hosts()),
        }
    }

    fn listed(&self) -> impl Iterator<Item = &SimulatedHost> {
        let arrived = self.hosts.iter().zip(&self.scenario.arrives);
        let arrived = arrived.filter(|(_, arrives)| **arrives <= self.now).map(|(host, _)| host);
        arrived.filter(|host| host.unlisted == 0)
    }

    fn listed_hosts(&self) -> String {
        self.listed().map(|host| format!("{}:{}\n", host.name, host.listed_slots)).collect()
    }

    /// The list of `listed_hosts` with unreadable slots for every other host.
    fn unclear_hosts(&self) -> String {
        let line = |host: &SimulatedHost| match host.number % 2 {
            0 => format!("{}:{}\n", host.name, host.listed_slots),
            _ => format!("{}:two\n", host.name),
        };
        self.listed().map(line).collect()
    }

    /// Checks the list after an answer that was true: it is the answer, and hosts that stay keep their order.
    fn check_list(&self, before: &HostsSnapshot, after: &HostsSnapshot) -> Result<(), String> {
        let is_so = |entry: &HostEntry| {
            let mut listed = self.listed();
            listed.any(|host| host.name == entry.name && host.listed_slots == entry.slots)
        };
        if let Some(entry) = after.hosts.iter().find(|entry| !is_so(entry)) {
            return Err(format!(
                "H-15: {} has {} slots, and is not so listed",
                entry.name, entry.slots
            ));
        }
        if after.hosts.len() != self.listed().count() {
            return Err("H-15: a listed host is left out".to_owned());
        }
        let is_in = |hosts: &[HostEntry], name: &HostName| {
            hosts.iter().any(|entry| entry.name == *name && entry.state == HostState::Listed)
        };
        let stay = |hosts: &HostsSnapshot| -> Vec<HostName> {
            let names = hosts.hosts.iter().map(|entry| &entry.name);
            let stay = names.filter(|name| is_in(&before.hosts, name) && is_in(&after.hosts, name));
            stay.cloned().collect()
        };
        if stay(before) != stay(after) {
            return Err("G-8: hosts that stay have changed their order".to_owned());
        }
        Ok(())
    }

    /// Checks that a listed host whose slots cannot be read keeps its entry.
    fn check_unclear(&self, before: &HostsSnapshot, after: &HostsSnapshot) -> Result<(), String> {
        let is_unclear =
            |name: &HostName| self.listed().any(|host| host.number % 2 == 1 && host.name == *name);
        for entry in before.hosts.iter().filter(|entry| is_unclear(&entry.name)) {
            let stays = |other: &&HostEntry| other.name == entry.name && other.slots == entry.slots;
            if !after.hosts.iter().any(|other| stays(&other)) {
                return Err(format!("H-15: {} left the list for a slip of the pen", entry.name));
            }
        }
        Ok(())
    }
}
