//! Peers that break the rules, for the tests of abuse: bare QUIC clients, and a path that can be cut.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use elastic_runtime::session::{SessionHello, SessionId, SessionWelcome};
use elastic_transport::{Greeting, NodeIdentity};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, IdleTimeout, TransportConfig};
use rustls::RootCertStore;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use crate::harness::TestDriver;

/// A client that trusts the driver, shows `identity` if there is one, and speaks `alpn`.
/// The name of the protocol that a node of this release speaks.
pub(crate) fn protocol() -> String {
    String::from_utf8(elastic_transport::alpn(elastic_transport::PROTOCOL_VERSION)).expect("ASCII")
}

pub(crate) fn client_config(
    driver: &TestDriver,
    identity: Option<&NodeIdentity>,
    alpn: &str,
) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(driver.authority.certificate().clone()).expect("a good certificate");
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots);
    let mut config = match identity {
        Some(it) => config.with_client_auth_cert(it.chain(), it.private_key()).expect("a good key"),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let crypto = QuicClientConfig::try_from(config).expect("TLS 1.3");
    let mut config = ClientConfig::new(Arc::new(crypto));
    let mut transport = TransportConfig::default();
    let idle = IdleTimeout::try_from(Duration::from_secs(4)).expect("short");
    transport.max_idle_timeout(Some(idle)).keep_alive_interval(Some(Duration::from_millis(500)));
    config.transport_config(Arc::new(transport));
    config
}

pub(crate) fn endpoint() -> Endpoint {
    Endpoint::client("127.0.0.1:0".parse().expect("an address")).expect("a socket")
}

pub(crate) async fn connect(
    driver: &TestDriver,
    identity: Option<&NodeIdentity>,
) -> Result<Connection, ConnectionError> {
    let config = client_config(driver, identity, &protocol());
    let connecting = endpoint().connect_with(config, driver.address, "driver.elastic");
    connecting.expect("a good address").await
}

/// Sends one message and reads the answer.
pub(crate) async fn ask(connection: &Connection, question: &[u8]) -> Option<Vec<u8>> {
    let (mut send, mut receive) = connection.open_bi().await.ok()?;
    send.write_all(question).await.ok()?;
    send.finish().ok()?;
    receive.read_to_end(1 << 20).await.ok()
}

/// The first message over a connection: a new session is to begin.
pub(crate) fn greeting(session: u64) -> Greeting {
    let session = SessionHello { resume: None, fresh: SessionId(session) };
    Greeting { session, process: None }
}

/// A connection that has been greeted: frames may travel.
pub(crate) async fn greeted(
    driver: &TestDriver,
    identity: &NodeIdentity,
    session: u64,
) -> Connection {
    let connection = connect(driver, Some(identity)).await.expect("a good certificate");
    let hello = greeting(session);
    let answer = ask(&connection, &hello.encode().expect("small")).await.expect("an answer");
    SessionWelcome::decode(&answer).expect("a welcome");
    connection
}

/// The packets that a path lets through.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Path {
    Open,
    Cut,
    /// The driver's answers are lost.
    OneWay,
}

/// A path between one client's socket and the driver.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) path: Rc<Cell<Path>>,
    tasks: [JoinHandle<()>; 2],
}

impl Proxy {
    pub(crate) async fn start(driver: SocketAddr) -> Self {
        let front = Rc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a socket"));
        let back = Rc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a socket"));
        back.connect(driver).await.expect("an address");
        let address = front.local_addr().expect("bound");
        let path = Rc::new(Cell::new(Path::Open));
        let client = Rc::new(Cell::new(None));
        let there = {
            let (front, back) = (Rc::clone(&front), Rc::clone(&back));
            let (path, client) = (Rc::clone(&path), Rc::clone(&client));
            tokio::task::spawn_local(async move {
                let mut buffer = vec![0; 65536];
                while let Ok((bytes, from)) = front.recv_from(&mut buffer).await {
                    client.set(Some(from));
                    if path.get() != Path::Cut {
                        // A packet that a full buffer drops is sent again by QUIC.
                        let _ = back.send(&buffer[..bytes]).await;
                    }
                }
            })
        };
        let passing = Rc::clone(&path);
        let here = tokio::task::spawn_local(async move {
            let mut buffer = vec![0; 65536];
            while let Ok(bytes) = back.recv(&mut buffer).await {
                if let (Path::Open, Some(client)) = (passing.get(), client.get()) {
                    let _ = front.send_to(&buffer[..bytes], client).await;
                }
            }
        });
        Self { address, path, tasks: [there, here] }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
