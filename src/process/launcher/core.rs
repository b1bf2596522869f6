//! Which agents are started, asked to go and given up, as a state machine without I/O. Called by the
//! launcher's shell, for agents of this machine and for those over ssh alike.
//!
//! An agent that ends while its host is listed is started again after a back-off. The agent of a host that
//! has left the list is asked to go once no worker of its is left; blacklisted hosts keep theirs. An agent
//! of another machine that is not heard of is given up, and what reached it is ended. A host on which none
//! can be started is told as failing; one that had an agent before and cannot be reached is waited for.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use elastic_protocol::{HostName, Time};
use elastic_runtime::restart::Backoff;
use rand_chacha::ChaCha8Rng;

/// An agent that lived so long was well: the back-off begins anew.
const WELL_AFTER: Duration = Duration::from_secs(10);

/// How long agents that a former driver started may take to find this one.
const BACK_WITHIN: Duration = Duration::from_secs(7);

/// How agents of this machine and of others differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LauncherRules {
    /// From the end of an agent to its next start.
    pub(crate) backoff: Backoff,
    /// None: the agent's own process is seen.
    pub(crate) remote: Option<RemoteRules>,
}

/// What holds where only the way to the agent is seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteRules {
    /// How many times in a row an agent may end before it has joined, until its host is told as failing.
    pub(crate) failures_max: u32,
    /// How long an agent may take to join.
    pub(crate) join_within: Duration,
    /// How long one that has joined may be unheard.
    pub(crate) back_within: Duration,
}

/// How an agent, or the way to it, ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct AgentEnd {
    pub(crate) kind: EndKind,
    /// In words, for people.
    pub(crate) reason: String,
}

/// What its end says of the agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EndKind {
    /// It has ended.
    Ended,
    /// The host cannot be reached, or not any more; of an agent there nothing is known.
    Unreachable,
    /// The host does not let one be started.
    Refused,
}

/// What is to be done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum LauncherOutput {
    /// Start the host's agent; its end is told by [`LauncherCore::handle_ended`].
    Start(HostName),
    /// Ask it to go, in order.
    AskToGo(HostName),
    /// End it, or the way to it, at once.
    Kill(HostName),
    /// The host is failing.
    Failed { host: HostName, reason: String },
    /// For the log: it ended, and is started again.
    Again { host: HostName, reason: String },
}

/// Agents that this driver did not start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Foreign {
    #[default]
    None,
    /// There may be one, which has until then to come back.
    Until(Time),
    /// It has joined.
    Joined,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Agent {
    /// Not started, and not before this.
    Absent { not_before: Time },
    Present {
        since: Time,
        /// Since when the driver has not heard of it.
        alone_since: Time,
        has_joined: bool,
        is_asked: bool,
        is_killed: bool,
    },
}

/// What is known and wanted of a host's agent.
#[derive(Debug)]
struct Host {
    /// Whether the job may use the host.
    is_listed: bool,
    /// Whether the host stands in the list, blacklisted or not.
    is_known: bool,
    /// Whether it has workers' processes.
    is_busy: bool,
    /// Whether its agent is joined now.
    is_joined: bool,
    /// Whether one ever was.
    was_joined: bool,
    foreign: Foreign,
    agent: Agent,
    /// Ends in a row, for the back-off.
    ends: u32,
    /// Ends in a row before the agent had joined.
    failures: u32,
    /// Told as failing, and not listed anew since.
    is_given_up: bool,
    last_reason: String,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            is_listed: false,
            is_known: false,
            is_busy: false,
            is_joined: false,
            was_joined: false,
            foreign: Foreign::None,
            agent: Agent::Absent { not_before: Time::ZERO },
            ends: 0,
            failures: 0,
            is_given_up: false,
            last_reason: String::new(),
        }
    }
}

/// The agents that a driver starts.
#[derive(Debug)]
pub(crate) struct LauncherCore {
    rules: LauncherRules,
    rng: ChaCha8Rng,
    hosts: BTreeMap<HostName, Host>,
    outputs: VecDeque<LauncherOutput>,
    is_closing: bool,
}

impl LauncherCore {
    /// No hosts yet. `rng` is for the back-off's jitter and nothing else.
    pub(crate) fn new(rules: LauncherRules, rng: ChaCha8Rng) -> Self {
        let (hosts, outputs) = Default::default();
        Self { rules, rng, hosts, outputs, is_closing: false }
    }

    /// The hosts in the list, each with whether the job may use it now.
    pub(crate) fn handle_hosts(&mut self, now: Time, listed: &BTreeMap<HostName, bool>) {
        for name in listed.keys() {
            self.hosts.entry(name.clone()).or_default();
        }
        for (name, host) in &mut self.hosts {
            let is_listed = listed.get(name).copied();
            if is_listed == Some(true) && !host.is_listed {
                (host.is_given_up, host.failures) = (false, 0);
            }
            host.is_known = is_listed.is_some();
            host.is_listed = is_listed == Some(true);
        }
        self.review(now);
    }

    /// Whether a host has workers' processes.
    pub(crate) fn handle_busy(&mut self, now: Time, name: &HostName, is_busy: bool) {
        self.hosts.entry(name.clone()).or_default().is_busy = is_busy;
        self.review(now);
    }

    /// These hosts may have agents that a former driver started.
    pub(crate) fn adopt(&mut self, now: Time, names: impl Iterator<Item = HostName>) {
        for name in names {
            self.hosts.entry(name).or_default().foreign = Foreign::Until(now + BACK_WITHIN);
        }
    }

    /// A host's agent has joined, or is lost.
    pub(crate) fn handle_joined(&mut self, now: Time, name: &HostName, is_joined: bool) {
        let host = self.hosts.entry(name.clone()).or_default();
        host.is_joined = is_joined;
        host.foreign = match host.agent {
            // Nobody else is started beside it.
            Agent::Absent { .. } if is_joined => Foreign::Joined,
            _ => Foreign::None,
        };
        if is_joined {
            (host.was_joined, host.failures) = (true, 0);
        }
        if let Agent::Present { alone_since, has_joined, .. } = &mut host.agent {
            *alone_since = now;
            *has_joined |= is_joined;
        }
        self.review(now);
    }

    /// What was started for a host has ended, or could not be started.
    pub(crate) fn handle_ended(&mut self, now: Time, name: &HostName, end: AgentEnd) {
        let Some(host) = self.hosts.get_mut(name) else { return };
        let Agent::Present { since, has_joined, .. } = host.agent else { return };
        if now.since(since) >= WELL_AFTER && has_joined {
            host.ends = 0;
        }
        let not_before = now + self.rules.backoff.wait(host.ends, &mut self.rng);
        host.agent = Agent::Absent { not_before };
        host.ends = host.ends.saturating_add(1);
        if end.kind == EndKind::Unreachable && host.is_joined {
            // It goes on without its launcher; only when the driver loses it, another is started.
            host.foreign = Foreign::Joined;
        } else {
            host.is_joined = false;
        }
        if !has_joined {
            host.failures = host.failures.saturating_add(1);
        }
        let is_waited_for = host.was_joined && end.kind == EndKind::Unreachable;
        let failures_max = self.rules.remote.map_or(u32::MAX, |remote| remote.failures_max);
        if !host.is_listed || self.is_closing {
            return;
        }
        if host.failures > failures_max && !is_waited_for {
            host.is_given_up = true;
            let reason = end.reason;
            self.outputs.push_back(LauncherOutput::Failed { host: name.clone(), reason });
        } else if host.last_reason != end.reason || host.failures == 0 {
            host.last_reason.clone_from(&end.reason);
            let reason = end.reason;
            self.outputs.push_back(LauncherOutput::Again { host: name.clone(), reason });
        }
    }

    /// Time has passed.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.review(now);
    }

    /// The job is over: nothing is started any more.
    pub(crate) fn start_no_more(&mut self) {
        self.is_closing = true;
    }

    /// Those that are left have had their time.
    pub(crate) fn kill_all(&mut self) {
        for (name, host) in &mut self.hosts {
            if let Agent::Present { is_killed, .. } = &mut host.agent
                && !std::mem::replace(is_killed, true)
            {
                self.outputs.push_back(LauncherOutput::Kill(name.clone()));
            }
        }
    }

    /// How many are started and have not ended.
    pub(crate) fn running(&self) -> usize {
        self.hosts.values().filter(|host| matches!(host.agent, Agent::Present { .. })).count()
    }

    /// What is to be done next, until there is nothing more.
    pub(crate) fn poll_output(&mut self) -> Option<LauncherOutput> {
        self.outputs.pop_front()
    }

    /// When `handle_timeout` has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let times = self.hosts.values().filter_map(|host| match (host.agent, host.foreign) {
            _ if self.is_closing => None,
            (Agent::Absent { .. }, Foreign::Until(until)) => Some(until),
            (Agent::Absent { not_before }, _) => host.wants_agent().then_some(not_before),
            (agent, _) => self.gives_up_at(host, agent),
        });
        times.min()
    }

    /// When an agent that is not heard of is given up.
    fn gives_up_at(&self, host: &Host, agent: Agent) -> Option<Time> {
        let remote = self.rules.remote?;
        match agent {
            Agent::Present { alone_since, has_joined, is_killed: false, .. } if !host.is_joined => {
                let within = if has_joined { remote.back_within } else { remote.join_within };
                Some(alone_since + within)
            }
            Agent::Present { .. } | Agent::Absent { .. } => None,
        }
    }

    fn review(&mut self, now: Time) {
        if self.is_closing {
            return;
        }
        for host in self.hosts.values_mut() {
            if matches!(host.foreign, Foreign::Until(until) if until <= now) {
                host.foreign = Foreign::None;
            }
        }
        let mut outputs = Vec::new();
        for (name, host) in &self.hosts {
            match host.agent {
                Agent::Absent { not_before } => {
                    if host.wants_agent() && not_before <= now {
                        outputs.push(LauncherOutput::Start(name.clone()));
                    }
                }
                Agent::Present { is_asked, .. } => {
                    if !is_asked && !host.is_known && !host.is_busy {
                        outputs.push(LauncherOutput::AskToGo(name.clone()));
                    }
                    if self.gives_up_at(host, host.agent).is_some_and(|at| at <= now) {
                        outputs.push(LauncherOutput::Kill(name.clone()));
                    }
                }
            }
        }
        for output in outputs {
            self.note(now, &output);
            self.outputs.push_back(output);
        }
    }

    fn note(&mut self, now: Time, output: &LauncherOutput) {
        let (LauncherOutput::Start(name)
        | LauncherOutput::AskToGo(name)
        | LauncherOutput::Kill(name)) = output
        else {
            return;
        };
        let Some(host) = self.hosts.get_mut(name) else { return };
        match (output, &mut host.agent) {
            (LauncherOutput::Start(_), agent) => {
                host.foreign = Foreign::None;
                *agent = Agent::Present {
                    since: now,
                    alone_since: now,
                    has_joined: false,
                    is_asked: false,
                    is_killed: false,
                };
            }
            (LauncherOutput::AskToGo(_), Agent::Present { is_asked, .. }) => *is_asked = true,
            (_, Agent::Present { is_killed, .. }) => *is_killed = true,
            (_, Agent::Absent { .. }) => {}
        }
    }
}

impl Host {
    /// Whether an agent is to be there that this driver starts.
    fn wants_agent(&self) -> bool {
        self.is_listed && !self.is_given_up && self.foreign == Foreign::None
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
