//! Blocks of the commit that a state is decoded from, without a copy of them. For bindings of other languages, which decode a
//! commit first and copy its arrays into place later. Used by `State::restore`.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::de::{DeserializeOwned, Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

thread_local! {
    /// The commit that is being decoded on this thread.
    static DECODED: RefCell<Option<Arc<Vec<u8>>>> = const { RefCell::new(None) };
}

/// Bytes of a state. Decoded as a part of a `State`, they are a range of its commit, which stays in memory as long as the block;
/// decoded elsewhere, they are a copy. Encoded like `serde_bytes::Bytes`.
#[derive(Clone)]
pub struct RestoredBlock {
    holder: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl RestoredBlock {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.holder[self.range.clone()]
    }

    fn of(bytes: &[u8]) -> Self {
        let in_commit = DECODED.with_borrow(|commit| {
            let holder = commit.as_ref()?;
            let start = (bytes.as_ptr() as usize).checked_sub(holder.as_ptr() as usize)?;
            let range = start..start + bytes.len();
            // An address of another allocation is beyond the commit, or before it.
            holder.get(range.clone())?;
            Some(Self { holder: Arc::clone(holder), range })
        });
        in_commit
            .unwrap_or_else(|| Self { holder: Arc::new(bytes.to_vec()), range: 0..bytes.len() })
    }
}

impl fmt::Debug for RestoredBlock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RestoredBlock({} bytes)", self.range.len())
    }
}

impl Serialize for RestoredBlock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.bytes())
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

    fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<RestoredBlock, E> {
        Ok(RestoredBlock::of(bytes))
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<RestoredBlock, E> {
        Ok(RestoredBlock::of(bytes))
    }
}

/// Decodes a commit. Its [`RestoredBlock`]s are ranges of it.
pub(super) fn decode<T: DeserializeOwned>(commit: &Arc<Vec<u8>>) -> postcard::Result<T> {
    let outer = DECODED.replace(Some(Arc::clone(commit)));
    let decoded = postcard::from_bytes(commit);
    DECODED.set(outer);
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_a_state_is_a_range_of_its_commit() {
        let blocks = vec![RestoredBlock::of(&[7; 100]), RestoredBlock::of(&[8; 3])];
        let commit = Arc::new(postcard::to_stdvec(&(5_u8, &blocks)).expect("it encodes"));
        let (_, decoded): (u8, Vec<RestoredBlock>) = decode(&commit).expect("it is one");
        for (block, of) in blocks.iter().zip(&decoded) {
            assert!(Arc::ptr_eq(&of.holder, &commit), "no copy");
            assert_eq!(of.bytes(), block.bytes());
        }
        let (_, copied): (u8, Vec<RestoredBlock>) =
            postcard::from_bytes(&commit).expect("it is one");
        assert!(!Arc::ptr_eq(&copied[0].holder, &commit), "outside of a state a copy");
        assert_eq!(copied[1].bytes(), [8; 3]);
    }
}
