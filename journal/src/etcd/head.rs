//! [`Head`]: the records and the snapshot that are valid. Called by `journal` and `election`. The head is one key, written
//! last: records that it does not name were never acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{JournalError, seal};

const FORM: u8 = 1;
const BYTES: usize = 1 + 3 * size_of::<u64>();

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Head {
    /// The number of the first stored record, if there is one: the snapshot's number plus one.
    pub(super) first: u64,
    /// The number of the last record.
    pub(super) last: u64,
    /// The number of the snapshot; 0 if there is none.
    pub(super) snapshot: u64,
}

impl Head {
    pub(super) const fn empty() -> Self {
        Self { first: 1, last: 0, snapshot: 0 }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = vec![FORM];
        for number in [self.first, self.last, self.snapshot] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        seal::seal(self.last, &bytes)
    }

    pub(super) fn decode(sealed: &[u8]) -> Result<Self, JournalError> {
        let damaged = || JournalError::Corrupt("its head is not what was written".to_owned());
        // The seal covers a number that is inside the bytes, so that number is read first and verified
        // afterwards.
        let bytes = sealed.get(size_of::<u64>()..).ok_or_else(damaged)?;
        if bytes.len() != BYTES {
            return Err(damaged());
        }
        let (form, numbers) = bytes.split_first().ok_or_else(damaged)?;
        let mut numbers = numbers
            .chunks_exact(size_of::<u64>())
            .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("chunks of eight bytes")));
        let mut next = || numbers.next().ok_or_else(damaged);
        let head = Self { first: next()?, last: next()?, snapshot: next()? };
        seal::open(head.last, sealed).ok_or_else(damaged)?;
        if *form != FORM {
            let what = format!("its head has form {form}; this program knows form {FORM}");
            return Err(JournalError::Corrupt(what));
        }
        Ok(head)
    }
}

/// The number of the last record that this process has seen stored in its job's journal, or has stored itself; 0 before
/// the first. Clones share it: candidates and leaderships of one process, one after another.
#[derive(Clone, Debug, Default)]
pub struct SeenRecords(Arc<AtomicU64>);

impl SeenRecords {
    /// The number.
    pub fn last(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn note(&self, head: Head) {
        self.0.fetch_max(head.last, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turned_bit_is_seen() {
        let head = Head { first: 5, last: 9, snapshot: 4 };
        let sealed = head.encode();
        assert_eq!(Head::decode(&sealed).expect("as written"), head);
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Head::decode(&damaged), Err(JournalError::Corrupt(_))), "bit {bit}");
        }
        assert!(Head::decode(&sealed[1..]).is_err() && Head::decode(&[]).is_err());
    }
}
