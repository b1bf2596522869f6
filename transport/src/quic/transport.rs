//! [`QuicTransport`]: the transport trait over QUIC. A driver makes one with [`QuicTransport::listen`], all
//! other nodes with [`QuicTransport::connect`].

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use elastic_protocol::{Deadlines, Incarnation, NodeId, NodeName};
use elastic_runtime::NodeHandle;
use elastic_runtime::transport::{Conversation, SendError, Transport, TransportSink};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::identity::authority::{Authority, AuthorityError};
use crate::identity::job_secrets::JobSecrets;
use crate::identity::token::JoinToken;
use crate::peers::CLOSE_GRACE;
use crate::peers::addresses::{DriverAddresses, FoundDrivers};
use crate::peers::backoff::DialBackoff;
use crate::quic::connect_error::ConnectError;
use crate::quic::dialer::{Dialer, claim};
use crate::quic::known_drivers::KnownDriversActor;
use crate::quic::links::QuicLinks;
use crate::quic::listener::{Admit, Listener};
use crate::quic::lookups::Lookups;
use crate::quic::refusals::{keep_refusals, watch_refusals};
use crate::quic::settings;
use crate::quic::sockets::Sockets;
use crate::quic::tls::{PROTOCOL_VERSION, TlsError};

/// Parameters of a driver that listens.
#[derive(Clone)]
pub struct ListenOptions {
    /// The address to bind. Port 0 takes any free port.
    pub bind: SocketAddr,
    /// A socket that is bound to that address already ([`ReservedAddress`](crate::ReservedAddress)).
    pub socket: Option<Rc<UdpSocket>>,
    /// The driver's own id.
    pub local: NodeId,
    /// The job's authority.
    pub authority: Rc<Authority>,
    /// Decides who may enrol. Called on the node's own thread.
    pub admit: Admit,
    /// The job's secrets: with them, peers of an earlier incarnation at the same address are told that their
    /// connections are over. Without them, such peers notice by the silence.
    pub secrets: Option<JobSecrets>,
    /// Deadlines, of which the transport uses beat, suspect and lost.
    pub deadlines: Deadlines,
    /// The protocol version: [`PROTOCOL_VERSION`], except in tests.
    pub version: u32,
}

impl ListenOptions {
    /// Parameters with the default deadlines.
    pub fn new(bind: SocketAddr, local: NodeId, authority: Rc<Authority>, admit: Admit) -> Self {
        let deadlines = Deadlines::default();
        let (socket, secrets, version) = (None, None, PROTOCOL_VERSION);
        Self { bind, socket, local, authority, admit, secrets, deadlines, version }
    }
}

/// Reason for which a driver cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process has the port, or the address is not this machine's.
    #[error("could not listen on {address}; is another driver running there?")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The driver's own certificate could not be issued.
    #[error("the driver's own certificate could not be made")]
    Certificate(#[from] AuthorityError),
}

/// Parameters of a node that connects with the driver.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// `HOST:PORT`, or several with commas between them, which are all tried. Names are resolved anew for each
    /// attempt.
    pub address: String,
    /// Further addresses, which the process finds out later. Default: none.
    pub found: FoundDrivers,
    /// The token with which the node enrols.
    pub token: JoinToken,
    /// The name that the node asks for.
    pub name: NodeName,
    /// Deadlines, of which the transport uses beat, suspect and lost.
    pub deadlines: Deadlines,
    /// Seed for the jitter of attempts to connect again.
    pub seed: u64,
    /// Time limit of the first attempts. Default 10 s.
    pub patience: Duration,
    /// The protocol version: [`PROTOCOL_VERSION`], except in tests.
    pub version: u32,
}

impl ConnectOptions {
    /// Parameters with the default patience and deadlines.
    pub fn new(address: impl Into<String>, token: JoinToken, name: NodeName) -> Self {
        Self {
            address: address.into(),
            found: FoundDrivers::default(),
            token,
            name,
            deadlines: Deadlines::default(),
            seed: 0,
            patience: Duration::from_secs(10),
            version: PROTOCOL_VERSION,
        }
    }
}

/// The transport of one node. Must be made, used and dropped within one `LocalSet` (an actix system is one).
/// Dropping it closes all connections without an event to the sink; [`Self::shutdown`] ends them in order.
pub struct QuicTransport {
    links: Rc<QuicLinks>,
    sockets: Rc<Sockets>,
    tasks: RefCell<JoinSet<()>>,
    local_address: Option<SocketAddr>,
    /// Addresses where the driver, or its successor, may be; empty at the driver itself.
    drivers: Rc<DriverAddresses>,
}

impl QuicTransport {
    /// Listens as the driver of a job.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(options: ListenOptions, sink: TransportSink) -> Result<Rc<Self>, ListenError> {
        let ListenOptions { bind, socket, local, authority, admit, secrets, deadlines, version } =
            options;
        let identity = authority.identity(&local)?;
        let config = settings::server(&identity, &deadlines, version)?;
        let bound = |source| ListenError::Bind { address: bind, source };
        let socket = match socket {
            Some(socket) => socket.try_clone(),
            None => UdpSocket::bind(bind),
        };
        let socket = socket.map_err(bound)?;
        let refusals = keep_refusals(&socket).map_err(bound)?;
        let endpoint = Sockets::listen(socket, config, secrets.as_ref()).map_err(bound)?;
        let local_address = Some(endpoint.local_addr().map_err(bound)?);
        let links = QuicLinks::new(local, deadlines, sink);
        let watch = watch_refusals(Rc::clone(&links), refusals);
        let listener = Rc::new(Listener {
            links: Rc::clone(&links),
            authority,
            admit,
            version,
            handshakes: RefCell::default(),
            log: RefCell::default(),
        });
        let sockets = Rc::new(Sockets::listening(endpoint.clone()));
        let transport = Self::start(links, sockets, local_address, Rc::default());
        transport.tasks.borrow_mut().spawn_local(listener.run(endpoint));
        transport.tasks.borrow_mut().spawn_local(watch);
        Ok(transport)
    }

    /// Enrols with the driver, and returns the driver's id once a session with it stands (the sink has got
    /// `Up`). Later the transport replaces broken connections by itself, until the node closes the session.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        options: ConnectOptions,
        sink: TransportSink,
    ) -> Result<(Rc<Self>, NodeId), ConnectError> {
        let ConnectOptions { address, found, token, name, deadlines, seed, patience, version } =
            options;
        let claim = claim(&token, &name)?;
        let until = Instant::now() + patience;
        let sockets = Rc::<Sockets>::default();
        let drivers = DriverAddresses::new(&address, found);
        let mut dialer = Dialer {
            drivers: Rc::clone(&drivers),
            lookups: Lookups::default(),
            term: Incarnation::default(),
            authority: token.authority,
            deadlines,
            version,
            backoff: DialBackoff::new(seed),
            sockets: Rc::clone(&sockets),
        };
        let (identity, enrolled) = dialer.enrol(&token, &claim, until).await?;
        let links = QuicLinks::new(identity.bearer.node.clone(), deadlines, sink);
        links.add_dialled(&enrolled.node);
        let transport = Self::start(Rc::clone(&links), sockets, None, drivers);
        let reached = dialer.begin(&links, &identity, enrolled, until).await?;
        let driver = reached.node.clone();
        let keep = dialer.keep(links, identity, reached);
        transport.tasks.borrow_mut().spawn_local(keep);
        Ok((transport, driver))
    }

    fn start(
        links: Rc<QuicLinks>,
        sockets: Rc<Sockets>,
        local_address: Option<SocketAddr>,
        drivers: Rc<DriverAddresses>,
    ) -> Rc<Self> {
        let mut tasks = JoinSet::new();
        tasks.spawn_local(Rc::clone(&links).keep_time());
        Rc::new(Self { links, sockets, tasks: RefCell::new(tasks), local_address, drivers })
    }

    /// Lets a node that connects learn the addresses of other drivers from its driver. It tries them too when
    /// it has lost its own.
    pub fn learn_drivers(&self, node: &NodeHandle) {
        KnownDriversActor::start(node, Rc::clone(&self.drivers));
    }

    /// The drivers that this node knows now and later: those that [`Self::learn_drivers`] learns and that it meets, too.
    pub fn driver_addresses(&self) -> Rc<DriverAddresses> {
        Rc::clone(&self.drivers)
    }

    /// The address on which a driver listens; `None` for other nodes.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// Breaks the connection with a peer without ending the session: for a path that is known to be bad, and
    /// for tests. The end that made the connection makes the next one.
    pub fn reconnect(&self, peer: &NodeId) {
        self.links.reconnect(peer);
    }

    /// Ends every session once its queued frames are acknowledged, or after `grace`, and then drops the
    /// sockets. Peers get `Lost` with `reason` at once.
    pub async fn shutdown(&self, reason: &str, grace: Duration) {
        let until = Instant::now() + grace;
        self.links.drain(reason, grace).await;
        self.sockets.close(reason);
        // The close notice is worth a moment even when the flush has used up the time.
        let left = until.saturating_duration_since(Instant::now()).max(CLOSE_GRACE);
        self.sockets.wait_idle(left).await;
        self.tasks.borrow_mut().abort_all();
    }
}

impl Transport for QuicTransport {
    fn local(&self) -> NodeId {
        self.links.local().clone()
    }

    fn send(&self, to: &NodeId, conversation: Conversation, frame: Bytes) -> Result<(), SendError> {
        self.links.send(to, conversation, frame)
    }

    fn close(&self, peer: &NodeId, reason: &str) {
        self.links.close(peer, reason);
    }
}

impl Drop for QuicTransport {
    fn drop(&mut self) {
        const REASON: &str = "its process ended";
        self.links.stop(REASON);
        self.sockets.close(REASON);
    }
}
