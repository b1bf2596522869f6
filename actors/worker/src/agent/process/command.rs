//! How a worker's process is set up between fork and exec, and what is said when that fails.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, getppid, setsid};

use super::super::core::SpawnOrder;
use super::super::output::Pipes;

/// The environment variable with a worker's secret.
pub(super) const CREDENTIAL_VARIABLE: &str = elastic_protocol::environment::CREDENTIAL;

/// The environment variable with which an agent may have been given its join token: none of its workers'
/// business.
const TOKEN_VARIABLE: &str = "ELASTIC_TOKEN";

/// Where torch's `@record` writes why a program failed.
const ERROR_FILE_VARIABLE: &str = "TORCHELASTIC_ERROR_FILE";

/// Starts the process; the error names the program.
///
/// To be called on the thread that lives as long as the agent: the kernel kills the process when the
/// *thread* that started it ends (prctl(2), `PR_SET_PDEATHSIG`).
pub(super) fn start(
    order: &SpawnOrder,
    pipes: Pipes,
    error_file: Option<&Path>,
) -> Result<Child, String> {
    let Some((program, arguments)) = order.program.argv.split_first() else {
        return Err("the job names no program to run".to_owned());
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_remove(TOKEN_VARIABLE)
        .envs(order.environment.iter().map(|(name, value)| (name, value)))
        .env(CREDENTIAL_VARIABLE, &order.credential.0)
        .stdin(Stdio::null())
        .stdout(pipes.stdout)
        .stderr(pipes.stderr);
    if let Some(path) = error_file {
        command.env(ERROR_FILE_VARIABLE, path);
    }
    in_own_session(&mut command, Some(getpid()));
    command.spawn().map_err(|error| explain(program, &error))
}

/// Makes the process lead a session of its own, and, if `dies_with` is its parent, die with it.
#[expect(unsafe_code, reason = "nothing else runs code between fork and exec")]
pub(super) fn in_own_session(command: &mut Command, dies_with: Option<Pid>) {
    let set_up = move || {
        setsid()?;
        if let Some(parent) = dies_with {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // If the parent died before the line above, nobody will send that signal any more.
            if getppid() != parent {
                return Err(io::Error::from(Errno::ESRCH));
            }
        }
        Ok(())
    };
    // SAFETY: `set_up` makes system calls only. It neither allocates nor takes a lock (an `io::Error` made
    // of an errno holds just that number), so it may run in the forked child of a process with threads.
    unsafe { command.pre_exec(set_up) };
}

/// Says why a program could not be started, and what to do about it.
fn explain(program: &str, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::NotFound if program.contains('/') => {
            "there is no such file, or the interpreter that its first line names is missing"
        }
        io::ErrorKind::NotFound => "no folder of PATH has a program of that name",
        io::ErrorKind::PermissionDenied => {
            "it is not executable (chmod +x), or its folder is closed"
        }
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => {
            "it is neither a binary of this machine nor a script with a first line like #!/bin/sh"
        }
        _ => return format!("cannot start {program:?}: {error}"),
    };
    format!("cannot start {program:?}: {hint} ({error})")
}
