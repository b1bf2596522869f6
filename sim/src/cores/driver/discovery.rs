//! The host manager's outputs, and the discovery script.

use elastic_host_manager::{DiscoveryError, HostManagerOutput};
use elastic_protocol::ExitStatus;

use super::super::{Happening, MS, World};
use super::Local;
use crate::plan::Lie;
use crate::trace::{Kind, Place};

impl World {
    pub(in crate::cores) fn drain_host_manager(&mut self) {
        while let Some(output) =
            self.driver.cores().and_then(|cores| cores.host_manager.poll_output())
        {
            match output {
                HostManagerOutput::RunDiscovery { timeout } => {
                    self.discover(timeout.as_nanos() as u64);
                }
                HostManagerOutput::HostsChanged(snapshot) => self.local(Local::Hosts(snapshot)),
                HostManagerOutput::Fatal(failure) => {
                    let reason = failure.to_string();
                    self.local(Local::Fatal { reason, hint: failure.hint });
                }
            }
        }
        let (now, life, clock) = (self.now, self.driver.life, self.driver.clock);
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
        let (life, poll) = (self.driver.life, self.driver.polls);
        let takes = if self.lie() == Some(Lie::Hang) && poll > 1 {
            timeout_ns
        } else {
            self.draw_ns(5 * MS, 200 * MS).min(timeout_ns)
        };
        self.agenda.push(self.now + takes, Happening::Discovered { life, poll });
    }

    fn lie(&self) -> Option<Lie> {
        self.lies.last().map(|(_, lie)| *lie)
    }

    pub(in crate::cores) fn handle_discovered(&mut self, life: u32, poll: u64) {
        if self.driver.stopped > 0 {
            return self.driver.frozen.push(Happening::Discovered { life, poll });
        }
        // The first poll is always answered: that its failure ends the job is the host manager's own test.
        let lie = if poll == 1 { None } else { self.lie() };
        let result = self.discovery_answer(lie);
        let code = lie.map_or(0, |lie| lie as u64 + 1);
        self.record(Kind::Discovery, Place::DRIVER, (poll, code), || format!("{result:?}"));
        let has_failed = matches!(lie, Some(Lie::Fail | Lie::Hang | Lie::Garbage));
        if let Some(actors) = self.driver.actors() {
            actors.hosts_must_stay = has_failed;
            if let Some(answer) = actors.discovery.take() {
                let _taken = answer.send(result).is_ok();
            }
            return;
        }
        let now = self.driver_now();
        let Some(cores) = self.driver.cores() else { return };
        let before = cores.host_manager.snapshot().hosts.len();
        cores.host_manager.handle_discovery(now, result);
        let after = cores.host_manager.snapshot().hosts.len();
        if has_failed && before != after {
            self.fail_safety("H-15: a discovery that failed changed the list of hosts".to_owned());
        }
        self.drain_host_manager();
    }

    fn discovery_answer(&self, lie: Option<Lie>) -> Result<String, DiscoveryError> {
        let command = "discover".to_owned();
        let stderr = "simulated".to_owned();
        match lie {
            Some(Lie::Fail) => {
                Err(DiscoveryError::Failed { command, status: ExitStatus::Code(1), stderr })
            }
            Some(Lie::Hang) => {
                let limit = self.scenario.host_manager.script_timeout;
                Err(DiscoveryError::TimedOut { command, limit, stderr })
            }
            Some(Lie::Garbage) => Ok("<html>\n\u{7}:1\n".to_owned()),
            Some(Lie::Nothing) => Ok(String::new()),
            Some(Lie::HalfGarbage) => Ok(format!("h9999999:nine\n{}", self.listed_hosts())),
            None => Ok(self.listed_hosts()),
        }
    }

    fn listed_hosts(&self) -> String {
        let mut text = String::new();
        for (index, host) in self.hosts.iter().enumerate() {
            if host.unlisted == 0 && self.scenario.arrives[index] <= self.now {
                text += &format!("{}:{}\n", host.name, host.listed_slots);
            }
        }
        text
    }
}
