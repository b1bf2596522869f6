//! Tests of late blocks: a commit whose arrays are still being copied returns at once, and is the same commit, or none.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender, channel};

use elastic_protocol::messages::CheckpointReport;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::{ByteBuf, Bytes};

use super::super::checkpoint::tensors::{NamedArray, NotedArrays, announce};
use super::super::device::DeviceError;
use super::super::late::{GapFiller, LateBlock, announce_late, wait};
use super::super::snapshot::StateSnapshot;
use super::super::{Error, State};
use super::saving::last_save;

type Copied = Result<(), &'static str>;

/// A state of two arrays. The copy of the first one ends when the test says so, if it is told to be late.
struct Arrays {
    first: Vec<u8>,
    second: Vec<u8>,
    copies: RefCell<Vec<Receiver<Copied>>>,
}

/// The copy of an array as it was at the commit.
#[derive(Debug)]
struct Copying {
    bytes: Vec<u8>,
    copied: Receiver<Copied>,
}

impl LateBlock for Copying {
    fn copy_into(&self, into: &mut [u8]) -> Result<(), DeviceError> {
        self.copied.recv()??;
        into.copy_from_slice(&self.bytes);
        Ok(())
    }
}

impl Arrays {
    fn of(first: &[u8]) -> Self {
        let (first, second) = (first.to_vec(), vec![9; 3]);
        Self { first, second, copies: RefCell::default() }
    }

    /// The copy of the next commit ends when the sender says so.
    fn be_late(&self) -> Sender<Copied> {
        let (sender, copied) = channel();
        self.copies.borrow_mut().push(copied);
        sender
    }
}

impl Serialize for Arrays {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Memory that a device is about to write.
        let unwritten = vec![0; self.first.len()];
        let first = match self.copies.borrow_mut().pop() {
            Some(copied) => {
                let bytes = self.first.clone();
                announce_late(&unwritten, Box::new(Copying { bytes, copied }));
                &unwritten
            }
            None => &self.first,
        };
        let parts = [Named("first", first), Named("second", &self.second)];
        parts.serialize(serializer)
    }
}

/// An array with its name.
struct Named<'a>(&'static str, &'a [u8]);

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        announce(NamedArray::new(self.0.to_owned(), "uint8", vec![self.1.len()]));
        Bytes::new(self.1).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Arrays {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let [first, second]: [ByteBuf; 2] = Deserialize::deserialize(deserializer)?;
        let (first, second) = (first.into_vec(), second.into_vec());
        Ok(Self { first, second, copies: RefCell::default() })
    }
}

#[test]
fn a_commit_with_late_blocks_is_the_same_commit_once_they_are_there() {
    let mut plain = State::new(Arrays::of(b"weights"));
    plain.save().expect("it encodes");
    let due = plain.content_id();

    let mut state = State::new(Arrays::of(b"weights"));
    let copied = state.be_late();
    state.save().expect("it returns before the copy has ended");
    assert_eq!(state.step().0, 1);
    // The next step changes the array.
    state.first = b"changed".to_vec();
    copied.send(Ok(())).expect("it waits");
    assert_eq!(state.content_id(), due);
    state.restore().expect("there is a commit");
    assert_eq!((&*state.first, &*state.second), (&b"weights"[..], &[9, 9, 9][..]));
}

#[test]
fn arrays_behind_a_late_block_have_their_places() {
    let (late, plain) = (Arrays::of(b"a long array"), Arrays::of(b"a long array"));
    let mut snapshot = StateSnapshot::default();
    let copied = late.be_late();
    copied.send(Ok(())).expect("the test holds the other end");
    let (encoded, arrays) = snapshot.encode_with_arrays(&7_u8, &late).expect("it encodes");
    assert!(encoded.bytes.len() < 12, "the late block is left out");
    let mut filler = GapFiller::default();
    let filled = filler.begin(encoded.bytes, encoded.gaps).map_err(|(_, error)| error);
    let (bytes, filled) = wait(&filled.expect("it begins"));
    filled.expect("it is there");
    let (due, due_arrays) = snapshot.encode_with_arrays(&7_u8, &plain).expect("it encodes");
    let names = |arrays: &NotedArrays| {
        arrays.tensors.iter().map(|it| (it.name.clone(), it.offset)).collect::<Vec<_>>()
    };
    assert_eq!((bytes, names(&arrays)), (due.bytes, names(&due_arrays)));
    assert_eq!(arrays.tensors.len(), 2);
}

#[test]
fn h_22_a_late_block_that_fails_leaves_the_commit_of_before_whole() {
    let mut state = State::new(Arrays::of(b"one"));
    for _ in 0..2 {
        state.save().expect("it encodes");
    }
    let (before, memory) = (state.commit_id(), state.snapshot().capacity_bytes());
    state.first = b"two".to_vec();
    state.be_late().send(Err("the GPU is gone")).expect("the test holds the other end");
    state.save().expect("it begins");
    assert_eq!(state.commit_id(), before);
    assert_eq!(state.snapshot().capacity_bytes(), memory, "X-10: its buffer is kept");
    state.refresh().expect("there is a commit");
    assert_eq!((state.step().0, &*state.first), (2, &b"one"[..]));

    let (control, order, outcomes) = last_save(2);
    state.be_late().send(Err("the GPU is gone")).expect("the test holds the other end");
    state.save_last(&control, order).expect("it begins");
    let outcome = outcomes.try_recv().expect("the driver waits for it");
    let CheckpointReport::Failed { reason } = outcome.report else { panic!("{outcome:?}") };
    assert!(reason.contains("the GPU is gone"), "{reason}");
}

#[test]
fn a_block_that_was_announced_and_not_encoded_is_forgotten() {
    struct Refusing<'a>(&'a [u8]);

    impl Serialize for Refusing<'_> {
        fn serialize<S: Serializer>(&self, _serializer: S) -> Result<S::Ok, S::Error> {
            let (_, copied) = channel();
            announce_late(self.0, Box::new(Copying { bytes: Vec::new(), copied }));
            Err(serde::ser::Error::custom("it refuses"))
        }
    }

    let array = b"weights".to_vec();
    let mut snapshot = StateSnapshot::default();
    let refused = snapshot.encode(&Refusing(&array));
    assert!(matches!(refused, Err(Error::State { .. } | Error::Refused { .. })));
    let encoded = snapshot.encode(&Bytes::new(&array)).expect("it encodes");
    assert!(encoded.gaps.is_empty(), "it is there");
}
