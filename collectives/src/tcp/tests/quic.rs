//! Tests of a man in the middle between two ranks that form over QUIC.

use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{GroupSpec, LONG, fabrics, group, spawn};
use crate::quic::{Endpoint, Stream};
use crate::{AbortHandle, DataPlane, FormError};

fn blocking((socket, _session): Stream) -> UnixStream {
    socket.set_nonblocking(false).unwrap();
    UnixStream::from(OwnedFd::from(socket))
}

/// Relays bytes until either end is closed, and then closes the other.
fn carry(mut from: UnixStream, mut to: UnixStream) {
    let mut bytes = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // The sockets may be closed already.
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

/// Relays one stream of a dialer of `middle` on to `target`, faithfully, over a separate TLS session with each.
fn stand_between(middle: &Endpoint, target: SocketAddr) {
    let mut events = [PollFd::new(middle.event(), PollFlags::POLLIN)];
    poll(&mut events, PollTimeout::from(60_000u16)).unwrap();
    let dialer = blocking(middle.accept().unwrap());
    let acceptor = blocking(middle.dial(target).unwrap());
    let ends = (dialer.try_clone().unwrap(), acceptor.try_clone().unwrap());
    let back = spawn(move || carry(ends.1, ends.0));
    carry(dialer, acceptor);
    back.join().unwrap();
}

/// Both ranks hold the generation's key and give valid proofs, but not to each other.
#[test]
fn a_proof_holds_for_one_tls_session_alone() {
    let (fabrics, addresses) = fabrics(2);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let between = socket.local_addr().unwrap();
    let middle = Endpoint::new(socket, LONG).unwrap();
    let abort = AbortHandle::new().unwrap();
    let target = addresses[0];
    let ranks: Vec<_> = (0..)
        .zip(fabrics)
        .map(|(rank, mut fabric)| {
            let peers = if rank == 1 { vec![between, addresses[1]] } else { addresses.clone() };
            let group = group(1, rank, &peers);
            let (group, abort) =
                (GroupSpec { data_plane: DataPlane::Quic, ..group }, abort.clone());
            spawn(move || fabric.form(&group, &abort).map(drop))
        })
        .collect();
    // The stream ends because one of them refuses, or because they have formed and left.
    stand_between(&middle, target);
    abort.abort(1, 1, "the test is over");
    for rank in ranks {
        let formed = rank.join().unwrap();
        assert!(matches!(formed, Err(FormError::Aborted { .. })), "{formed:?}");
    }
}
