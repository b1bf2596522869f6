//! [`TokenSecret`]: 32 random bytes that are never logged, and that are compared in constant time.

use std::fmt;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

/// The secret of a join token; its holder has the right to enrol.
#[derive(Clone, Deserialize, Serialize)]
pub struct TokenSecret([u8; 32]);

/// The operating system gave no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("the operating system gave no random numbers")]
pub struct NoRandomness;

/// `N` bytes from the operating system's random numbers.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

impl TokenSecret {
    /// A new, random secret.
    ///
    /// # Errors
    /// [`NoRandomness`].
    pub fn generate() -> Result<Self, NoRandomness> {
        random_bytes().map(Self)
    }

    /// A secret from derived bytes.
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, for derivations.
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Derives a secret for a name (HMAC-SHA256). The derived secret reveals nothing of this one.
    pub(crate) fn derive(&self, name: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(hmac::sign(&self.key(), name).as_ref());
        Self(bytes)
    }

    /// The secret as a key.
    pub(crate) fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }

    /// A number from the secret, as the key of a hash that need not withstand attacks.
    pub(crate) fn number(&self) -> u64 {
        let derived = self.derive(b"number");
        u64::from_le_bytes(*derived.0.first_chunk().expect("32 bytes"))
    }

    /// Whether both are the same, in constant time.
    pub fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(hidden)")
    }
}
