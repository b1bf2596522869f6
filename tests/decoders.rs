//! Fuzz targets for every decoder: any input is decoded or refused, and never causes a panic. As plain tests they run
//! on random inputs; `cargo bolero test --test decoders NAME` drives them by coverage.

use elastic_collectives::wire as data_plane;
use elastic_protocol::codec::{decode, encode};
use elastic_protocol::messages::{
    AgentToDriver, ClientRequest, ClientResponse, DriverToAgent, DriverToWorker, Vote,
    WorkerToDriver,
};
use elastic_protocol::{Assignment, AssignmentDelta};
use elastic_runtime::{envelope, session};
use elastic_store::messages::{FromStore, ToStore};
use elastic_store::wire as store;
use elastic_transport::{EnrolRequest, Greeting, JoinToken, enrol::EnrolAnswer, wire};
use elastic_worker::state::environment;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Checks that a message that decodes is the same after another round of encoding and decoding.
fn message<M: DeserializeOwned + Serialize>(bytes: &[u8]) {
    let Ok(message) = decode::<M>(bytes) else { return };
    let again = encode(&message).expect("it came from a frame, so it fits into one");
    let twice = decode::<M>(&again).expect("what we encode we decode");
    assert_eq!(encode(&twice).ok(), Some(again));
}

#[test]
fn control_messages() {
    bolero::check!().for_each(|bytes: &[u8]| {
        message::<AgentToDriver>(bytes);
        message::<DriverToAgent>(bytes);
        message::<WorkerToDriver>(bytes);
        message::<DriverToWorker>(bytes);
        message::<Vote>(bytes);
        message::<ClientRequest>(bytes);
        message::<ClientResponse>(bytes);
    });
}

#[test]
fn changes_of_a_table() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let Some((size, rest)) = bytes.split_first() else { return };
        let (base, delta) = rest.split_at(rest.len().min(usize::from(*size)));
        let Ok(base) = decode::<Assignment>(base) else { return };
        let Ok(delta) = decode::<AssignmentDelta>(delta) else { return };
        if let Ok(next) = delta.apply_unchecked(&base) {
            assert!(next.world_size() as usize <= Assignment::WORLD_SIZE_MAX);
        }
        let _ = delta.apply(&base);
    });
}

#[test]
fn envelopes_and_sessions() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok((_, body)) = envelope::decode_header(bytes) {
            assert!(body.len() <= bytes.len());
        }
        let _ = session::SessionHello::decode(bytes);
        let _ = session::SessionWelcome::decode(bytes);
    });
}

#[test]
fn transport_frames_and_enrolling() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Some(kind) = bytes.first_chunk() {
            let _ = wire::StreamKind::decode(*kind);
        }
        if let Some(ack) = bytes.first_chunk() {
            let _ = wire::decode_ack(*ack);
        }
        let _ = EnrolRequest::decode(bytes);
        let _ = EnrolAnswer::decode(bytes);
        let _ = Greeting::decode(bytes);
    });
}

#[test]
fn the_store_s_clients() {
    bolero::check!().for_each(|bytes: &[u8]| {
        for greeting in [&[][..], &[0, 0xCE, 0xF7, 0x85, 0x3C]] {
            let mut decoder = store::Decoder::default();
            decoder.feed(greeting);
            for chunk in bytes.chunks(7) {
                decoder.feed(chunk);
                while let Ok(Some(_)) = decoder.poll_request() {}
            }
        }
        message::<ToStore>(bytes);
        message::<FromStore>(bytes);
    });
}

#[test]
fn collectives() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Some(bytes) = bytes.first_chunk() {
            let _ = data_plane::RankHello::decode(bytes);
        }
        if let Some(bytes) = bytes.first_chunk() {
            let _ = data_plane::Frame::decode(bytes);
        }
        if let Some(bytes) = bytes.first_chunk() {
            let _ = data_plane::Proof::decode(bytes);
        }
    });
}

#[test]
fn texts() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(token) = text.parse::<JoinToken>() {
            assert_eq!(token.to_line(), text.trim());
        }
        let lines = elastic_host_manager::parse_hosts(&text, Some(1));
        for host in &lines.hosts {
            assert!(!host.name.as_str().is_empty());
        }
        let _ = elastic_host_manager::parse_host_list(&text, None);
        if let Some(worker) = environment::parse_worker(&text) {
            assert_eq!(environment::parse_worker(&worker.to_string()), Some(worker));
        }
    });
}
