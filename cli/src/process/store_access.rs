//! Access control of the store that an agent serves on the loopback: only processes of the agent's own workers are let
//! in. A client of stock torch shows no credential, but the kernel knows whose socket it is.
//!
//! The kernel finds the other end of a connection by its addresses (`socket_table`), with the socket's inode; a process
//! of a worker's session must have it open. That worker also determines the generation in whose name the client asks.
//! Used by [`store_service`](super::store_service).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::rc::Rc;
use std::time::Duration;

use elastic_agent::Leaders;
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

type OwnerAnswer = oneshot::Sender<Result<WorkerId, String>>;

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
    pub(super) async fn find(self, ends: Ends) -> Result<WorkerId, String> {
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
fn owners(ends: &[Ends], leaders: &[(WorkerId, u32)]) -> Vec<Result<WorkerId, String>> {
    let sockets = sockets(ends);
    let wanted: BTreeSet<u64> = sockets.iter().flatten().copied().collect();
    let mut found = BTreeMap::new();
    // The owner is nearly always a worker's own process; else a process that it has started.
    for (worker, leader) in leaders {
        note_open(*leader, &wanted, worker, &mut found);
    }
    if wanted.iter().any(|inode| !found.contains_key(inode)) {
        for (pid, session) in processes() {
            let leader = leaders.iter().find(|(_, leader)| *leader == session && pid != session);
            if let Some((worker, _)) = leader {
                note_open(pid, &wanted, worker, &mut found);
            }
        }
    }
    let owner = |socket: Result<u64, String>| {
        found.get(&socket?).cloned().ok_or_else(|| STRANGER.to_owned())
    };
    sockets.into_iter().map(owner).collect()
}

/// The inodes of the clients' sockets.
fn sockets(ends: &[Ends]) -> Vec<Result<u64, String>> {
    let me = nix::unistd::geteuid().as_raw();
    let (found, errors) = client_sockets(ends);
    let unread: String = errors.iter().map(|error| format!("; {error}")).collect();
    let inode = |socket: Option<LocalSocket>| match socket {
        Some(LocalSocket { inode, user }) if user == me || me == 0 => Ok(inode),
        Some(_) => Err("it is a process of another user".to_owned()),
        None => Err(format!("its socket is not in /proc/net/tcp{unread}")),
    };
    found.into_iter().map(inode).collect()
}

/// Notes the wanted sockets that a process has open.
fn note_open(
    pid: u32,
    wanted: &BTreeSet<u64>,
    worker: &WorkerId,
    found: &mut BTreeMap<u64, WorkerId>,
) {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return };
    for descriptor in descriptors.filter_map(Result::ok) {
        let Ok(target) = fs::read_link(descriptor.path()) else { continue };
        let inode = target.to_str().and_then(|it| it.strip_prefix("socket:[")?.strip_suffix(']'));
        if let Some(inode) = inode.and_then(|inode| inode.parse().ok())
            && wanted.contains(&inode)
        {
            found.insert(inode, worker.clone());
        }
    }
}

/// Every process with its session.
fn processes() -> impl Iterator<Item = (u32, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        Some((pid, session(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))
    })
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
        assert_eq!(found[0], Ok(worker()));
        assert!(found[1].is_err());
        // Process 1 is neither this test's own nor the leader of its session.
        assert_eq!(owners(&[ends], &[(worker(), 1)]), [Err(STRANGER.to_owned())]);
    }

    #[test]
    fn a_name_may_hold_anything() {
        assert_eq!(session("7 (a) b) c) S 1 7 42 0 -1"), Some(42));
        assert_eq!(session("nothing"), None);
    }
}
