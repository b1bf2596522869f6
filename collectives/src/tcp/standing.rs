//! Connections that outlive their generation: the next one forms over them, and need not dial.
//!
//! Both ends of a connection leave one here when nothing but a farewell is on its way, and shut it down otherwise.
//! Others are kept, unused, until all have left the old generation: closing one that the peer still sends on would take
//! back what was said on it last. Whoever finds anything else in it than farewells and the next handshake drops it (G-4), and dials anew.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use socket2::Socket;

use super::seal::Seal;
use crate::quic::Session;

/// A connection that was left in good order.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) socket: Socket,
    /// Its QUIC connection, if it is a stream of one.
    pub(crate) session: Option<Arc<Session>>,
    /// The peer's farewell was read already; else it comes first.
    pub(crate) parted: bool,
    /// What the generation encrypted it with: the farewell too, where it is not read.
    pub(crate) seal: Option<Box<Seal>>,
}

/// The part of a generation that a connection served, the peer's listener, and which of the pair's streams it was.
type Place = (u32, SocketAddr, u32);

/// At most one for each link of the last generation. Clones share them: a fabric's communicators give back what they were formed of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    sockets: Arc<Mutex<BTreeMap<Place, Left>>>,
    /// At most one for each link of the generation that ended last.
    ending: Arc<Mutex<Vec<Socket>>>,
}

impl Standing {
    pub(crate) fn put(&self, part: u32, peer: SocketAddr, stream: u32, left: Left) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.insert((part, peer, stream), left);
    }

    /// Keeps a connection whose peer may not have read everything.
    pub(crate) fn keep(&self, socket: Socket) {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
    }

    /// Closes those that were kept: whoever is in the new generation has left the old one.
    pub(crate) fn close_ending(&self) {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Takes all that served this part.
    pub(crate) fn take(&self, part: u32) -> BTreeMap<(SocketAddr, u32), Left> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *sockets);
        let (taken, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.into_iter().partition(|((of, _, _), _)| *of == part);
        *sockets = others;
        taken.into_iter().map(|((_, peer, stream), left)| ((peer, stream), left)).collect()
    }

    /// Drops what no part of the new generation has taken.
    pub(crate) fn clear(&self) {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
