//! The numbers of this transport's QUIC, each with its reason, and quinn's configuration made of them.

use std::sync::Arc;
use std::time::Duration;

use elastic_protocol::Deadlines;
use elastic_runtime::session::Limits;
use quinn::{ClientConfig, Connection, IdleTimeout, ServerConfig, TransportConfig, VarInt};

use crate::tls::TlsError;
use crate::{identity::Identity, tls};

/// What one stream may have on its way: 1 MiB.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// What a connection may have on its way: the bulk that the session lets go (4 MiB and one stream's
/// window), control (one more), acknowledgements (below one more). So neither flow control nor the send
/// buffer ever makes control wait for bulk (TR-3).
const WINDOW_BYTES: u32 = Limits::DEFAULT.flight_bytes as u32 + 3 * STREAM_WINDOW_BYTES;

/// Before a peer is authenticated, it may send one request to enrol or one hello, and no more than this.
const STRANGER_WINDOW_BYTES: u32 = 16 << 10;

/// A conversation each, and acknowledgements.
const STREAMS_MAX: u32 = Limits::DEFAULT.conversations as u32 + 1;

/// One to enrol, one to greet, each of one question and its answer.
const QUESTIONS_MAX: u32 = 2;

/// Assumed until measured. QUIC's own assumption of 333 ms makes a lost first packet cost a second, and
/// an idle time-out at least three (it is never below three probe time-outs).
const INITIAL_RTT: Duration = Duration::from_millis(50);

/// How long a handshake may take, with enrolling and greeting, on either side: milliseconds on an idle
/// machine, seconds on one where a hundred processes start at once.
pub(crate) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);

/// Handshakes in progress above which an address must prove itself first (QUIC Retry): it costs each honest node of a
/// crowd a round trip and a full datagram, and keeps a quarter of the places for those that have proved theirs.
pub(crate) const HANDSHAKES_RETRY: usize = HANDSHAKES_MAX / 4 * 3;

/// Handshakes in progress at most, with enrolling and greeting. One more makes the oldest go: an honest
/// one takes milliseconds. Each holds some 30 KiB, of which a stranger's bytes are 16: room for all nodes of a job of
/// hundreds of hosts at once, at a bounded price.
pub(crate) const HANDSHAKES_MAX: usize = 512;

/// Peers at most.
pub(crate) const PEERS_MAX: usize = 4096;

/// How long an acknowledgement waits for company.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(20);

/// How long `close` waits for what is queued to be acknowledged.
pub(crate) const CLOSE_GRACE: Duration = Duration::from_millis(250);

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
        // Finding out what the path takes costs ten datagrams of that size, more than all that most connections ever
        // carry, to make what a few of them carry a sixth cheaper.
        .mtu_discovery_config(None);
    Arc::new(config)
}

/// Opens a connection whose other end is authenticated for conversations.
pub(crate) fn welcome(connection: &Connection) {
    connection.set_receive_window(VarInt::from_u32(WINDOW_BYTES));
    connection.set_max_concurrent_uni_streams(VarInt::from_u32(STREAMS_MAX));
}

pub(crate) fn server(
    identity: &Identity,
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
