//! Seals: stored bytes carry a checksum over their number and content. Called by `file` and `etcd`. A flipped bit, or a
//! record in the place of another, is thus detected even if the store below checks nothing.

use xxhash_rust::xxh3::xxh3_64_with_seed;

const SEAL_BYTES: usize = size_of::<u64>();

/// The bytes to store for a record or snapshot of this number.
pub(crate) fn seal(number: u64, bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(SEAL_BYTES + bytes.len());
    sealed.extend_from_slice(&xxh3_64_with_seed(bytes, number).to_le_bytes());
    sealed.extend_from_slice(bytes);
    sealed
}

/// The bytes that were sealed under this number; `None` if the checksum does not match.
pub(crate) fn open(number: u64, sealed: &[u8]) -> Option<&[u8]> {
    let (sum, bytes) = sealed.split_first_chunk::<SEAL_BYTES>()?;
    (u64::from_le_bytes(*sum) == xxh3_64_with_seed(bytes, number)).then_some(bytes)
}
