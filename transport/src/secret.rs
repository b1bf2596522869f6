//! [`Secret`]: 32 random bytes that no log shows and that are compared in constant time.

use std::fmt;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

/// What a join token proves; knowing it is the right to enrol.
#[derive(Clone, Deserialize, Serialize)]
pub struct Secret([u8; 32]);

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

impl Secret {
    /// A new one.
    ///
    /// # Errors
    /// [`NoRandomness`].
    pub fn generate() -> Result<Self, NoRandomness> {
        random_bytes().map(Self)
    }

    /// Another secret, for a name: who knows it learns nothing of this one (HMAC-SHA256).
    pub(crate) fn derive(&self, name: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(hmac::sign(&self.key(), name).as_ref());
        Self(bytes)
    }

    /// As a key.
    pub(crate) fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }

    /// As the key of a hash that need not withstand attacks.
    pub(crate) fn number(&self) -> u64 {
        let derived = self.derive(b"number");
        u64::from_le_bytes(*derived.0.first_chunk().expect("32 bytes"))
    }

    /// Whether both are the same, in a time that does not tell where they differ.
    pub fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(hidden)")
    }
}
