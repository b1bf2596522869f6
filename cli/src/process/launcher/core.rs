//! Decides which agents are started, asked to leave and given up, as a state machine without I/O. Called by the
//! launcher's shell, for agents of this machine and for those over ssh alike.
//!
//! An agent that ends while its host is listed is started again after a back-off. The agent of a host that has left
//! the list is asked to leave once none of its worker processes is left. Blacklisted hosts keep their agents. An agent
//! of another machine that stays silent is given up, and the ssh process that reached it is ended. A host on which no
//! agent can be started is reported as failing. A host that had an agent before and cannot be reached is waited for.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use elastic_protocol::{HostName, Time};
use elastic_runtime::restart::RestartBackoff;
use rand_chacha::ChaCha8Rng;

/// Lifetime after which an agent counts as healthy: the back-off begins anew.
const WELL_AFTER: Duration = Duration::from_secs(10);

/// Timeout for agents that a former driver started to find this one.
const BACK_WITHIN: Duration = Duration::from_secs(7);

/// The rules in which local and remote agents differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LauncherRules {
    /// Delay between the end of an agent and its next start.
    pub(crate) backoff: RestartBackoff,
    /// The rules of remote agents; `None` if the agent's own process is observed.
    pub(crate) remote: Option<RemoteRules>,
}

/// The rules for agents of which only the ssh process is observed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteRules {
    /// Most ends in a row before an agent has joined; one more, and its host is reported as failing.
    pub(crate) failures_max: u32,
    /// Timeout for an agent to join.
    pub(crate) join_within: Duration,
    /// Longest silence of an agent that has joined.
    pub(crate) back_within: Duration,
}

/// The end of an agent, or of the ssh process that reached it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct AgentProcessEnd {
    pub(crate) kind: EndKind,
    /// The reason as text for people.
    pub(crate) reason: String,
}

/// State of an agent after its process, or ssh, has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EndKind {
    /// The agent has ended.
    Ended,
    /// The host cannot be reached, or not any more; the state of an agent there is unknown.
    Unreachable,
    /// The host does not allow an agent to be started.
    Refused,
}

/// Outputs of the core.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum LauncherOutput {
    /// Start the host's agent; its end is reported by [`LauncherCore::handle_ended`].
    Start(HostName),
    /// Ask the agent to leave in order.
    AskToGo(HostName),
    /// End the agent, or the ssh process that reached it, at once.
    Kill(HostName),
    /// The host is failing.
    Failed { host: HostName, reason: String },
    /// For the log: the agent ended, and is started again.
    Again { host: HostName, reason: String },
}

/// The state of an agent that this driver did not start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Foreign {
    #[default]
    None,
    /// There may be an agent, which has until this time to come back.
    Until(Time),
    /// The agent has joined.
    Joined,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum AgentProcess {
    /// The agent is not started, and must not be before this time.
    Absent { not_before: Time },
    Present {
        since: Time,
        /// Time since which the driver has not heard of the agent.
        alone_since: Time,
        has_joined: bool,
        is_asked: bool,
        is_killed: bool,
    },
}

/// The state of a host's agent, observed and wanted.
#[derive(Debug)]
struct LaunchedHost {
    /// Whether the job may use the host now.
    is_listed: bool,
    /// Whether the host is in the list, blacklisted or not.
    is_known: bool,
    /// Whether the host has worker processes.
    is_busy: bool,
    /// Whether its agent is joined now.
    is_joined: bool,
    /// Whether an agent of the host has ever joined.
    was_joined: bool,
    foreign: Foreign,
    agent: AgentProcess,
    /// Number of ends in a row, for the back-off.
    ends: u32,
    /// Number of ends in a row before the agent had joined.
    failures: u32,
    /// Whether the host was reported as failing, and has not been listed anew since.
    is_given_up: bool,
    last_reason: String,
}

impl Default for LaunchedHost {
    fn default() -> Self {
        Self {
            is_listed: false,
            is_known: false,
            is_busy: false,
            is_joined: false,
            was_joined: false,
            foreign: Foreign::None,
            agent: AgentProcess::Absent { not_before: Time::ZERO },
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
    hosts: BTreeMap<HostName, LaunchedHost>,
    outputs: VecDeque<LauncherOutput>,
    is_closing: bool,
}

impl LauncherCore {
    /// A core without hosts. `rng` is used for the back-off's jitter only.
    pub(crate) fn new(rules: LauncherRules, rng: ChaCha8Rng) -> Self {
        let (hosts, outputs) = Default::default();
        Self { rules, rng, hosts, outputs, is_closing: false }
    }

    /// The host list has changed: each host with whether the job may use it now.
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

    /// A host now has worker processes, or none.
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
            // An agent that someone else started has joined: no second one is started beside it.
            AgentProcess::Absent { .. } if is_joined => Foreign::Joined,
            _ => Foreign::None,
        };
        if is_joined {
            (host.was_joined, host.failures) = (true, 0);
        }
        if let AgentProcess::Present { alone_since, has_joined, .. } = &mut host.agent {
            *alone_since = now;
            *has_joined |= is_joined;
        }
        self.review(now);
    }

    /// The process started for a host has ended, or could not be started.
    pub(crate) fn handle_ended(&mut self, now: Time, name: &HostName, end: AgentProcessEnd) {
        let Some(host) = self.hosts.get_mut(name) else { return };
        let AgentProcess::Present { since, has_joined, .. } = host.agent else { return };
        if now.since(since) >= WELL_AFTER && has_joined {
            host.ends = 0;
        }
        let not_before = now + self.rules.backoff.wait(host.ends, &mut self.rng);
        host.agent = AgentProcess::Absent { not_before };
        host.ends = host.ends.saturating_add(1);
        if end.kind == EndKind::Unreachable && host.is_joined {
            // The agent goes on without its launcher; another is started only once the driver loses it.
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

    /// Reviews all agents, when time has passed.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.review(now);
    }

    /// The job is over: no further agent is started.
    pub(crate) fn start_no_more(&mut self) {
        self.is_closing = true;
    }

    /// Kills all agents that are left after the grace period.
    pub(crate) fn kill_all(&mut self) {
        for (name, host) in &mut self.hosts {
            if let AgentProcess::Present { is_killed, .. } = &mut host.agent
                && !std::mem::replace(is_killed, true)
            {
                self.outputs.push_back(LauncherOutput::Kill(name.clone()));
            }
        }
    }

    /// The number of agents that are started and have not ended.
    pub(crate) fn running(&self) -> usize {
        self.hosts
            .values()
            .filter(|host| matches!(host.agent, AgentProcess::Present { .. }))
            .count()
    }

    /// The next output, if there is one.
    pub(crate) fn poll_output(&mut self) -> Option<LauncherOutput> {
        self.outputs.pop_front()
    }

    /// The time of the next `handle_timeout`, if there is one.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let times = self.hosts.values().filter_map(|host| match (host.agent, host.foreign) {
            _ if self.is_closing => None,
            (AgentProcess::Absent { .. }, Foreign::Until(until)) => Some(until),
            (AgentProcess::Absent { not_before }, _) => host.wants_agent().then_some(not_before),
            (agent, _) => self.gives_up_at(host, agent),
        });
        times.min()
    }

    /// The time at which a silent agent is given up.
    fn gives_up_at(&self, host: &LaunchedHost, agent: AgentProcess) -> Option<Time> {
        let remote = self.rules.remote?;
        match agent {
            AgentProcess::Present { alone_since, has_joined, is_killed: false, .. }
                if !host.is_joined =>
            {
                let within = if has_joined { remote.back_within } else { remote.join_within };
                Some(alone_since + within)
            }
            AgentProcess::Present { .. } | AgentProcess::Absent { .. } => None,
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
                AgentProcess::Absent { not_before } => {
                    if host.wants_agent() && not_before <= now {
                        outputs.push(LauncherOutput::Start(name.clone()));
                    }
                }
                AgentProcess::Present { is_asked, .. } => {
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
                *agent = AgentProcess::Present {
                    since: now,
                    alone_since: now,
                    has_joined: false,
                    is_asked: false,
                    is_killed: false,
                };
            }
            (LauncherOutput::AskToGo(_), AgentProcess::Present { is_asked, .. }) => {
                *is_asked = true
            }
            (_, AgentProcess::Present { is_killed, .. }) => *is_killed = true,
            (_, AgentProcess::Absent { .. }) => {}
        }
    }
}

impl LaunchedHost {
    /// Whether this driver should start an agent on the host.
    fn wants_agent(&self) -> bool {
        self.is_listed && !self.is_given_up && self.foreign == Foreign::None
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
