//! The launcher: starts the agents of hosts, asks them to leave and ends them, for a driver with `--launcher`. `core`
//! decides; `local` and `ssh` are the two ways to an agent. Called by the driver's process and its observer.

mod command;
mod core;
mod local;
mod ssh;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::rc::Rc;
use std::time::Duration;

use actix::Addr;
use elastic_driver::{Driver, LaunchFailed};
use elastic_protocol::{HostName, Time, counted};
use elastic_runtime::restart::RestartBackoff;
use elastic_runtime::{NodeHandle, OffloadPort};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::NamedTempFile;
use tokio::process::Child;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;

pub(super) use self::command::AgentCommand;
use self::core::{
    AgentProcessEnd, EndKind, LauncherCore, LauncherOutput, LauncherRules, RemoteRules,
};
use super::leash::LEAVE;

/// The way in which agents are reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LaunchMethod {
    /// Agents are processes of this machine.
    Local,
    /// Agents are processes of other machines, reached over ssh.
    Ssh {
        /// Most failures in a row of an agent to join; one more, and its host is reported as failing.
        failures_max: u32,
    },
}

impl LaunchMethod {
    fn rules(self) -> LauncherRules {
        match self {
            Self::Local => LauncherRules {
                backoff: RestartBackoff {
                    base: Duration::from_millis(100),
                    cap: Duration::from_secs(10),
                },
                remote: None,
            },
            Self::Ssh { failures_max } => LauncherRules {
                backoff: RestartBackoff {
                    base: Duration::from_secs(1),
                    cap: Duration::from_secs(30),
                },
                remote: Some(RemoteRules {
                    failures_max,
                    // Twice as long as an agent looks for its driver.
                    join_within: Duration::from_secs(60),
                    back_within: Duration::from_secs(5),
                }),
            },
        }
    }
}

/// The process started for a host, or being started.
#[derive(Debug, Default)]
struct StartedAgent {
    pid: Option<Pid>,
    /// Over ssh: the leash, which is ssh's stdin.
    stdin: Option<File>,
    /// An order that came while the process was being started: it is carried out once there is a process.
    told_early: Option<AgentOrder>,
}

/// An order to end an agent's process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum AgentOrder {
    /// It is asked to leave in order.
    Leave,
    /// It is killed.
    End,
}

/// A process that was started for a host, with the file to which ssh writes its messages.
type SpawnedAgent = (Child, Option<NamedTempFile>);

/// The agents that a driver starts.
pub(crate) struct Launcher {
    command: AgentCommand,
    way: LaunchMethod,
    node: NodeHandle,
    /// The lane that starts the processes: the file system with the program can hang.
    lane: OffloadPort,
    core: RefCell<LauncherCore>,
    held: RefCell<BTreeMap<HostName, StartedAgent>>,
    driver: OnceCell<Addr<Driver>>,
    changed: Notify,
    one_ended: Notify,
}

impl Launcher {
    /// A launcher without agents.
    pub(super) fn start(
        command: AgentCommand,
        way: LaunchMethod,
        node: &NodeHandle,
        lane: OffloadPort,
    ) -> Rc<Self> {
        let core = LauncherCore::new(way.rules(), node.random("launcher", 0));
        let launcher = Rc::new(Self {
            command,
            way,
            node: node.clone(),
            lane,
            core: RefCell::new(core),
            held: RefCell::default(),
            driver: OnceCell::new(),
            changed: Notify::new(),
            one_ended: Notify::new(),
        });
        tokio::task::spawn_local(Rc::clone(&launcher).keep_time());
        launcher
    }

    /// Sets the driver to which failing hosts are reported.
    pub(super) fn report_to(&self, driver: Addr<Driver>) {
        // Cannot fail: this function is called once.
        let _ = self.driver.set(driver);
    }

    /// The host list has changed: each host with whether the job may use it now.
    pub(super) fn set_hosts(self: &Rc<Self>, listed: &BTreeMap<HostName, bool>) {
        self.with_core(|core, now| core.handle_hosts(now, listed));
    }

    /// A host now has worker processes, or none.
    pub(super) fn set_busy(self: &Rc<Self>, name: &HostName, is_busy: bool) {
        self.with_core(|core, now| core.handle_busy(now, name, is_busy));
    }

    /// These hosts may have agents that a former driver started. Those agents get time to come back before others are
    /// started in their place.
    pub(super) fn adopt(self: &Rc<Self>, hosts: impl Iterator<Item = HostName>) {
        self.with_core(|core, now| core.adopt(now, hosts));
    }

    /// A host's agent has joined, or is lost.
    pub(super) fn set_joined(self: &Rc<Self>, name: &HostName, is_joined: bool) {
        self.with_core(|core, now| core.handle_joined(now, name, is_joined));
    }

    /// The job is over: no further agent is started.
    pub(super) fn start_no_more(&self) {
        self.core.borrow_mut().start_no_more();
    }

    /// Waits for agents to leave by themselves, then kills them.
    pub(super) async fn close(self: &Rc<Self>, within: Duration) {
        self.start_no_more();
        if timeout(within, self.all_gone()).await.is_ok() {
            return;
        }
        let agents = self.running();
        let are_killed = if agents == 1 { "is killed" } else { "are killed" };
        tracing::warn!("{} did not end in time and {are_killed}", counted(agents, "agent"));
        self.with_core(|core, _now| core.kill_all());
        // An agent that cannot be killed is not waited for.
        let _ = timeout(within, self.all_gone()).await;
    }

    async fn all_gone(&self) {
        while self.running() > 0 {
            self.one_ended.notified().await;
        }
    }

    fn running(&self) -> usize {
        self.core.borrow().running()
    }

    /// Gives the core an input, and carries out its outputs.
    fn with_core(self: &Rc<Self>, input: impl FnOnce(&mut LauncherCore, Time)) {
        self.give(input);
        self.changed.notify_one();
    }

    /// Like [`Self::with_core`], for the task that keeps the timer.
    fn give(self: &Rc<Self>, input: impl FnOnce(&mut LauncherCore, Time)) {
        input(&mut self.core.borrow_mut(), self.node.now());
        loop {
            let output = self.core.borrow_mut().poll_output();
            let Some(output) = output else { break };
            self.carry_out(output);
        }
    }

    async fn keep_time(self: Rc<Self>) {
        loop {
            let at = self.core.borrow().poll_timeout();
            let changed = self.changed.notified();
            match at {
                None => changed.await,
                Some(at) => {
                    // The core sees whether the timer or a change ended the wait.
                    let _ = timeout(at.since(self.node.now()), changed).await;
                    self.give(|core, now| core.handle_timeout(now));
                }
            }
        }
    }

    fn carry_out(self: &Rc<Self>, output: LauncherOutput) {
        match output {
            LauncherOutput::Start(name) => self.start_agent(name),
            LauncherOutput::AskToGo(name) => self.order(&name, AgentOrder::Leave),
            LauncherOutput::Kill(name) => self.order(&name, AgentOrder::End),
            LauncherOutput::Again { host, reason } => {
                tracing::warn!(%host, reason, "its agent ended and is started again");
            }
            LauncherOutput::Failed { host, reason } => match self.driver.get() {
                Some(driver) => driver.do_send(LaunchFailed { host, reason }),
                None => tracing::warn!(%host, reason, "no agent can be started"),
            },
        }
    }

    fn start_agent(self: &Rc<Self>, name: HostName) {
        self.held.borrow_mut().insert(name.clone(), StartedAgent::default());
        tokio::task::spawn_local(Rc::clone(self).run(name));
    }

    /// Starts the agent of a host, and waits for its end.
    async fn run(self: Rc<Self>, name: HostName) {
        let (command, way, host) = (self.command.clone(), self.way, name.clone());
        let runtime = Handle::current();
        let start = move || spawn(&command, way, &host, &runtime);
        let started = self.lane.run("an agent's start", start).await;
        match started.map_err(io::Error::other).flatten().and_then(|it| self.hold(&name, it)) {
            Ok((child, said)) => self.watch(name, child, said).await,
            Err(error) => {
                self.held.borrow_mut().remove(&name);
                let reason = format!("it could not be started: {error}");
                self.ended(&name, AgentProcessEnd { kind: EndKind::Refused, reason });
            }
        }
    }

    /// Keeps the pipe to the process's stdin, and carries out an order from before its start.
    fn hold(&self, name: &HostName, (mut child, said): SpawnedAgent) -> io::Result<SpawnedAgent> {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
        // Waiting for the child would close its stdin.
        let stdin = child.stdin.take().map(tokio::process::ChildStdin::into_owned_fd);
        let mut stdin = stdin.transpose()?.map(File::from);
        if let Some(stdin) = &mut stdin {
            // The pipe has room for the token; if ssh has ended already, its end is reported.
            let _ = ssh::greet(&self.command, stdin);
        }
        let started = StartedAgent { pid, stdin, told_early: None };
        let before = self.held.borrow_mut().insert(name.clone(), started);
        if let Some(order) = before.and_then(|before| before.told_early) {
            self.order(name, order);
        }
        Ok((child, said))
    }

    async fn watch(self: &Rc<Self>, name: HostName, mut child: Child, said: Option<NamedTempFile>) {
        let ended = child.wait().await;
        self.held.borrow_mut().remove(&name);
        let end = match (ended, said) {
            (Ok(status), Some(mut said)) => ssh::end(status, &self.command.program, &mut said),
            (Ok(status), None) => local::end(status),
            (Err(error), _) => AgentProcessEnd { kind: EndKind::Ended, reason: error.to_string() },
        };
        tracing::debug!(host = %name, reason = end.reason, "its agent ended");
        self.ended(&name, end);
    }

    fn ended(self: &Rc<Self>, name: &HostName, end: AgentProcessEnd) {
        self.with_core(|core, now| core.handle_ended(now, name, end));
        self.one_ended.notify_one();
    }

    fn order(&self, name: &HostName, order: AgentOrder) {
        let mut held = self.held.borrow_mut();
        let Some(started) = held.get_mut(name) else { return };
        let Some(pid) = started.pid else {
            // The later order is the harder one.
            started.told_early = Some(order);
            return;
        };
        // The process may have ended just now; until it is waited for, its process id is not reused.
        let _ = match (order, started.stdin.take_if(|_| order == AgentOrder::Leave)) {
            (AgentOrder::Leave, Some(mut leash)) => {
                leash.write_all(format!("{LEAVE}\n").as_bytes())
            }
            (AgentOrder::Leave, None) => kill(pid, Signal::SIGTERM).map_err(io::Error::from),
            (AgentOrder::End, _) => kill(pid, Signal::SIGKILL).map_err(io::Error::from),
        };
    }
}

/// Starts the process for a host, on any thread.
fn spawn(
    command: &AgentCommand,
    way: LaunchMethod,
    name: &HostName,
    runtime: &Handle,
) -> io::Result<SpawnedAgent> {
    let _context = runtime.enter();
    match way {
        LaunchMethod::Local => Ok((local::start(command, name)?, None)),
        LaunchMethod::Ssh { .. } => {
            let (child, said) = ssh::start(command, name)?;
            Ok((child, Some(said)))
        }
    }
}
