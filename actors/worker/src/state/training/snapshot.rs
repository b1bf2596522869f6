//! The last commit, as bytes. Used by `state`. There are two buffers: a commit is written into the spare one,
//! which then replaces the other. So a state that cannot be encoded leaves the last commit whole, and memory
//! stays at the live state and two copies. The digest is computed only when it is asked for, at the end
//! of a generation: a commit costs one pass over the state, and no hashing.

use std::sync::Arc;

use elastic_protocol::{CommitId, GenerationId, Step};
use postcard::ser_flavors::Flavor;
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

use super::checkpoint::tensors::{self, Counted, NotedArrays};
use super::device::DeviceMemory;
use super::error::{Error, Result};

/// A postcard output that appends to a reused buffer, whole blocks at a time. Postcard's own `to_extend` does
/// not append whole blocks.
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

impl Counted for Blocks {
    fn written(&self) -> usize {
        self.0.len()
    }
}

/// The identity of a commit's bytes, without the generation that labels it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentId {
    pub(super) length: u64,
    pub(super) step: Step,
    pub(super) digest: u64,
}

#[derive(Default)]
pub(super) struct StateSnapshot {
    /// Shared with a thread that writes a checkpoint of it.
    bytes: Arc<Vec<u8>>,
    spare: Vec<u8>,
    /// A commit that was received in part before its sources were lost, and how many of its first bytes `spare`
    /// holds.
    part: Option<(ContentId, u64)>,
    held: bool,
    step: Step,
    generation: GenerationId,
    digest: Option<u64>,
}

impl StateSnapshot {
    /// The step of the last commit.
    pub(super) const fn step(&self) -> Step {
        self.step
    }

    /// The last commit, if there is one.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        if self.held { Some(self.bytes.as_slice()) } else { None }
    }

    /// Encodes into the spare buffer and returns it. Give it back with `replace` or `give_back`.
    pub(super) fn encode(&mut self, content: &impl Serialize) -> Result<Vec<u8>> {
        let mut buffer = std::mem::take(&mut self.spare);
        self.part = None;
        buffer.clear();
        postcard::serialize_with_flavor(content, Blocks(buffer))
            .map_err(|source| Error::State { action: "encoded", source })
    }

    /// As [`encode`](Self::encode), of a head and the state: the same bytes as of both as a tuple. With the arrays in the
    /// state, and their names.
    pub(super) fn encode_with_arrays(
        &mut self,
        head: &impl Serialize,
        state: &impl Serialize,
    ) -> Result<(Vec<u8>, NotedArrays)> {
        let mut buffer = std::mem::take(&mut self.spare);
        self.part = None;
        buffer.clear();
        let mut serializer = postcard::Serializer { output: Blocks(buffer) };
        let arrays = head
            .serialize(&mut serializer)
            .and_then(|()| tensors::encode(state, &mut serializer))
            .map_err(|source| Error::State { action: "encoded", source })?;
        Ok((serializer.output.0, arrays))
    }

    /// The last commit, to be read beside training. The next commit but one takes another buffer if it is still read.
    pub(super) fn share(&self) -> Arc<Vec<u8>> {
        Arc::clone(&self.bytes)
    }

    /// The commit that was received in part, and the length of that part in bytes.
    pub(super) const fn part(&self) -> Option<(ContentId, u64)> {
        self.part
    }

    /// A buffer of this length for receiving a commit. It begins with the [`part`](Self::part) that was
    /// received earlier. Give it back with `replace` or `give_back`.
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
        let former = std::mem::replace(&mut self.bytes, Arc::new(buffer));
        self.spare = Arc::try_unwrap(former).unwrap_or_default();
        (self.held, self.generation, self.step, self.digest) = (true, generation, step, digest);
    }

    /// Labels the commit with this generation, once its members agree on it.
    pub(super) const fn relabel(&mut self, generation: GenerationId) {
        self.generation = generation;
    }

    /// The id of the last commit, including the memory beside the state. Computes the digest if that was not
    /// done yet.
    pub(super) fn id(&mut self, beside: &[Box<dyn DeviceMemory>]) -> Option<CommitId> {
        if !self.held {
            return None;
        }
        let digest = *self.digest.get_or_insert_with(|| {
            let mut hash = Xxh3::new();
            hash.update(self.bytes.as_slice());
            beside.iter().for_each(|memory| memory.read_commit(&mut |bytes| hash.update(bytes)));
            hash.digest()
        });
        Some(CommitId { generation: self.generation, step: self.step, digest })
    }

    /// As [`id`](Self::id), without the label.
    pub(super) fn content_id(&mut self, beside: &[Box<dyn DeviceMemory>]) -> Option<ContentId> {
        let CommitId { step, digest, .. } = self.id(beside)?;
        let length =
            self.bytes.len() + beside.iter().map(|memory| memory.length_bytes()).sum::<usize>();
        Some(ContentId { length: length as u64, step, digest })
    }

    /// Lends the whole commit to a broadcast, which takes it mutably and does not change it. With memory beside
    /// the state, the parts are joined in the spare buffer.
    pub(super) fn whole_mut(&mut self, beside: &[Box<dyn DeviceMemory>]) -> &mut [u8] {
        if beside.is_empty() {
            // Copied if a checkpoint of it is being written at this moment.
            return Arc::make_mut(&mut self.bytes).as_mut_slice();
        }
        self.part = None;
        self.spare.clear();
        self.spare.extend_from_slice(&self.bytes);
        for memory in beside {
            memory.read_commit(&mut |bytes| self.spare.extend_from_slice(bytes));
        }
        &mut self.spare
    }

    #[cfg(test)]
    pub(super) fn capacity_bytes(&self) -> usize {
        self.bytes.capacity() + self.spare.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn save(snapshot: &mut StateSnapshot, content: &impl Serialize, step: u64) {
        let buffer = snapshot.encode(content).expect("it encodes");
        snapshot.replace(buffer, GenerationId(1), Step(step), None);
    }

    #[test]
    fn x_10_many_commits_take_no_more_memory_than_two() {
        let mut snapshot = StateSnapshot::default();
        let state = vec![1.5_f64; 10_000];
        for step in 0..2 {
            save(&mut snapshot, &state, step);
        }
        let before = snapshot.capacity_bytes();
        for step in 2..1_000 {
            save(&mut snapshot, &state, step);
        }
        assert_eq!(snapshot.capacity_bytes(), before);
    }

    #[test]
    fn a_digest_tells_contents_apart_and_nothing_else() {
        let (mut one, mut other) = (StateSnapshot::default(), StateSnapshot::default());
        assert_eq!(one.id(&[]), None);
        save(&mut one, &[1_u8, 2], 3);
        save(&mut other, &[1_u8, 2], 3);
        assert_eq!(one.id(&[]), other.id(&[]));
        save(&mut other, &[1_u8, 3], 3);
        assert_ne!(one.id(&[]), other.id(&[]));
    }
}
