//! Tests of abuse: floods, garbage and false claims are refused and bounded, and the job is undisturbed.

use std::net::UdpSocket;

use elastic_protocol::{Incarnation, NodeId};
use elastic_runtime::transport::LinkEvent;
use elastic_transport::wire::StreamKind;

use crate::harness::*;
use crate::raw::{self, Path, Proxy};

#[test]
fn garbage_on_the_port_is_ignored() {
    run(async {
        let driver = TestDriver::start();
        let client = driver.join("a").await;
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for number in 0..2000_usize {
            // From plain noise to what looks like the first packet of a handshake.
            let mut garbage: Vec<u8> =
                (0..number % 1400).map(|it| (it * 31 + number) as u8).collect();
            if number % 2 == 0 && garbage.len() > 5 {
                garbage[..5].copy_from_slice(&[0xc3, 0, 0, 0, 1]);
            }
            socket.send_to(&garbage, driver.address).expect("loopback takes it");
        }
        assert_undisturbed(&driver, "b").await;
        assert_eq!(client.events.links(), [LinkEvent::Up]);
    });
}

#[test]
fn a_thousand_strangers_who_say_nothing_keep_nobody_out() {
    run(async {
        let driver = TestDriver::start();
        let config = raw::client_config(&driver, None, &raw::protocol());
        let endpoint = raw::endpoint();
        let strangers: Vec<_> = (0..1000)
            .map(|_| {
                let config = config.clone();
                let connecting = endpoint.connect_with(config, driver.address, "driver.elastic");
                tokio::task::spawn_local(async move {
                    if let Ok(connection) = connecting.expect("a good address").await {
                        connection.closed().await;
                    }
                })
            })
            .collect();
        assert_undisturbed(&driver, "a").await;
        for stranger in strangers {
            stranger.await.expect("each is refused in time, and knows it");
        }
        assert_undisturbed(&driver, "b").await;
    });
}

#[test]
fn a_thousand_half_open_handshakes_keep_nobody_out() {
    run(async {
        let driver = TestDriver::start();
        let proxy = Proxy::start(driver.address).await;
        proxy.path.set(Path::OneWay);
        let config = raw::client_config(&driver, None, &raw::protocol());
        let endpoint = raw::endpoint();
        let half_open: Vec<_> = (0..1000)
            .map(|_| {
                let config = config.clone();
                endpoint.connect_with(config, proxy.address, "driver.elastic").expect("an address")
            })
            .collect();
        for round in 0..5 {
            assert_undisturbed(&driver, &format!("host {round}")).await;
        }
        drop(half_open);
    });
}

#[test]
fn a_frame_that_claims_4_gib_ends_its_connection_and_nothing_else() {
    run(async {
        let driver = TestDriver::start();
        let good = driver.join("good").await;
        let node = NodeId { name: agent("liar"), incarnation: Incarnation(9) };
        let identity = driver.authority.identity(&node).expect("issued");
        let connection = raw::greeted(&driver, &identity, 1).await;
        let mut stream = connection.open_uni().await.expect("granted");
        let kind = StreamKind::Frames(elastic_runtime::transport::Conversation::Control);
        stream.write_all(&kind.encode()).await.expect("open");
        stream.write_all(&[0xff; 4]).await.expect("open");
        let reason = connection.closed().await.to_string();
        assert!(reason.contains("claims 4294967295 bytes"), "{reason}");
        assert_undisturbed(&driver, "b").await;
        assert_eq!(good.events.links(), [LinkEvent::Up]);
    });
}

#[test]
fn lies_within_a_session_end_its_connection() {
    run(async {
        let driver = TestDriver::start();
        let node = NodeId { name: agent("liar"), incarnation: Incarnation(9) };
        let identity = driver.authority.identity(&node).expect("issued");
        let mut gap = vec![0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        gap.push(b'x');
        let impossible_ack = vec![2, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        let unknown_kind = vec![9, 0, 0];
        for lie in [gap, impossible_ack, unknown_kind] {
            let connection = raw::greeted(&driver, &identity, 1).await;
            let mut stream = connection.open_uni().await.expect("granted");
            stream.write_all(&lie).await.expect("open");
            connection.closed().await;
        }
        assert!(driver.events.frames(elastic_runtime::transport::Conversation::Control).is_empty());
        assert_undisturbed(&driver, "b").await;
    });
}

#[test]
fn greetings_and_requests_are_bounded() {
    run(async {
        let driver = TestDriver::start();
        let node = NodeId { name: agent("liar"), incarnation: Incarnation(9) };
        let identity = driver.authority.identity(&node).expect("issued");
        for identity in [None, Some(&identity)] {
            for noise in [vec![0xff; 100], vec![0xff; 1 << 20]] {
                let connection = raw::connect(&driver, identity).await.expect("so far");
                assert_eq!(raw::ask(&connection, &noise).await, None);
                let reason = connection.closed().await;
                assert!(matches!(reason, quinn::ConnectionError::ApplicationClosed(_)), "{reason}");
            }
        }
        assert!(driver.events.all().is_empty());
        assert_undisturbed(&driver, "b").await;
    });
}
