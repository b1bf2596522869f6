//! [`ReservedAddress`]: holds a standby driver's address, and refuses connections so that nodes go on looking
//! at once.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;

use elastic_protocol::{Deadlines, Incarnation, JobId, NodeId, NodeName};
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use tokio::task::AbortHandle;

use crate::identity::job_secrets::JobSecrets;
use crate::quic::settings;
use crate::quic::tls::PROTOCOL_VERSION;
use crate::quic::transport::ListenError;

/// A bound socket that refuses every connection. Must be made, used and dropped within one `LocalSet`.
#[derive(Debug)]
pub struct ReservedAddress {
    socket: Rc<UdpSocket>,
    refusing: AbortHandle,
}

impl ReservedAddress {
    /// Binds the address, and refuses connections from now on. Port 0 takes any free port.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(bind: SocketAddr) -> Result<Self, ListenError> {
        let bound = |source| ListenError::Bind { address: bind, source };
        let socket = UdpSocket::bind(bind).map_err(bound)?;
        // No peer ever sees this certificate: a refusal needs only QUIC's initial keys.
        let secrets = JobSecrets::new(JobId(uuid::Uuid::nil()))?;
        let local = NodeId { name: NodeName::Driver, incarnation: Incarnation::default() };
        let identity = secrets.authority()?.identity(&local)?;
        let config = settings::server(&identity, &Deadlines::default(), PROTOCOL_VERSION)?;
        let shared = socket.try_clone().map_err(bound)?;
        let endpoint =
            Endpoint::new(EndpointConfig::default(), Some(config), shared, Arc::new(TokioRuntime));
        let refusing = tokio::task::spawn_local(refuse_all(endpoint.map_err(bound)?));
        Ok(Self { socket: Rc::new(socket), refusing: refusing.abort_handle() })
    }

    /// The bound address.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Stops refusing; gives the socket, for [`ListenOptions::socket`](crate::ListenOptions::socket).
    pub fn into_socket(self) -> Rc<UdpSocket> {
        Rc::clone(&self.socket)
    }
}

impl Drop for ReservedAddress {
    fn drop(&mut self) {
        self.refusing.abort();
    }
}

async fn refuse_all(endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        incoming.refuse();
    }
}
