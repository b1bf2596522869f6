//! The agent beside a node's driver: a process of its own, so that the driver's end does not end its workers. The
//! driver's process holds its stdin, from which the agent reads its token: any end of that process ends the agent, too.
//! An agent that dies is started again as long as the driver's process has a driver. Used by `node` and the driver's process.

use std::cell::{Cell, RefCell};
use std::io::{self, Write as _};
use std::net::UdpSocket;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use elastic_protocol::HostName;
use elastic_runtime::OffloadPort;
use elastic_runtime::restart::RestartBackoff;
use rand_chacha::ChaCha8Rng;

use crate::command_line::{CommandFailure, Leash, ResultExt, flag_variables};
use crate::process::leash::{DRIVERS, LEAVE};
use crate::process::own_program::own_program;
use crate::process::random::system_rng;

/// Interval between two checks whether the agent has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Interval between two looks at the agent while its driver runs.
const KEEP_EVERY: Duration = Duration::from_millis(100);

/// The wait between the end of an agent and the next start.
const BACKOFF: RestartBackoff =
    RestartBackoff { base: Duration::from_millis(200), cap: Duration::from_secs(10) };

/// Lifetime after which an agent counts as healthy: the back-off begins anew.
const WELL_AFTER: Duration = Duration::from_secs(30);

/// The flags of the agent.
#[derive(Clone)]
pub(super) struct AgentFlags {
    pub(super) host: HostName,
    pub(super) slots: u32,
    pub(super) role: String,
    pub(super) interface: Option<String>,
    /// The token: a secret.
    pub(super) token: String,
}

/// The agent of a node that has a driver.
pub(crate) struct Beside {
    flags: AgentFlags,
    /// The driver's socket, if it was bound beforehand.
    socket: Cell<Option<UdpSocket>>,
    agent: RefCell<Option<Child>>,
    /// The last addresses that the agent got.
    told: RefCell<String>,
}

/// The ends of agents in a row, for the back-off.
struct AgentEnds {
    count: u32,
    /// Start of the last agent.
    since: tokio::time::Instant,
    last: Option<ExitStatus>,
    random: ChaCha8Rng,
}

impl AgentFlags {
    /// Starts the agent, which gets its token.
    fn spawn(&self, join: &str, log: &str) -> io::Result<Child> {
        let mut command = Command::new(own_program()?);
        for variable in flag_variables() {
            command.env_remove(variable);
        }
        command.args(["--role", "worker", "--join", join, "--host", self.host.as_str()]);
        command.args(["--slots", &self.slots.to_string(), "--role-name", &self.role]);
        command.args(["--launched", "--leash", Leash::Tight.as_str(), "--log", log]);
        command.args(self.interface.iter().flat_map(|name| ["--interface", name]));
        // Ctrl-C reaches the driver alone, which then ends everything in order.
        command.stdin(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        if let Some(stdin) = &mut child.stdin {
            // The pipe has room for the token. The end of an agent that has ended already is seen as such.
            drop(stdin.write_all(format!("{}\n", self.token).as_bytes()));
        }
        Ok(child)
    }
}

impl Beside {
    /// An agent that is not started yet.
    pub(super) fn new(flags: AgentFlags, socket: Option<UdpSocket>) -> Self {
        Self {
            flags,
            socket: Cell::new(socket),
            agent: RefCell::new(None),
            told: RefCell::default(),
        }
    }

    /// Takes the driver's socket: the first caller gets it.
    pub(crate) fn take_socket(&self) -> Option<UdpSocket> {
        self.socket.take()
    }

    /// Starts the agent, or tells a running one the other drivers: `join` is the address of the acting driver, with
    /// those of the drivers that may act. An acting driver may die before it has told the agent its standbys.
    pub(crate) fn start(&self, join: &str, log: &str) -> Result<(), CommandFailure> {
        let mut agent = self.agent.borrow_mut();
        let is_news = self.told.replace(join.to_owned()) != join;
        if let Some(agent) = agent.as_mut() {
            if is_news {
                tell_drivers(agent, join);
            }
            return Ok(());
        }
        let child = self.flags.spawn(join, log);
        *agent = Some(child.failed("the agent beside the driver cannot be started")?);
        Ok(())
    }

    /// Starts the agent again whenever it dies, after a back-off. An agent that ends with code 0 was asked to leave, and is
    /// left out. Runs beside a life of the driver, whose lane starts the processes.
    pub(crate) async fn keep(self: Rc<Self>, lane: OffloadPort, log: String) {
        let mut ends = AgentEnds {
            count: 0,
            since: tokio::time::Instant::now(),
            last: None,
            random: system_rng(),
        };
        loop {
            tokio::time::sleep(KEEP_EVERY).await;
            let ended = self.agent.borrow_mut().as_mut().map(Child::try_wait);
            let Some(Ok(Some(status))) = ended else { continue };
            if status.success() {
                return;
            }
            self.start_again(&lane, &log, &mut ends, status).await;
        }
    }

    /// Starts the agent again after its end, and after the waits of failed attempts.
    async fn start_again(
        &self,
        lane: &OffloadPort,
        log: &str,
        ends: &mut AgentEnds,
        status: ExitStatus,
    ) {
        if ends.since.elapsed() >= WELL_AFTER {
            (ends.count, ends.last) = (0, None);
        }
        if ends.last.replace(status) != Some(status) {
            let host = &self.flags.host;
            tracing::warn!(%host, reason = %status, "the agent of this node ended and is started again");
        }
        loop {
            let wait = BACKOFF.wait(ends.count, &mut ends.random);
            ends.count = ends.count.saturating_add(1);
            tokio::time::sleep(wait).await;
            let (flags, log) = (self.flags.clone(), log.to_owned());
            let told = self.told.borrow().clone();
            let join = told.clone();
            let started = lane.run("an agent's start", move || flags.spawn(&join, &log)).await;
            match started.map_err(io::Error::other).flatten() {
                Ok(mut child) => {
                    ends.since = tokio::time::Instant::now();
                    let now = self.told.borrow();
                    if *now != told {
                        tell_drivers(&mut child, &now);
                    }
                    *self.agent.borrow_mut() = Some(child);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "the agent beside the driver cannot be started");
                }
            }
        }
    }

    /// Waits until the agent has ended; returns at once if none was started.
    pub(crate) async fn ended(&self) {
        let runs =
            || matches!(self.agent.borrow_mut().as_mut().map(Child::try_wait), Some(Ok(None)));
        while runs() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    #[expect(clippy::disallowed_methods, reason = "there is no actor any more")]
    /// The driver has ended: asks the agent to leave, and kills it after the timeout.
    pub(super) fn end(&self, within: Duration) {
        let Some(mut agent) = self.agent.borrow_mut().take() else { return };
        if let Some(mut stdin) = agent.stdin.take() {
            // The agent may have left already.
            let _ = stdin.write_all(format!("{LEAVE}\n").as_bytes());
        }
        let until = Instant::now() + within;
        while Instant::now() < until {
            match agent.try_wait() {
                Ok(None) => sleep(LOOK_EVERY),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        tracing::warn!("the agent did not end in time and is killed");
        // The agent has ended meanwhile, or ends now.
        let _ = agent.kill();
        let _ = agent.wait();
    }
}

/// Tells an agent where the drivers are.
fn tell_drivers(agent: &mut Child, join: &str) {
    if let Some(stdin) = &mut agent.stdin {
        // An agent that has ended takes no line. The pipe holds hundreds of them: this does not block.
        drop(stdin.write_all(format!("{DRIVERS}{join}\n").as_bytes()));
    }
}
