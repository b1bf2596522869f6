//! The handshake of a connection: the dialer says [`Hello`], the acceptor a [`Reply`] with its proof,
//! the dialer its [`Proof`]: a round trip, after which the link stands. A proof is an HMAC-SHA256 over both nonces and
//! all that was said, under the generation's key, so neither side talks to who does not hold it.

use super::{VERSION, WireError, array_at, u32_at, u64_at};

/// The length of [`Hello`], in bytes.
pub const HELLO_LENGTH: usize = 72;
/// The length of [`Reply`], in bytes.
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
fn kind(bytes: &[u8]) -> Result<u8, WireError> {
    if bytes[..4] != MAGIC {
        return Err(WireError::Magic);
    }
    if bytes[4] != VERSION {
        return Err(WireError::Version { found: bytes[4] });
    }
    Ok(bytes[5])
}

fn expect_kind(bytes: &[u8], expected: u8) -> Result<(), WireError> {
    match kind(bytes)? {
        found if found == expected => Ok(()),
        found => Err(WireError::Kind { found }),
    }
}

/// The first message, from the dialer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The driver's term.
    pub term: u64,
    /// The generation that the dialer forms.
    pub generation: u64,
    /// The size of its world.
    pub world_size: u32,
    /// The dialer's rank.
    pub rank: u32,
    /// The rank that the dialer takes the acceptor for.
    pub target: u32,
    /// Which of the generation's groups the dialer forms: 0 is all ranks, 1 those of its host. They form in
    /// this order.
    pub part: u32,
    /// Which of the pair's streams this connection is, from 0 on.
    pub stream: u8,
    /// Fresh random bytes.
    pub nonce: [u8; 32],
}

impl Hello {
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
        bytes
    }

    /// The message of these bytes.
    ///
    /// # Errors
    ///
    /// Another magic, version or kind.
    pub fn decode(bytes: &[u8; HELLO_LENGTH]) -> Result<Hello, WireError> {
        expect_kind(bytes, KIND_HELLO)?;
        Ok(Hello {
            term: u64_at(bytes, 8),
            generation: u64_at(bytes, 16),
            world_size: u32_at(bytes, 24),
            rank: u32_at(bytes, 28),
            target: u32_at(bytes, 32),
            part: u32_at(bytes, 36),
            stream: bytes[6],
            nonce: array_at(bytes, 40),
        })
    }
}

/// Why an acceptor sends a dialer away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The acceptor is in a newer generation.
    Stale = 1,
    /// Rank, target or world size do not fit the acceptor's group.
    WrongGroup = 2,
}

impl Refusal {
    fn from_code(code: u8) -> Option<Refusal> {
        [Refusal::Stale, Refusal::WrongGroup].into_iter().find(|refusal| *refusal as u8 == code)
    }
}

/// The acceptor's answer to [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Go on: here is the acceptor's nonce and its proof.
    Welcome {
        /// Fresh random bytes.
        nonce: [u8; 32],
        /// HMAC-SHA256 over the acceptor's label, the hello and this nonce.
        proof: [u8; 32],
    },
    /// Go away.
    Refused {
        /// Why.
        refusal: Refusal,
        /// The acceptor's term.
        term: u64,
        /// The acceptor's generation.
        generation: u64,
    },
}

impl Reply {
    /// The bytes of the message.
    pub fn encode(&self) -> [u8; REPLY_LENGTH] {
        let mut bytes = [0; REPLY_LENGTH];
        match self {
            Reply::Welcome { nonce, proof } => {
                preamble(&mut bytes, KIND_WELCOME);
                bytes[8..40].copy_from_slice(nonce);
                bytes[40..72].copy_from_slice(proof);
            }
            Reply::Refused { refusal, term, generation } => {
                preamble(&mut bytes, KIND_REFUSED);
                bytes[6] = *refusal as u8;
                bytes[8..16].copy_from_slice(&term.to_le_bytes());
                bytes[16..24].copy_from_slice(&generation.to_le_bytes());
            }
        }
        bytes
    }

    /// The message of these bytes.
    ///
    /// # Errors
    ///
    /// Another magic, version or kind, or an unknown refusal.
    pub fn decode(bytes: &[u8; REPLY_LENGTH]) -> Result<Reply, WireError> {
        match kind(bytes)? {
            KIND_WELCOME => {
                Ok(Reply::Welcome { nonce: array_at(bytes, 8), proof: array_at(bytes, 40) })
            }
            KIND_REFUSED => {
                let refusal = Refusal::from_code(bytes[6])
                    .ok_or(WireError::Field { field: "refusal", value: bytes[6].into() })?;
                let (term, generation) = (u64_at(bytes, 8), u64_at(bytes, 16));
                Ok(Reply::Refused { refusal, term, generation })
            }
            found => Err(WireError::Kind { found }),
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

    /// The message of these bytes.
    ///
    /// # Errors
    ///
    /// Another magic, version or kind.
    pub fn decode(bytes: &[u8; PROOF_LENGTH]) -> Result<Proof, WireError> {
        expect_kind(bytes, KIND_PROOF)?;
        Ok(Proof { proof: array_at(bytes, 8) })
    }
}
