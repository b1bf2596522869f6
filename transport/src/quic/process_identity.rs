//! [`ProcessIdentity`]: the machine and the process of a node, and whether that process waits for a processor or a
//! disk. A dialer sends its own identity with its hello. The links of a listener ask the kernel about the agents of
//! their own machine.

use std::fs;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Identity of a process among the processes of one boot of one machine, in one PID namespace.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProcessIdentity {
    /// The machine's boot (`/proc/sys/kernel/random/boot_id`).
    boot: Uuid,
    /// The PID namespace, by its inode.
    pid_namespace: u64,
    pid: u32,
    /// Time of the process's start, in ticks since the boot. It tells the process from a later one with the same id.
    began: u64,
}

/// The entries of `/proc/PID/stat` that are used here (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct MainThread {
    /// The state of the main thread, as a letter.
    state: char,
    began: u64,
}

impl ProcessIdentity {
    /// This process; none where the kernel does not tell.
    pub(crate) fn own() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
        // Of the form `pid:[4026531836]`.
        let namespace = namespace.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.to_owned();
        let pid = std::process::id();
        Some(Self {
            boot: boot.trim().parse().ok()?,
            pid_namespace: namespace.parse().ok()?,
            pid,
            began: MainThread::of(pid)?.began,
        })
    }

    /// Whether both see the same processes.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        (self.boot, self.pid_namespace) == (other.boot, other.pid_namespace)
    }

    /// Whether the main thread of this process, which is beside the caller's, is there and waits for a processor or for a
    /// disk. One that is stopped, is frozen by a control group, or waits for anything else, does not.
    pub(crate) fn waits_for_its_machine(&self) -> bool {
        MainThread::of(self.pid).is_some_and(|found| {
            let waits = match found.state {
                'R' => true,
                'D' => !self.is_frozen(),
                _ => false,
            };
            waits && found.began == self.began
        })
    }

    /// Whether a control group has frozen it: the kernel shows that as a wait for a disk, in a call that waits for none
    /// (the event loop's, or a thread's for another one).
    fn is_frozen(&self) -> bool {
        let wait = fs::read_to_string(format!("/proc/{}/wchan", self.pid)).unwrap_or_default();
        ["poll", "futex", "refrigerator"].iter().any(|name| wait.contains(name))
    }
}

impl MainThread {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The second field, the program's name, may contain spaces and parentheses.
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        // Fields 3 and 22.
        let state = fields.next()?.chars().next()?;
        Some(Self { state, began: fields.nth(18)?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn fields_are_found_behind_a_name_with_parentheses() {
        let text = "7 (a) b (c) D 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0 0";
        assert_eq!(MainThread::parse(text), Some(MainThread { state: 'D', began: 4711 }));
        assert_eq!(MainThread::parse("7 (a) D 1"), None);
    }

    /// A process beside this one, which is killed when it is dropped.
    struct Beside(Child);

    impl Beside {
        fn start(program: &str, arguments: &[&str]) -> Self {
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
            Self(command.spawn().expect("it is installed"))
        }

        fn identity(&self) -> ProcessIdentity {
            let pid = self.0.id();
            let began = MainThread::of(pid).expect("it is there").began;
            ProcessIdentity { pid, began, ..ProcessIdentity::own().expect("the kernel tells") }
        }
    }

    impl Drop for Beside {
        fn drop(&mut self) {
            self.0.kill().expect("it is ours");
            self.0.wait().expect("it is ours");
        }
    }

    /// Waits until the kernel says this of a process, which it does for as long as this can take.
    fn wait_until(identity: &ProcessIdentity, waits: bool) {
        while identity.waits_for_its_machine() != waits {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_process_that_computes_waits_for_its_machine() {
        let computes = Beside::start("yes", &[]);
        wait_until(&computes.identity(), true);
    }

    #[test]
    fn a_process_that_sleeps_is_stopped_or_is_gone_does_not_wait_for_its_machine() {
        let sleeps = Beside::start("sleep", &["600"]);
        let identity = sleeps.identity();
        wait_until(&identity, false);
        let stopped = Beside::start("yes", &[]);
        let stopped_identity = stopped.identity();
        let pid = i32::try_from(stopped.0.id()).expect("a process id");
        kill(Pid::from_raw(pid), Signal::SIGSTOP).expect("it is ours");
        wait_until(&stopped_identity, false);
        let computes = Beside::start("yes", &[]);
        let identity = computes.identity();
        let other = ProcessIdentity { began: identity.began + 1, ..identity };
        assert!(!other.waits_for_its_machine(), "its id has another process now");
        drop(computes);
        assert!(!identity.waits_for_its_machine(), "it is gone");
    }

    #[test]
    fn processes_of_another_boot_or_pid_namespace_are_not_seen_from_here() {
        let own = ProcessIdentity::own().expect("the kernel tells");
        assert!(own.is_beside(&ProcessIdentity { pid: 1, began: 0, ..own }));
        assert!(!own.is_beside(&ProcessIdentity { pid_namespace: own.pid_namespace + 1, ..own }));
        assert!(!own.is_beside(&ProcessIdentity { boot: Uuid::nil(), ..own }));
    }
}
