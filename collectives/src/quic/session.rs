//! What a stream's two ends in this process, the relay's and the training thread's, know of its connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use quinn::{Connection, VarInt};

use super::endpoint::WINDOW_BYTES;

/// Separates what is exported here from all other uses of a TLS session.
const LABEL: &[u8] = b"EXPORTER-elastic-collectives";
/// The length of a [`Binding`], in bytes.
const BINDING_LENGTH: usize = 32;

/// A secret number that both ends of one TLS session know, and nobody between them (RFC 8446 §7.5). The proofs of the
/// handshake that follows are over it, so that whoever holds the generation's key is at the other end of this session.
pub(crate) type Binding = [u8; BINDING_LENGTH];

/// The connection of a stream, once it stands; else why it does not.
#[derive(Debug, Default)]
pub(crate) struct Session {
    state: OnceLock<Result<(Connection, Binding), String>>,
    welcome: AtomicBool,
}

impl Session {
    /// Of a connection that stands.
    pub(super) fn of(connection: Connection) -> Arc<Session> {
        let session = Session::default();
        session.stands(connection);
        Arc::new(session)
    }

    pub(super) fn stands(&self, connection: Connection) {
        let mut binding = [0; BINDING_LENGTH];
        let exported = connection.export_keying_material(&mut binding, LABEL, &[]);
        let state = exported.map(|()| (connection, binding));
        self.set(state.map_err(|_| "its TLS session exports no key".to_owned()));
    }

    pub(super) fn failed(&self, why: String) {
        self.set(Err(why));
    }

    fn set(&self, state: Result<(Connection, Binding), String>) {
        // Whichever came first is what happened.
        let _ = self.state.set(state);
    }

    /// The number to which proofs are bound; none before the connection stands.
    pub(crate) fn binding(&self) -> Option<&Binding> {
        self.state.get()?.as_ref().ok().map(|(_, binding)| binding)
    }

    /// Why the connection does not stand, if that is known.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.state.get()?.as_ref().err().map(String::as_str)
    }

    /// Lets a peer that has proved itself send as much as a group needs.
    pub(crate) fn welcome(&self) {
        if let Some(Ok((connection, _))) = self.state.get() {
            connection.set_receive_window(VarInt::from_u32(WINDOW_BYTES));
        }
        self.welcome.store(true, Ordering::Relaxed);
    }

    /// Whether the peer has proved itself in a group.
    pub(super) fn is_welcome(&self) -> bool {
        self.welcome.load(Ordering::Relaxed)
    }
}
