//! Access control of the store that an agent serves on the loopback: only processes of the agent's own workers are let
//! in. A client of stock torch shows no credential, but the kernel knows whose socket it is.
//!
//! The kernel finds the other end of a connection by its addresses (`socket_table`), with the socket's inode; a process
//! of a worker's session must have it open. That worker also determines the generation in whose name the client asks. A
//! process that is not dumpable hides its descriptors from other processes of its user: it is taken for the owner of a
//! socket that no other process has open. Used by [`store_service`](super::store_service).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use elastic_agent::{Leaders, control_group_id};
use elastic_protocol::WorkerId;
use elastic_runtime::{BlockingLane, OffloadPort};
use elastic_store::relay::listener::Ends;
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::socket_table::{LocalSocket, client_sockets};

/// Pause after a refusal before the next look: repeated connections of a stranger then cost little.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// The reason for refusing a connection whose owner is no worker of this host.
const STRANGER: &str = "it is no process of a worker of this host";

/// Hint if a worker hides its descriptors, and they are needed.
const READABLE: &str = "a process is so with file capabilities, set-id, an unreadable executable, or PR_SET_DUMPABLE; \
                        start it without, or give the agent CAP_SYS_PTRACE";

/// The possible owners of the client's end of a connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Owner {
    /// One worker, or all of those that hide their descriptors if nobody else has the socket.
    pub(super) candidates: Vec<WorkerId>,
    /// The reason why there may be several.
    pub(super) unread: Option<String>,
}

type OwnerAnswer = oneshot::Sender<Result<Owner, String>>;

/// Finds the owners of connections on a thread of its own, in one look for all that wait. Clones share it.
#[derive(Clone)]
pub(super) struct Owners {
    lane: OffloadPort,
    leaders: Leaders,
    waiting: Rc<RefCell<Vec<(Ends, OwnerAnswer)>>>,
    is_looking: Rc<Cell<bool>>,
}

impl Owners {
    /// A finder for the processes of `leaders`: the workers, each the leader of its session.
    pub(super) fn new(leaders: Leaders) -> Self {
        let lane = OffloadPort::lane(BlockingLane::ADMISSION);
        Self { lane, leaders, waiting: Rc::default(), is_looking: Rc::default() }
    }

    /// The lane of the looks.
    pub(super) fn lane(&self) -> &OffloadPort {
        &self.lane
    }

    /// The worker whose process has the client's end of a connection, or the reason why none is found.
    pub(super) async fn find(self, ends: Ends) -> Result<Owner, String> {
        let (answer, answered) = oneshot::channel();
        self.waiting.borrow_mut().push((ends, answer));
        if !self.is_looking.replace(true) {
            spawn_local(self.look());
        }
        answered.await.unwrap_or_else(|_| Err("nobody looks for its owner".to_owned()))
    }

    async fn look(self) {
        loop {
            let waiting = self.waiting.take();
            if waiting.is_empty() {
                break;
            }
            let (ends, answers): (Vec<Ends>, Vec<OwnerAnswer>) = waiting.into_iter().unzip();
            let leaders = self.leaders.all();
            let found = self.lane.run("owners", move || owners(&ends, &leaders)).await;
            let found = found.unwrap_or_else(|error| vec![Err(error.to_string()); answers.len()]);
            let is_refused = found.iter().any(Result::is_err);
            for (answer, found) in answers.into_iter().zip(found) {
                // The connection may have been given up meanwhile.
                let _ = answer.send(found);
            }
            if is_refused {
                sleep(REFUSED_PAUSE).await;
            }
        }
        self.is_looking.set(false);
    }
}

/// The workers whose processes have the clients' ends of these connections. The kernel's table alone refuses sockets
/// of other users; descriptors are examined only for the rest.
fn owners(ends: &[Ends], leaders: &[(WorkerId, u32)]) -> Vec<Result<Owner, String>> {
    let sockets = sockets(ends);
    let wanted = sockets.iter().flatten().map(|socket| socket.inode).collect();
    let mut look = Look { wanted, ..Look::default() };
    // The owner is nearly always a worker's own process; else a process that it has started.
    for (worker, leader) in leaders {
        look.at(*leader, worker);
    }
    if look.is_incomplete() {
        let mut others = Vec::new();
        for (pid, session) in processes() {
            match leaders.iter().find(|(_, leader)| *leader == session) {
                Some((worker, _)) if pid != session => look.at(pid, worker),
                Some(_) => {}
                None => others.push(pid),
            }
        }
        // Other processes are asked only if a worker cannot be.
        if !look.unread.is_empty() && look.is_incomplete() {
            others.into_iter().for_each(|pid| look.at_stranger(pid));
        }
    }
    sockets.into_iter().map(|socket| look.owner(&socket?)).collect()
}

/// The clients' sockets.
fn sockets(ends: &[Ends]) -> Vec<Result<LocalSocket, String>> {
    let me = nix::unistd::geteuid().as_raw();
    let (found, errors) = client_sockets(ends);
    let unread: String = errors.iter().map(|error| format!("; {error}")).collect();
    let permitted = |socket: Option<LocalSocket>| match socket {
        Some(socket) if socket.user == me || me == 0 => Ok(socket),
        Some(_) => Err("it is a process of another user".to_owned()),
        None => Err(format!("its socket is not in /proc/net/tcp{unread}")),
    };
    found.into_iter().map(permitted).collect()
}

/// A look at the descriptors of processes.
#[derive(Default)]
struct Look {
    /// The sockets that are looked for, by their inodes.
    wanted: BTreeSet<u64>,
    found: BTreeMap<u64, WorkerId>,
    /// Sockets that processes outside of the workers' sessions have open.
    strangers: BTreeSet<u64>,
    /// Workers with a process whose descriptors cannot be read, with the process and the reason.
    unread: BTreeMap<WorkerId, (u32, String)>,
}

impl Look {
    fn is_incomplete(&self) -> bool {
        self.wanted.iter().any(|inode| !self.found.contains_key(inode))
    }

    /// Looks at a process of a worker.
    fn at(&mut self, pid: u32, worker: &WorkerId) {
        match self.open_in(pid) {
            Ok(open) => self.found.extend(open.into_iter().map(|inode| (inode, worker.clone()))),
            // A process that has ended has nothing open, and its folder cannot be read either.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !has_ended(pid) => {
                let reason = format!("/proc/{pid}/fd cannot be read: {error}");
                self.unread.insert(worker.clone(), (pid, reason));
            }
            // It is gone.
            Err(_) => {}
        }
    }

    /// Looks at a process that is no worker's.
    fn at_stranger(&mut self, pid: u32) {
        // An error is no loss: a process of another user has no socket that is still looked for.
        self.strangers.extend(self.open_in(pid).unwrap_or_default());
    }

    /// The wanted sockets that a process has open.
    fn open_in(&self, pid: u32) -> io::Result<Vec<u64>> {
        let mut open = Vec::new();
        for descriptor in fs::read_dir(format!("/proc/{pid}/fd"))?.filter_map(Result::ok) {
            let target = match fs::read_link(descriptor.path()) {
                Ok(target) => target,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
                // It was closed meanwhile.
                Err(_) => continue,
            };
            let inode =
                target.to_str().and_then(|it| it.strip_prefix("socket:[")?.strip_suffix(']'));
            let inode = inode.and_then(|inode| inode.parse().ok());
            open.extend(inode.filter(|inode| self.wanted.contains(inode)));
        }
        Ok(open)
    }

    fn owner(&self, socket: &LocalSocket) -> Result<Owner, String> {
        if let Some(worker) = self.found.get(&socket.inode) {
            return Ok(Owner { candidates: vec![worker.clone()], unread: None });
        }
        let Some((_, reason)) = self.unread.values().next() else {
            return Err(STRANGER.to_owned());
        };
        if self.strangers.contains(&socket.inode) {
            return Err(STRANGER.to_owned());
        }
        if socket.user != nix::unistd::geteuid().as_raw() {
            return Err(format!("{reason}, and it is a process of another user; {READABLE}"));
        }
        // Among workers with control groups of their own, the one in whose group the socket was made.
        let is_its = |pid: u32| socket.group.is_some() && control_group_id(pid) == socket.group;
        let its: Vec<_> = self.unread.iter().filter(|(_, (pid, _))| is_its(*pid)).collect();
        let candidates = if its.is_empty() { self.unread.iter().collect() } else { its };
        let candidates = candidates.into_iter().map(|(worker, _)| worker.clone()).collect();
        Ok(Owner { candidates, unread: Some(format!("{reason}; {READABLE}")) })
    }
}

/// Every process that has not ended, with its session.
fn processes() -> impl Iterator<Item = (u32, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        (!is_zombie(&stat)).then_some((pid, session(&stat)?))
    })
}

/// Whether a process is gone, or a zombie.
fn has_ended(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| is_zombie(&stat))
}

/// Whether `/proc/PID/stat` is that of a zombie, by the first word behind the process name.
fn is_zombie(stat: &str) -> bool {
    let state =
        stat.rsplit_once(')').and_then(|(_, behind_name)| behind_name.split_whitespace().next());
    matches!(state, Some("Z" | "X"))
}

/// The session in `/proc/PID/stat`: the fourth word behind the process name, which may contain anything.
fn session(stat: &str) -> Option<u32> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use elastic_protocol::{HostName, Incarnation};

    use super::*;

    fn worker() -> WorkerId {
        let host = HostName::new("a").expect("a literal");
        WorkerId { host, slot: 0, incarnation: Incarnation(1) }
    }

    #[test]
    fn a_worker_s_own_connection_is_let_in_and_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(server).expect("it listens");
        let ends = Ends { client: stream.local_addr().expect("connected"), server };
        let me = std::process::id();
        let nobody = Ends { client: server, ..ends };
        let found = owners(&[ends, nobody], &[(worker(), me)]);
        assert_eq!(found[0], Ok(Owner { candidates: vec![worker()], unread: None }));
        assert!(found[1].is_err());
        // Process 1 is neither this test's own nor the leader of its session.
        assert_eq!(owners(&[ends], &[(worker(), 1)]), [Err(STRANGER.to_owned())]);
    }

    #[test]
    fn a_name_may_hold_anything() {
        assert_eq!(session("7 (a) b) c) S 1 7 42 0 -1"), Some(42));
        assert_eq!(session("nothing"), None);
        assert!(is_zombie("7 (a) S) Z 1 7 42 0 -1") && !is_zombie("7 (a) Z) S 1 7 42 0 -1"));
    }
}
