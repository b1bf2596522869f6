//! `--launcher local`: an agent is a process of this machine. Called by `launcher`.
//!
//! The agent is in a process group of its own, so that Ctrl-C reaches the driver alone, which then ends everything in
//! order.

use std::io;
use std::process::ExitStatus;

use elastic_protocol::HostName;
use elastic_runtime::null_device;
use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};
use tokio::process::{Child, Command};

use super::command::AgentCommand;
use super::core::{AgentProcessEnd, EndKind};
use crate::command_line::flag_variables;
use crate::process::own_program::own_program;

/// Starts the agent of a host, from the launcher's lane.
pub(super) fn start(agent: &AgentCommand, name: &HostName) -> io::Result<Child> {
    let mut command = Command::new(own_program()?);
    for variable in flag_variables() {
        command.env_remove(variable);
    }
    command.args(agent.arguments(name)).arg("--token-file").arg(&agent.token_file);
    command.stdin(null_device()?);
    of_this_driver(&mut command, agent.outlives_driver);
    command.spawn()
}

/// Translates the exit status of the agent's process.
pub(super) fn end(status: ExitStatus) -> AgentProcessEnd {
    AgentProcessEnd { kind: EndKind::Ended, reason: status.to_string() }
}

/// Puts the process in a group of its own. If no driver succeeds this one, the process ends with it.
pub(super) fn of_this_driver(command: &mut Command, outlives_driver: bool) {
    command.process_group(0).kill_on_drop(!outlives_driver);
    if !outlives_driver {
        end_with_driver(command);
    }
}

/// Has the kernel send SIGTERM to the process when the driver dies: without a successor of that driver, its agents are
/// of no use.
#[expect(unsafe_code, reason = "nothing else runs code between fork and exec")]
fn end_with_driver(command: &mut Command) {
    let driver = getpid();
    let set_up = move || {
        set_pdeathsig(Signal::SIGTERM)?;
        // If the driver died before the line above, that signal will never come.
        if getppid() != driver {
            return Err(io::Error::from(Errno::ESRCH));
        }
        Ok(())
    };
    // SAFETY: `set_up` makes system calls only. It neither allocates nor takes a lock, so it may run in the
    // forked child of a process with threads.
    unsafe { command.pre_exec(set_up) };
}
