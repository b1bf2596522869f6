//! [`TcpFabric`]: the listener of a worker process, over which its groups form. Called by the worker and by
//! `HostFabric`.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use ring::rand::SystemRandom;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::communicator::TcpCommunicator;
use super::connection::PendingConnection;
use super::form::Forming;
use super::standing::StandingConnections;
use super::stripes::streams_of_world;
use elastic_protocol::DataPlane;

use crate::abort::AbortHandle;
use crate::error::FormError;
use crate::link_rates::LinkRates;
use crate::quic::Endpoint;

/// Default time limit of forming: 30 s.
pub const DEFAULT_FORM_DEADLINE: Duration = Duration::from_secs(30);
/// Default time limit of one operation: 600 s.
pub const DEFAULT_OPERATION_DEADLINE: Duration = Duration::from_secs(600);
/// Default time for which sent data may go unacknowledged: 10 s.
pub const DEFAULT_PATH_DEADLINE: Duration = Duration::from_secs(10);
/// Attempts to find a port that is free for both TCP and UDP.
const PORTS_TRIED: usize = 16;
/// Length of the listener's queue: connections that wait in the kernel until a group forms.
const BACKLOG: i32 = 4096;

/// One generation's group, as the driver's assignment gives it. `Debug` does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// The driver's term.
    pub term: u64,
    /// The generation.
    pub generation: u64,
    /// This process's rank.
    pub rank: u32,
    /// The listeners of all ranks, by rank, this one's included. Their number is the world size.
    pub peers: Vec<SocketAddr>,
    /// The host of each rank: a number that ranks of one machine share. Empty means unknown. Only
    /// [`crate::HostFabric`] looks at it.
    pub hosts: Vec<u32>,
    /// The name of each rank's host, for errors that name a rank. Empty means unknown.
    pub host_names: Vec<Arc<str>>,
    /// The generation's secret: a process that does not hold it is refused.
    pub key: [u8; 32],
    /// The data plane. The same on all ranks.
    pub data_plane: DataPlane,
    /// Whether data is encrypted on its way to another host, or to any rank where hosts are unknown. The same on all
    /// ranks.
    pub encrypts: bool,
    /// The number of connections of each pair of ranks, among which large messages are divided
    /// ([`crate::DEFAULT_STREAMS`]). Fewer are used in large worlds, and one where all ranks are known to be on one
    /// host. The same on all ranks.
    pub streams: u32,
    /// Time limit of forming ([`DEFAULT_FORM_DEADLINE`]).
    pub form_deadline: Duration,
    /// Time limit of one operation ([`DEFAULT_OPERATION_DEADLINE`]).
    pub operation_deadline: Duration,
    /// Time for which sent data may go unacknowledged, or an idle connection unanswered, before the peer counts as
    /// lost. The path between the two is silent then, even if both processes are well ([`DEFAULT_PATH_DEADLINE`]).
    pub path_deadline: Duration,
}

impl fmt::Debug for GroupSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("GroupSpec")
            .field("term", &self.term)
            .field("generation", &self.generation)
            .field("rank", &self.rank)
            .field("peers", &self.peers)
            .field("hosts", &self.hosts)
            .field("host_names", &self.host_names)
            .field("data_plane", &self.data_plane)
            .field("encrypts", &self.encrypts)
            .field("streams", &self.streams)
            .field("form_deadline", &self.form_deadline)
            .field("operation_deadline", &self.operation_deadline)
            .field("path_deadline", &self.path_deadline)
            .finish_non_exhaustive()
    }
}

impl GroupSpec {
    /// The number of connections of each pair of ranks in a world of this size.
    pub(crate) fn streams_in(&self, world: u32) -> u32 {
        let is_one_host =
            !self.hosts.is_empty() && self.hosts.windows(2).all(|pair| pair[0] == pair[1]);
        // A QUIC connection has one window, however many streams it carries.
        let is_one = is_one_host || self.data_plane.is_quic();
        if is_one { 1 } else { streams_of_world(world, self.streams) }
    }

    /// Whether `rank` may be on another host.
    fn is_elsewhere(&self, rank: u32) -> bool {
        let host = |rank: u32| self.hosts.get(rank as usize);
        host(rank).is_none() || host(rank) != host(self.rank)
    }

    /// The name of the host of `rank`, if that is another one than this rank's.
    pub(crate) fn host_elsewhere(&self, rank: u32) -> Option<&Arc<str>> {
        let name = |rank: u32| self.host_names.get(rank as usize);
        name(rank).filter(|host| name(self.rank) != Some(host))
    }

    /// Whether this crate encrypts the link to `rank`. QUIC encrypts by itself.
    pub(crate) fn seals_to(&self, rank: u32) -> bool {
        self.encrypts && self.is_elsewhere(rank) && !self.is_quic_to(rank)
    }

    /// Whether the link to `rank` uses QUIC. If ranks of a host share memory, their links use TCP, which reports an
    /// end quickly.
    pub(crate) fn is_quic_to(&self, rank: u32) -> bool {
        let within = self.data_plane.shares_memory() && !self.is_elsewhere(rank);
        self.data_plane.is_quic() && !within
    }

    /// Whether any link of the group uses QUIC.
    pub(crate) fn uses_quic(&self) -> bool {
        (0..self.peers.len() as u32).any(|rank| rank != self.rank && self.is_quic_to(rank))
    }
}

/// The UDP socket with the port of the listener.
#[derive(Debug)]
enum Udp {
    Bound(UdpSocket),
    /// The endpoint, once a group has formed over QUIC.
    Serving(Arc<Endpoint>),
}

/// A bound listener that lives as long as the worker process, and forms one group after the other. Between two
/// forms it costs nothing: early dialers wait in the listener's queue.
#[derive(Debug)]
pub struct TcpFabric {
    pub(crate) listener: Socket,
    address: SocketAddr,
    /// Connections of members that already form a later group of the generation.
    pub(crate) parked: VecDeque<PendingConnection>,
    /// A warning for the operator, until it is taken. Each kind is given once.
    pub(crate) warning: Option<String>,
    pub(crate) has_warned_of_strangers: bool,
    pub(crate) random: SystemRandom,
    pub(crate) standing: StandingConnections,
    /// The record of the rates at which data comes in from other hosts; the groups write it.
    pub(crate) rates: LinkRates,
    udp: Udp,
    newest: Option<(u64, u64, u32)>,
}

/// A listening TCP socket.
struct TcpListening {
    socket: Socket,
    address: SocketAddr,
}

impl TcpListening {
    fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::from(address))?;
        socket.listen(BACKLOG)?;
        let address = socket
            .local_addr()?
            .as_socket()
            .ok_or_else(|| io::Error::other("the listener has no internet address"))?;
        Ok(Self { socket, address })
    }
}

impl TcpFabric {
    /// Binds the listener, and a UDP socket with the same port; port 0 takes a free one, see
    /// [`TcpFabric::local_address`].
    ///
    /// # Errors
    ///
    /// The address is taken or not of this machine.
    pub fn bind(address: SocketAddr) -> io::Result<TcpFabric> {
        // They stay bound meanwhile: where few ports are free, the system would name the same one again.
        let mut refused = Vec::new();
        loop {
            let listener = TcpListening::bind(address)?;
            match UdpSocket::bind(listener.address) {
                Ok(udp) => return Ok(TcpFabric::new(listener, udp)),
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && address.port() == 0
                        && refused.len() < PORTS_TRIED =>
                {
                    refused.push(listener);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn new(listener: TcpListening, udp: UdpSocket) -> TcpFabric {
        let TcpListening { socket: listener, address } = listener;
        let (parked, random, standing) =
            (VecDeque::new(), SystemRandom::new(), StandingConnections::default());
        let (has_warned_of_strangers, newest) = (false, None);
        TcpFabric {
            listener,
            address,
            parked,
            warning: None,
            has_warned_of_strangers,
            random,
            standing,
            rates: LinkRates::default(),
            udp: Udp::Bound(udp),
            newest,
        }
    }

    /// The QUIC endpoint, started by the first call. The first group's path deadline applies to all its connections.
    ///
    /// # Errors
    ///
    /// The system gives no thread, socket or certificate.
    pub(crate) fn quic(&mut self, path_deadline: Duration) -> io::Result<Arc<Endpoint>> {
        let socket = match &self.udp {
            Udp::Serving(endpoint) => return Ok(Arc::clone(endpoint)),
            Udp::Bound(socket) => socket.try_clone()?,
        };
        let endpoint = Arc::new(Endpoint::new(socket, path_deadline)?);
        self.udp = Udp::Serving(Arc::clone(&endpoint));
        Ok(endpoint)
    }

    /// The same, whose groups note in `rates` how fast data comes in from other hosts.
    pub fn measuring(self, rates: LinkRates) -> TcpFabric {
        TcpFabric { rates, ..self }
    }

    /// The address of the listener.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Connects all ranks of `group`, and blocks until each is connected with this one. The higher rank of a pair
    /// dials, unless a connection of the last generation can be reused. Connections from strangers, from other
    /// generations or with another key are refused, and do not disturb the forming. `abort` ends the forming, and
    /// later the communicator's operations.
    ///
    /// # Errors
    ///
    /// See [`FormError`]. The fabric can form the next generation after any of them.
    pub fn form(
        &mut self,
        group: &GroupSpec,
        abort: &AbortHandle,
    ) -> Result<TcpCommunicator, FormError> {
        self.form_part(group, 0, abort)
    }

    /// [`TcpFabric::form`] for one of the groups of a generation: 0 is all ranks, 1 those of a host.
    pub(crate) fn form_part(
        &mut self,
        group: &GroupSpec,
        part: u32,
        abort: &AbortHandle,
    ) -> Result<TcpCommunicator, FormError> {
        let (term, generation) = (group.term, group.generation);
        let world = u32::try_from(group.peers.len())
            .map_err(|_| FormError::InvalidGroup("the world has more than 2^32 ranks".into()))?;
        if group.rank >= world {
            let reason = format!("there is no rank {} in a world of {world}", group.rank);
            return Err(FormError::InvalidGroup(reason));
        }
        if self.newest.is_some_and(|newest| newest > (term, generation, part)) {
            return Err(FormError::Stale { term, generation });
        }
        self.newest = Some((term, generation, part));
        let engine = Forming::new(self, group, world, part, abort)?.run()?;
        self.standing.close_ending();
        tracing::debug!(term, generation, rank = group.rank, world, "group formed");
        Ok(TcpCommunicator::new(engine, world))
    }
}
