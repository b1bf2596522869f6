//! Input of a save: a commit's bytes with the names of its arrays, and its division among several writers. Used by
//! `part`, and by workers.

use std::collections::BTreeMap;

use safetensors::Dtype;

use crate::part_file::{PartFile, PartFileKind};

/// A commit: bytes, of which some ranges are arrays with a name.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// All bytes.
    pub bytes: &'a [u8],
    /// The arrays: ranges of `bytes` that do not overlap, in the order of their offsets, each with a name of its own.
    pub tensors: &'a [CheckpointTensor],
    /// The place in the data, for people and for the reader's check.
    pub position: &'a serde_json::Value,
}

/// An array within a commit's bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CheckpointTensor {
    /// Its name, as the program names it.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its offset in the commit's bytes.
    pub offset: usize,
}

impl CheckpointTensor {
    /// Its length, in bytes.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// One attempt to save a step: the same for all its writers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SaveAttempt {
    /// The job's id.
    pub job: String,
    /// The job's name, if the user gave it one.
    pub name: Option<String>,
    /// The driver's term.
    pub term: u64,
    /// The generation in which the commit was made.
    pub generation: u64,
    /// The step of the commit.
    pub step: u64,
    /// Number of writers.
    pub world_size: u32,
    /// The state's fields; none if its type is no struct.
    pub fields: Option<StateFields>,
}

/// The fields of a state's type.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StateFields {
    /// Their names, in their order.
    pub names: Vec<String>,
    /// The types of places in the state, each as a word, by the places' names, as far as they are known.
    pub types: BTreeMap<String, String>,
}

impl SaveAttempt {
    /// Name of a file of this attempt. Files of different attempts at one step differ in their names, so that a writer
    /// that comes late disturbs no other attempt.
    pub(crate) fn file(&self, kind: PartFileKind, rank: u32) -> String {
        let Self { term, generation, world_size, .. } = *self;
        PartFile { kind, term, generation, rank, world_size }.name()
    }
}

/// The arrays of each writer, as indices. To keep the largest load small, the arrays are dealt in order of size, the
/// largest first, each to the writer that has the fewest bytes so far. Writer 0 also has the bytes that are no array
/// (`rest`). The result is the same at all writers.
pub(crate) fn divide(
    tensors: &[CheckpointTensor],
    rest: usize,
    world_size: u32,
) -> Vec<Vec<usize>> {
    let count = world_size.max(1) as usize;
    let mut loads = vec![0; count];
    loads[0] = rest;
    let mut parts = vec![Vec::new(); count];
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|index| (std::cmp::Reverse(tensors[*index].bytes()), *index));
    for index in order {
        let least = (0..count).min_by_key(|writer| (loads[*writer], *writer)).unwrap_or_default();
        loads[least] += tensors[index].bytes();
        parts[least].push(index);
    }
    for part in &mut parts {
        // As safetensors orders them: types with large elements first, so that every array is aligned.
        part.sort_by_key(|index| (std::cmp::Reverse(tensors[*index].dtype), *index));
    }
    parts
}

/// The ranges of a commit's bytes that are no array.
pub(crate) fn rest(tensors: &[CheckpointTensor], length: usize) -> Vec<std::ops::Range<usize>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    for tensor in tensors {
        if tensor.offset > at {
            ranges.push(at..tensor.offset);
        }
        at = tensor.offset + tensor.bytes();
    }
    if at < length {
        ranges.push(at..length);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(offset: usize, elements: usize) -> CheckpointTensor {
        CheckpointTensor {
            name: format!("t{offset}"),
            dtype: Dtype::F32,
            shape: vec![elements],
            offset,
        }
    }

    #[test]
    fn each_array_has_one_writer_and_loads_are_even() {
        let tensors: Vec<CheckpointTensor> =
            (0..40).map(|n| tensor(n * 4_000, 100 + n * 20)).collect();
        for world_size in 1..=7 {
            let parts = divide(&tensors, 0, world_size);
            let mut all: Vec<usize> = parts.concat();
            all.sort_unstable();
            assert_eq!(all, (0..40).collect::<Vec<_>>());
            let load = |part: &Vec<usize>| part.iter().map(|t| tensors[*t].bytes()).sum::<usize>();
            let loads: Vec<usize> = parts.iter().map(load).collect();
            let largest = tensors[39].bytes();
            assert!(loads.iter().max() <= loads.iter().min().map(|least| least + largest).as_ref());
        }
    }

    #[test]
    fn the_rest_is_what_no_array_covers() {
        let tensors = [tensor(3, 2), tensor(11, 1), tensor(20, 1)];
        assert_eq!(rest(&tensors, 24), [0..3, 15..20]);
        assert_eq!(rest(&[], 5).first(), Some(&(0..5)));
        assert_eq!(rest(&[], 0), []);
    }
}
