//! Ends that do not play by the rules: bare QUIC clients, and a path that can be cut.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use elastic_runtime::session::{Hello, SessionId, Welcome};
use elastic_transport::Identity;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, IdleTimeout, TransportConfig};
use rustls::RootCertStore;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use crate::harness::Driver;

/// A client that trusts the driver, shows `identity` if there is one, and speaks `alpn`.
pub(crate) fn client_config(
    driver: &Driver,
    identity: Option<&Identity>,
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
    driver: &Driver,
    identity: Option<&Identity>,
) -> Result<Connection, ConnectionError> {
    let config = client_config(driver, identity, "elastic/1");
    let connecting = endpoint().connect_with(config, driver.address, "driver.elastic");
    connecting.expect("a good address").await
}

/// Says one thing and reads the answer.
pub(crate) async fn ask(connection: &Connection, question: &[u8]) -> Option<Vec<u8>> {
    let (mut send, mut receive) = connection.open_bi().await.ok()?;
    send.write_all(question).await.ok()?;
    send.finish().ok()?;
    receive.read_to_end(1 << 20).await.ok()
}

/// A connection that has been greeted: frames may travel.
pub(crate) async fn greeted(driver: &Driver, identity: &Identity, session: u64) -> Connection {
    let connection = connect(driver, Some(identity)).await.expect("a good certificate");
    let hello = Hello { resume: None, fresh: SessionId(session) };
    let answer = ask(&connection, &hello.encode().expect("small")).await.expect("an answer");
    Welcome::decode(&answer).expect("a welcome");
    connection
}

/// What a path lets through.
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
                        // What a full buffer drops, QUIC sends again.
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
