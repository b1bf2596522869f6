//! Blocks of the commit from which a state is decoded, without a copy of them. For bindings of other languages, which
//! decode a commit first and copy its arrays into place later. Used by `State::restore`.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use elastic_checkpoint::{CheckpointLoadError, StoredCommit};
use serde::de::{DeserializeOwned, Visitor};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The bytes of a commit.
#[derive(Clone, Debug)]
pub(super) struct CommitContent {
    pub(super) bytes: Arc<Vec<u8>>,
    /// The files that the arrays are in; `bytes` has nothing in their places then.
    pub(super) stored: Option<Arc<StoredCommit>>,
}

thread_local! {
    /// The commit that is being decoded on this thread.
    static DECODED: RefCell<Option<CommitContent>> = const { RefCell::new(None) };
}

/// Bytes of a state. Decoded as a part of a `State`, they are a range of its commit, which stays in memory, or in the files of a
/// checkpoint, as long as the block; decoded elsewhere, they are a copy. Encoded like `serde_bytes::Bytes`.
#[derive(Clone)]
pub struct RestoredBlock {
    holder: CommitContent,
    range: Range<usize>,
}

impl RestoredBlock {
    /// The number of bytes.
    pub fn length(&self) -> usize {
        self.range.len()
    }

    /// Copies the bytes into memory of the same length.
    ///
    /// # Errors
    /// They are in the files of a checkpoint, which cannot be read any more, or have changed.
    ///
    /// # Panics
    /// `into` has another length.
    pub fn copy_into(&self, into: &mut [u8]) -> Result<(), CheckpointLoadError> {
        match &self.holder.stored {
            Some(stored) => stored.read(&self.range, into),
            None => {
                into.copy_from_slice(&self.holder.bytes[self.range.clone()]);
                Ok(())
            }
        }
    }

    fn of(bytes: &[u8]) -> Self {
        let in_commit = DECODED.with_borrow(|commit| {
            let CommitContent { bytes: holder, stored } = commit.as_ref()?;
            let start = (bytes.as_ptr() as usize).checked_sub(holder.as_ptr() as usize)?;
            let range = start..start + bytes.len();
            // An address of another allocation is beyond the commit, or before it.
            holder.get(range.clone())?;
            // Bytes that belong to no array are always in memory.
            let stored = stored.clone().filter(|stored| stored.has_arrays_in(&range));
            Some(Self { holder: CommitContent { bytes: Arc::clone(holder), stored }, range })
        });
        in_commit.unwrap_or_else(|| {
            let holder = CommitContent { bytes: Arc::new(bytes.to_vec()), stored: None };
            Self { holder, range: 0..bytes.len() }
        })
    }
}

impl fmt::Debug for RestoredBlock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RestoredBlock({} bytes)", self.range.len())
    }
}

impl Serialize for RestoredBlock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.holder.stored.is_none() {
            return serializer.serialize_bytes(&self.holder.bytes[self.range.clone()]);
        }
        let mut bytes = vec![0; self.length()];
        self.copy_into(&mut bytes).map_err(S::Error::custom)?;
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for RestoredBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(BlockVisitor)
    }
}

struct BlockVisitor;

impl<'de> Visitor<'de> for BlockVisitor {
    type Value = RestoredBlock;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("bytes")
    }

    fn visit_borrowed_bytes<E: serde::de::Error>(
        self,
        bytes: &'de [u8],
    ) -> Result<RestoredBlock, E> {
        Ok(RestoredBlock::of(bytes))
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<RestoredBlock, E> {
        Ok(RestoredBlock::of(bytes))
    }
}

/// Decodes a commit. Its [`RestoredBlock`]s are ranges of it. Returns also the number of bytes that nothing was decoded from: a
/// commit of the same type leaves none.
pub(super) fn decode<T: DeserializeOwned>(commit: &CommitContent) -> postcard::Result<(T, usize)> {
    let outer = DECODED.replace(Some(commit.clone()));
    let decoded = postcard::take_from_bytes(&commit.bytes);
    DECODED.set(outer);
    decoded.map(|(decoded, unread)| (decoded, unread.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(block: &RestoredBlock) -> Vec<u8> {
        let mut content = vec![0; block.length()];
        block.copy_into(&mut content).expect("it is in memory");
        content
    }

    #[test]
    fn a_block_of_a_state_is_a_range_of_its_commit() {
        let blocks = vec![RestoredBlock::of(&[7; 100]), RestoredBlock::of(&[8; 3])];
        let bytes = Arc::new(postcard::to_stdvec(&(5_u8, &blocks)).expect("it encodes"));
        let commit = CommitContent { bytes, stored: None };
        let ((_, decoded), unread): ((u8, Vec<RestoredBlock>), usize) =
            decode(&commit).expect("it is one");
        assert_eq!(unread, 0);
        for (block, of) in blocks.iter().zip(&decoded) {
            assert!(Arc::ptr_eq(&of.holder.bytes, &commit.bytes), "no copy");
            assert_eq!(content(of), content(block));
        }
        let (_, copied): (u8, Vec<RestoredBlock>) =
            postcard::from_bytes(&commit.bytes).expect("it is one");
        assert!(!Arc::ptr_eq(&copied[0].holder.bytes, &commit.bytes), "outside of a state a copy");
        assert_eq!(content(&copied[1]), [8; 3]);
    }
}
