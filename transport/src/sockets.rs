//! [`Sockets`]: the UDP endpoints of a node, at most one for each family of addresses.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::{Endpoint, EndpointConfig, ServerConfig, TokioRuntime, VarInt};
use quinn_proto::HashedConnectionIdGenerator;

use crate::closing::CloseCode;
use crate::job_secrets::JobSecrets;

#[derive(Default)]
pub(crate) struct Sockets {
    v4: RefCell<Option<Endpoint>>,
    v6: RefCell<Option<Endpoint>>,
}

impl Sockets {
    /// An endpoint that listens. With the job's secrets, it answers packets of an earlier incarnation's
    /// connections by a stateless reset (RFC 9000 §10.3), so that their other ends connect anew at once.
    pub(crate) fn listen(
        socket: UdpSocket,
        config: ServerConfig,
        secrets: Option<&JobSecrets>,
    ) -> io::Result<Endpoint> {
        let mut endpoint = EndpointConfig::default();
        if let Some(secrets) = secrets {
            let (reset, id_key) = (secrets.reset.key(), secrets.reset.number());
            endpoint.reset_key(Arc::new(reset));
            // Its ids tell by this key that they are its own; all others it would not answer.
            endpoint.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(id_key)));
        }
        Endpoint::new(endpoint, Some(config), socket, Arc::new(TokioRuntime))
    }

    /// Those of a node that listens.
    pub(crate) fn listening(endpoint: Endpoint) -> Self {
        Self { v4: RefCell::new(Some(endpoint)), v6: RefCell::default() }
    }

    /// The one from which an address can be reached; made when it is first asked for.
    pub(crate) fn endpoint_for(&self, address: SocketAddr) -> io::Result<Endpoint> {
        let (socket, any): (_, SocketAddr) = match address {
            SocketAddr::V4(_) => (&self.v4, (Ipv4Addr::UNSPECIFIED, 0).into()),
            SocketAddr::V6(_) => (&self.v6, (Ipv6Addr::UNSPECIFIED, 0).into()),
        };
        let mut socket = socket.borrow_mut();
        if let Some(endpoint) = &*socket {
            return Ok(endpoint.clone());
        }
        let endpoint = Endpoint::client(any)?;
        *socket = Some(endpoint.clone());
        Ok(endpoint)
    }

    fn all(&self) -> impl Iterator<Item = Endpoint> {
        [self.v4.borrow().clone(), self.v6.borrow().clone()].into_iter().flatten()
    }

    /// Closes whatever is still open.
    pub(crate) fn close(&self, reason: &str) {
        let code = VarInt::from_u32(CloseCode::Closed as u32);
        self.all().for_each(|endpoint| endpoint.close(code, reason.as_bytes()));
    }

    /// Waits until the other ends know, for at most so long.
    pub(crate) async fn wait_idle(&self, most: Duration) {
        let idle = async {
            for endpoint in self.all().collect::<Vec<_>>() {
                endpoint.wait_idle().await;
            }
        };
        // Past the deadline the other ends find out by the silence.
        drop(tokio::time::timeout(most, idle).await);
    }
}
