//! Guard process: outlives a killed agent for a moment, kills the rest of its workers' process groups, and removes the
//! agent's folder for error files.
//! Started by `starting`. The kernel alone does not suffice: `PR_SET_PDEATHSIG` ends the workers' own
//! processes, but not the processes that they have started (a program behind a wrapper script, for example).
//! The guard is a small shell script. It sleeps in `read` until the agent names a process group, or until its
//! stdin ends because the agent is gone.

use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use elastic_runtime::null_device;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::unistd::Pid;

use super::command::in_own_session;
use super::exit_watch::pidfd_open;
use super::polling::poll_within;

/// The guard's script. The line `+ GROUP` adds a process group, or a control group by its folder; `- GROUP` removes it;
/// `= FOLDER` names the agent's folder for error files. At the end of stdin the remaining groups are killed, and the folder
/// is removed. It must be this user's, no link, and have the name that the agent gives it.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
groups=
scratch=
while read -r change group; do
    [ "$change" = '=' ] && scratch=$group && continue
    others=
    for other in $groups; do
        [ "$other" = "$group" ] || others="$others $other"
    done
    groups=$others
    [ "$change" = - ] || groups="$groups $group"
done
for group in $groups; do
    case $group in
    /*) echo 1 >"$group/cgroup.kill" ;;
    *) kill -s KILL -- "-$group" ;;
    esac
done
for group in $groups; do
    case $group in
    /*)
        for again in 1 2 3 4 5 6 7 8 9; do
            rmdir "$group" && break
            sleep 0.1
        done
        ;;
    esac
done
[ -z "$1" ] || rmdir "$1"
case $scratch in
/*/elastic-node-??????)
    # Killed processes may still be writing into the folder.
    for again in 1 2 3 4 5 6 7 8 9; do
        [ -d "$scratch" ] && [ ! -L "$scratch" ] && [ -O "$scratch" ] || break
        rm -rf -- "$scratch" && break
        sleep 0.1
    done
    ;;
esac
"#;

/// Time that a guard has to read its orders, or to end by itself. One that is stopped does neither.
const OBEYS_WITHIN: Duration = Duration::from_secs(2);

/// The guard process. Dropping this value ends it.
#[derive(Debug)]
pub(super) struct Guard {
    process: Child,
    orders: Option<ChildStdin>,
    /// The folder of the agent's control group.
    agents: Option<PathBuf>,
}

impl Guard {
    /// Starts the guard, in a session of its own so that no Ctrl-C reaches it. `folder` is that of the agent's control
    /// group, which the guard removes in the end.
    pub(super) fn start(folder: Option<&Path>) -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "elastic-node-guard"])
            .args(folder)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(null_device()?)
            .stderr(null_device()?);
        in_own_session(&mut command, None);
        let mut process = command.spawn()?;
        let orders = process.stdin.take();
        if let Some(orders) = &orders {
            // A guard that is stopped reads nothing, and nobody may wait for it for ever.
            fcntl(orders, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(Self { process, orders, agents: folder.map(Path::to_owned) })
    }

    /// Whether its process has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(Some(_)))
    }

    /// The folder of the agent's control group, as it was started with.
    pub(super) fn agents(&self) -> Option<&Path> {
        self.agents.as_deref()
    }

    /// The guard's process id.
    pub(super) fn pid(&self) -> i32 {
        self.process.id().cast_signed()
    }

    /// Adds a group, to be killed if the agent dies: a process group by its id, or a control group by its folder.
    pub(super) fn add(&mut self, group: &str) -> io::Result<()> {
        self.tell('+', group)
    }

    /// Removes a group. To be called before the leader of a process group is reaped, since the system may
    /// reuse its id afterwards.
    pub(super) fn forget(&mut self, group: &str) -> io::Result<()> {
        self.tell('-', group)
    }

    /// Names the agent's folder for error files, to be removed if the agent dies. A path that is no line of text is not told.
    pub(super) fn keep_scratch(&mut self, folder: &Path) -> io::Result<()> {
        match folder.to_str() {
            Some(folder) if !folder.contains('\n') => self.tell('=', folder),
            _ => Ok(()),
        }
    }

    /// Kills the guard, which then does nothing more.
    pub(super) fn kill(&mut self) {
        // An error means that it was reaped already.
        let _ = self.process.kill();
    }

    fn tell(&mut self, change: char, what: &str) -> io::Result<()> {
        let Some(orders) = &mut self.orders else { return Ok(()) };
        let order = format!("{change} {what}\n");
        // A single write below PIPE_BUF is atomic.
        match orders.write_all(order.as_bytes()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_for(orders.as_fd(), PollFlags::POLLOUT)?;
                orders.write_all(order.as_bytes())
            }
            written => written,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.orders = None;
        // The guard ends in a moment, since its stdin has ended. Errors mean that it was reaped already, or that this kernel has
        // no pidfd.
        let ends = pidfd_open(Pid::from_raw(self.pid()));
        if ends.is_ok_and(|end| wait_for(end.as_fd(), PollFlags::POLLIN).is_err()) {
            self.kill();
        }
        let _ = self.process.wait();
    }
}

/// Waits for an event of a descriptor for as long as the guard has.
///
/// # Errors
/// `WouldBlock`: it has not come.
fn wait_for(descriptor: BorrowedFd<'_>, event: PollFlags) -> io::Result<()> {
    let mut polled = [PollFd::new(descriptor, event)];
    match poll_within(&mut polled, OBEYS_WITHIN)? {
        0 => Err(ErrorKind::WouldBlock.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn s_10_nobody_waits_for_a_guard_that_is_stopped() {
        let mut guard = Guard::start(None).expect("there is a shell");
        let pid = Pid::from_raw(guard.pid());
        kill(pid, Signal::SIGSTOP).expect("it runs");
        let told = (0..100_000).try_for_each(|number| guard.add(&number.to_string()));
        let error = told.expect_err("a pipe has an end");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        drop(guard);
        assert!(kill(pid, None).is_err(), "it is reaped");
    }
}
