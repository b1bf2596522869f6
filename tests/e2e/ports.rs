//! Ports that a test gives away and that are bound later, or bound again. The system gives ports of its own range to connections
//! of all processes, so that a port of that range may be taken when it is needed again; these lie below. Used by end-to-end
//! tests, and by those beside an etcd.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// First of the ports, and their number: below 32,768, where Linux begins by default.
const FIRST: u16 = 10_000;
const COUNT: u16 = 22_000;

/// Distance between the first ports of two processes with neighbouring ids; coprime to [`COUNT`].
const STRIDE: u32 = 61;

/// A port of this address that is free for TCP and for UDP. Each process begins at another one, and never returns one twice.
pub(crate) fn free_port(ip: Ipv4Addr) -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(STRIDE);
    loop {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed);
        assert!(tried < u32::from(COUNT), "no port is free");
        let offset = begin.wrapping_add(tried) % u32::from(COUNT);
        let port = FIRST + u16::try_from(offset).expect("below the count");
        let tcp = TcpListener::bind((ip, port));
        if tcp.is_ok() && UdpSocket::bind((ip, port)).is_ok() {
            return port;
        }
    }
}
