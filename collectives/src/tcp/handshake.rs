//! The handshake's two state machines, on bytes: no socket, no clock. The forming loop drives them.

use ring::hmac;

use super::flow::StreamLane;
use super::seal::SealSecret;
use crate::wire::{
    HELLO_LENGTH, HandshakeRefusal, HandshakeReply, PROOF_LENGTH, Proof, REPLY_LENGTH, RankHello,
    SIGNED_LENGTH,
};

/// The longest handshake message, in bytes.
pub(crate) const LONGEST: usize = HELLO_LENGTH;

const LABEL_HELLO: &[u8] = b"elastic-collectives hello";
const LABEL_ACCEPTOR: &[u8] = b"elastic-collectives acceptor";
const LABEL_DIALER: &[u8] = b"elastic-collectives dialer";
const LABEL_SECRET: &[u8] = b"elastic-collectives secret";

/// The group as a handshake sees it.
pub(crate) struct RankIdentity {
    pub(crate) term: u64,
    pub(crate) generation: u64,
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) part: u32,
    /// The number of connections of each pair.
    pub(crate) streams: u32,
    pub(crate) key: hmac::Key,
}

/// The connection's part of the signed bytes: the secret number of its TLS session, or empty.
pub(crate) type BindingBytes<'a> = &'a [u8];

impl RankIdentity {
    fn sign(
        &self,
        label: &[u8],
        hello: &[u8],
        nonce: &[u8],
        binding: BindingBytes<'_>,
    ) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [label, hello, nonce, binding] {
            context.update(part);
        }
        let mut proof = [0; 32];
        proof.copy_from_slice(context.sign().as_ref());
        proof
    }

    /// The secret from which the link's encryption keys are derived, if it is encrypted.
    fn secret(&self, hello: &[u8], nonce: &[u8]) -> SealSecret {
        SealSecret(self.sign(LABEL_SECRET, hello, nonce, &[]))
    }

    /// Compares in constant time.
    fn verify(
        &self,
        label: &[u8],
        hello: &[u8],
        nonce: &[u8],
        binding: BindingBytes<'_>,
        proof: &[u8; 32],
    ) -> bool {
        let parts = [label, hello, nonce, binding].concat();
        hmac::verify(&self.key, &parts, proof).is_ok()
    }
}

/// The action that follows from a message.
pub(crate) enum HandshakeStep {
    /// Send these bytes, if any, and wait for the next message.
    Continue(Vec<u8>),
    /// Send these bytes, if any; the link to this rank is established, and its ends share a secret.
    Established(StreamLane, Vec<u8>, SealSecret),
    /// Keep the connection and its hello for the next group of this generation.
    Park,
    /// Send these bytes, if any, and close; the text is the reason.
    Refuse(Vec<u8>, String),
}

/// The stage of a handshake: the message that is due.
#[derive(Debug)]
pub(crate) enum HandshakeStage {
    Hello,
    Proof { hello: [u8; HELLO_LENGTH], lane: StreamLane, nonce: [u8; 32] },
    Reply { hello: [u8; HELLO_LENGTH], target: StreamLane },
}

impl HandshakeStage {
    /// The dialer's first message, and its stage after that.
    pub(crate) fn dial(
        identity: &RankIdentity,
        target: StreamLane,
        nonce: [u8; 32],
    ) -> (HandshakeStage, Vec<u8>) {
        let mut hello = RankHello {
            term: identity.term,
            generation: identity.generation,
            world_size: identity.world,
            rank: identity.rank,
            target: target.rank,
            part: identity.part,
            // The number is below STREAMS_MOST, so it fits a byte.
            stream: target.stream as u8,
            nonce,
            proof: [0; 32],
        }
        .encode();
        // The signed bytes include the nonce.
        let proof = identity.sign(LABEL_HELLO, &hello[..SIGNED_LENGTH], &[], &[]);
        hello[SIGNED_LENGTH..].copy_from_slice(&proof);
        (HandshakeStage::Reply { hello, target }, hello.to_vec())
    }

    /// The length of the message that is due, in bytes.
    pub(crate) fn due(&self) -> usize {
        match self {
            HandshakeStage::Hello => HELLO_LENGTH,
            HandshakeStage::Proof { .. } => PROOF_LENGTH,
            HandshakeStage::Reply { .. } => REPLY_LENGTH,
        }
    }

    /// Handles the message that is due. `nonce` is fresh.
    pub(crate) fn handle(
        &mut self,
        identity: &RankIdentity,
        message: &[u8; LONGEST],
        nonce: [u8; 32],
        binding: BindingBytes<'_>,
    ) -> HandshakeStep {
        match self {
            HandshakeStage::Hello => self.handle_hello(identity, message, nonce, binding),
            HandshakeStage::Proof { hello, lane, nonce } => {
                let accepted = Proof::decode(&prefix(message)).is_ok_and(|proof| {
                    identity.verify(LABEL_DIALER, hello, nonce, binding, &proof.proof)
                });
                if accepted {
                    HandshakeStep::Established(*lane, Vec::new(), identity.secret(hello, nonce))
                } else {
                    HandshakeStep::Refuse(
                        Vec::new(),
                        format!("the proof of rank {} is wrong", lane.rank),
                    )
                }
            }
            HandshakeStage::Reply { hello, target } => {
                let (hello, target) = (*hello, *target);
                match HandshakeReply::decode(&prefix(message)) {
                    Err(error) => refuse(format!("its answer is none of this protocol: {error}")),
                    Ok(HandshakeReply::Refused { refusal, term, generation }) => {
                        let why = match refusal {
                            HandshakeRefusal::Stale => "is in",
                            HandshakeRefusal::NotYet => "is still in",
                            HandshakeRefusal::WrongGroup => "has another group in",
                        };
                        refuse(format!("it {why} generation {generation} of term {term}"))
                    }
                    Ok(HandshakeReply::Welcome { nonce, proof }) => {
                        if !identity.verify(LABEL_ACCEPTOR, &hello, &nonce, binding, &proof) {
                            return refuse("its key is not the generation's".to_owned());
                        }
                        let proof = identity.sign(LABEL_DIALER, &hello, &nonce, binding);
                        let secret = identity.secret(&hello, &nonce);
                        HandshakeStep::Established(
                            target,
                            Proof { proof }.encode().to_vec(),
                            secret,
                        )
                    }
                }
            }
        }
    }

    fn handle_hello(
        &mut self,
        identity: &RankIdentity,
        message: &[u8; HELLO_LENGTH],
        nonce: [u8; 32],
        binding: BindingBytes<'_>,
    ) -> HandshakeStep {
        let hello = match RankHello::decode(message) {
            Ok(hello) => hello,
            Err(error) => return refuse(format!("no hello: {error}")),
        };
        let theirs = (hello.term, hello.generation, hello.part);
        let ours = (identity.term, identity.generation, identity.part);
        let is_of_generation = theirs.0 == ours.0 && theirs.1 == ours.1;
        let signed = &message[..SIGNED_LENGTH];
        if is_of_generation && !identity.verify(LABEL_HELLO, signed, &[], &[], &hello.proof) {
            let rank = hello.rank;
            return refuse(format!("a hello of rank {rank} without the generation's key"));
        }
        let refusal = if theirs > ours {
            if is_of_generation {
                return HandshakeStep::Park;
            }
            HandshakeRefusal::NotYet
        } else if theirs < ours {
            HandshakeRefusal::Stale
        } else if hello.world_size != identity.world
            || hello.target != identity.rank
            || hello.rank <= identity.rank
            || hello.rank >= identity.world
            || u32::from(hello.stream) >= identity.streams
        {
            HandshakeRefusal::WrongGroup
        } else {
            let proof = identity.sign(LABEL_ACCEPTOR, message, &nonce, binding);
            let lane = StreamLane { rank: hello.rank, stream: hello.stream.into() };
            *self = HandshakeStage::Proof { hello: *message, lane, nonce };
            return HandshakeStep::Continue(
                HandshakeReply::Welcome { nonce, proof }.encode().to_vec(),
            );
        };
        let (term, generation, _) = ours;
        let reply = HandshakeReply::Refused { refusal, term, generation }.encode().to_vec();
        let why = format!("a hello of rank {}, generation {theirs:?}: {refusal:?}", hello.rank);
        HandshakeStep::Refuse(reply, why)
    }
}

fn refuse(why: String) -> HandshakeStep {
    HandshakeStep::Refuse(Vec::new(), why)
}

pub(crate) fn prefix<const N: usize>(message: &[u8; LONGEST]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&message[..N]);
    bytes
}
