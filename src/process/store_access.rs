//! Who is let in to the store that an agent serves on the loopback: processes of its own workers, and nobody
//! else. A client of stock torch shows no credential, but the kernel knows whose socket it is.
//!
//! The other end of a connection is found by its address in `/proc/net/tcp`, which gives the socket's inode;
//! it must be open in a process of a worker's session. Which worker it is also says in whose generation it
//! asks. Used by [`store_service`](super::store_service).

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use elastic_protocol::WorkerId;
use elastic_store::relay::listener::Ends;

/// Whose process has the client's end of a connection; `leaders` are the workers' processes, which lead the
/// sessions of theirs.
///
/// # Errors
/// Says why nobody's is found.
pub(super) fn owner(ends: Ends, leaders: &[(WorkerId, u32)]) -> Result<WorkerId, String> {
    let inode = inode_of(ends)?;
    let link = format!("socket:[{inode}]");
    // Nearly always it is a worker's own process; else one that it has started.
    let own = leaders.iter().find(|(_, pid)| has_open(*pid, &link));
    own.or_else(|| {
        let (pid, session) = processes().find(|(pid, session)| {
            leaders.iter().any(|(_, leader)| leader == session) && has_open(*pid, &link)
        })?;
        tracing::debug!(pid, session, "a descendant of a worker connects to the store");
        leaders.iter().find(|(_, leader)| *leader == session)
    })
    .map(|(worker, _)| worker.clone())
    .ok_or_else(|| "it is no process of a worker of this host".to_owned())
}

/// The inode of the client's socket.
fn inode_of(ends: Ends) -> Result<u64, String> {
    let mut refused = "its socket is not in /proc/net/tcp".to_owned();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        match fs::read_to_string(table) {
            Ok(text) => {
                if let Some(inode) = find_inode(&text, ends) {
                    return Ok(inode);
                }
            }
            Err(error) => refused = format!("{table} cannot be read: {error}"),
        }
    }
    Err(refused)
}

/// Reads a table as proc(5) describes it: the second and third words of a line are its own and the other
/// address, the tenth is the inode. A connection that is over, and waits for its port to be forgotten, has none.
fn find_inode(table: &str, ends: Ends) -> Option<u64> {
    let is = |word: &str, address: SocketAddr| forms(address).iter().any(|form| form == word);
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace();
        let (own, other) = (words.nth(1)?, words.next()?);
        let inode = words.nth(6)?.parse().ok()?;
        (inode != 0 && is(own, ends.client) && is(other, ends.server)).then_some(inode)
    })
}

/// An address as the kernel prints it, in numbers of the machine's byte order: in the table of IPv4, and mapped in
/// that of IPv6.
fn forms(address: SocketAddr) -> [String; 2] {
    let IpAddr::V4(ip) = address.ip() else { return [String::new(), String::new()] };
    let v4 = format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port());
    let mapped = format!("0000000000000000{:08X}{v4}", u32::from_ne_bytes([0, 0, 0xff, 0xff]));
    [v4, mapped]
}

/// Whether a process has a descriptor that links to this.
fn has_open(pid: u32, link: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors
        .filter_map(Result::ok)
        .any(|it| fs::read_link(it.path()).is_ok_and(|target| target == Path::new(link)))
}

/// Every process with its session.
fn processes() -> impl Iterator<Item = (u32, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        Some((pid, session(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))
    })
}

/// The session in `/proc/PID/stat`: the fourth word behind the name, which may hold anything.
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
        assert_eq!(owner(ends, &[(worker(), me)]), Ok(worker()));
        // Process 1 is never this test's, nor its session's leader.
        let error = owner(ends, &[(worker(), 1)]).expect_err("not its connection");
        assert_eq!(error, "it is no process of a worker of this host");
        let nobody = Ends { client: server, ..ends };
        assert!(owner(nobody, &[(worker(), me)]).is_err());
    }

    #[test]
    fn a_table_of_the_kernel_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             \x20  0: 0100007F:1F90 0100007F:C350 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0\n\
             \x20  1: 0100007F:1F90 0100007F:C351 01 00000000:00000000 00:00000000 00000000  1000        0 4710 1 0\n\
             \x20  2: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0\n";
        let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let find = |client, server| {
            find_inode(table, Ends { client: local(client), server: local(server) })
        };
        if cfg!(target_endian = "little") {
            assert_eq!(find(8080, 50_000), Some(4711), "neither one that is over nor another's");
            assert_eq!(find(8080, 50_001), Some(4710));
        }
        assert_eq!(find(8081, 50_000), None);
    }

    #[test]
    fn a_name_may_hold_anything() {
        assert_eq!(session("7 (a) b) c) S 1 7 42 0 -1"), Some(42));
        assert_eq!(session("nothing"), None);
    }
}
