//! `Operation`: one collective with the memory that it works on, from the call that launches it until it is done.
//! In main memory it is carried out here; on the GPU in `on_gpu`.

use elastic_collectives::{CollectiveError, Communicator, DataType, ReduceOp};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::array::{Array, Place};
use crate::on_gpu;

/// What an operation came to.
pub(crate) type Outcome = Result<(), CollectiveError>;

/// A collective. Ranks are the group's, counts are of what the elements are moved as.
pub(crate) enum Operation {
    AllReduce { arrays: Vec<(Array, DataType)>, op: ReduceOp },
    Broadcast { array: Array, root: u32 },
    AllGather { arrays: Pair, counts: Option<Vec<usize>> },
    ReduceScatter { arrays: Pair, data_type: DataType, op: ReduceOp },
    AllToAll { arrays: Pair, counts: Option<(Vec<usize>, Vec<usize>)> },
    Barrier,
    Send { array: Array, to: u32 },
    Receive { array: Array, from: u32 },
}

/// An array that is read and one that is written, of one type of elements. Where they overlap in main memory, what is
/// read is copied first.
pub(crate) struct Pair {
    input: Array,
    copied: Option<Vec<u8>>,
    output: Array,
}

impl Pair {
    /// # Errors
    /// `ValueError`: they have elements of different types, are in different places, or overlap on the GPU.
    pub(crate) fn of(input: Array, output: Array) -> PyResult<Pair> {
        if !input.is_like(&output) {
            return Err(PyValueError::new_err("input and output have elements of different types"));
        }
        let copied = match (input.place(), input.overlaps(&output)) {
            (Place::Main, true) => Some(input.bytes().to_vec()),
            (Place::Gpu, true) => {
                return Err(PyValueError::new_err("input and output overlap on the GPU"));
            }
            (_, false) => None,
        };
        Ok(Pair { input, copied, output })
    }

    /// As what the elements are moved, and how many of it make one of theirs.
    pub(crate) const fn moved_as(&self) -> (DataType, usize) {
        self.output.moved_as()
    }

    pub(crate) fn reduced_as(&self, op: ReduceOp) -> PyResult<DataType> {
        self.output.reduced_as(op)
    }

    /// What is read, and what is written.
    fn in_main_memory(&mut self) -> (&[u8], &mut [u8]) {
        let source = self.copied.as_deref().unwrap_or_else(|| self.input.bytes());
        (source, self.output.bytes_mut())
    }

    pub(crate) const fn both(&self) -> (&Array, &Array) {
        (&self.input, &self.output)
    }
}

impl Operation {
    /// Where its memory is.
    ///
    /// # Errors
    /// `ValueError`: in more than one place.
    pub(crate) fn place(&self) -> PyResult<Place> {
        let arrays: Vec<&Array> = match self {
            Operation::AllReduce { arrays, .. } => arrays.iter().map(|(array, _)| array).collect(),
            Operation::AllGather { arrays, .. }
            | Operation::ReduceScatter { arrays, .. }
            | Operation::AllToAll { arrays, .. } => <[&Array; 2]>::from(arrays.both()).into(),
            Operation::Broadcast { array, .. }
            | Operation::Send { array, .. }
            | Operation::Receive { array, .. } => vec![array],
            Operation::Barrier => Vec::new(),
        };
        let place = arrays.first().map_or(Place::Main, |array| array.place());
        if arrays.iter().any(|array| array.place() != place) {
            let error = "an operation's arrays are either all in main memory or all on the GPU";
            return Err(PyValueError::new_err(error));
        }
        Ok(place)
    }

    /// Carries it out, on the collectives' thread.
    ///
    /// # Errors
    /// Any [`CollectiveError`].
    pub(crate) fn run(&mut self, place: Place, group: &mut dyn Communicator) -> Outcome {
        match place {
            Place::Main => self.run_in_main_memory(group),
            Place::Gpu => on_gpu::run(self, group),
        }
    }

    fn run_in_main_memory(&mut self, group: &mut dyn Communicator) -> Outcome {
        match self {
            Operation::AllReduce { arrays, op } => match arrays.as_mut_slice() {
                [(array, data_type)] => group.all_reduce_bytes(array.bytes_mut(), *data_type, *op),
                many => by_type(many).into_iter().try_for_each(|(data_type, mut buffers)| {
                    group.all_reduce_many_bytes(&mut buffers, data_type, *op)
                }),
            },
            Operation::Broadcast { array, root } => {
                let (data_type, _) = array.moved_as();
                group.broadcast_bytes(array.bytes_mut(), data_type, *root)
            }
            Operation::AllGather { arrays, counts } => {
                let (data_type, _) = arrays.moved_as();
                let (input, output) = arrays.in_main_memory();
                match counts {
                    Some(counts) => group.all_gather_v_bytes(input, output, counts, data_type),
                    None => group.all_gather_bytes(input, output, data_type),
                }
            }
            Operation::ReduceScatter { arrays, data_type, op } => {
                let (input, output) = arrays.in_main_memory();
                group.reduce_scatter_bytes(input, output, *data_type, *op)
            }
            Operation::AllToAll { arrays, counts } => {
                let (data_type, _) = arrays.moved_as();
                let (input, output) = arrays.in_main_memory();
                match counts {
                    Some((sent, received)) => {
                        group.all_to_all_v_bytes(input, sent, output, received, data_type)
                    }
                    None => group.all_to_all_bytes(input, output, data_type),
                }
            }
            Operation::Barrier => group.barrier(),
            Operation::Send { array, to } => {
                group.send_bytes(array.bytes(), array.moved_as().0, *to)
            }
            Operation::Receive { array, from } => {
                let (data_type, _) = array.moved_as();
                group.receive_bytes(array.bytes_mut(), data_type, *from)
            }
        }
    }
}

/// Each type goes by itself, in the order of the types' codes.
fn by_type(arrays: &mut [(Array, DataType)]) -> Vec<(DataType, Vec<&mut [u8]>)> {
    let mut types: Vec<DataType> = arrays.iter().map(|(_, data_type)| *data_type).collect();
    types.sort_unstable();
    types.dedup();
    let mut groups: Vec<_> = types.into_iter().map(|of| (of, Vec::new())).collect();
    for (array, data_type) in arrays {
        if let Some((_, buffers)) = groups.iter_mut().find(|(of, _)| of == data_type) {
            buffers.push(array.bytes_mut());
        }
    }
    groups
}
