//! Tests of admission: which nodes are let in, which are not, and the messages to both sides.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use elastic_protocol::{HostName, Incarnation, NodeId, NodeName, WorkerId};
use elastic_runtime::session::SessionWelcome;
use elastic_runtime::transport::{LinkEvent, TransportEvent};
use elastic_transport::enrol::EnrolAnswer;
use elastic_transport::{
    Authority, ConnectError, ConnectOptions, EnrolClaim, EnrolRefusal, EnrolRequest, JoinToken,
    ListenError, QuicTransport, TokenKind, TokenSecret, Validity,
};
use quinn::crypto::rustls::QuicServerConfig;

use crate::harness::*;
use crate::raw;

fn quick(options: ConnectOptions) -> ConnectOptions {
    ConnectOptions { patience: Duration::from_millis(500), ..options }
}

#[test]
fn a_wrong_secret_is_refused() {
    run(async {
        let driver = TestDriver::start();
        let secret = TokenSecret::generate().expect("random numbers");
        let token = JoinToken { secret, ..driver.join_token() };
        let options = driver.options_with("a", token);
        assert!(format!("{options:?}").contains("hidden"), "no secret in a log");
        let error = refusal(options).await;
        assert!(
            matches!(error, ConnectError::WrongSecret(EnrolRefusal::WrongSecret(_))),
            "{error}"
        );
        assert_undisturbed(&driver, "b").await;
    });
}

#[test]
fn another_authority_is_found_out_before_the_secret_is_told() {
    run(async {
        let asked = Rc::new(std::cell::Cell::new(0));
        let count = Rc::clone(&asked);
        let driver = TestDriver::start_with(move |options| {
            options.admit = Rc::new(move |_| {
                count.set(count.get() + 1);
                Err(EnrolRefusal::Other("nobody".to_owned()))
            });
        });
        let other = authority();
        let token = JoinToken { authority: other.fingerprint(), ..driver.join_token() };
        let error = refusal(driver.options_with("a", token)).await;
        assert!(matches!(error, ConnectError::WrongAuthority { .. }), "{error}");
        assert_eq!(asked.get(), 0, "the secret was not told");
        let error = refusal(driver.options("a")).await;
        assert!(matches!(error, ConnectError::Refused { reason } if reason == "nobody"));
    });
}

#[test]
fn a_worker_enrols_once_and_only_as_itself() {
    run(async {
        let driver = TestDriver::start();
        let host = HostName::new("größe/../x").expect("X-20: a name");
        let worker = WorkerId { host: host.clone(), slot: 2, incarnation: Incarnation(40) };
        let token = driver.credentials.borrow_mut().issue_worker(&worker);
        let options = |name: NodeName, token: &JoinToken| ConnectOptions {
            name,
            ..driver.options_with("x", token.clone())
        };
        let name = NodeName::Worker(host.clone(), 2);
        let client = Client::join(options(name.clone(), &token)).await.expect("let in");
        assert_eq!(client.id(), NodeId::worker(&worker));
        let error = refusal(options(name.clone(), &token)).await;
        assert!(matches!(error, ConnectError::WrongSecret(EnrolRefusal::Spent(_))), "{error}");
        for name in [NodeName::Agent(host.clone()), NodeName::Worker(host, 3), NodeName::Client] {
            let error = refusal(options(name, &token)).await;
            assert!(matches!(error, ConnectError::TokenNotFor(_)), "{error}");
        }
        let error = refusal(options(name, &driver.join_token())).await;
        assert!(matches!(error, ConnectError::TokenNotFor(_)), "{error}");
        let error = refusal(options(NodeName::Driver, &driver.join_token())).await;
        assert!(matches!(error, ConnectError::TokenNotFor(_)), "{error}");
        let client = options(NodeName::Client, &driver.join_token());
        Client::join(client).await.expect("the driver's own machine may ask");
    });
}

#[test]
fn the_driver_itself_refuses_what_an_honest_client_would_not_ask() {
    run(async {
        let driver = TestDriver::start();
        let host = HostName::new("a").expect("a name");
        let worker = WorkerId { host, slot: 0, incarnation: Incarnation(1) };
        driver.credentials.borrow_mut().issue_worker(&worker);
        let connection = raw::connect(&driver, None).await.expect("no certificate is fine so far");
        let request = EnrolRequest {
            claim: EnrolClaim::Worker(worker),
            secret: driver.join_token().secret,
            public_key: vec![4; 65],
        };
        let answer = raw::ask(&connection, &request.encode().expect("small")).await;
        let answer = EnrolAnswer::decode(&answer.expect("an answer")).expect("an answer");
        assert!(matches!(answer, EnrolAnswer::Refused(EnrolRefusal::WrongSecret(_))));
        let hello = raw::greeting(1);
        assert_eq!(raw::ask(&connection, &hello.encode().expect("small")).await, None);
        assert!(driver.events.all().is_empty(), "TR-4");
    });
}

#[test]
fn the_connection_that_enrolled_carries_the_session_of_the_node_that_was_let_in() {
    run(async {
        let driver = TestDriver::start();
        let connection = raw::connect(&driver, None).await.expect("no certificate is fine so far");
        let request = EnrolRequest {
            claim: EnrolClaim::Agent(HostName::new("a").expect("a name")),
            secret: driver.join_token().secret,
            public_key: vec![4; 65],
        };
        let answer = raw::ask(&connection, &request.encode().expect("small")).await;
        let answer = EnrolAnswer::decode(&answer.expect("an answer")).expect("an answer");
        let EnrolAnswer::Issued { node, .. } = answer else { panic!("let in: {answer:?}") };
        assert!(driver.events.all().is_empty(), "TR-4: not greeted yet");
        let hello = raw::greeting(1);
        let answer = raw::ask(&connection, &hello.encode().expect("small")).await;
        SessionWelcome::decode(&answer.expect("an answer")).expect("a welcome");
        driver
            .events
            .until("the session of that node, and of nobody else", |events| {
                let up = TransportEvent::Link { peer: node.clone(), event: LinkEvent::Up };
                events == [up]
            })
            .await;
    });
}

#[test]
fn without_a_certificate_there_is_no_conversation() {
    run(async {
        let driver = TestDriver::start();
        let connection = raw::connect(&driver, None).await.expect("no certificate is fine so far");
        let stream = tokio::time::timeout(Duration::from_millis(200), connection.open_uni()).await;
        assert!(stream.is_err(), "no stream is granted");
        let hello = raw::greeting(1);
        let answer = raw::ask(&connection, &hello.encode().expect("small")).await;
        assert_eq!(answer, None);
        let reason = connection.closed().await.to_string();
        assert!(reason.contains("neither a request to enrol nor an answer"), "{reason}");
        assert!(driver.events.all().is_empty(), "TR-4");
        assert_undisturbed(&driver, "b").await;
    });
}

#[test]
fn a_node_of_another_job_is_refused() {
    run(async {
        let driver = TestDriver::start();
        let node = NodeId { name: agent("a"), incarnation: Incarnation(1) };
        let identity = authority().identity(&node).expect("issued");
        let hello = raw::greeting(1).encode().expect("small");
        if let Ok(connection) = raw::connect(&driver, Some(&identity)).await {
            assert_eq!(raw::ask(&connection, &hello).await, None);
            assert!(matches!(
                connection.closed().await,
                quinn::ConnectionError::ConnectionClosed(_)
            ));
        }
        assert!(driver.events.all().is_empty(), "TR-4");
        assert_undisturbed(&driver, "b").await;
    });
}

/// The same authority, whose certificates have long expired.
fn of_the_nineties(authority: &Authority) -> Rc<Authority> {
    let validity = Validity { from_year: 1990, until_year: 2000 };
    let (certificate, key) = (authority.certificate_pem(), authority.key_pem());
    Rc::new(Authority::from_pem(JOB, validity, &certificate, &key).expect("just stored"))
}

#[test]
fn expired_certificates_are_refused_on_both_sides() {
    run(async {
        let driver = TestDriver::start();
        let node = NodeId { name: agent("a"), incarnation: Incarnation(1) };
        let identity = of_the_nineties(&driver.authority).identity(&node).expect("issued");
        let refused = match raw::connect(&driver, Some(&identity)).await {
            Ok(connection) => connection.closed().await,
            Err(error) => error,
        };
        // The alert certificate_expired, as QUIC carries it.
        let quinn::ConnectionError::ConnectionClosed(close) = &refused else { panic!("{refused}") };
        assert_eq!(u64::from(close.error_code), 0x100 + 45, "{refused}");
        assert!(driver.events.all().is_empty(), "TR-4");

        let driver = TestDriver::start_with(|options| {
            options.authority = of_the_nineties(&options.authority);
        });
        let error = refusal(driver.options("a")).await;
        assert!(matches!(error, ConnectError::Expired { whose: "the driver's" }), "{error}");
    });
}

#[test]
fn versions_must_agree_and_both_are_named() {
    run(async {
        let driver = TestDriver::start();
        let error = refusal(ConnectOptions { version: 1, ..driver.options("a") }).await;
        let text = error.to_string();
        let (before, behind) = text.split_once("; the driver is ").expect("both");
        assert!(before.contains("protocol 1.") && behind.contains("protocol 2."), "X-12: {text}");
        assert!(behind.contains(concat!("elastic-node ", env!("CARGO_PKG_VERSION"))), "{text}");
        let newer = TestDriver::start_with(|options| options.version = 3);
        let text = refusal(newer.options("a")).await.to_string();
        let (before, behind) = text.split_once("; the driver is ").expect("both");
        assert!(before.contains("protocol 2.") && behind.contains("protocol 3."), "X-12: {text}");

        let stranger = raw::client_config(&driver, None, "h3");
        let connecting = raw::endpoint().connect_with(stranger, driver.address, "driver.elastic");
        let error = connecting.expect("a good address").await.expect_err("not our protocol");
        assert!(error.to_string().contains("120"), "no_application_protocol: {error}");
        assert_undisturbed(&driver, "b").await;
    });
}

#[test]
fn x_12_a_program_of_another_version_that_does_not_say_which_is_refused_soon() {
    run(async {
        let driver = TestDriver::start();
        // The name of the protocol that all versions speak.
        let silent = raw::client_config(&driver, None, "elastic");
        let endpoint = raw::endpoint();
        let connecting = endpoint.connect_with(silent, driver.address, "driver.elastic");
        let connection = connecting.expect("a good address").await.expect("it is to be told");
        let ended = connection.closed().await.to_string();
        assert!(ended.contains("protocol 2."), "it is told what the driver is: {ended}");
        assert_undisturbed(&driver, "b").await;
    });
}

#[test]
fn an_agent_cannot_pose_as_the_driver() {
    run(async {
        let driver = TestDriver::start();
        let node = NodeId { name: agent("evil"), incarnation: Incarnation(1) };
        let identity = driver.authority.identity(&node).expect("issued");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(identity.chain(), identity.private_key())
            .expect("a good key");
        config.alpn_protocols = vec![elastic_transport::alpn(elastic_transport::PROTOCOL_VERSION)];
        let crypto = QuicServerConfig::try_from(config).expect("TLS 1.3");
        let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        let address = "127.0.0.1:0".parse().expect("an address");
        let endpoint = quinn::Endpoint::server(config, address).expect("a socket");
        let address = endpoint.local_addr().expect("bound").to_string();
        let serving = tokio::task::spawn_local(async move {
            while let Some(incoming) = endpoint.accept().await {
                let _ = incoming.await;
            }
        });
        let error = refusal(ConnectOptions { address, ..driver.options("a") }).await;
        assert!(matches!(error, ConnectError::NotADriver { .. }), "{error}");
        serving.abort();
    });
}

#[test]
fn nobody_at_the_address_is_said_so() {
    run(async {
        let driver = TestDriver::start();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let address = socket.local_addr().expect("bound").to_string();
        let error = refusal(quick(ConnectOptions { address, ..driver.options("a") })).await;
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
        let address = "no port".to_owned();
        let error = refusal(quick(ConnectOptions { address, ..driver.options("a") })).await;
        assert!(error.to_string().contains("name not resolved"), "{error}");
    });
}

#[test]
fn two_drivers_do_not_share_a_port() {
    run(async {
        let driver = TestDriver::start();
        let (authority, events) = (authority(), Events::default());
        let mut options = listen_options(&authority, &credentials(&authority));
        options.bind = driver.address;
        let Err(error) = QuicTransport::listen(options, events.sink()) else {
            panic!("X-12: the port was shared");
        };
        assert!(matches!(error, ListenError::Bind { .. }), "X-12: {error}");
        assert!(error.to_string().contains("another driver"), "X-12: {error}");
    });
}

#[test]
fn a_client_s_token_lets_a_client_in_and_nobody_else() {
    run(async {
        let driver = TestDriver::start();
        let token = driver.credentials.borrow().client_token();
        assert_eq!(token.kind, TokenKind::Client);
        let options = driver.options_with("a", token);
        let error = refusal(options.clone()).await;
        assert!(matches!(error, ConnectError::TokenNotFor(_)), "{error}");
        let client = Client::join(ConnectOptions { name: NodeName::Client, ..options }).await;
        assert_eq!(client.expect("let in").id().name, NodeName::Client);
    });
}
