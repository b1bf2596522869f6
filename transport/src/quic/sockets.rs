//! [`Sockets`]: the UDP endpoints of a node. A driver has the one on which it listens; other nodes have one for
//! each connection that they have made.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use quinn::{
    ClientConfig, Connecting, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, VarInt,
};
use quinn_proto::{HashedConnectionIdGenerator, RandomConnectionIdGenerator};

use crate::identity::job_secrets::JobSecrets;
use crate::peers::CloseCode;

/// Bytes that may wait for the thread of a node that listens: some 900 full datagrams, which it takes in a tenth of a
/// second. With the system's default, 90 fit, and a burst of strangers' packets takes the place of the job's beats.
const RECV_BUFFER_BYTES: usize = 2 << 20;

/// Reason for which a connection could not be begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// There is no socket.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// The address cannot be connected with.
    #[error(transparent)]
    Connect(#[from] quinn::ConnectError),
}

#[derive(Default)]
pub(crate) struct Sockets {
    endpoints: RefCell<Vec<Endpoint>>,
}

impl Sockets {
    /// An endpoint that listens. With the job's secrets, it answers packets of an earlier incarnation's
    /// connections by a stateless reset (RFC 9000 §10.3), so that the other ends connect anew at once.
    pub(crate) fn listen(
        socket: UdpSocket,
        config: ServerConfig,
        secrets: Option<&JobSecrets>,
    ) -> io::Result<Endpoint> {
        let mut endpoint = EndpointConfig::default();
        if let Some(secrets) = secrets {
            let (reset, id_key) = (secrets.reset.key(), secrets.reset.number());
            endpoint.reset_key(Arc::new(reset));
            // The endpoint recognises its own connection ids by this key; it would not answer to any others.
            endpoint.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(id_key)));
        }
        // The system may grant less, which costs retransmissions under a burst and nothing else.
        setsockopt(&socket, sockopt::RcvBuf, &RECV_BUFFER_BYTES)?;
        Endpoint::new(endpoint, Some(config), socket, Arc::new(TokioRuntime))
    }

    /// The sockets of a node that listens.
    pub(crate) fn listening(endpoint: Endpoint) -> Self {
        Self { endpoints: RefCell::new(vec![endpoint]) }
    }

    /// Begins a connection, from a socket that carries no other. So every packet to that socket belongs to this
    /// connection: the other end need not put an id in front of it, nor be sent spare ids.
    ///
    /// # Errors
    /// [`SocketError`].
    pub(crate) fn connect(
        &self,
        config: ClientConfig,
        address: SocketAddr,
        server_name: &str,
    ) -> Result<Connecting, SocketError> {
        let endpoint = self.idle_endpoint(address)?;
        Ok(endpoint.connect_with(config, address, server_name)?)
    }

    /// An endpoint of this address family without a connection. There are never more than there were
    /// connections at once.
    fn idle_endpoint(&self, address: SocketAddr) -> io::Result<Endpoint> {
        let is_idle = |endpoint: &&Endpoint| {
            endpoint.open_connections() == 0
                && endpoint.local_addr().is_ok_and(|local| local.is_ipv4() == address.is_ipv4())
        };
        let mut endpoints = self.endpoints.borrow_mut();
        if let Some(endpoint) = endpoints.iter().find(is_idle) {
            return Ok(endpoint.clone());
        }
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let mut settings = EndpointConfig::default();
        settings.cid_generator(|| Box::new(RandomConnectionIdGenerator::new(0)));
        let endpoint =
            Endpoint::new(settings, None, UdpSocket::bind(any)?, Arc::new(TokioRuntime))?;
        endpoints.push(endpoint.clone());
        Ok(endpoint)
    }

    fn all(&self) -> Vec<Endpoint> {
        self.endpoints.borrow().clone()
    }

    /// Closes all connections that are still open.
    pub(crate) fn close(&self, reason: &str) {
        let code = VarInt::from_u32(CloseCode::Closed as u32);
        self.all().iter().for_each(|endpoint| endpoint.close(code, reason.as_bytes()));
    }

    /// Waits until the other ends know, for `most` at most.
    pub(crate) async fn wait_idle(&self, most: Duration) {
        let idle = async {
            for endpoint in self.all() {
                endpoint.wait_idle().await;
            }
        };
        // Past the deadline, the other ends notice by the silence.
        drop(tokio::time::timeout(most, idle).await);
    }
}
