//! The last commit, as bytes. Two buffers: a commit is written into the spare one and then takes the
//! other's place, so a state that cannot be encoded leaves the last commit whole, and memory stays at the
//! live state and two copies. Its digest is computed only when somebody asks for it, which is when
//! a generation ends: committing costs one pass over the state, and no hashing.

use elastic_protocol::{CommitId, GenerationId, Step};
use postcard::ser_flavors::Flavor;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use super::error::{Error, Result};

/// Appends to a buffer that is used again; whole blocks at a time, which postcard's own `to_extend` does not.
struct Blocks(Vec<u8>);

impl Flavor for Blocks {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// What a commit's bytes are, whatever generation it is labelled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentId {
    pub(super) length: u64,
    pub(super) step: Step,
    pub(super) digest: u64,
}

#[derive(Default)]
pub(super) struct Snapshot {
    bytes: Vec<u8>,
    spare: Vec<u8>,
    /// The commit whose first bytes, so many, stand in `spare`: it was on its way when its sources were lost.
    part: Option<(ContentId, u64)>,
    held: bool,
    step: Step,
    generation: GenerationId,
    digest: Option<u64>,
}

impl Snapshot {
    /// The step of the last commit.
    pub(super) const fn step(&self) -> Step {
        self.step
    }

    /// The last commit, if there is one.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        self.held.then_some(&self.bytes)
    }

    /// Lends the commit's bytes to a broadcast, which takes them mutably and leaves the root's as they are.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Takes a commit.
    pub(super) fn save(
        &mut self,
        content: &impl Serialize,
        generation: GenerationId,
        step: Step,
    ) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.spare);
        self.part = None;
        buffer.clear();
        let buffer = postcard::serialize_with_flavor(content, Blocks(buffer))
            .map_err(|source| Error::State { action: "encoded", source })?;
        self.replace(buffer, generation, step, None);
        Ok(())
    }

    /// The first bytes of a commit that did not come whole.
    pub(super) const fn part(&self) -> Option<(ContentId, u64)> {
        self.part
    }

    /// A buffer of this length to receive a commit into, which begins with the [`part`](Self::part) of it that
    /// is there; give it back with `replace` or `give_back`.
    pub(super) fn receive_buffer(&mut self, length: usize) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.spare);
        self.part = None;
        buffer.resize(length, 0);
        buffer
    }

    pub(super) fn give_back(&mut self, buffer: Vec<u8>, part: Option<(ContentId, u64)>) {
        (self.spare, self.part) = (buffer, part);
    }

    pub(super) fn replace(
        &mut self,
        buffer: Vec<u8>,
        generation: GenerationId,
        step: Step,
        digest: Option<u64>,
    ) {
        self.spare = std::mem::replace(&mut self.bytes, buffer);
        (self.held, self.generation, self.step, self.digest) = (true, generation, step, digest);
    }

    /// Its members agree on it: from here on it is a commit of this generation.
    pub(super) const fn relabel(&mut self, generation: GenerationId) {
        self.generation = generation;
    }

    /// What the last commit is; hashes it if that was not done yet.
    pub(super) fn id(&mut self) -> Option<CommitId> {
        if !self.held {
            return None;
        }
        let digest = *self.digest.get_or_insert_with(|| xxh3_64(&self.bytes));
        Some(CommitId { generation: self.generation, step: self.step, digest })
    }

    /// As [`id`](Self::id), without the label.
    pub(super) fn content_id(&mut self) -> Option<ContentId> {
        let CommitId { step, digest, .. } = self.id()?;
        Some(ContentId { length: self.bytes.len() as u64, step, digest })
    }

    #[cfg(test)]
    pub(super) fn capacity_bytes(&self) -> usize {
        self.bytes.capacity() + self.spare.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x_10_many_commits_take_no_more_memory_than_two() {
        let mut snapshot = Snapshot::default();
        let state = vec![1.5_f64; 10_000];
        for step in 0..2 {
            snapshot.save(&state, GenerationId(1), Step(step)).expect("it encodes");
        }
        let before = snapshot.capacity_bytes();
        for step in 2..1_000 {
            snapshot.save(&state, GenerationId(1), Step(step)).expect("it encodes");
        }
        assert_eq!(snapshot.capacity_bytes(), before);
    }

    #[test]
    fn a_digest_tells_contents_apart_and_nothing_else() {
        let (mut one, mut other) = (Snapshot::default(), Snapshot::default());
        assert_eq!(one.id(), None);
        one.save(&[1_u8, 2], GenerationId(1), Step(3)).expect("it encodes");
        other.save(&[1_u8, 2], GenerationId(1), Step(3)).expect("it encodes");
        assert_eq!(one.id(), other.id());
        other.save(&[1_u8, 3], GenerationId(1), Step(3)).expect("it encodes");
        assert_ne!(one.id(), other.id());
    }
}
