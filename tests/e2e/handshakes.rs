//! Strangers that begin handshakes at the driver's port and do not finish them: the job goes on, and the driver
//! neither grows nor fills its log.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, EndpointConfig};
use quinn_proto::Endpoint;
use rustls::RootCertStore;

use crate::support::{Job, now, wait_until};

const HANDSHAKES: usize = 10_000;

/// Largest growth of the driver's memory: 512 handshakes of 30 KiB, and as much again for what the allocator keeps.
const GROWTH_BYTES_MAX: u64 = 32 << 20;

/// Sends first packets of handshakes that are never continued, each a connection of its own.
pub(crate) struct HalfOpen {
    endpoint: Endpoint,
    config: ClientConfig,
    to: SocketAddr,
    /// The name for which the certificate is asked.
    name: &'static str,
    sockets: Vec<UdpSocket>,
    pub(crate) begun: usize,
}

impl HalfOpen {
    pub(crate) fn new(to: SocketAddr, protocol: Vec<u8>, name: &'static str) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol];
        let crypto = QuicClientConfig::try_from(config).expect("TLS 1.3");
        let endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, false, None);
        let bind = |_| UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let config = ClientConfig::new(Arc::new(crypto));
        Self { endpoint, config, to, name, sockets: (0..50).map(bind).collect(), begun: 0 }
    }

    pub(crate) fn begin(&mut self, count: usize) {
        for _ in 0..count {
            let connecting = self.endpoint.connect(now(), self.config.clone(), self.to, self.name);
            let (_, mut connection) = connecting.expect("an address");
            let mut packet = Vec::new();
            let sent = connection.poll_transmit(now(), 1, &mut packet);
            assert!(sent.is_some(), "a first packet");
            let socket = &self.sockets[self.begun % self.sockets.len()];
            // A full buffer drops the packet, which only makes one handshake fewer.
            let _ = socket.send_to(&packet, self.to);
            self.begun += 1;
        }
    }
}

/// The peak memory of a process, in bytes.
fn peak_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux says");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|it| it.parse().ok()).expect("a number");
    kib << 10
}

#[test]
fn x_13_ten_thousand_half_open_handshakes_disturb_nobody() {
    let mut job = Job::start(&["-n", "1", "--max-np", "2"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let before = peak_bytes(job.driver.id());
    let (address, protocol) = (
        job.address.parse().expect("an address"),
        elastic_transport::alpn(elastic_transport::PROTOCOL_VERSION),
    );
    let mut strangers = HalfOpen::new(address, protocol, "driver.elastic");
    strangers.begin(HANDSHAKES / 2);
    // An honest host joins among the strangers.
    job.agent("b", 1);
    for _ in 0..HANDSHAKES / 2 / 500 {
        strangers.begin(500);
        job.pass_ms(20);
    }
    assert_eq!(strangers.begun, HANDSHAKES);
    job.wait_for_sizes(&[1, 2]);
    job.wait_for_steps();
    let grown = peak_bytes(job.driver.id()) - before;
    assert!(grown < GROWTH_BYTES_MAX, "the driver grew by {grown} bytes");
    let warning = "connection refused";
    wait_until("the warning", || job.stderr().contains(warning).then_some(()));
    assert_eq!(job.stderr().matches(warning).count(), 1, "one warning: {}", job.stderr());
    assert_eq!(job.finish(), 0);
    let causes: Vec<_> =
        job.events_of("reset_decided").iter().map(|reset| reset["cause"].to_string()).collect();
    assert_eq!(causes.len(), 1, "nobody was lost: {causes:?}");
    job.assert_exact();
}

#[test]
fn x_12_a_program_of_another_protocol_is_named_on_both_sides() {
    let mut job = Job::start(&["-n", "1"], &[]);
    let token = job.path("state/token");
    let token = wait_until("the token", || elastic_transport::read_token(&token).ok());
    let mut options = elastic_transport::ConnectOptions::new(
        &job.address,
        token,
        elastic_protocol::NodeName::Client,
    );
    options.version = 1;
    let joined = elastic_runtime::system::run(elastic_transport::join(options)).expect("a runtime");
    let error = joined.err().expect("it is refused").to_string();
    let ours = concat!("elastic-node ", env!("CARGO_PKG_VERSION"), ", protocol 2.");
    let theirs = ours.replace("protocol 2.", "protocol 1.");
    let told = |text: &str, this: &str, other: &str| {
        text.contains(&format!("this is {this}")) && text.contains(&format!("is {other}"))
    };
    assert!(told(&error, &theirs, ours), "{error}");
    wait_until("the driver's words", || told(&job.stderr(), ours, &theirs).then_some(()));
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    assert_eq!(job.finish(), 0);
}
