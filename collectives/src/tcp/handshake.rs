//! The handshake's two state machines, on bytes: no socket, no clock. The forming loop drives them.

use ring::hmac;

use super::flow::Lane;
use super::seal::Secret;
use crate::wire::{HELLO_LENGTH, Hello, PROOF_LENGTH, Proof, REPLY_LENGTH, Refusal, Reply};

/// The longest handshake message, in bytes.
pub(crate) const LONGEST: usize = HELLO_LENGTH;

const LABEL_ACCEPTOR: &[u8] = b"elastic-collectives acceptor";
const LABEL_DIALER: &[u8] = b"elastic-collectives dialer";
const LABEL_SECRET: &[u8] = b"elastic-collectives secret";

/// The group as a handshake sees it.
pub(crate) struct Identity {
    pub(crate) term: u64,
    pub(crate) generation: u64,
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) part: u32,
    /// How many connections each pair has.
    pub(crate) streams: u32,
    pub(crate) key: hmac::Key,
}

/// What one connection adds to what is signed: a number of its TLS session, or nothing.
pub(crate) type Binding<'a> = &'a [u8];

impl Identity {
    fn sign(&self, label: &[u8], hello: &[u8], nonce: &[u8], binding: Binding<'_>) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [label, hello, nonce, binding] {
            context.update(part);
        }
        let mut proof = [0; 32];
        proof.copy_from_slice(context.sign().as_ref());
        proof
    }

    /// What the link is encrypted with, if it is.
    fn secret(&self, hello: &[u8], nonce: &[u8]) -> Secret {
        Secret(self.sign(LABEL_SECRET, hello, nonce, &[]))
    }

    /// Compares in constant time.
    fn verify(
        &self,
        label: &[u8],
        hello: &[u8],
        nonce: &[u8],
        binding: Binding<'_>,
        proof: &[u8; 32],
    ) -> bool {
        let parts = [label, hello, nonce, binding].concat();
        hmac::verify(&self.key, &parts, proof).is_ok()
    }
}

/// What a message leads to.
pub(crate) enum Step {
    /// Send this, if anything, and wait for the next message.
    Continue(Vec<u8>),
    /// Send this, if anything; the link to this rank stands, and its ends share a secret.
    Established(Lane, Vec<u8>, Secret),
    /// Keep the connection and its hello for the next generation.
    Park,
    /// Send this, if anything, and close; the text says why.
    Refuse(Vec<u8>, String),
}

/// Where a connection stands: the message that is due.
#[derive(Debug)]
pub(crate) enum Stage {
    Hello,
    Proof { hello: [u8; HELLO_LENGTH], lane: Lane, nonce: [u8; 32] },
    Reply { hello: [u8; HELLO_LENGTH], target: Lane },
}

impl Stage {
    /// The dialer's first message, and its stage after that.
    pub(crate) fn dial(identity: &Identity, target: Lane, nonce: [u8; 32]) -> (Stage, Vec<u8>) {
        let hello = Hello {
            term: identity.term,
            generation: identity.generation,
            world_size: identity.world,
            rank: identity.rank,
            target: target.rank,
            part: identity.part,
            // Below STREAMS_MOST.
            stream: target.stream as u8,
            nonce,
        }
        .encode();
        (Stage::Reply { hello, target }, hello.to_vec())
    }

    /// The length of the message that is due, in bytes.
    pub(crate) fn due(&self) -> usize {
        match self {
            Stage::Hello => HELLO_LENGTH,
            Stage::Proof { .. } => PROOF_LENGTH,
            Stage::Reply { .. } => REPLY_LENGTH,
        }
    }

    /// Takes the message that is due. `nonce` is fresh.
    pub(crate) fn handle(
        &mut self,
        identity: &Identity,
        message: &[u8; LONGEST],
        nonce: [u8; 32],
        binding: Binding<'_>,
    ) -> Step {
        match self {
            Stage::Hello => self.handle_hello(identity, message, nonce, binding),
            Stage::Proof { hello, lane, nonce } => {
                let accepted = Proof::decode(&prefix(message)).is_ok_and(|proof| {
                    identity.verify(LABEL_DIALER, hello, nonce, binding, &proof.proof)
                });
                if accepted {
                    Step::Established(*lane, Vec::new(), identity.secret(hello, nonce))
                } else {
                    Step::Refuse(Vec::new(), format!("the proof of rank {} is wrong", lane.rank))
                }
            }
            Stage::Reply { hello, target } => {
                let (hello, target) = (*hello, *target);
                match Reply::decode(message) {
                    Err(error) => refuse(format!("its answer is none of this protocol: {error}")),
                    Ok(Reply::Refused { refusal, term, generation }) => {
                        let why = match refusal {
                            Refusal::Stale => "is in",
                            Refusal::WrongGroup => "has another group in",
                        };
                        refuse(format!("it {why} generation {generation} of term {term}"))
                    }
                    Ok(Reply::Welcome { nonce, proof }) => {
                        if !identity.verify(LABEL_ACCEPTOR, &hello, &nonce, binding, &proof) {
                            return refuse("its key is not the generation's".to_owned());
                        }
                        let proof = identity.sign(LABEL_DIALER, &hello, &nonce, binding);
                        let secret = identity.secret(&hello, &nonce);
                        Step::Established(target, Proof { proof }.encode().to_vec(), secret)
                    }
                }
            }
        }
    }

    fn handle_hello(
        &mut self,
        identity: &Identity,
        message: &[u8; HELLO_LENGTH],
        nonce: [u8; 32],
        binding: Binding<'_>,
    ) -> Step {
        let hello = match Hello::decode(message) {
            Ok(hello) => hello,
            Err(error) => return refuse(format!("no hello: {error}")),
        };
        let theirs = (hello.term, hello.generation, hello.part);
        let ours = (identity.term, identity.generation, identity.part);
        let refusal = if theirs > ours {
            return Step::Park;
        } else if theirs < ours {
            Refusal::Stale
        } else if hello.world_size != identity.world
            || hello.target != identity.rank
            || hello.rank <= identity.rank
            || hello.rank >= identity.world
            || u32::from(hello.stream) >= identity.streams
        {
            Refusal::WrongGroup
        } else {
            let proof = identity.sign(LABEL_ACCEPTOR, message, &nonce, binding);
            let lane = Lane { rank: hello.rank, stream: hello.stream.into() };
            *self = Stage::Proof { hello: *message, lane, nonce };
            return Step::Continue(Reply::Welcome { nonce, proof }.encode().to_vec());
        };
        let (term, generation, _) = ours;
        let reply = Reply::Refused { refusal, term, generation }.encode().to_vec();
        let why = format!("a hello of rank {}, generation {theirs:?}: {refusal:?}", hello.rank);
        Step::Refuse(reply, why)
    }
}

fn refuse(why: String) -> Step {
    Step::Refuse(Vec::new(), why)
}

pub(crate) fn prefix<const N: usize>(message: &[u8; LONGEST]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&message[..N]);
    bytes
}
