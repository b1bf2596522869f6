//! Start of a worker's process: its environment, its set-up between fork and exec, and the error message if
//! that fails. Called by `starting`.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;

use elastic_robust_lock::LockSeat;
use elastic_runtime::null_device;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, getppid, setsid};

use super::announcement::Announcer;
use super::cgroup::WorkerGroup;
use crate::core::{SpawnOrder, StartFailure};
use crate::output::Pipes;

/// The environment variable with a worker's secret.
pub(super) const CREDENTIAL_VARIABLE: &str = elastic_protocol::environment::CREDENTIAL;

/// The environment variable that names a worker's lock.
const LOCK_VARIABLE: &str = elastic_protocol::environment::LOCK;

/// The environment variable that may hold the agent's join token. It is not passed on to workers.
const TOKEN_VARIABLE: &str = "ELASTIC_TOKEN";

/// Variables by which Slurm and MPI launchers describe the agent's own task. They are not passed on, since a
/// worker is not a task of the launcher: every program would take the agent's task number for its rank. Without
/// them programs look for torchrun's names. Variables of the whole allocation or of the node, such as
/// `SLURM_JOB_ID`, stay.
const TASK_VARIABLES: [&str; 20] = [
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASK_PID",
    "SLURM_GTIDS",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_FD",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_NODE_RANK",
    "MPI_LOCALRANKID",
];

/// The environment variable with the file in which torch's `@record` writes why a program failed.
const ERROR_FILE_VARIABLE: &str = "TORCHELASTIC_ERROR_FILE";

/// Starts the process; the error names the program.
///
/// The calling thread must live as long as the agent: the kernel kills the process when the *thread* that
/// started it ends (prctl(2), `PR_SET_PDEATHSIG`).
pub(super) fn start(
    order: &SpawnOrder,
    pipes: Pipes,
    error_file: Option<&Path>,
    group: Option<&WorkerGroup>,
    seat: Option<&Arc<LockSeat>>,
    announcer: Option<Announcer>,
) -> Result<Child, StartFailure> {
    let Some((program, arguments)) = order.program.argv.split_first() else {
        return Err(StartFailure::from("the job names no program to run".to_owned()));
    };
    let no_input = null_device().map_err(|error| explain(program, &error))?;
    let mut command = Command::new(program);
    without_the_agents_task(&mut command);
    command
        .args(arguments)
        .env_remove(TOKEN_VARIABLE)
        .envs(order.environment.iter().map(|(name, value)| (name, value)))
        .env(CREDENTIAL_VARIABLE, &order.credential.0)
        .stdin(no_input)
        .stdout(pipes.stdout)
        .stderr(pipes.stderr);
    if let Some(path) = error_file {
        command.env(ERROR_FILE_VARIABLE, path);
    }
    in_own_session(&mut command, Some(getpid()));
    if let Some(announcer) = announcer {
        announced(&mut command, announcer);
    }
    if let Some(entry) = group.and_then(|group| group.entry().ok()) {
        in_group(&mut command, entry);
    }
    command.env_remove(LOCK_VARIABLE);
    if let Some((seat, name)) = seat.and_then(|seat| Some((seat, seat.name()?))) {
        command.env(LOCK_VARIABLE, name);
        let seat = Arc::clone(seat);
        inherit_locks(&mut command, seat);
    }
    command.spawn().map_err(|error| explain(program, &error))
}

/// Makes the process tell its id before its program runs.
#[expect(unsafe_code, reason = "nothing else runs code between fork and exec")]
fn announced(command: &mut Command, announcer: Announcer) {
    let announce = move || {
        announcer.announce();
        Ok(())
    };
    // SAFETY: `announce` makes two system calls. It neither allocates nor takes a lock, so it may run in the forked
    // child of a process with threads.
    unsafe { command.pre_exec(announce) };
}

/// Makes the process enter a control group, through this file.
#[expect(unsafe_code, reason = "nothing else runs code between fork and exec")]
fn in_group(command: &mut Command, entry: File) {
    // A process that cannot enter the group still runs. Its orphans are then found as on a host without control groups.
    let enter = move || {
        let _ = nix::unistd::write(&entry, b"0");
        Ok(())
    };
    // SAFETY: `enter` makes one system call. It neither allocates nor takes a lock, so it may run in the forked
    // child of a process with threads.
    unsafe { command.pre_exec(enter) };
}

/// Passes the table of locks on to the process.
#[expect(unsafe_code, reason = "nothing else runs code between fork and exec")]
fn inherit_locks(command: &mut Command, seat: Arc<LockSeat>) {
    // SAFETY: one system call, which neither allocates nor takes a lock.
    unsafe { command.pre_exec(move || seat.pass_on()) };
}

fn without_the_agents_task(command: &mut Command) {
    for variable in TASK_VARIABLES {
        command.env_remove(variable);
    }
}

/// Makes the process lead a session of its own, and, if `dies_with` is its parent, die with it.
#[expect(unsafe_code, reason = "nothing else runs code between fork and exec")]
pub(super) fn in_own_session(command: &mut Command, dies_with: Option<Pid>) {
    let set_up = move || {
        setsid()?;
        if let Some(parent) = dies_with {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // If the parent died before the line above, that signal will never be sent.
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

/// The message for a program that could not be started: the cause, and a remedy.
fn explain(program: &str, error: &io::Error) -> StartFailure {
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
        _ if error.raw_os_error() == Some(libc::EAGAIN) => {
            return StartFailure::from(format!(
                "cannot start {program:?}: {error} (limits: ulimit -u, and pids.max of the control group)"
            ));
        }
        _ => return StartFailure::from(format!("cannot start {program:?}: {error}")),
    };
    let reason = format!("cannot start {program:?}: {hint} ({error})");
    StartFailure { reason, is_programs: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_does_not_find_its_agents_task() {
        let command = {
            let mut command = Command::new("true");
            without_the_agents_task(&mut command);
            command
        };
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).collect();
        assert!(removed.iter().any(|(name, _)| *name == "SLURM_PROCID"));
        assert!(!removed.iter().any(|(name, _)| *name == "SLURM_JOB_ID"));
    }
}
