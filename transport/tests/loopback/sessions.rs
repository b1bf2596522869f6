//! Tests of sessions: TR-1 to TR-6 over real connections.

use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use elastic_protocol::{Deadlines, Incarnation, NodeId};
use elastic_runtime::transport::{
    Conversation, LinkEvent, LossReason, SendErrorReason, Transport, TransportEvent,
};
use elastic_transport::{
    Authority, ConnectOptions, JobSecrets, ListenError, QuicTransport, Validity,
};

use crate::harness::*;
use crate::raw::{self, Path, Proxy};

#[test]
fn a_node_joins_talks_and_leaves() {
    run(async {
        let driver = TestDriver::start();
        let client = driver.join("a").await;
        assert_eq!(client.driver, driver_id());
        assert_eq!(client.events.links(), [LinkEvent::Up]);
        driver.events.until_link("Up", |event| *event == LinkEvent::Up).await;

        client.send(Conversation::Control, &b"hello"[..]);
        driver.events.until("a frame", |all| Events::frame_count(all) == 1).await;
        let back = driver.transport.send(&client.id(), Conversation::Control, Bytes::from("hi"));
        back.expect("a session stands");
        client.events.until("an answer", |all| Events::frame_count(all) == 1).await;
        assert_eq!(client.events.frames(Conversation::Control), ["hi"]);

        client.transport.shutdown("done", Duration::from_secs(1)).await;
        let closed = LossReason::Closed("done".to_owned());
        let lost = |event: &LinkEvent| matches!(event, LinkEvent::Lost { reason, .. } if *reason == closed);
        driver.events.until_link("Lost", lost).await;
        let gone = driver.transport.send(&client.id(), Conversation::Control, Bytes::new());
        assert_eq!(gone.expect_err("it left").reason, SendErrorReason::NoSession);
    });
}

#[test]
fn a_connection_that_breaks_is_resumed_unseen() {
    run(async {
        let driver = TestDriver::start();
        let client = driver.join("a").await;
        let (to_client, conversations) =
            (client.id(), [Conversation::Control, Conversation::Bulk(3)]);
        for round in 0..20_u32 {
            for number in round * 50..(round + 1) * 50 {
                for conversation in conversations {
                    client.send(conversation, numbered(number));
                    let sent = driver.transport.send(&to_client, conversation, numbered(number));
                    sent.expect("the session stands");
                }
            }
            if round % 2 == 0 {
                client.transport.reconnect(&client.driver);
            } else {
                driver.transport.reconnect(&to_client);
            }
            let some = (round as usize + 1) * 20;
            driver.events.until("some frames", |all| Events::frame_count(all) >= some).await;
        }
        for events in [&driver.events, &client.events] {
            events.until("all frames", |all| Events::frame_count(all) >= 2000).await;
            let expected: Vec<Bytes> = (0..1000).map(numbered).collect();
            for conversation in conversations {
                assert_eq!(events.frames(conversation), expected, "TR-1: in order, once");
            }
            assert_eq!(events.links(), [LinkEvent::Up], "TR-1: unseen");
        }
    });
}

fn is_silence(event: &LinkEvent) -> bool {
    matches!(event, LinkEvent::Lost { reason: LossReason::Silence { .. }, .. })
}

#[test]
fn a_peer_that_vanishes_is_silent_then_lost_then_another_session() {
    run(async {
        let driver = TestDriver::start();
        let proxy = Proxy::start(driver.address).await;
        let options = driver.options("a");
        let options = ConnectOptions { address: proxy.address.to_string(), ..options };
        let client = Client::join(options).await.expect("let in");
        client.send(Conversation::Control, numbered(0));
        driver.events.until("a frame", |all| Events::frame_count(all) == 1).await;

        proxy.path.set(Path::Cut);
        client.send(Conversation::Control, numbered(1));
        client.send(Conversation::Bulk(0), numbered(2));
        driver.events.until_link("Lost", is_silence).await;
        let [LinkEvent::Up, LinkEvent::Silent { silent_ms }, LinkEvent::Lost { .. }] =
            driver.events.links()[..]
        else {
            panic!("TR-5: {:?}", driver.events.links());
        };
        let Deadlines { suspect, lost, .. } = Deadlines::default();
        assert!(u128::from(silent_ms) >= suspect.as_millis(), "TR-5: not before its time");
        let is_gone = |event: &LinkEvent| matches!(event, LinkEvent::Silent { silent_ms } if u128::from(*silent_ms) >= lost.as_millis());
        client.events.until_link("that the driver is as good as gone", is_gone).await;
        assert_eq!(client.events.links().len(), 3, "TR-5: the session is kept");

        proxy.path.set(Path::Open);
        let is_up = |event: &TransportEvent| {
            matches!(event, TransportEvent::Link { event: LinkEvent::Up, .. })
        };
        let ups = |events: &[TransportEvent]| events.iter().filter(|event| is_up(event)).count();
        client.events.until("a new session", |events| ups(events) == 2).await;
        let seen = client.events.all();
        let is_forgotten = |event: &TransportEvent| {
            matches!(
                event,
                TransportEvent::Link {
                    event: LinkEvent::Lost { reason: LossReason::Forgotten, .. },
                    ..
                }
            )
        };
        let lost = seen.iter().position(is_forgotten).expect("TR-2: the old one ends first");
        let handed_back = |event: &TransportEvent| match event {
            TransportEvent::Undeliverable { frame, .. } => Some(frame.clone()),
            _ => None,
        };
        let back: Vec<_> = seen[lost..].iter().filter_map(handed_back).collect();
        // The acknowledgement of the first may have been cut off too.
        assert!(back.ends_with(&[numbered(1), numbered(2)]), "TR-2: handed back after Lost");
        client.send(Conversation::Control, numbered(3));
        driver.events.until("a frame", |all| Events::frame_count(all) == 2).await;
    });
}

#[test]
fn a_peer_that_was_silent_for_a_while_is_heard_again() {
    run(async {
        let driver = TestDriver::start();
        let proxy = Proxy::start(driver.address).await;
        let options = driver.options("a");
        let options = ConnectOptions { address: proxy.address.to_string(), ..options };
        let client = Client::join(options).await.expect("let in");
        proxy.path.set(Path::Cut);
        let silent = |event: &LinkEvent| matches!(event, LinkEvent::Silent { .. });
        client.events.until_link("Silent", silent).await;
        proxy.path.set(Path::Open);
        client.events.until_link("Heard", |event| *event == LinkEvent::Heard).await;
        assert_eq!(client.events.links().len(), 3, "the same session: {:?}", client.events.links());
    });
}

#[test]
fn a_newer_connection_of_a_node_replaces_the_older_one() {
    run(async {
        let driver = TestDriver::start();
        let node = NodeId { name: agent("a"), incarnation: Incarnation(9) };
        let identity = driver.authority.identity(&node).expect("issued");
        let first = raw::greeted(&driver, &identity, 1).await;
        let second = raw::greeted(&driver, &identity, 1).await;
        let ending = first.closed().await;
        assert!(ending.to_string().contains("takes its place"), "{ending}");
        assert!(second.close_reason().is_none());
        assert_eq!(driver.events.links(), [LinkEvent::Up], "the same session goes on");

        let _third = raw::greeted(&driver, &identity, 2).await;
        driver.events.until("a new session", |all| all.len() == 3).await;
        let [_, LinkEvent::Lost { reason: LossReason::Forgotten, .. }, LinkEvent::Up] =
            driver.events.links()[..]
        else {
            panic!("TR-2: {:?}", driver.events.links());
        };
    });
}

#[test]
fn a_close_arrives_with_its_reason_after_what_was_queued() {
    run(async {
        let driver = TestDriver::start();
        let client = driver.join("a").await;
        driver.transport.send(&client.id(), Conversation::Control, numbered(7)).expect("taken");
        driver.transport.close(&client.id(), "evicted");
        let refused = driver.transport.send(&client.id(), Conversation::Control, numbered(8));
        assert_eq!(refused.expect_err("closing").reason, SendErrorReason::NoSession);
        let closed = LossReason::Closed("evicted".to_owned());
        let lost = |event: &LinkEvent| matches!(event, LinkEvent::Lost { reason, .. } if *reason == closed);
        client.events.until_link("Lost", lost).await;
        assert_eq!(client.events.frames(Conversation::Control), [numbered(7)]);
        let here = LossReason::ClosedHere("evicted".to_owned());
        let lost =
            |event: &LinkEvent| matches!(event, LinkEvent::Lost { reason, .. } if *reason == here);
        driver.events.until_link("Lost", lost).await;
        let again = |all: &[TransportEvent]| {
            let up = |event: &&TransportEvent| {
                matches!(event, TransportEvent::Link { event: LinkEvent::Up, .. })
            };
            all.iter().filter(up).count() == 2
        };
        client.events.until("a new session, as the client did not close", again).await;
    });
}

#[test]
fn a_process_that_ends_is_lost_at_once() {
    run(async {
        let driver = TestDriver::start();
        let client = driver.join("a").await;
        drop(client);
        let lost = |event: &LinkEvent| {
            matches!(event, LinkEvent::Lost { reason: LossReason::Closed(_), .. })
        };
        driver.events.until_link("Lost", lost).await;
        let silent = |event: &LinkEvent| matches!(event, LinkEvent::Silent { .. });
        assert!(!driver.events.links().iter().any(silent), "G-12: not by a time-out");
    });
}

#[test]
fn bulk_never_delays_control() {
    run(async {
        const BULK: Conversation = Conversation::Bulk(1);
        const MEGABYTES: usize = 100;
        let driver = TestDriver::start();
        let client = driver.join("a").await;
        let frame = Bytes::from(vec![7; 1 << 20]);
        let (mut sent, mut round) = (0, 0);
        while sent < MEGABYTES {
            let queued_from = sent;
            loop {
                match client.transport.send(&client.driver, BULK, frame.clone()) {
                    Ok(()) => sent += 1,
                    Err(error) => {
                        assert_eq!(error.reason, SendErrorReason::Full, "TR-6");
                        assert_eq!(error.frame, frame, "TR-6: given back");
                        break;
                    }
                }
            }
            assert!(sent - queued_from <= 32, "TR-6: the queue is bounded");
            client.send(Conversation::Control, numbered(round));
            round += 1;
            let is_control = |event: &TransportEvent| {
                matches!(event, TransportEvent::Frame { conversation: Conversation::Control, .. })
            };
            driver.events.until("the control frame", |all| all.iter().any(is_control)).await;
            let before = driver.events.all().iter().take_while(|event| !is_control(event)).count();
            assert!(before < sent - queued_from, "TR-3: control overtook queued bulk");
            let rest = sent - queued_from;
            let arrived = |all: &[TransportEvent]| Events::frame_count(all) > rest;
            driver.events.until("the bulk", arrived).await;
            driver.events.clear();
            client.events.clear();
        }
    });
}

#[test]
fn large_frames_arrive_whole() {
    run(async {
        let driver = TestDriver::start();
        let client = driver.join("a").await;
        let frame: Bytes = (0..8_u32 << 20).map(|it| (it % 251) as u8).collect::<Vec<_>>().into();
        client.send(Conversation::Bulk(0), frame.clone());
        let large = Bytes::from(vec![0; frame.len() + 1]);
        let error = client.transport.send(&client.driver, Conversation::Bulk(0), large);
        assert_eq!(error.expect_err("too large").reason, SendErrorReason::TooLarge);
        driver.events.until("the frame", |all| Events::frame_count(all) == 1).await;
        assert_eq!(driver.events.frames(Conversation::Bulk(0)), [frame]);
    });
}

#[test]
fn a_client_that_closes_does_not_come_back() {
    run(async {
        let driver = TestDriver::start();
        let client = driver.join("a").await;
        client.transport.close(&client.driver, "bye");
        let here = LossReason::ClosedHere("bye".to_owned());
        let lost =
            |event: &LinkEvent| matches!(event, LinkEvent::Lost { reason, .. } if *reason == here);
        client.events.until_link("Lost", lost).await;
        let there = LossReason::Closed("bye".to_owned());
        let lost =
            |event: &LinkEvent| matches!(event, LinkEvent::Lost { reason, .. } if *reason == there);
        driver.events.until_link("Lost", lost).await;
        assert_undisturbed(&driver, "b").await;
        assert_eq!(client.events.links().len(), 2, "Up and Lost: {:?}", client.events.links());
    });
}

/// Starts another incarnation of a driver, at the same address, from stored secrets; the previous one is gone.
fn start_again(
    address: SocketAddr,
    secrets: &JobSecrets,
    term: u64,
) -> (Rc<QuicTransport>, Events, NodeId) {
    let authority = secrets.authority().expect("just stored");
    let table = Rc::new(RefCell::new(secrets.credentials(&authority, Incarnation(term << 32))));
    let mut options = listen_options(&authority, &table);
    options.bind = address;
    options.secrets = Some(secrets.clone());
    // With this deadline, no peer notices within a test that a driver is silent.
    options.deadlines.lost = Duration::from_secs(60);
    options.local.incarnation = Incarnation(term);
    let (events, local) = (Events::default(), options.local.clone());
    let transport = QuicTransport::listen(options, events.sink()).expect("a free port");
    (transport, events, local)
}

/// Waits until a released port can be bound again.
async fn until_free(address: SocketAddr) {
    while UdpSocket::bind(address).is_err() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_driver_that_was_killed_and_started_again_is_found_before_its_silence_is() {
    run(async {
        let secrets = JobSecrets::new(JOB).expect("random numbers");
        let nowhere = "127.0.0.1:0".parse().expect("an address");
        let (first, events, _) = start_again(nowhere, &secrets, 1);
        let address = first.local_address().expect("it listens");
        let authority = secrets.authority().expect("kept");
        let token = secrets.credentials(&authority, Incarnation(1)).join_token();
        let proxy = Proxy::start(address).await;
        let addresses = format!("127.0.0.1:1,{}", proxy.address);
        let mut options = ConnectOptions::new(addresses, token, agent("a"));
        options.deadlines.lost = Duration::from_secs(60);
        let client = Client::join(options).await.expect("let in");
        events.until_link("Up", |event| *event == LinkEvent::Up).await;
        // The driver ends as if killed: its last packets reach no peer.
        proxy.path.set(Path::Cut);
        drop(first);
        until_free(address).await;
        proxy.path.set(Path::Open);
        let (_second, events, local) = start_again(address, &secrets, 2);
        events.until_link("Up", |event| *event == LinkEvent::Up).await;
        let twice = |all: &[TransportEvent]| {
            let up = |event: &&TransportEvent| {
                matches!(event, TransportEvent::Link { event: LinkEvent::Up, .. })
            };
            all.iter().filter(up).count() == 2
        };
        client.events.until("a second session", twice).await;
        let links = client.events.links();
        assert!(
            matches!(links[..], [LinkEvent::Up, LinkEvent::Lost { .. }, LinkEvent::Up]),
            "{links:?}"
        );
        assert_eq!(local.incarnation, Incarnation(2));
    });
}

#[test]
fn a_driver_of_an_earlier_term_is_not_gone_back_to() {
    run(async {
        let secrets = JobSecrets::new(JOB).expect("random numbers");
        let nowhere = "127.0.0.1:0".parse().expect("an address");
        let (later, later_events, _) = start_again(nowhere, &secrets, 2);
        let elsewhere = UdpSocket::bind(nowhere).and_then(|socket| socket.local_addr());
        let elsewhere = elsewhere.expect("a free port");
        let address = |transport: &QuicTransport| transport.local_address().expect("it listens");
        let addresses = format!("{},{elsewhere}", address(&later));
        let authority = secrets.authority().expect("kept");
        let token = secrets.credentials(&authority, Incarnation(1)).join_token();
        let client = Client::join(ConnectOptions::new(addresses, token, agent("a"))).await;
        let client = client.expect("let in");
        later_events.until_link("Up", |event| *event == LinkEvent::Up).await;
        let (_earlier, earlier_events, _) = start_again(elsewhere, &secrets, 1);
        let place = address(&later);
        later.shutdown("restart", Duration::from_millis(100)).await;
        drop(later);
        until_free(place).await;
        let (_third, third_events, _) = start_again(place, &secrets, 3);
        third_events.until_link("Up", |event| *event == LinkEvent::Up).await;
        assert!(earlier_events.links().is_empty(), "G-2");
        drop(client);
    });
}

#[test]
fn a_driver_that_is_started_again_is_another_node() {
    run(async {
        let driver = TestDriver::start();
        let client = driver.join("a").await;
        let (address, authority) = (driver.address, Rc::clone(&driver.authority));
        driver.transport.shutdown("restart", Duration::from_secs(1)).await;
        drop(driver);
        let stored = Authority::from_pem(
            JOB,
            Validity::default(),
            &authority.certificate_pem(),
            &authority.key_pem(),
        );
        let stored = Rc::new(stored.expect("just stored"));
        let mut options = listen_options(&stored, &credentials(&stored));
        options.bind = address;
        options.local.incarnation = Incarnation(2);
        let (events, second) = (Events::default(), options.local.clone());
        // quinn releases the port a moment after the transport is dropped.
        let transport = loop {
            match QuicTransport::listen(options.clone(), events.sink()) {
                Ok(transport) => break transport,
                Err(error) => assert!(matches!(error, ListenError::Bind { .. }), "{error}"),
            }
            tokio::task::yield_now().await;
        };
        events.until_link("Up", |event| *event == LinkEvent::Up).await;
        let up = |all: &[TransportEvent]| {
            all.iter().any(|event| {
                matches!(event, TransportEvent::Link { peer, event: LinkEvent::Up } if *peer == second)
            })
        };
        client.events.until("a session with the second driver", up).await;
        transport.send(&client.id(), Conversation::Control, numbered(1)).expect("a session");
        client.events.until("its frame", |all| Events::frame_count(all) == 1).await;
    });
}
