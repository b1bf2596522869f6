//! The state of a stream's connection, shared by the stream's two ends in this process: the relay and the training
//! thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quinn::{Connection, ConnectionError, VarInt};

use super::endpoint::WINDOW_BYTES;
use super::stream_delivery::StreamDelivery;

/// Separates this exported secret from all other uses of a TLS session.
const LABEL: &[u8] = b"EXPORTER-elastic-collectives";
/// The length of a [`TlsBinding`], in bytes.
const BINDING_LENGTH: usize = 32;

/// A secret number known only to the two ends of one TLS session (RFC 8446 §7.5). The proofs of the following
/// handshake cover it, so that the holder of the generation's key is at the other end of this session.
pub(crate) type TlsBinding = [u8; BINDING_LENGTH];

/// The counts from which the silence of a connection follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionTraffic {
    /// Packets of the peer.
    pub(crate) received: u64,
    /// Frames sent for data, flow control and signs of life. The peer answers each within milliseconds.
    pub(crate) sent: u64,
}

/// An established connection.
#[derive(Debug)]
struct EstablishedSession {
    connection: Connection,
    binding: TlsBinding,
    delivery: Arc<StreamDelivery>,
}

/// The connection of a stream, once it is established; or the reason why it is not.
#[derive(Debug, Default)]
pub(crate) struct QuicSession {
    state: OnceLock<Result<EstablishedSession, String>>,
    welcome: AtomicBool,
}

impl QuicSession {
    /// The session of an established connection.
    pub(super) fn of(connection: Connection, delivery: Arc<StreamDelivery>) -> Arc<QuicSession> {
        let session = QuicSession::default();
        session.stands(connection, delivery);
        Arc::new(session)
    }

    pub(super) fn stands(&self, connection: Connection, delivery: Arc<StreamDelivery>) {
        let mut binding = [0; BINDING_LENGTH];
        let exported = connection.export_keying_material(&mut binding, LABEL, &[]);
        let state = exported.map(|()| EstablishedSession { connection, binding, delivery });
        self.set(state.map_err(|_| "its TLS session exports no key".to_owned()));
    }

    pub(super) fn failed(&self, why: String) {
        self.set(Err(why));
    }

    fn set(&self, state: Result<EstablishedSession, String>) {
        // Only the first state counts.
        let _ = self.state.set(state);
    }

    /// The number to which proofs are bound; none before the connection is established.
    pub(crate) fn binding(&self) -> Option<&TlsBinding> {
        self.established().map(|session| &session.binding)
    }

    /// The reason why the connection is not established, if that is known.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.state.get()?.as_ref().err().map(String::as_str)
    }

    /// The counts of the connection; none before it is established.
    pub(crate) fn traffic(&self) -> Option<SessionTraffic> {
        let stats = self.connection()?.stats();
        let sent = stats.frame_tx;
        let control = sent.max_data + sent.max_stream_data + sent.data_blocked;
        let sent = sent.stream + sent.ping + sent.stream_data_blocked + control;
        Some(SessionTraffic { received: stats.udp_rx.datagrams, sent })
    }

    /// Time for which bytes of a stream of the connection have been on their way and none has arrived.
    pub(crate) fn still_for(&self) -> Duration {
        self.established().map_or(Duration::ZERO, |session| session.delivery.still_for())
    }

    /// Whether the connection has ended because its peer was silent for the path deadline.
    pub(crate) fn is_timed_out(&self) -> bool {
        let ended = self.connection().and_then(Connection::close_reason);
        matches!(ended, Some(ConnectionError::TimedOut))
    }

    fn established(&self) -> Option<&EstablishedSession> {
        self.state.get()?.as_ref().ok()
    }

    fn connection(&self) -> Option<&Connection> {
        self.established().map(|session| &session.connection)
    }

    /// Raises the window of an authenticated peer to what a group needs.
    pub(crate) fn welcome(&self) {
        if let Some(connection) = self.connection() {
            connection.set_receive_window(VarInt::from_u32(WINDOW_BYTES));
        }
        self.welcome.store(true, Ordering::Relaxed);
    }

    /// Whether the peer has authenticated itself in a group.
    pub(super) fn is_welcome(&self) -> bool {
        self.welcome.load(Ordering::Relaxed)
    }
}
