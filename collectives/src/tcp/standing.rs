//! Connections that outlive their generation: the next one forms over them, and need not dial.
//!
//! Both ends keep a connection here when nothing but a farewell is in flight, and shut it down otherwise.
//! Connections with other bytes in flight are kept, unused, until all ranks have left the old generation: closing
//! one on which the peer still sends would discard the last bytes sent on it. An end that finds anything but
//! farewells and the next handshake in a connection drops it (G-4), and dials anew.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use socket2::Socket;

use super::seal::Seal;
use crate::quic::QuicSession;

/// A connection that was left in good order.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) socket: Socket,
    /// The QUIC connection, if this is a stream of one.
    pub(crate) session: Option<Arc<QuicSession>>,
    /// Whether the peer's farewell was read; if not, it comes first.
    pub(crate) parted: bool,
    /// The encryption of the old generation, which applies to an unread farewell too.
    pub(crate) seal: Option<Box<Seal>>,
}

/// The part of a generation that a connection served, the peer's listener, and which of the pair's streams it was.
type StandingKey = (u32, SocketAddr, u32);

/// The store of connections that outlive their generation, at most one for each link of the last generation. Clones
/// share it: a fabric's communicators return the connections from which they were formed.
#[derive(Clone, Debug, Default)]
pub(crate) struct StandingConnections {
    sockets: Arc<Mutex<BTreeMap<StandingKey, Left>>>,
    /// Sockets with bytes in flight: at most one for each link of the generation that ended last.
    ending: Arc<Mutex<Vec<Socket>>>,
    /// Peers to which the path was silent when the last generation ended: the next one does not wait as long for them.
    doubted: Arc<Mutex<BTreeSet<SocketAddr>>>,
}

impl StandingConnections {
    pub(crate) fn put(&self, part: u32, peer: SocketAddr, stream: u32, left: Left) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.insert((part, peer, stream), left);
    }

    /// Keeps a connection whose peer may not have read everything.
    pub(crate) fn keep(&self, socket: Socket) {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
    }

    /// Closes the sockets with bytes in flight: a rank in the new generation has left the old one.
    pub(crate) fn close_ending(&self) {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Remembers that the path to a peer was silent.
    pub(crate) fn doubt(&self, peer: SocketAddr) {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner).insert(peer);
    }

    /// Whether the path to a peer was silent when it was used last.
    pub(crate) fn is_doubted(&self, peer: SocketAddr) -> bool {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner).contains(&peer)
    }

    /// Forgets the silence of all paths: a group has formed.
    pub(crate) fn trust(&self) {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Takes all connections that served this part.
    pub(crate) fn take(&self, part: u32) -> BTreeMap<(SocketAddr, u32), Left> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *sockets);
        let (taken, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.into_iter().partition(|((of, _, _), _)| *of == part);
        *sockets = others;
        taken.into_iter().map(|((_, peer, stream), left)| ((peer, stream), left)).collect()
    }

    /// Drops the connections that no part of the new generation has taken.
    pub(crate) fn clear(&self) {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
