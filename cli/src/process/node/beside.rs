//! The agent beside a node's driver: a process of its own, so that the driver's end does not end its workers. The
//! driver's process holds its stdin, from which the agent reads its token: any end of that process ends the agent, too.
//! Used by `node` and the driver's process.

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::net::UdpSocket;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use elastic_protocol::HostName;

use crate::command_line::{CommandFailure, Leash, ResultExt, flag_variables};
use crate::process::leash::{DRIVERS, LEAVE};
use crate::process::own_program::own_program;

/// Interval between two checks whether the agent has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

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
            if let Some(stdin) = agent.stdin.as_mut().filter(|_| is_news) {
                // An agent that has ended takes no line. The pipe holds hundreds of them: this does not block.
                drop(stdin.write_all(format!("{DRIVERS}{join}\n").as_bytes()));
            }
            return Ok(());
        }
        let program = own_program().failed("this program does not find itself")?;
        let AgentFlags { host, slots, role, interface, token } = &self.flags;
        let mut command = Command::new(program);
        for variable in flag_variables() {
            command.env_remove(variable);
        }
        command.args(["--role", "worker", "--join", join, "--host", host.as_str()]);
        command.args(["--slots", &slots.to_string(), "--role-name", role]);
        command.args(["--launched", "--leash", Leash::Tight.as_str(), "--log", log]);
        command.args(interface.iter().flat_map(|name| ["--interface", name]));
        // Ctrl-C reaches the driver alone, which then ends everything in order.
        command.stdin(Stdio::piped()).process_group(0);
        let mut child = command.spawn().failed("the agent beside the driver cannot be started")?;
        if let Some(stdin) = &mut child.stdin {
            let greeted = stdin.write_all(format!("{token}\n").as_bytes());
            greeted.failed("the agent beside the driver takes no token")?;
        }
        *agent = Some(child);
        Ok(())
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
