//! [`TcpFabric`]: the listener of a worker process, and the forming of groups over it.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use ring::rand::SystemRandom;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::communicator::TcpCommunicator;
use super::connection::Connection;
use super::form::Forming;
use super::standing::Standing;
use super::stripes::streams_of_world;
use crate::abort::AbortHandle;
use crate::error::FormError;
use crate::quic::Endpoint;

/// How long forming may take where the caller does not say: 30 s.
pub const DEFAULT_FORM_DEADLINE: Duration = Duration::from_secs(30);
/// How long one operation may take where the caller does not say: 600 s.
pub const DEFAULT_OPERATION_DEADLINE: Duration = Duration::from_secs(600);
/// Free ports that are tried until one is found that is free for UDP too.
const PORTS_TRIED: usize = 16;
/// Connections that wait in the kernel until a group forms.
const BACKLOG: i32 = 4096;

/// What carries the data of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataPlane {
    /// Shared memory within a host, TCP between hosts.
    #[default]
    Auto,
    /// TCP between all ranks.
    Tcp,
    /// QUIC between all ranks: it is encrypted always.
    Quic,
    /// Shared memory within a host, QUIC between hosts.
    ShmQuic,
}

impl DataPlane {
    pub(crate) fn shares_memory(self) -> bool {
        matches!(self, DataPlane::Auto | DataPlane::ShmQuic)
    }

    fn is_quic(self) -> bool {
        matches!(self, DataPlane::Quic | DataPlane::ShmQuic)
    }
}

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
    /// The generation's secret: who does not hold it is refused.
    pub key: [u8; 32],
    /// What carries the data. All ranks say the same.
    pub data_plane: DataPlane,
    /// Whether data is encrypted on its way to another host, or to any rank where hosts are unknown. All ranks say the same.
    pub encrypts: bool,
    /// How many connections each pair of ranks has, among which large messages are divided ([`crate::DEFAULT_STREAMS`]). Fewer in
    /// large worlds, and one where all ranks are known to be on one host. All ranks say the same.
    pub streams: u32,
    /// How long forming may take ([`DEFAULT_FORM_DEADLINE`]).
    pub form_deadline: Duration,
    /// How long one operation may take ([`DEFAULT_OPERATION_DEADLINE`]).
    pub operation_deadline: Duration,
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
            .finish_non_exhaustive()
    }
}

impl GroupSpec {
    /// How many connections each pair of ranks has in a world of this size.
    pub(crate) fn streams_in(&self, world: u32) -> u32 {
        let is_one_host =
            !self.hosts.is_empty() && self.hosts.windows(2).all(|pair| pair[0] == pair[1]);
        // A connection of QUIC has one window, however many streams it carries.
        let is_one = is_one_host || self.data_plane.is_quic();
        if is_one { 1 } else { streams_of_world(world, self.streams) }
    }

    /// Whether `rank` may be on another host.
    fn is_elsewhere(&self, rank: u32) -> bool {
        let host = |rank: u32| self.hosts.get(rank as usize);
        host(rank).is_none() || host(rank) != host(self.rank)
    }

    /// Whether the link to `rank` is sealed here. QUIC does that by itself.
    pub(crate) fn seals_to(&self, rank: u32) -> bool {
        self.encrypts && self.is_elsewhere(rank) && !self.is_quic_to(rank)
    }

    /// Whether the link to `rank` is one of QUIC. Where memory is shared within a host, so are TCP's quick news of an end.
    pub(crate) fn is_quic_to(&self, rank: u32) -> bool {
        let within = self.data_plane.shares_memory() && !self.is_elsewhere(rank);
        self.data_plane.is_quic() && !within
    }

    /// Whether some link of the group is one of QUIC.
    pub(crate) fn uses_quic(&self) -> bool {
        (0..self.peers.len() as u32).any(|rank| rank != self.rank && self.is_quic_to(rank))
    }
}

/// The socket beside the listener, with the same port.
#[derive(Debug)]
enum Udp {
    Bound(UdpSocket),
    /// Since a group first formed over QUIC.
    Serving(Arc<Endpoint>),
}

/// A bound listener that lives as long as the worker process, and forms one group after the other.
/// Between two forms it costs nothing: who dials early waits in the listener's backlog.
#[derive(Debug)]
pub struct TcpFabric {
    pub(crate) listener: Socket,
    address: SocketAddr,
    /// Peers of a newer generation that dialed while an older one was forming.
    pub(crate) parked: VecDeque<Connection>,
    pub(crate) random: SystemRandom,
    pub(crate) standing: Standing,
    udp: Udp,
    newest: Option<(u64, u64, u32)>,
}

impl TcpFabric {
    /// Binds the listener, and a UDP socket with the same port; port 0 takes a free one, see
    /// [`TcpFabric::local_address`].
    ///
    /// # Errors
    ///
    /// The address is taken or not of this machine.
    pub fn bind(address: SocketAddr) -> io::Result<TcpFabric> {
        let mut left = PORTS_TRIED;
        loop {
            left -= 1;
            match TcpFabric::bind_both(address) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && address.port() == 0
                        && left > 0 => {}
                bound => return bound,
            }
        }
    }

    fn bind_both(address: SocketAddr) -> io::Result<TcpFabric> {
        let listener =
            Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        listener.set_reuse_address(true)?;
        listener.set_nonblocking(true)?;
        listener.bind(&SockAddr::from(address))?;
        listener.listen(BACKLOG)?;
        let address = listener
            .local_addr()?
            .as_socket()
            .ok_or_else(|| io::Error::other("the listener has no internet address"))?;
        let (parked, random, standing) =
            (VecDeque::new(), SystemRandom::new(), Standing::default());
        let udp = Udp::Bound(UdpSocket::bind(address)?);
        Ok(TcpFabric { listener, address, parked, random, standing, udp, newest: None })
    }

    /// The QUIC endpoint, which serves from here on.
    ///
    /// # Errors
    ///
    /// The system gives no thread, socket or certificate.
    pub(crate) fn quic(&mut self) -> io::Result<Arc<Endpoint>> {
        let socket = match &self.udp {
            Udp::Serving(endpoint) => return Ok(Arc::clone(endpoint)),
            Udp::Bound(socket) => socket.try_clone()?,
        };
        let endpoint = Arc::new(Endpoint::new(socket)?);
        self.udp = Udp::Serving(Arc::clone(&endpoint));
        Ok(endpoint)
    }

    /// Where the listener is bound.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Connects all ranks of `group`, and blocks until each is connected with this one. The higher rank
    /// of a pair dials, where no connection of the generation before stands between the two. Connections of strangers, of other generations or with another key are refused
    /// and do not disturb. `abort` ends the forming, and later the communicator's operations.
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
