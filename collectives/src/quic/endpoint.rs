//! [`Endpoint`]: a UDP socket over which streams are dialed and accepted. The forming of groups calls it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use quinn::{
    ClientConfig, Connection, EndpointConfig, IdleTimeout, RecvStream, SendStream, ServerConfig,
    TokioRuntime, TransportConfig, VarInt,
};
use socket2::Socket;
use tokio::runtime::Handle;

use super::handshakes::InboundHandshakes;
use super::relay::{Unsent, relay};
use super::session::QuicSession;
use super::stream_delivery::StreamDelivery;
use super::{thread, tls};

/// Receive window of a connection: 16 MiB, a second's worth at 128 MiB a second, or 10 ms at 12 Gbit a second.
pub(super) const WINDOW_BYTES: u32 = 16 << 20;
/// Receive window before the peer has proved that it holds the generation's key.
const STRANGER_WINDOW_BYTES: u32 = 64 << 10;
/// Most streams of a peer that are open at a time: one for each of the generation's groups, and those of earlier
/// groups that a computing peer has not ended yet.
const STREAMS_MOST: u32 = 64;
/// Most connections of dialing peers that are not authenticated; the oldest gives way.
const STRANGERS_MOST: usize = 1024;
/// Most streams that wait until a group forms: each has two descriptors, and its peer is not authenticated. A
/// further one is refused, and dialed again.
const ACCEPTED_MOST: usize = 512;
/// Most first packets of dialing peers that wait to be answered.
const FIRST_PACKETS_MOST: usize = 256;
/// Number of keep-alives of an idle connection within the time for which it may be silent.
const SIGNS_OF_LIFE: u32 = 5;
/// Bytes of reports on delivery that wait to be sent, or to be read. The oldest ones give way.
const REPORTS_BYTES: usize = 8 << 10;
/// Longest wait of a dropped endpoint until its peers have received everything.
const LINGER: Duration = Duration::from_secs(2);

/// A stream as the training thread holds it.
pub(crate) type Stream = (Socket, Arc<QuicSession>);

/// State shared by the training thread and the thread of the connections.
#[derive(Debug)]
struct EndpointState {
    accepted: Mutex<VecDeque<Stream>>,
    /// The event that is readable while streams wait.
    event: EventFd,
    /// The newest connection to each dialed address.
    connections: Mutex<BTreeMap<SocketAddr, (Connection, Arc<StreamDelivery>)>>,
    handshakes: Arc<InboundHandshakes>,
    /// Connections of dialing peers that are not known to be authenticated, oldest first.
    strangers: Mutex<VecDeque<(Connection, Arc<QuicSession>)>>,
    unsent: Arc<Unsent>,
    /// Silence after which a path counts as broken.
    path_deadline: Duration,
}

/// A bound endpoint. Dropping it waits until its peers have received everything, at most two seconds.
#[derive(Debug)]
pub(crate) struct Endpoint {
    endpoint: quinn::Endpoint,
    shared: Arc<EndpointState>,
    runtime: Handle,
}

impl Endpoint {
    /// Serves a bound socket. A connection that is silent for the path deadline is given up. This detects broken
    /// paths and hosts; the end of a process is reported by its agent.
    ///
    /// # Errors
    ///
    /// The system gives no thread, socket or certificate.
    pub(crate) fn new(socket: UdpSocket, path_deadline: Duration) -> io::Result<Endpoint> {
        let runtime = thread::handle()?;
        let _entered = runtime.enter();
        let mut transport = TransportConfig::default();
        transport
            .max_idle_timeout(Some(IdleTimeout::try_from(path_deadline).map_err(io::Error::other)?))
            .keep_alive_interval(Some(path_deadline / SIGNS_OF_LIFE))
            .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_MOST))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .stream_receive_window(VarInt::from_u32(WINDOW_BYTES))
            .receive_window(VarInt::from_u32(STRANGER_WINDOW_BYTES))
            .send_window(u64::from(WINDOW_BYTES))
            .datagram_receive_buffer_size(Some(REPORTS_BYTES))
            .datagram_send_buffer_size(REPORTS_BYTES);
        let transport = Arc::new(transport);
        let mut server = ServerConfig::with_crypto(Arc::new(tls::server()?));
        let buffered = u64::from(STRANGER_WINDOW_BYTES);
        server
            .transport_config(Arc::clone(&transport))
            .max_incoming(FIRST_PACKETS_MOST)
            .incoming_buffer_size(buffered)
            .incoming_buffer_size_total(FIRST_PACKETS_MOST as u64 * buffered);
        let mut client = ClientConfig::new(Arc::new(tls::client()?));
        client.transport_config(transport);
        let (config, driver) = (EndpointConfig::default(), Arc::new(TokioRuntime));
        let mut endpoint = quinn::Endpoint::new(config, Some(server), socket, driver)?;
        endpoint.set_default_client_config(client);
        let shared = Arc::new(EndpointState {
            accepted: Mutex::default(),
            event: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            connections: Mutex::default(),
            handshakes: Arc::default(),
            strangers: Mutex::default(),
            unsent: Arc::default(),
            path_deadline,
        });
        runtime.spawn(accept(endpoint.clone(), Arc::clone(&shared)));
        Ok(Endpoint { endpoint, shared, runtime })
    }

    /// Starts to dial. The session reports the result.
    ///
    /// # Errors
    ///
    /// The system gives no sockets.
    pub(crate) fn dial(&self, address: SocketAddr) -> io::Result<Stream> {
        let (ours, theirs) = UnixStream::pair()?;
        let session = Arc::new(QuicSession::default());
        let (endpoint, shared) = (self.endpoint.clone(), Arc::clone(&self.shared));
        let told = Arc::clone(&session);
        self.runtime.spawn(async move {
            match open(&endpoint, &shared, address).await {
                Ok(Opened { connection, delivery, send, receive }) => {
                    told.stands(connection, Arc::clone(&delivery));
                    // Bytes in the socket are lost with the connection; the training thread sees the end of the
                    // socket.
                    let _ = carry(ours, (send, receive), &delivery, &shared).await;
                }
                Err(why) => told.failed(why),
            }
        });
        Ok((own_end(theirs)?, session))
    }

    /// Accepts a stream that a peer has dialed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WouldBlock`] where none waits; [`Endpoint::event`] is readable once one does.
    pub(crate) fn accept(&self) -> io::Result<Stream> {
        let mut accepted = self.shared.accepted();
        match accepted.pop_front() {
            Some(stream) => Ok(stream),
            None => {
                // The read only resets the event.
                let _ = self.shared.event.read();
                Err(ErrorKind::WouldBlock.into())
            }
        }
    }

    /// Number of handshakes that dialing peers have begun and not finished, since the last call.
    pub(crate) fn take_unfinished(&self) -> u64 {
        self.shared.handshakes.take_unfinished()
    }

    /// The event that is readable while a stream waits to be accepted.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.unsent.wait(LINGER);
        self.endpoint.close(VarInt::from_u32(0), &[]);
    }
}

impl EndpointState {
    fn accepted(&self) -> std::sync::MutexGuard<'_, VecDeque<Stream>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a stream to the training thread. Returns whether there was room.
    fn hand_over(&self, stream: Stream) -> bool {
        let mut accepted = self.accepted();
        if accepted.len() == ACCEPTED_MOST {
            return false;
        }
        accepted.push_back(stream);
        // A failed write means a full counter, which is readable too.
        let _ = self.event.write(1);
        true
    }

    /// Exchanges reports on delivery over a new connection. Called on the thread of the connections.
    fn watch(&self, connection: &Connection) -> Arc<StreamDelivery> {
        let delivery = StreamDelivery::new(self.path_deadline);
        Handle::current().spawn(Arc::clone(&delivery).exchange(connection.clone()));
        delivery
    }

    /// Records a peer that is not authenticated yet.
    fn remember(&self, connection: &Connection, session: &Arc<QuicSession>) {
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        strangers.retain(|(connection, session)| {
            !session.is_welcome() && connection.close_reason().is_none()
        });
        if strangers.len() == STRANGERS_MOST
            && let Some((oldest, _)) = strangers.pop_front()
        {
            oldest.close(VarInt::from_u32(0), b"make room");
        }
        strangers.push_back((connection.clone(), Arc::clone(session)));
    }
}

/// The training thread's end of a pair.
fn own_end(socket: UnixStream) -> io::Result<Socket> {
    socket.set_nonblocking(true)?;
    Ok(Socket::from(OwnedFd::from(socket)))
}

/// Relays between a stream and a socket of this process, until both have ended.
async fn carry(
    socket: UnixStream,
    (send, receive): (SendStream, RecvStream),
    delivery: &StreamDelivery,
    shared: &EndpointState,
) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let socket = tokio::net::UnixStream::from_std(socket)?;
    relay(socket, send, receive, shared.unsent.one_more(), delivery).await;
    Ok(())
}

/// A stream that was opened, and its connection.
struct Opened {
    connection: Connection,
    delivery: Arc<StreamDelivery>,
    send: SendStream,
    receive: RecvStream,
}

/// Opens a stream to an address, over the existing connection or a new one.
async fn open(
    endpoint: &quinn::Endpoint,
    shared: &EndpointState,
    address: SocketAddr,
) -> Result<Opened, String> {
    let standing = {
        let mut all = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (connection, _)| connection.close_reason().is_none());
        all.get(&address).cloned()
    };
    let (connection, delivery) = match standing {
        Some(standing) => standing,
        None => {
            let connecting = endpoint.connect(address, tls::NAME);
            let connecting = connecting.map_err(|error| format!("dialing {address}: {error}"))?;
            let connected = connecting.await;
            let connection =
                connected.map_err(|error| format!("no QUIC connection to {address}: {error}"))?;
            let delivery = shared.watch(&connection);
            (connection, delivery)
        }
    };
    let opened = connection.open_bi().await;
    let (send, receive) = opened.map_err(|error| format!("no stream to {address}: {error}"))?;
    // Only the acceptor needs a proof before it grants the full window; this side chose the address.
    connection.set_receive_window(VarInt::from_u32(WINDOW_BYTES));
    let mut all = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(address, (connection.clone(), Arc::clone(&delivery)));
    Ok(Opened { connection, delivery, send, receive })
}

/// Accepts connections until the endpoint is closed.
async fn accept(endpoint: quinn::Endpoint, shared: Arc<EndpointState>) {
    while let Some(incoming) = endpoint.accept().await {
        let of_peer = Arc::clone(&shared);
        shared.handshakes.admit(incoming, |connection| serve(connection, of_peer));
        // Each costs the time of a signature. Established connections come in between.
        tokio::task::yield_now().await;
    }
}

/// Hands over the streams of one peer, until its connection ends.
async fn serve(connection: Connection, shared: Arc<EndpointState>) {
    let delivery = shared.watch(&connection);
    let session = QuicSession::of(connection.clone(), Arc::clone(&delivery));
    shared.remember(&connection, &session);
    while let Ok(halves) = connection.accept_bi().await {
        let Ok((ours, theirs)) = UnixStream::pair() else { continue };
        let Ok(theirs) = own_end(theirs) else { continue };
        if shared.hand_over((theirs, Arc::clone(&session))) {
            let (shared, delivery) = (Arc::clone(&shared), Arc::clone(&delivery));
            Handle::current().spawn(async move {
                // Bytes in the socket are lost with the connection; the training thread sees the end of the socket.
                let _ = carry(ours, halves, &delivery, &shared).await;
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::clock::now;

    #[test]
    fn g_9_a_dropped_endpoint_waits_for_peers_that_do_not_take_their_bytes_and_then_goes() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let endpoint = Endpoint::new(socket, Duration::from_secs(10)).expect("it is served");
        let never_sent = endpoint.shared.unsent.one_more();
        let begun = now();
        drop(endpoint);
        assert!(begun.elapsed() >= LINGER);
        drop(never_sent);
    }
}
