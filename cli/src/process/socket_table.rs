//! The owner of the other end of a loopback connection. The kernel's socket monitor is asked. If there is none, the
//! kernel's tables of TCP connections are read (`/proc/net/tcp`, proc(5)). Used by
//! [`store_access`](super::store_access) and by the dashboard, on threads that may wait: long tables take 20 ms.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};

use elastic_store::relay::listener::Ends;

use super::socket_query::SocketMonitor;

/// The tables: of IPv4, and of IPv6 with IPv4 addresses in it.
const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];

/// A socket of this machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LocalSocket {
    pub(super) inode: u64,
    /// The user id of its owner.
    pub(super) user: u32,
    /// The control group (version 2) in which it was made, if the kernel's socket monitor tells it.
    pub(super) group: Option<u64>,
}

/// The clients' sockets of these connections; `None` for one that this machine does not have. The errors are those of
/// tables that could not be read.
pub(super) fn client_sockets(ends: &[Ends]) -> (Vec<Option<LocalSocket>>, Vec<io::Error>) {
    let of_monitor = SocketMonitor::open()
        .and_then(|monitor| ends.iter().map(|ends| monitor.client_socket(*ends)).collect());
    match of_monitor {
        Ok(found) => (found, Vec::new()),
        // A sandbox may forbid it, and a container's kernel may lack it.
        Err(_) => sockets_in_tables(ends),
    }
}

fn sockets_in_tables(ends: &[Ends]) -> (Vec<Option<LocalSocket>>, Vec<io::Error>) {
    let (mut found, mut errors) = (vec![None; ends.len()], Vec::new());
    for table in TABLES {
        match fs::read_to_string(table) {
            Ok(text) => {
                for (ends, found) in ends.iter().zip(&mut found) {
                    *found = found.or_else(|| find_socket(&text, *ends));
                }
            }
            Err(error) => {
                errors.push(io::Error::new(error.kind(), format!("{table}: {error}")));
            }
        }
    }
    (found, errors)
}

/// The second and third words of a line are the local and the remote address, the eighth is the user, the tenth the
/// inode. A connection in `TIME_WAIT` has no inode.
fn find_socket(table: &str, ends: Ends) -> Option<LocalSocket> {
    let (own, other) = (forms(ends.client), forms(ends.server));
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is = |word: &str, forms: &[String]| forms.iter().any(|form| form == word);
        let is_it = is(words.next()?, &own) && is(words.next()?, &other);
        let user = words.nth(4).filter(|_| is_it)?.parse().ok()?;
        let inode = words.nth(1)?.parse().ok()?;
        (inode != 0).then_some(LocalSocket { inode, user, group: None })
    })
}

/// An address as the kernel prints it, as numbers in the machine's byte order; one of IPv4 also as it stands in the
/// IPv6 table.
fn forms(address: SocketAddr) -> Vec<String> {
    let numbers = |octets: &[u8]| -> String {
        let words = octets.chunks_exact(4).map(|word| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(word);
            format!("{:08X}", u32::from_ne_bytes(bytes))
        });
        words.collect()
    };
    let with_port = |ip: String| format!("{ip}:{:04X}", address.port());
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => {
            let mapped = numbers(&ip.to_ipv6_mapped().octets());
            vec![with_port(numbers(&ip.octets())), with_port(mapped)]
        }
        IpAddr::V6(ip) => vec![with_port(numbers(&ip.octets()))],
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_table_of_the_kernel_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             \x20  0: 0100007F:1F90 0100007F:C350 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0\n\
             \x20  1: 0100007F:1F90 0100007F:C351 01 00000000:00000000 00:00000000 00000000  1000        0 4710 1 0\n\
             \x20  2: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0\n";
        let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let find = |client, server| {
            find_socket(table, Ends { client: local(client), server: local(server) })
        };
        if cfg!(target_endian = "little") {
            let of_1000 = |inode| Some(LocalSocket { inode, user: 1000, group: None });
            assert_eq!(find(8080, 50_000), of_1000(4711), "neither one that is over nor another's");
            assert_eq!(find(8080, 50_001), of_1000(4710));
        }
        assert_eq!(find(8081, 50_000), None);
    }

    #[test]
    fn the_client_of_a_connection_is_found_over_ipv4_and_ipv6() {
        for (bind, connect) in
            [("127.0.0.1", "127.0.0.1"), ("[::1]", "[::1]"), ("[::]", "127.0.0.1")]
        {
            let Ok(listener) = TcpListener::bind(format!("{bind}:0")) else { continue };
            let port = listener.local_addr().expect("bound").port();
            let stream = TcpStream::connect(format!("{connect}:{port}")).expect("it listens");
            let (accepted, _) = listener.accept().expect("a client");
            // The addresses as the listener sees them: IPv4 in IPv6 if it listens for both.
            let server = accepted.local_addr().expect("connected");
            let client = accepted.peer_addr().expect("connected");
            let ends = [Ends { client, server }, Ends { client: server, server }];
            let me = nix::unistd::geteuid().as_raw();
            let inode = fs::metadata(format!("/proc/self/fd/{}", stream.as_raw_fd()))
                .expect("this process has it open")
                .ino();
            let it = Some(LocalSocket { inode, user: me, group: None });
            let (in_tables, errors) = sockets_in_tables(&ends);
            assert_eq!(in_tables, [it, None], "{bind}: {errors:?}");
            let monitor = SocketMonitor::open().expect("this kernel has one");
            let asked = ends.map(|ends| monitor.client_socket(ends).expect("it says"));
            let group = asked[0].and_then(|it| it.group);
            if fs::exists("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default()
                && group.is_some()
            {
                let own = elastic_agent::control_group_id(std::process::id());
                assert!(own.is_none() || own == group, "{own:?}, and the socket's is {group:?}");
            }
            // The tables do not show the control group.
            let asked = asked.map(|found| found.map(|it| LocalSocket { group: None, ..it }));
            assert_eq!(asked, [it, None], "{bind}");
        }
    }
}
