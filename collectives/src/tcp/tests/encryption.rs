//! Tests of the bytes between two ranks, as an observer of the wire sees them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::{GroupSpec, fabrics, group, spawn};
use crate::{AbortHandle, CollectiveError, Communicator, CommunicatorExt, PeerLoss, ReduceOp};

const TEXT: &[u8] = b"what nobody but these two may read";

/// A recorder of all bytes, both ways. From the given byte on it flips one bit.
#[derive(Clone, Default)]
struct Wire {
    seen: Arc<Mutex<Vec<u8>>>,
    changes_from: Option<usize>,
}

impl Wire {
    /// Starts a proxy in front of `target`, and returns the address to dial.
    fn before(&self, target: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let wire = self.clone();
        spawn(move || {
            // The proxy serves until the test ends: a pair has several connections.
            while let Ok((dialer, _)) = listener.accept() {
                let acceptor = TcpStream::connect(target).unwrap();
                let ends = (dialer.try_clone().unwrap(), acceptor.try_clone().unwrap());
                let (there, back) = (wire.clone(), wire.clone());
                spawn(move || back.carry(ends.1, ends.0));
                spawn(move || there.carry(dialer, acceptor));
            }
        });
        address
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let count = from.read(&mut bytes).unwrap_or(0);
            if count == 0 {
                // The other end may have closed it already.
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            let mut seen = self.seen.lock().unwrap();
            seen.extend_from_slice(&bytes[..count]);
            if self.changes_from.is_some_and(|from| seen.len() > from) {
                bytes[count - 1] ^= 1;
            }
            drop(seen);
            if to.write_all(&bytes[..count]).is_err() {
                return;
            }
        }
    }

    fn shows(&self, part: &[u8]) -> bool {
        self.seen.lock().unwrap().windows(part.len()).any(|window| window == part)
    }
}

/// Runs `body` on two ranks, with `wire` between them; returns their results.
fn over<T: Send + 'static>(
    wire: &Wire,
    encrypts: bool,
    body: fn(&mut dyn Communicator) -> T,
) -> Vec<T> {
    let (fabrics, addresses) = fabrics(2);
    let tapped = wire.before(addresses[0]);
    let ranks = fabrics.into_iter().enumerate().map(|(rank, mut fabric)| {
        let peers = if rank == 1 { vec![tapped, addresses[1]] } else { addresses.clone() };
        spawn(move || {
            let abort = AbortHandle::new().unwrap();
            let spec = GroupSpec { encrypts, ..group(1, rank as u32, &peers) };
            body(&mut fabric.form(&spec, &abort).unwrap())
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn data_crosses_in_the_clear_only_where_it_may() {
    for encrypts in [false, true] {
        let wire = Wire::default();
        over(&wire, encrypts, |group| {
            for length in [1, 100, 100_000] {
                let text = TEXT.repeat(length);
                let mut sent = if group.rank() == 0 { text.clone() } else { vec![0; text.len()] };
                group.broadcast(&mut sent, 0).unwrap();
                group.all_reduce(&mut sent, ReduceOp::Max).unwrap();
                assert!(sent == text);
            }
        });
        // The headers, which show the operations, are hidden too.
        assert_eq!((wire.shows(TEXT), wire.shows(b"ELFR")), (!encrypts, !encrypts));
    }
}

#[test]
fn what_was_changed_on_its_way_is_refused() {
    // The flipped bit is after the handshake, within the data.
    let wire = Wire { changes_from: Some(100_000), ..Wire::default() };
    let errors = over(&wire, true, |group| {
        let mut data = vec![1.0f32; 1 << 20];
        loop {
            if let Err(error) = group.all_reduce(&mut data, ReduceOp::Max) {
                return error;
            }
            assert!(data.iter().all(|value| *value == 1.0), "changed data was taken");
        }
    });
    assert!(
        errors.iter().any(|error| matches!(
            error,
            CollectiveError::PeerLost { source: PeerLoss::Connection(why), .. }
                if why.to_string().contains("not what the other end has sealed")
        )),
        "{errors:?}"
    );
}
