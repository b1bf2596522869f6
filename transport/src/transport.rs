//! [`QuicTransport`]: the transport trait over QUIC. A driver makes one with [`QuicTransport::listen`],
//! everybody else with [`QuicTransport::connect`].

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use elastic_protocol::{Deadlines, Incarnation, NodeId, NodeName};
use elastic_runtime::NodeHandle;
use elastic_runtime::transport::{Conversation, SendError, Transport, TransportSink};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::authority::{Authority, AuthorityError};
use crate::backoff::Backoff;
use crate::connect_error::ConnectError;
use crate::dialer::{Dialer, claim};
use crate::job_secrets::JobSecrets;
use crate::known_drivers::{DriverAddresses, KnownDriversActor};
use crate::links::Links;
use crate::listener::{Admit, Listener};
use crate::settings;
use crate::sockets::Sockets;
use crate::tls::{PROTOCOL_VERSION, TlsError};
use crate::token::Token;

/// What a driver needs to listen.
#[derive(Clone)]
pub struct ListenOptions {
    /// Where. Port 0 takes any that is free.
    pub bind: SocketAddr,
    /// A socket that is bound there already ([`ReservedAddress`](crate::ReservedAddress)).
    pub socket: Option<Rc<UdpSocket>>,
    /// The driver itself.
    pub local: NodeId,
    /// The job's authority.
    pub authority: Rc<Authority>,
    /// Who may enrol. Called on the node's own thread.
    pub admit: Admit,
    /// Tells peers of an earlier incarnation at the same address that their connections with it are over;
    /// without it they find out by the silence.
    pub secrets: Option<JobSecrets>,
    /// Beat, suspect and lost are this transport's.
    pub deadlines: Deadlines,
    /// The wall clock, for the validity of certificates.
    pub wall_clock: fn() -> SystemTime,
    /// [`PROTOCOL_VERSION`], but for tests.
    pub version: u32,
}

impl ListenOptions {
    /// With the default deadlines.
    pub fn new(
        bind: SocketAddr,
        local: NodeId,
        authority: Rc<Authority>,
        admit: Admit,
        wall_clock: fn() -> SystemTime,
    ) -> Self {
        let deadlines = Deadlines::default();
        let (socket, secrets, version) = (None, None, PROTOCOL_VERSION);
        Self { bind, socket, local, authority, admit, secrets, deadlines, wall_clock, version }
    }
}

/// Why a driver cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody else has the port, or the address is not this machine's.
    #[error("could not listen on {address}; is another driver running there?")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The driver's own certificate could not be made.
    #[error("the driver's own certificate could not be made")]
    Certificate(#[from] AuthorityError),
}

/// What a node needs to connect with the driver.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// `HOST:PORT`, or several with commas between them, of which each is tried; names are looked up anew for
    /// each attempt.
    pub address: String,
    /// The token that lets it in.
    pub token: Token,
    /// Who it wants to be.
    pub name: NodeName,
    /// Beat, suspect and lost are this transport's.
    pub deadlines: Deadlines,
    /// For the jitter of attempts to connect again.
    pub seed: u64,
    /// How long to try at first. Default 10 s.
    pub patience: Duration,
    /// [`PROTOCOL_VERSION`], but for tests.
    pub version: u32,
}

impl ConnectOptions {
    /// With the default patience and deadlines.
    pub fn new(address: impl Into<String>, token: Token, name: NodeName) -> Self {
        Self {
            address: address.into(),
            token,
            name,
            deadlines: Deadlines::default(),
            seed: 0,
            patience: Duration::from_secs(10),
            version: PROTOCOL_VERSION,
        }
    }
}

/// The transport of one node. Must be made, used and dropped within one `LocalSet` (an actix system is
/// one). Dropping it closes all connections without a word to the sink; [`Self::shutdown`] is the way to go.
pub struct QuicTransport {
    links: Rc<Links>,
    sockets: Rc<Sockets>,
    tasks: RefCell<JoinSet<()>>,
    local_address: Option<SocketAddr>,
    /// Where the driver, or its successor, is looked for; nothing at the driver itself.
    drivers: Rc<DriverAddresses>,
}

impl QuicTransport {
    /// Listens as the driver of a job.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(options: ListenOptions, sink: TransportSink) -> Result<Rc<Self>, ListenError> {
        let ListenOptions {
            bind,
            socket,
            local,
            authority,
            admit,
            secrets,
            deadlines,
            wall_clock,
            version,
        } = options;
        let identity = authority.identity(&local, wall_clock())?;
        let config = settings::server(&identity, &deadlines, version)?;
        let bound = |source| ListenError::Bind { address: bind, source };
        let socket = match socket {
            Some(socket) => socket.try_clone(),
            None => UdpSocket::bind(bind),
        };
        let socket = socket.map_err(bound)?;
        let endpoint = Sockets::listen(socket, config, secrets.as_ref()).map_err(bound)?;
        let local_address = Some(endpoint.local_addr().map_err(bound)?);
        let links = Links::new(local, deadlines, sink);
        let listener = Rc::new(Listener {
            links: Rc::clone(&links),
            authority,
            admit,
            wall_clock,
            version,
            handshakes: RefCell::default(),
            log: RefCell::default(),
        });
        let sockets = Rc::new(Sockets::listening(endpoint.clone()));
        let transport = Self::start(links, sockets, local_address, Rc::default());
        transport.tasks.borrow_mut().spawn_local(listener.run(endpoint));
        Ok(transport)
    }

    /// Enrols with the driver and returns once a session with it stands (`Up` has been told to the sink),
    /// with the driver's id. Afterwards connections are made again by themselves, for as long as the node
    /// does not close the session.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        options: ConnectOptions,
        sink: TransportSink,
    ) -> Result<(Rc<Self>, NodeId), ConnectError> {
        let ConnectOptions { address, token, name, deadlines, seed, patience, version } = options;
        let claim = claim(&token, &name)?;
        let until = Instant::now() + patience;
        let sockets = Rc::<Sockets>::default();
        let drivers = DriverAddresses::new(&address);
        let mut dialer = Dialer {
            drivers: Rc::clone(&drivers),
            term: Incarnation::default(),
            authority: token.authority,
            deadlines,
            version,
            backoff: Backoff::new(seed),
            sockets: Rc::clone(&sockets),
        };
        let (identity, enrolled) = dialer.enrol(&token, &claim, until).await?;
        let links = Links::new(identity.bearer.node.clone(), deadlines, sink);
        links.add_dialled(&enrolled.node);
        let transport = Self::start(Rc::clone(&links), sockets, None, drivers);
        let reached = dialer.begin(&links, &identity, enrolled, until).await?;
        let driver = reached.node.clone();
        let keep = dialer.keep(links, identity, reached);
        transport.tasks.borrow_mut().spawn_local(keep);
        Ok((transport, driver))
    }

    fn start(
        links: Rc<Links>,
        sockets: Rc<Sockets>,
        local_address: Option<SocketAddr>,
        drivers: Rc<DriverAddresses>,
    ) -> Rc<Self> {
        let mut tasks = JoinSet::new();
        tasks.spawn_local(Rc::clone(&links).keep_house());
        Rc::new(Self { links, sockets, tasks: RefCell::new(tasks), local_address, drivers })
    }

    /// Has a node that connects learn of other drivers from its driver: it looks for them too when it has lost its
    /// own.
    pub fn learn_drivers(&self, node: &NodeHandle) {
        KnownDriversActor::start(node, Rc::clone(&self.drivers));
    }

    /// Where a driver listens; nothing for other nodes.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// Breaks the connection with a peer without ending the session: for when the path is known to be
    /// bad, and for tests. Whoever made the connection makes the next one.
    pub fn reconnect(&self, peer: &NodeId) {
        self.links.reconnect(peer);
    }

    /// Ends every session after what is queued has been acknowledged, or after `grace`, and then lets
    /// go of the sockets. Peers get `Lost` with `reason` at once.
    pub async fn shutdown(&self, reason: &str, grace: Duration) {
        let until = Instant::now() + grace;
        self.links.close_all(reason, grace).await;
        self.sockets.close(reason);
        // A word of goodbye is worth a moment even when the flush has used up the time.
        let left = until.saturating_duration_since(Instant::now()).max(settings::CLOSE_GRACE);
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
        self.links.close(peer, reason, None);
    }
}

impl Drop for QuicTransport {
    fn drop(&mut self) {
        const REASON: &str = "its process ended";
        self.links.stop(REASON);
        self.sockets.close(REASON);
    }
}
