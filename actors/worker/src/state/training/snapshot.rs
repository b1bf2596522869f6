//! The last commit, as bytes. Used by `state`. There are two buffers: a commit is written into the spare one, which
//! then replaces the other. A state that cannot be encoded therefore leaves the last commit whole, and memory stays at
//! the live state and two copies. While a checkpoint of a commit is written beside training, a third buffer
//! takes the place of that commit's buffer. It is kept for the next checkpoint. After a resume, the arrays of the last
//! commit may still be in the checkpoint's files only, until the worker's first own commit replaces it. The digest is
//! computed only when it is asked for, at the end of a generation: a commit costs one pass over the state, and no
//! hashing.

use std::sync::Arc;

use elastic_checkpoint::StoredCommit;
use elastic_protocol::{CommitId, GenerationId, Step};
use postcard::ser_flavors::Flavor;
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

use super::checkpoint::tensors::{self, Counted, NotedArrays};
use super::device::DeviceMemory;
use super::error::{Error, Result};
use super::late::{CommitGap, forget_announced, take_announced};
use super::positional::Positional;
use super::refused::unencodable;
use super::restored::CommitContent;

/// A commit as it was encoded.
#[derive(Debug)]
pub(super) struct EncodedCommit {
    /// Its bytes, without late blocks.
    pub(super) bytes: Vec<u8>,
    /// The late blocks, in the order of their places.
    pub(super) gaps: Vec<CommitGap>,
}

/// A postcard output that appends to a reused buffer, whole blocks at a time. Postcard's own `to_extend` does
/// not append whole blocks. Late blocks are left out and noted.
struct Blocks {
    bytes: Vec<u8>,
    gaps: Vec<CommitGap>,
    /// Length of the blocks that were left out.
    late: usize,
}

impl Blocks {
    const fn behind(bytes: Vec<u8>) -> Self {
        Self { bytes, gaps: Vec::new(), late: 0 }
    }

    fn encoded(self) -> EncodedCommit {
        EncodedCommit { bytes: self.bytes, gaps: self.gaps }
    }
}

impl Flavor for Blocks {
    type Output = EncodedCommit;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.bytes.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if let Some(block) = take_announced(bytes) {
            self.gaps.push(CommitGap { at: self.bytes.len(), length: bytes.len(), block });
            self.late += bytes.len();
        } else {
            self.bytes.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<EncodedCommit> {
        Ok(self.encoded())
    }
}

impl Counted for Blocks {
    fn written(&self) -> usize {
        self.bytes.len() + self.late
    }
}

/// The identity of a commit's bytes, without the generation that labels it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentId {
    pub(super) length: u64,
    pub(super) step: Step,
    pub(super) digest: u64,
}

/// Most buffers beside the last commit and the spare one that are kept.
const LENT_MAX: usize = 1;

#[derive(Default)]
pub(super) struct StateSnapshot {
    /// Shared with a thread that writes a checkpoint of it.
    bytes: Arc<Vec<u8>>,
    /// The files that its arrays are in; `bytes` has nothing in their places then.
    stored: Option<Arc<StoredCommit>>,
    spare: Vec<u8>,
    /// Former commits that others still read, or have read: at most [`LENT_MAX`].
    lent: Vec<Arc<Vec<u8>>>,
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

    /// Whether there is a commit.
    pub(super) const fn is_held(&self) -> bool {
        self.held
    }

    /// The last commit, if there is one and all of it is in memory.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        if self.held && self.stored.is_none() { Some(self.bytes.as_slice()) } else { None }
    }

    /// The last commit, to be decoded.
    pub(super) fn content(&self) -> CommitContent {
        CommitContent { bytes: self.share(), stored: self.stored.clone() }
    }

    /// Encodes into the spare buffer and returns it, without late blocks. Give it back with `replace` or `give_back`.
    pub(super) fn encode(&mut self, content: &impl Serialize) -> Result<EncodedCommit> {
        let buffer = self.empty_buffer();
        let mut serializer = postcard::Serializer { output: Blocks::behind(buffer) };
        let encoded = content.serialize(Positional(&mut serializer));
        forget_announced();
        encoded.map_err(unencodable)?;
        Ok(serializer.output.encoded())
    }

    /// As [`encode`](Self::encode), of a head and the state: the same bytes as of both as a tuple. With the arrays in the
    /// state, and their names.
    pub(super) fn encode_with_arrays(
        &mut self,
        head: &impl Serialize,
        state: &impl Serialize,
    ) -> Result<(EncodedCommit, NotedArrays)> {
        let buffer = self.empty_buffer();
        let mut serializer = postcard::Serializer { output: Blocks::behind(buffer) };
        let arrays =
            head.serialize(&mut serializer).and_then(|()| tensors::encode(state, &mut serializer));
        forget_announced();
        Ok((serializer.output.encoded(), arrays.map_err(unencodable)?))
    }

    /// The spare buffer, for a commit.
    fn empty_buffer(&mut self) -> Vec<u8> {
        self.part = None;
        let mut buffer = self.take_spare();
        buffer.clear();
        buffer
    }

    /// The spare buffer; if there is none, one that was lent and is not read any more.
    fn take_spare(&mut self) -> Vec<u8> {
        if self.spare.capacity() > 0 {
            return std::mem::take(&mut self.spare);
        }
        let is_free = |lent: &Arc<Vec<u8>>| Arc::strong_count(lent) == 1;
        let free = self.lent.iter().position(is_free).map(|index| self.lent.swap_remove(index));
        free.and_then(|free| Arc::try_unwrap(free).ok()).unwrap_or_default()
    }

    /// The last commit, to be read beside training, without arrays that are in files only. The next commit but one takes another
    /// buffer if it is still read.
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
        let mut buffer = self.take_spare();
        if self.part.take().is_none() && buffer.capacity() < length {
            // The system gives its memory as it is touched.
            return vec![0; length];
        }
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
        match Arc::try_unwrap(former) {
            Ok(former) => self.spare = former,
            Err(former) => {
                self.lent.push(former);
                let excess = self.lent.len().saturating_sub(LENT_MAX);
                self.lent.drain(..excess);
            }
        }
        (self.held, self.generation, self.step, self.digest) = (true, generation, step, digest);
        self.stored = None;
    }

    /// The arrays of the last commit are in these files; their places in its buffer are empty.
    pub(super) fn leave_in(&mut self, stored: StoredCommit) {
        self.stored = Some(Arc::new(stored));
    }

    /// Reads the arrays of the last commit that are in files only.
    fn load(&mut self) -> Result<()> {
        if let Some(stored) = &self.stored {
            let mut bytes = vec![0; self.bytes.len()];
            stored.read(&(0..bytes.len()), &mut bytes).map_err(Error::Checkpoint)?;
            (self.bytes, self.stored) = (Arc::new(bytes), None);
        }
        Ok(())
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

    /// Lends the whole commit. With memory beside the state, the parts are joined in the spare buffer.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]: a part of it is in files only, and cannot be read any more.
    pub(super) fn whole(&mut self, beside: &[Box<dyn DeviceMemory>]) -> Result<&[u8]> {
        self.load()?;
        if beside.is_empty() {
            return Ok(self.bytes.as_slice());
        }
        self.part = None;
        self.spare.clear();
        self.spare.extend_from_slice(&self.bytes);
        for memory in beside {
            memory.read_commit(&mut |bytes| self.spare.extend_from_slice(bytes));
        }
        Ok(&self.spare)
    }

    #[cfg(test)]
    pub(super) fn capacity_bytes(&self) -> usize {
        let lent: usize = self.lent.iter().map(|lent| lent.capacity()).sum();
        self.bytes.capacity() + self.spare.capacity() + lent
    }
}

#[cfg(test)]
mod tests {
    use super::super::refused::refuse;
    use super::*;

    fn save(snapshot: &mut StateSnapshot, content: &impl Serialize, step: u64) {
        let buffer = snapshot.encode(content).expect("it encodes").bytes;
        snapshot.replace(buffer, GenerationId(1), Step(step), None);
    }

    /// A state whose own code refuses, if it has a reason.
    struct Refusing(Option<&'static str>);

    impl Serialize for Refusing {
        fn serialize<S: serde::Serializer>(&self, _serializer: S) -> Result<S::Ok, S::Error> {
            if let Some(reason) = self.0 {
                refuse(reason.to_owned());
            }
            Err(serde::ser::Error::custom("postcard drops this"))
        }
    }

    #[test]
    fn what_refuses_to_be_encoded_says_why_and_not_for_the_next_one() {
        let mut snapshot = StateSnapshot::default();
        let mut chain =
            |reason| snapshot.encode(&Refusing(reason)).expect_err("it refuses").chain();
        assert_eq!(
            chain(Some("TypeError: a lock")),
            "the training state cannot be encoded: TypeError: a lock"
        );
        assert!(chain(None).contains("state types must survive postcard"));
        let with_arrays = snapshot.encode_with_arrays(&0_u8, &Refusing(Some("no name")));
        assert!(matches!(with_arrays, Err(Error::Refused { reason }) if reason == "no name"));
    }

    /// A state whose field is left out from some step on.
    #[derive(Serialize)]
    struct Skipping {
        #[serde(skip_serializing_if = "Option::is_none")]
        warm_up: Option<u64>,
        step: u64,
    }

    #[test]
    fn h_22_a_field_that_is_left_out_of_a_commit_is_refused_by_its_name() {
        let mut snapshot = StateSnapshot::default();
        save(&mut snapshot, &Skipping { warm_up: Some(3), step: 1 }, 1);
        let without = Skipping { warm_up: None, step: 2 };
        let refused = snapshot.encode(&without).expect_err("it would not decode").chain();
        let said = "its field warm_up is left out by skip_serializing_if";
        assert!(refused.contains(said), "{refused}");
        let with_arrays = snapshot.encode_with_arrays(&0_u8, &without).map(drop);
        assert!(with_arrays.expect_err("it would not decode").chain().contains(said));
        assert_eq!(snapshot.step(), Step(1), "the last commit stays");
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
    fn x_10_a_commit_that_is_read_beside_training_takes_a_third_buffer_and_no_more() {
        let mut snapshot = StateSnapshot::default();
        let state = vec![1.5_f64; 10_000];
        for step in 0..2 {
            save(&mut snapshot, &state, step);
        }
        let two = snapshot.capacity_bytes();
        for checkpoint in 1..20 {
            let read = snapshot.share();
            let content = read.to_vec();
            for step in 0..5 {
                save(&mut snapshot, &vec![f64::from(step); 10_000], checkpoint * 10 + 1);
            }
            assert_eq!(*read, content, "what is read does not change");
            drop(read);
            save(&mut snapshot, &state, checkpoint * 10 + 9);
            assert!(snapshot.capacity_bytes() <= two / 2 * 3 + 64);
        }
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

    #[test]
    fn x_10_a_commit_is_encoded_into_the_memory_of_the_last_but_one() {
        let mut snapshot = StateSnapshot::default();
        let mut places = Vec::new();
        for step in 0..4 {
            let buffer = snapshot.encode(&vec![1.5_f64; 100]).expect("it encodes").bytes;
            places.push(buffer.as_ptr());
            snapshot.replace(buffer, GenerationId(1), Step(step), None);
        }
        assert_eq!(places[2..], places[..2]);
        assert_ne!(places[0], places[1], "the last commit stays until the next one is whole");
    }
}
