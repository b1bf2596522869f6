//! A process that outlives the agent by a moment, to kill what the kernel does not: when the agent is killed,
//! `PR_SET_PDEATHSIG` ends its workers' own processes, but not those that they have started (a program behind
//! a wrapper script, say). The guard is a small shell script; it sleeps in `read` until the agent tells it of
//! a process group, or until its stdin ends because the agent is gone.

use std::io::{self, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::unistd::Pid;

use super::command::in_own_session;

/// `+ GROUP` adds a process group, `- GROUP` forgets it; at the end those that are left are killed.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
groups=
while read -r change group; do
    others=
    for other in $groups; do
        [ "$other" = "$group" ] || others="$others $other"
    done
    groups=$others
    [ "$change" = - ] || groups="$groups $group"
done
for group in $groups; do
    kill -s KILL -- "-$group"
done
"#;

/// The guard process. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Guard {
    process: Child,
    orders: Option<ChildStdin>,
}

impl Guard {
    /// Starts it, in a session of its own so that no Ctrl-C reaches it.
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "elastic-node-guard"])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        in_own_session(&mut command, None);
        let mut process = command.spawn()?;
        let orders = process.stdin.take();
        Ok(Self { process, orders })
    }

    /// Kills this group if the agent dies.
    pub(super) fn add(&mut self, group: Pid) -> io::Result<()> {
        self.tell('+', group)
    }

    /// Lets it be: to be called before the leader of the group is reaped, since then its number may be given
    /// to somebody else.
    pub(super) fn forget(&mut self, group: Pid) -> io::Result<()> {
        self.tell('-', group)
    }

    fn tell(&mut self, change: char, group: Pid) -> io::Result<()> {
        let Some(orders) = &mut self.orders else { return Ok(()) };
        // One write below PIPE_BUF: whole, or not at all.
        orders.write_all(format!("{change} {group}\n").as_bytes())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.orders = None;
        // It ends in a moment now that its stdin has; an error means that it was reaped already.
        let _ = self.process.wait();
    }
}
