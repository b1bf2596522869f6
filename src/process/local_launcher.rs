//! `--launcher local`: an agent process on this machine for each host name.
//!
//! An agent that dies while its host is listed is started again after a back-off. The agent of a host that
//! has left the list is asked to go (SIGTERM) once no worker of its is left; blacklisted hosts keep theirs.
//! Agents are in process groups of their own, so that a Ctrl-C reaches the driver alone, which then ends
//! everything in order.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::rc::Rc;
use std::time::Duration;

use elastic_host_manager::core::limits::SLOTS_MAX;
use elastic_protocol::HostName;
use futures_util::future::{Either, select};
use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid, getppid};
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::cli::flag_variables;

/// The first wait before an agent that has died is started again; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// The longest such wait.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// An agent that lived so long was well: the back-off begins anew.
const WELL_AFTER: Duration = Duration::from_secs(10);

/// How long agents that a former driver started may take to find this one.
const BACK_WITHIN: Duration = Duration::from_secs(7);

/// How agents are started.
#[derive(Clone, Debug)]
pub(crate) struct AgentCommand {
    /// This very program.
    pub(crate) program: PathBuf,
    /// `HOST:PORT` of the driver.
    pub(crate) driver: String,
    /// The driver's token file.
    pub(crate) token_file: PathBuf,
    /// Whether they go on when the driver dies: its successor takes them over.
    pub(crate) outlives_driver: bool,
    /// The role of their workers, if it has a name.
    pub(crate) role: Option<String>,
    /// What agents log.
    pub(crate) log: String,
}

/// What is wanted of a host's agent.
#[derive(Debug, Default)]
struct Host {
    /// Whether the job may use the host.
    is_listed: Cell<bool>,
    /// Whether the host stands in the list, blacklisted or not.
    is_known: Cell<bool>,
    /// Whether it has workers' processes.
    is_busy: Cell<bool>,
    /// Whether it has an agent that a former driver started, or may have.
    is_adopted: Cell<bool>,
    /// Whether its agent has joined.
    is_joined: Cell<bool>,
    /// Of the agent that this driver started.
    pid: Cell<Option<Pid>>,
    changed: Notify,
}

/// The agents of this machine.
#[derive(Debug)]
pub(crate) struct LocalLauncher {
    command: AgentCommand,
    hosts: RefCell<BTreeMap<HostName, Rc<Host>>>,
    running: Cell<usize>,
    one_ended: Notify,
    is_closing: Cell<bool>,
}

impl LocalLauncher {
    /// No agents yet.
    pub(crate) fn new(command: AgentCommand) -> Rc<Self> {
        Rc::new(Self {
            command,
            hosts: RefCell::default(),
            running: Cell::new(0),
            one_ended: Notify::new(),
            is_closing: Cell::new(false),
        })
    }

    /// The hosts in the list, each with whether the job may use it now.
    pub(crate) fn set_hosts(self: &Rc<Self>, listed: BTreeMap<HostName, bool>) {
        for (name, host) in self.hosts.borrow().iter() {
            if !listed.contains_key(name) {
                host.is_listed.set(false);
                host.is_known.set(false);
                host.changed.notify_one();
            }
        }
        for (name, is_listed) in listed {
            let host = self.host(&name);
            host.is_listed.set(is_listed);
            host.is_known.set(true);
            host.changed.notify_one();
        }
    }

    /// Whether a host has workers' processes.
    pub(crate) fn set_busy(self: &Rc<Self>, name: &HostName, is_busy: bool) {
        let host = self.host(name);
        host.is_busy.set(is_busy);
        host.changed.notify_one();
    }

    /// These hosts may have agents that a former driver started: they have the time to come back before others
    /// are started in their place.
    pub(crate) fn adopt(self: &Rc<Self>, hosts: impl Iterator<Item = HostName>) {
        let hosts: Vec<Rc<Host>> = hosts.map(|name| self.host(&name)).collect();
        for host in &hosts {
            host.is_adopted.set(true);
        }
        tokio::task::spawn_local(async move {
            sleep(BACK_WITHIN).await;
            for host in hosts.iter().filter(|host| !host.is_joined.get()) {
                host.is_adopted.set(false);
                host.changed.notify_one();
            }
        });
    }

    /// A host's agent has joined, or is lost.
    pub(crate) fn set_joined(self: &Rc<Self>, name: &HostName, is_joined: bool) {
        let host = self.host(name);
        host.is_joined.set(is_joined);
        if !is_joined && host.is_adopted.replace(false) {
            host.changed.notify_one();
        }
    }

    /// The job is over: nothing is started any more.
    pub(crate) fn start_no_more(&self) {
        self.is_closing.set(true);
    }

    /// Waits for agents to go by themselves, then kills them.
    pub(crate) async fn close(&self, within: Duration) {
        self.start_no_more();
        let all_gone = async {
            while self.running.get() > 0 {
                self.one_ended.notified().await;
            }
        };
        if timeout(within, all_gone).await.is_err() {
            tracing::warn!("{} agents did not end in time and are killed", self.running.get());
            for pid in self.hosts.borrow().values().filter_map(|host| host.pid.get()) {
                // It may have ended just now.
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
    }

    /// The record of a host, with the task that keeps its agent.
    fn host(self: &Rc<Self>, name: &HostName) -> Rc<Host> {
        let mut hosts = self.hosts.borrow_mut();
        let host = hosts.entry(name.clone()).or_insert_with(|| {
            let host = Rc::<Host>::default();
            tokio::task::spawn_local(Rc::clone(self).keep(name.clone(), Rc::clone(&host)));
            host
        });
        Rc::clone(host)
    }

    /// Has an agent for a host whenever one is wanted.
    async fn keep(self: Rc<Self>, name: HostName, host: Rc<Host>) {
        let mut backoff = BACKOFF_MIN;
        loop {
            while !host.is_listed.get() || host.is_adopted.get() || self.is_closing.get() {
                host.changed.notified().await;
            }
            let started = Instant::now();
            match self.start(&name) {
                Ok(child) => {
                    self.running.set(self.running.get() + 1);
                    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
                    host.pid.set(pid.map(Pid::from_raw));
                    let ended = self.watch(child, &host).await;
                    host.pid.set(None);
                    self.running.set(self.running.get() - 1);
                    self.one_ended.notify_one();
                    self.tell_end(&name, &host, ended);
                }
                Err(error) => tracing::error!(host = %name, %error, "no agent could be started"),
            }
            if started.elapsed() >= WELL_AFTER {
                backoff = BACKOFF_MIN;
            }
            sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    fn start(&self, name: &HostName) -> io::Result<Child> {
        let AgentCommand { program, driver, token_file, outlives_driver, role, log } =
            &self.command;
        let mut command = Command::new(program);
        for variable in flag_variables() {
            command.env_remove(variable);
        }
        // The list says how many slots a host has, and may change its mind: the agent takes any.
        let slots = SLOTS_MAX.to_string();
        command
            .args([
                "--role",
                "worker",
                "--join",
                driver,
                "--host",
                name.as_str(),
                "--slots",
                &slots,
            ])
            .args(["--launched", "--log", log])
            .arg("--token-file")
            .arg(token_file)
            .args(role.iter().flat_map(|role| ["--role-name", role]))
            .stdin(Stdio::null())
            .process_group(0)
            .kill_on_drop(!outlives_driver);
        if !outlives_driver {
            end_with_driver(&mut command);
        }
        command.spawn()
    }

    /// Waits for an agent's end; asks it to go when its host has left the list and has no worker.
    async fn watch(&self, mut child: Child, host: &Host) -> io::Result<ExitStatus> {
        let mut asked = false;
        loop {
            let is_wanted = host.is_known.get() || host.is_busy.get() || self.is_closing.get();
            if !is_wanted && !asked {
                asked = true;
                if let Some(pid) = host.pid.get() {
                    // It may have ended just now: then there is nobody to ask.
                    let _ = kill(pid, Signal::SIGTERM);
                }
            }
            let changed = std::pin::pin!(host.changed.notified());
            let ended = std::pin::pin!(child.wait());
            if let Either::Left((status, _)) = select(ended, changed).await {
                return status;
            }
        }
    }

    fn tell_end(&self, name: &HostName, host: &Host, ended: io::Result<ExitStatus>) {
        let status = match ended {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        if host.is_known.get() && !self.is_closing.get() {
            tracing::warn!(host = %name, status, "its agent ended and is started again");
        } else {
            tracing::debug!(host = %name, status, "its agent ended");
        }
    }
}

/// Has the kernel send SIGTERM to the agent when the driver dies: where nobody succeeds that driver, its own agents
/// are no use to anybody then.
#[expect(unsafe_code, reason = "nothing else runs code between fork and exec")]
fn end_with_driver(command: &mut Command) {
    let driver = getpid();
    let set_up = move || {
        set_pdeathsig(Signal::SIGTERM)?;
        // If the driver died before the line above, nobody will send that signal any more.
        if getppid() != driver {
            return Err(io::Error::from(Errno::ESRCH));
        }
        Ok(())
    };
    // SAFETY: `set_up` makes system calls only. It neither allocates nor takes a lock, so it may run in the
    // forked child of a process with threads.
    unsafe { command.pre_exec(set_up) };
}
