//! The parameters of this transport's QUIC, each with its reason, and quinn's configuration made of them.

use std::sync::Arc;
use std::time::Duration;

use elastic_protocol::Deadlines;
use elastic_runtime::session::SessionLimits;
use quinn::{ClientConfig, Connection, IdleTimeout, ServerConfig, TransportConfig, VarInt};

use crate::identity::bearer::NodeIdentity;
use crate::quic::tls::{self, TlsError};

/// Most bytes in flight on one stream: 1 MiB.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// Most bytes in flight on a connection: the bulk that the session allows (4 MiB and one stream's window),
/// control (one more), acknowledgements (less than one more). So neither flow control nor the send buffer makes
/// control wait for bulk (TR-3).
const WINDOW_BYTES: u32 = SessionLimits::DEFAULT.flight_bytes as u32 + 3 * STREAM_WINDOW_BYTES;

/// Most bytes from a peer that is not authenticated: one request to enrol or one hello, and no more.
const STRANGER_WINDOW_BYTES: u32 = 16 << 10;

/// Unidirectional streams: one for each conversation, and one for acknowledgements.
const STREAMS_MAX: u32 = SessionLimits::DEFAULT.conversations as u32 + 1;

/// Bidirectional streams: one to enrol and one to greet, each with one question and its answer.
const QUESTIONS_MAX: u32 = 2;

/// Round-trip time that is assumed until it is measured. With QUIC's own assumption of 333 ms, a lost first
/// packet costs a second, and the idle timeout is at least three seconds (never below three probe timeouts).
const INITIAL_RTT: Duration = Duration::from_millis(50);

/// Time limit of a handshake, with enrolling and greeting, on either side. It takes milliseconds on an idle
/// machine, and seconds on one where a hundred processes start at once.
pub(crate) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);

/// Handshakes in progress above which an address must prove itself first (QUIC Retry). That costs each honest
/// node of a crowd a round trip and a full datagram, and keeps a quarter of the places for nodes that have
/// proved their address.
pub(crate) const HANDSHAKES_RETRY: usize = HANDSHAKES_MAX / 4 * 3;

/// Most handshakes in progress, with enrolling and greeting. A further one replaces the oldest, as an honest
/// one takes milliseconds. Each holds some 30 KiB, of which 16 are a stranger's bytes. There is room for all
/// nodes of a job of hundreds of hosts at once, at a bounded cost.
pub(crate) const HANDSHAKES_MAX: usize = 512;

/// Time for which an acknowledgement waits for further ones.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(20);

fn transport(deadlines: &Deadlines) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    let idle = IdleTimeout::try_from(deadlines.lost)
        .unwrap_or_else(|_| IdleTimeout::from(VarInt::from_u32(u32::MAX)));
    config
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(deadlines.beat))
        .initial_rtt(INITIAL_RTT)
        .max_concurrent_bidi_streams(VarInt::from_u32(QUESTIONS_MAX))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(STRANGER_WINDOW_BYTES))
        .send_window(u64::from(WINDOW_BYTES))
        .datagram_receive_buffer_size(None)
        // MTU discovery is off. It costs ten datagrams of full size, more than most connections ever carry, and
        // makes the traffic of a few of them a sixth cheaper.
        .mtu_discovery_config(None);
    Arc::new(config)
}

/// Opens an authenticated connection for conversations.
pub(crate) fn welcome(connection: &Connection) {
    connection.set_receive_window(VarInt::from_u32(WINDOW_BYTES));
    connection.set_max_concurrent_uni_streams(VarInt::from_u32(STREAMS_MAX));
}

pub(crate) fn server(
    identity: &NodeIdentity,
    deadlines: &Deadlines,
    version: u32,
) -> Result<ServerConfig, TlsError> {
    let mut config = ServerConfig::with_crypto(Arc::new(tls::server(identity, version)?));
    config
        .transport_config(transport(deadlines))
        .max_incoming(HANDSHAKES_MAX)
        .incoming_buffer_size(u64::from(STRANGER_WINDOW_BYTES))
        .incoming_buffer_size_total(HANDSHAKES_MAX as u64 * u64::from(STRANGER_WINDOW_BYTES));
    Ok(config)
}

pub(crate) fn client(
    crypto: quinn::crypto::rustls::QuicClientConfig,
    deadlines: &Deadlines,
) -> ClientConfig {
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport(deadlines));
    config
}
