//! The handshake of a connection: the dialer sends [`RankHello`], the acceptor a [`HandshakeReply`] with its proof, the
//! dialer its [`Proof`]. The link is established after this round trip. A proof is an HMAC-SHA256 over both nonces and
//! all earlier messages, under the generation's key. The hello carries one over itself: it can be replayed, so it
//! establishes nothing, but an acceptor keeps no connection without it.

use super::{FrameError, VERSION, array_at, u32_at, u64_at};

/// The length of [`RankHello`], in bytes.
pub const HELLO_LENGTH: usize = SIGNED_LENGTH + 32;
/// The part of [`RankHello`] that its proof covers, in bytes: all before the proof.
pub const SIGNED_LENGTH: usize = 72;
/// The length of [`HandshakeReply`], in bytes.
pub const REPLY_LENGTH: usize = 72;
/// The length of [`Proof`], in bytes.
pub const PROOF_LENGTH: usize = 40;

const MAGIC: [u8; 4] = *b"ELCO";
const KIND_HELLO: u8 = 1;
const KIND_WELCOME: u8 = 2;
const KIND_REFUSED: u8 = 3;
const KIND_PROOF: u8 = 4;

fn preamble(bytes: &mut [u8], kind: u8) {
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    bytes[5] = kind;
}

/// The kind of a message whose magic and version are right.
fn kind(bytes: &[u8]) -> Result<u8, FrameError> {
    if bytes[..4] != MAGIC {
        return Err(FrameError::Magic);
    }
    if bytes[4] != VERSION {
        return Err(FrameError::Version { found: bytes[4] });
    }
    Ok(bytes[5])
}

fn expect_kind(bytes: &[u8], expected: u8) -> Result<(), FrameError> {
    match kind(bytes)? {
        found if found == expected => Ok(()),
        found => Err(FrameError::Kind { found }),
    }
}

/// The first message, from the dialer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankHello {
    /// The driver's term.
    pub term: u64,
    /// The generation that the dialer forms.
    pub generation: u64,
    /// The dialer's world size.
    pub world_size: u32,
    /// The dialer's rank.
    pub rank: u32,
    /// The rank that the dialer expects the acceptor to have.
    pub target: u32,
    /// The group of the generation that the dialer forms: 0 is all ranks, 1 those of its host. They form in this
    /// order.
    pub part: u32,
    /// The number of this connection among the pair's streams, from 0.
    pub stream: u8,
    /// Fresh random bytes.
    pub nonce: [u8; 32],
    /// HMAC-SHA256 over the label of hellos and the [`SIGNED_LENGTH`] bytes before it.
    pub proof: [u8; 32],
}

impl RankHello {
    /// The bytes of the message.
    pub fn encode(&self) -> [u8; HELLO_LENGTH] {
        let mut bytes = [0; HELLO_LENGTH];
        preamble(&mut bytes, KIND_HELLO);
        bytes[6] = self.stream;
        bytes[8..16].copy_from_slice(&self.term.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.world_size.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.rank.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.target.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.part.to_le_bytes());
        bytes[40..72].copy_from_slice(&self.nonce);
        bytes[SIGNED_LENGTH..].copy_from_slice(&self.proof);
        bytes
    }

    /// Decodes a message. Its proof is not checked.
    ///
    /// # Errors
    ///
    /// Another magic, version or kind.
    pub fn decode(bytes: &[u8; HELLO_LENGTH]) -> Result<RankHello, FrameError> {
        expect_kind(bytes, KIND_HELLO)?;
        Ok(RankHello {
            term: u64_at(bytes, 8),
            generation: u64_at(bytes, 16),
            world_size: u32_at(bytes, 24),
            rank: u32_at(bytes, 28),
            target: u32_at(bytes, 32),
            part: u32_at(bytes, 36),
            stream: bytes[6],
            nonce: array_at(bytes, 40),
            proof: array_at(bytes, SIGNED_LENGTH),
        })
    }
}

/// The reason why an acceptor refuses a dialer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HandshakeRefusal {
    /// The acceptor is in a newer generation.
    Stale = 1,
    /// Rank, target or world size do not fit the acceptor's group.
    WrongGroup = 2,
    /// The acceptor is still in an older generation, whose key cannot authenticate the dialer: dial again later.
    NotYet = 3,
}

impl HandshakeRefusal {
    fn from_code(code: u8) -> Option<HandshakeRefusal> {
        [HandshakeRefusal::Stale, HandshakeRefusal::WrongGroup, HandshakeRefusal::NotYet]
            .into_iter()
            .find(|refusal| *refusal as u8 == code)
    }
}

/// The acceptor's answer to [`RankHello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeReply {
    /// The dialer may go on: the acceptor's nonce and its proof.
    Welcome {
        /// Fresh random bytes.
        nonce: [u8; 32],
        /// HMAC-SHA256 over the acceptor's label, the hello and this nonce.
        proof: [u8; 32],
    },
    /// The acceptor refuses the dialer.
    Refused {
        /// The reason.
        refusal: HandshakeRefusal,
        /// The acceptor's term.
        term: u64,
        /// The acceptor's generation.
        generation: u64,
    },
}

impl HandshakeReply {
    /// The bytes of the message.
    pub fn encode(&self) -> [u8; REPLY_LENGTH] {
        let mut bytes = [0; REPLY_LENGTH];
        match self {
            HandshakeReply::Welcome { nonce, proof } => {
                preamble(&mut bytes, KIND_WELCOME);
                bytes[8..40].copy_from_slice(nonce);
                bytes[40..72].copy_from_slice(proof);
            }
            HandshakeReply::Refused { refusal, term, generation } => {
                preamble(&mut bytes, KIND_REFUSED);
                bytes[6] = *refusal as u8;
                bytes[8..16].copy_from_slice(&term.to_le_bytes());
                bytes[16..24].copy_from_slice(&generation.to_le_bytes());
            }
        }
        bytes
    }

    /// Decodes a message.
    ///
    /// # Errors
    ///
    /// Another magic, version or kind, or an unknown refusal.
    pub fn decode(bytes: &[u8; REPLY_LENGTH]) -> Result<HandshakeReply, FrameError> {
        match kind(bytes)? {
            KIND_WELCOME => Ok(HandshakeReply::Welcome {
                nonce: array_at(bytes, 8),
                proof: array_at(bytes, 40),
            }),
            KIND_REFUSED => {
                let refusal = HandshakeRefusal::from_code(bytes[6])
                    .ok_or(FrameError::Field { field: "refusal", value: bytes[6].into() })?;
                let (term, generation) = (u64_at(bytes, 8), u64_at(bytes, 16));
                Ok(HandshakeReply::Refused { refusal, term, generation })
            }
            found => Err(FrameError::Kind { found }),
        }
    }
}

/// The dialer's proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// HMAC-SHA256 over the dialer's label, the hello and the acceptor's nonce.
    pub proof: [u8; 32],
}

impl Proof {
    /// The bytes of the message.
    pub fn encode(&self) -> [u8; PROOF_LENGTH] {
        let mut bytes = [0; PROOF_LENGTH];
        preamble(&mut bytes, KIND_PROOF);
        bytes[8..40].copy_from_slice(&self.proof);
        bytes
    }

    /// Decodes a message.
    ///
    /// # Errors
    ///
    /// Another magic, version or kind.
    pub fn decode(bytes: &[u8; PROOF_LENGTH]) -> Result<Proof, FrameError> {
        expect_kind(bytes, KIND_PROOF)?;
        Ok(Proof { proof: array_at(bytes, 8) })
    }
}
