//! The other end of a process's socket, by the tables of `/proc/PID/net`. Called by `waits_in`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Most bytes of a table that are read: a host with more connections than fit is not searched further.
const TABLE_BYTES_MAX: u64 = 4 << 20;

/// Whom a TCP socket of the process is connected to, by the number that `/proc/PID/fd` shows; `None` for any other socket.
pub(super) fn peer(pid: i32, inode: u64) -> Option<SocketAddr> {
    ["tcp", "tcp6"].into_iter().find_map(|name| {
        let file = fs::File::open(format!("/proc/{pid}/net/{name}")).ok()?;
        let mut table = String::new();
        std::io::Read::read_to_string(&mut std::io::Read::take(file, TABLE_BYTES_MAX), &mut table)
            .ok()?;
        find(&table, inode)
    })
}

fn find(table: &str, inode: u64) -> Option<SocketAddr> {
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Connections that are over, and wait for late packets, have no number.
        let is_it = inode != 0 && words.get(9)?.parse() == Ok(inode);
        is_it.then(|| address(words.get(2)?)).flatten().filter(|it| it.port() != 0)
    })
}

/// An address as the kernel writes it: words of four bytes in the order of this machine, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words = address.as_bytes().chunks(8).map(|word| {
        let word = str::from_utf8(word).ok()?;
        u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
    });
    let bytes = words.collect::<Option<Vec<[u8; 4]>>>()?.concat();
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(bytes) => IpAddr::V4(Ipv4Addr::from(bytes)),
        Err(_longer) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn the_other_end_of_a_connection_is_found_for_both_families_and_a_listener_has_none() {
        let own = i32::try_from(std::process::id()).expect("a process id");
        let inode = |fd: i32| {
            let link = fs::read_link(format!("/proc/self/fd/{fd}")).expect("it is open");
            let link = link.to_string_lossy().into_owned();
            let number = link.trim_start_matches("socket:[").trim_end_matches(']').parse();
            number.expect("a socket")
        };
        for host in ["127.0.0.1", "::1"] {
            let Ok(listener) = TcpListener::bind((host, 0)) else { continue };
            let at = listener.local_addr().expect("it listens");
            let stream = TcpStream::connect(at).expect("it listens");
            assert_eq!(peer(own, inode(stream.as_raw_fd())), Some(at));
            assert_eq!(peer(own, inode(listener.as_raw_fd())), None);
        }
        assert_eq!(peer(own, 0), None);
    }
}
