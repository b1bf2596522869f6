//! The host manager's state machine: discovery output, arrivals and failures in, snapshots out. Called by
//! the actor shell, and by the simulation as it is.
//!
//! - The list is kept oldest first. Departed hosts are removed; new hosts are appended in the order of the
//!   discovery's lines. So a host that left and returned is the youngest (H-17).
//! - A snapshot is given only when hosts (also those off the list) or warnings differ from those of the last one. A change
//!   that is undone in between is never reported (H-19).
//! - A malformed line is skipped with a warning that names it, also in the first poll: one typing error in a
//!   long list should neither end a job nor keep it from starting. The poll fails only if *no* line is a host.
//!   A listed host whose slots cannot be parsed stays as it is.
//! - A failure of the first discovery is fatal. A later failure is a warning, and the last hosts stay (H-15).

mod blacklist;
mod config;
mod decision;
mod discovery;
pub mod limits;
mod parse;
mod snapshot;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{HostName, Time};
use rand_chacha::ChaCha8Rng;

use self::blacklist::Blacklist;
pub use self::config::{
    CooldownRange, HostManagerConfig, HostSlots, HostSource, InvalidConfig, KnownHost,
};
pub use self::decision::{
    DrainDecision, FailureDecision, HostFault, JoinDecision, JoinRefusal, LeaveDecision,
    ReadmitDecision,
};
pub use self::discovery::{DiscoveryError, DiscoveryFailure};
use self::limits::{HOSTS_MAX, OUTPUT_BYTES_MAX, PENALTIES_MAX, SLOTS_MAX};
pub use self::parse::{
    HostLines, HostListError, LineError, LineProblem, parse_host_list, parse_hosts,
};
pub use self::snapshot::{HostEntry, HostManagerOutput, HostState, HostUpdate, HostsSnapshot};

/// The owner of these facts: which hosts exist, their slots and order, which are blacklisted until when, and
/// which the operator has taken out.
#[derive(Debug)]
pub struct HostManagerCore {
    config: HostManagerConfig,
    /// Oldest first, blacklisted ones included.
    hosts: Vec<HostSlots>,
    blacklist: Blacklist,
    /// Hosts that the operator has taken out. Kept when a host leaves the list, so that it stays out when it returns.
    drained: BTreeSet<HostName>,
    warnings: Vec<String>,
    polling: Polling,
    discovered_once: bool,
    requests: VecDeque<HostManagerOutput>,
    given: HostsSnapshot,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Polling {
    /// The next poll begins at this time.
    Due(Time),
    /// A poll is running.
    Running,
    /// No polling: hosts are fixed or join, or the first poll failed.
    Off,
}

impl HostManagerCore {
    /// A core with the hosts that are known without a discovery. A script's first poll is requested at once.
    ///
    /// `config` is taken as validated. `rng` is for the cooldown's jitter and nothing else.
    pub fn new(config: HostManagerConfig, rng: ChaCha8Rng, now: Time) -> Self {
        let listed = config.known.iter().filter(|known| known.is_listed);
        let known = listed.map(|known| known.host.clone()).collect();
        let (hosts, polling) = match &config.source {
            HostSource::Script => (known, Polling::Due(now)),
            HostSource::Fixed(hosts) => (hosts.clone(), Polling::Off),
            HostSource::Joined => (known, Polling::Off),
        };
        let mut blacklist = Blacklist::new(config.cooldown, rng);
        for known in config.known.iter().filter(|known| known.is_blacklisted) {
            let fault = if known.comes_back { HostFault::Unreached } else { HostFault::Failed };
            blacklist.put_out(now, &known.host.name, fault);
        }
        let drained = config.known.iter().filter(|known| known.is_drained);
        let drained = drained.map(|known| known.host.name.clone()).collect();
        let mut core = Self {
            drained,
            discovered_once: !config.known.is_empty(),
            blacklist,
            config,
            hosts,
            warnings: Vec::new(),
            polling,
            requests: VecDeque::new(),
            given: HostsSnapshot::default(),
        };
        core.handle_timeout(now);
        core
    }

    /// A poll ended. If no poll is running (a late answer of an earlier one), nothing changes.
    pub fn handle_discovery(&mut self, now: Time, result: Result<String, DiscoveryError>) {
        self.blacklist.expire(now);
        if self.polling != Polling::Running {
            return;
        }
        self.polling = Polling::Due(now + self.config.poll_interval);
        match result.and_then(|output| self.read(&output)) {
            Ok(lines) => {
                self.discovered_once = true;
                self.warnings = lines
                    .complaints()
                    .map(|complaint| format!("host discovery: {complaint}"))
                    .collect();
                self.take_list(lines);
            }
            Err(error) if self.discovered_once => {
                if is_planted(Bug::FailedDiscoveryEmptiesList) {
                    self.hosts.clear();
                }
                if is_planted(Bug::PollingStops) {
                    self.polling = Polling::Off;
                }
                self.warnings =
                    vec![format!("host discovery fails, the last hosts are kept: {error}")];
            }
            Err(error) => {
                self.polling = Polling::Off;
                let hint = error.hint();
                let failure = DiscoveryFailure { error, hint };
                self.requests.push_back(HostManagerOutput::Fatal(failure));
            }
        }
    }

    /// An agent joined. The list changes only if hosts come by joining. A host that is already listed keeps its
    /// position, and gets the slots that it offers now.
    pub fn handle_joined(&mut self, now: Time, name: HostName, slots: u32) -> JoinDecision {
        self.blacklist.expire(now);
        let listed = self.hosts.iter().position(|host| host.name == name);
        if self.config.source != HostSource::Joined {
            return match listed {
                Some(index) => JoinDecision::Expected { slots: self.hosts[index].slots },
                None => JoinDecision::Refused(JoinRefusal::NotListed { name }),
            };
        }
        if !(1..=SLOTS_MAX).contains(&slots) {
            return JoinDecision::Refused(JoinRefusal::Slots { name, slots });
        }
        match listed {
            Some(index) => self.hosts[index].slots = slots,
            None if self.hosts.len() >= HOSTS_MAX => {
                return JoinDecision::Refused(JoinRefusal::TooManyHosts { name });
            }
            None => self.hosts.push(HostSlots { name, slots }),
        }
        JoinDecision::Taken
    }

    /// A host's agent is gone for good. The list changes only if hosts come by joining.
    pub fn handle_left(&mut self, now: Time, name: &HostName) -> LeaveDecision {
        self.blacklist.expire(now);
        let Some(index) = self.hosts.iter().position(|host| host.name == *name) else {
            return LeaveDecision::NotListed;
        };
        if self.config.source != HostSource::Joined {
            return LeaveDecision::StaysListed;
        }
        self.hosts.remove(index);
        LeaveDecision::Removed
    }

    /// Blacklists a host, once for each stay: further failures during the stay (of its other slots) are part of
    /// the same failure. A host that has left the list meanwhile is blacklisted as well.
    pub fn handle_failure(
        &mut self,
        now: Time,
        name: &HostName,
        fault: HostFault,
        reason: &str,
    ) -> FailureDecision {
        self.blacklist.expire(now);
        if let Some(stay) = self.blacklist.stay(name) {
            return FailureDecision::OutAlready { until: stay.until };
        }
        let until = self.blacklist.put_out(now, name, fault).until;
        FailureDecision::Blacklisted { until, reason: reason.to_owned() }
    }

    /// The operator takes a host out: it gets no workers until it is let in again, even if the discovery lists it.
    pub fn handle_drain(&mut self, now: Time, name: &HostName) -> DrainDecision {
        self.blacklist.expire(now);
        if self.drained.contains(name) {
            return DrainDecision::OutAlready;
        }
        if !self.hosts.iter().any(|host| host.name == *name) {
            return DrainDecision::NotListed;
        }
        if self.drained.len() >= PENALTIES_MAX {
            return DrainDecision::TooMany;
        }
        self.drained.insert(name.clone());
        DrainDecision::Drained
    }

    /// The operator lets a host in again: it is not drained or blacklisted any more, and its failures are forgotten.
    pub fn handle_readmit(&mut self, now: Time, name: &HostName) -> ReadmitDecision {
        self.blacklist.expire(now);
        let (was_drained, was_blacklisted) =
            (self.drained.remove(name), self.blacklist.forgive(name));
        match was_drained || was_blacklisted {
            true => ReadmitDecision::Readmitted,
            false => ReadmitDecision::NotOut,
        }
    }

    /// Time has passed: a poll may be due, a stay over.
    pub fn handle_timeout(&mut self, now: Time) {
        self.blacklist.expire(now);
        if matches!(self.polling, Polling::Due(at) if at <= now) {
            self.polling = Polling::Running;
            let timeout = self.config.script_timeout;
            self.requests.push_back(HostManagerOutput::RunDiscovery { timeout });
        }
    }

    /// The next output; `None` when there are no more.
    pub fn poll_output(&mut self) -> Option<HostManagerOutput> {
        if let Some(request) = self.requests.pop_front() {
            return Some(request);
        }
        let mut snapshot = self.snapshot();
        let HostsSnapshot { hosts, unlisted, warnings, .. } = &self.given;
        if (&snapshot.hosts, &snapshot.unlisted, &snapshot.warnings) == (hosts, unlisted, warnings)
        {
            debug_assert_eq!(self.check(), Ok(()));
            return None;
        }
        snapshot.update = HostUpdate::between(&self.given.hosts, &snapshot.hosts);
        self.given = snapshot.clone();
        Some(HostManagerOutput::HostsChanged(snapshot))
    }

    /// Checks that each host is listed once and has slots within the bound, and the blacklist. Runs after every input
    /// in debug builds and in the simulation.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for HostSlots { name, slots } in &self.hosts {
            if !names.insert(name) {
                return Err(format!("host {name} is listed twice"));
            }
            if !(1..=SLOTS_MAX).contains(slots) {
                return Err(format!("host {name} is listed with {slots} slots"));
            }
        }
        if self.polling != Polling::Off && self.config.source != HostSource::Script {
            return Err(format!("{:?}, and hosts come from no script", self.polling));
        }
        if self.drained.len() > PENALTIES_MAX.max(self.config.known.len()) {
            return Err(format!("{} hosts are drained", self.drained.len()));
        }
        self.blacklist.check()
    }

    /// The time at which `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        let poll = match self.polling {
            Polling::Due(at) => Some(at),
            Polling::Running | Polling::Off => None,
        };
        poll.into_iter().chain(self.blacklist.next_end()).min()
    }

    /// The current hosts; `update` is `HostUpdate::None`.
    pub fn snapshot(&self) -> HostsSnapshot {
        let entry = |host: &HostSlots| self.entry(&host.name, host.slots);
        HostsSnapshot {
            hosts: self.hosts.iter().map(entry).collect(),
            unlisted: self.unlisted(),
            update: HostUpdate::None,
            warnings: self.warnings.clone(),
        }
    }

    fn entry(&self, name: &HostName, slots: u32) -> HostEntry {
        let state = match self.blacklist.stay(name) {
            _ if self.drained.contains(name) => HostState::Drained,
            Some(stay) => HostState::Blacklisted { until: stay.until },
            None => HostState::Listed,
        };
        HostEntry { name: name.clone(), slots, state }
    }

    /// The hosts off the list that are drained or blacklisted, by name.
    fn unlisted(&self) -> Vec<HostEntry> {
        let mut out: BTreeSet<&HostName> =
            self.drained.iter().chain(self.blacklist.names()).collect();
        for host in &self.hosts {
            out.remove(&host.name);
        }
        out.into_iter().map(|name| self.entry(name, 0)).collect()
    }

    fn read(&self, output: &str) -> Result<HostLines, DiscoveryError> {
        if output.len() > OUTPUT_BYTES_MAX {
            return Err(DiscoveryError::TooMuchOutput { command: "host discovery".to_owned() });
        }
        let lines = parse_hosts(output, self.config.default_slots);
        if lines.is_garbage() {
            let complaints = lines.complaints().collect::<Vec<_>>().join("; ");
            return Err(DiscoveryError::Garbage { complaints });
        }
        Ok(lines)
    }

    /// Takes a new list: known hosts keep their order, new hosts go to the end.
    fn take_list(&mut self, lines: HostLines) {
        let HostLines { hosts, unclear, .. } = lines;
        let order: Vec<HostName> = hosts.iter().map(|host| host.name.clone()).collect();
        let mut listed: BTreeMap<HostName, u32> =
            hosts.into_iter().map(|host| (host.name, host.slots)).collect();
        self.hosts.retain_mut(|host| match listed.remove(&host.name) {
            Some(slots) => {
                host.slots = slots;
                true
            }
            None if is_planted(Bug::UnclearHostLeaves) => false,
            None => unclear.contains(&host.name) || is_planted(Bug::AbsentHostKept),
        });
        for name in order {
            if let Some(slots) = listed.remove(&name) {
                self.hosts.push(HostSlots { name, slots });
            }
        }
    }
}
