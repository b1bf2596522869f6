//! A job's secrets, sealed for a store that others can read. Used by the driver's process for `--store`.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::identity::secret::{NoRandomness, random_bytes};
use crate::identity::shared::SharedSecret;

/// First bytes of sealed secrets. Secrets in the clear begin otherwise.
const MARK: &[u8] = b"elastic-node sealed 1\n";

/// Sealed bytes that cannot be opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum UnsealError {
    /// The bytes were sealed with another secret, or changed.
    #[error("they were sealed with another secret")]
    OtherSecret,
    /// There is no secret to open them with.
    #[error("they are sealed, and no secret is given")]
    NoSecret,
}

/// Seals bytes, so that only a holder of the secret can read or change them.
///
/// # Errors
/// [`NoRandomness`].
pub fn seal(secret: &SharedSecret, bytes: &[u8]) -> Result<Vec<u8>, NoRandomness> {
    let nonce: [u8; NONCE_LEN] = random_bytes()?;
    let mut sealed = bytes.to_vec();
    key(secret)
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(MARK), &mut sealed)
        .map_err(|_| NoRandomness)?;
    Ok([MARK, &nonce, &sealed].concat())
}

/// Whether bytes are sealed.
pub fn is_sealed(bytes: &[u8]) -> bool {
    bytes.starts_with(MARK)
}

/// Opens sealed bytes. Bytes that are not sealed are returned as they are.
///
/// # Errors
/// [`UnsealError`].
pub fn open(secret: Option<&SharedSecret>, bytes: &[u8]) -> Result<Vec<u8>, UnsealError> {
    let Some(rest) = bytes.strip_prefix(MARK) else { return Ok(bytes.to_vec()) };
    let secret = secret.ok_or(UnsealError::NoSecret)?;
    let (nonce, sealed) = rest.split_first_chunk().ok_or(UnsealError::OtherSecret)?;
    let mut sealed = sealed.to_vec();
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let opened = key(secret).open_in_place(nonce, Aad::from(MARK), &mut sealed);
    opened.map(|bytes| bytes.to_vec()).map_err(|_| UnsealError::OtherSecret)
}

fn key(secret: &SharedSecret) -> LessSafeKey {
    let bytes = secret.sealing();
    LessSafeKey::new(
        UnboundKey::new(&AES_256_GCM, &bytes).expect("the key has the cipher's length"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_12_only_a_holder_of_the_secret_opens_what_is_sealed() {
        let secret = SharedSecret::of("a long random text");
        let sealed = seal(&secret, b"a private key").expect("random numbers");
        assert!(!sealed.windows(7).any(|part| part == b"private"));
        assert_eq!(open(Some(&secret), &sealed), Ok(b"a private key".to_vec()));
        let other = SharedSecret::of("another text");
        assert_eq!(open(Some(&other), &sealed), Err(UnsealError::OtherSecret));
        assert_eq!(open(None, &sealed), Err(UnsealError::NoSecret));
        let mut changed = sealed.clone();
        *changed.last_mut().expect("bytes") ^= 1;
        assert_eq!(open(Some(&secret), &changed), Err(UnsealError::OtherSecret));
        assert_eq!(open(None, b"plain"), Ok(b"plain".to_vec()));
        assert!(is_sealed(&sealed) && !is_sealed(b"plain"));
        assert_ne!(seal(&secret, b"a private key").expect("random numbers"), sealed);
    }
}
