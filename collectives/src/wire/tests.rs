//! Properties of the decoders: any bytes decode without a panic, and what they accept encodes to the same meaning.

use proptest::prelude::*;

use super::*;
use crate::{DataType, ReduceOp};

fn operation() -> impl Strategy<Value = OperationSignature> {
    (
        prop::sample::select(OperationKind::ALL.to_vec()),
        prop::option::of(prop::sample::select(DataType::ALL.to_vec())),
        prop::option::of(prop::sample::select(ReduceOp::ALL.to_vec())),
        prop::option::of(0..u32::MAX),
        any::<u64>(),
        prop::option::of(any::<[u32; 3]>()),
    )
        .prop_map(|(kind, data_type, reduce_op, root, bytes, parts)| OperationSignature {
            kind,
            data_type,
            reduce_op,
            root,
            bytes,
            composition: parts.map(|[buffers, shards, digest]| Composition {
                buffers,
                shards,
                digest,
            }),
        })
}

fn cause() -> impl Strategy<Value = ByeCause> {
    prop_oneof![
        Just(ByeCause::Left),
        Just(ByeCause::Aborted),
        (0..u32::MAX).prop_map(ByeCause::PeerLost),
        (0..u32::MAX).prop_map(ByeCause::DeadlinePassed),
        (0..u32::MAX).prop_map(ByeCause::Mismatch),
        Just(ByeCause::Failed),
    ]
}

/// Arbitrary bytes, half of the time with the first six such that decoding goes on past them.
fn bytes<const N: usize>(magic: [u8; 4]) -> impl Strategy<Value = [u8; N]> {
    (any::<bool>(), prop::collection::vec(any::<u8>(), N), 0u8..12).prop_map(
        move |(plausible, content, kind)| {
            let mut bytes = [0; N];
            bytes.copy_from_slice(&content);
            if plausible {
                bytes[..4].copy_from_slice(&magic);
                bytes[4] = VERSION;
                bytes[5] = kind;
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn frames_come_back(generation: u64, sequence: u64, operation in operation()) {
        let frame = Frame::Operation(FrameHeader { generation, sequence, operation });
        prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    }

    #[test]
    fn farewells_come_back(generation: u64, sequence: u64, cause in cause()) {
        let frame = Frame::Bye(Bye { generation, sequence, cause });
        prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    }

    #[test]
    fn any_bytes_as_a_frame(bytes in bytes::<FRAME_LENGTH>(*b"ELFR")) {
        if let Ok(frame) = Frame::decode(&bytes) {
            prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }
    }

    #[test]
    fn any_bytes_as_a_handshake(
        long in bytes::<HELLO_LENGTH>(*b"ELCO"),
        reply in bytes::<REPLY_LENGTH>(*b"ELCO"),
        middle in bytes::<PROOF_LENGTH>(*b"ELCO"),
    ) {
        if let Ok(hello) = RankHello::decode(&long) {
            prop_assert_eq!(RankHello::decode(&hello.encode()), Ok(hello));
        }
        if let Ok(reply) = HandshakeReply::decode(&reply) {
            prop_assert_eq!(HandshakeReply::decode(&reply.encode()), Ok(reply));
        }
        if let Ok(proof) = Proof::decode(&middle) {
            prop_assert_eq!(Proof::decode(&proof.encode()), Ok(proof));
        }
    }
}

#[test]
fn another_version_is_named() {
    let mut bytes = Proof { proof: [1; 32] }.encode();
    bytes[4] = 9;
    assert_eq!(Proof::decode(&bytes), Err(FrameError::Version { found: 9 }));
}
