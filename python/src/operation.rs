//! `ArrayOperation`: one collective with the memory of Python objects, from the call that launches it until it is done.
//! In main memory it is carried out here; on the GPU in `on_gpu`.

use std::cell::Cell;

use elastic_collectives::{CollectiveResult, Communicator, DataType, Operation};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::array::{Array, MemorySpace};
use crate::on_gpu;

/// A collective on arrays. Ranks are the group's; counts are in the type in which the elements are moved.
pub(crate) type ArrayOperation = Operation<InputArray, Array, Vec<usize>>;

/// An array that is read. If it overlaps with the output in main memory, it is copied first.
pub(crate) struct InputArray {
    array: Array,
    copied: Option<Vec<u8>>,
}

impl InputArray {
    /// The input of an operation without an output.
    pub(crate) const fn alone(array: Array) -> InputArray {
        InputArray { array, copied: None }
    }

    /// The input of an operation with this output. `is_own_part`: one is this rank's part of the other, exactly, as NCCL wants it
    /// of operations in place.
    ///
    /// # Errors
    /// `ValueError`: they have elements of different types, or overlap on the GPU in another way.
    pub(crate) fn beside(array: Array, output: &Array, is_own_part: bool) -> PyResult<InputArray> {
        if !array.is_like(output) {
            return Err(PyValueError::new_err("input and output have elements of different types"));
        }
        let copied = match (array.place(), array.overlaps(output)) {
            (MemorySpace::Main, true) => Some(array.bytes().to_vec()),
            (MemorySpace::Gpu, true) if !is_own_part => {
                return Err(PyValueError::new_err(
                    "input and output overlap on the GPU, and neither is this rank's part of the other",
                ));
            }
            (MemorySpace::Gpu, _) | (_, false) => None,
        };
        Ok(InputArray { array, copied })
    }

    /// The array.
    pub(crate) const fn array(&self) -> &Array {
        &self.array
    }
}

impl AsRef<[u8]> for InputArray {
    fn as_ref(&self) -> &[u8] {
        self.copied.as_deref().unwrap_or_else(|| self.array.bytes())
    }
}

impl AsMut<[u8]> for Array {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

/// The location of an operation's memory.
///
/// # Errors
/// `ValueError`: the arrays are in more than one place.
pub(crate) fn place_of(operation: &mut ArrayOperation) -> PyResult<MemorySpace> {
    let (place, is_mixed) = (Cell::new(None), Cell::new(false));
    let see = |array: &Array| {
        let other = place.replace(Some(array.place()));
        is_mixed.set(is_mixed.get() || other.is_some_and(|other| other != array.place()));
    };
    operation.on(|input| see(input.array()), |output| see(output));
    if is_mixed.get() {
        let error = "an operation's arrays are either all in main memory or all on the GPU";
        return Err(PyValueError::new_err(error));
    }
    Ok(place.get().unwrap_or(MemorySpace::Main))
}

/// Carries an operation out. `queued` is called once an operation on the GPU is on the group's stream.
///
/// # Errors
/// Any [`elastic_collectives::CollectiveError`].
pub(crate) fn run(
    operation: &mut ArrayOperation,
    place: MemorySpace,
    group: &mut dyn Communicator,
    queued: impl FnOnce(),
) -> CollectiveResult {
    match place {
        MemorySpace::Main => group.run(operation.borrowed()),
        MemorySpace::Gpu => on_gpu::run(operation, group, queued),
    }
}

/// Arrays that are changed in place together, without repetitions: an array that is given twice is reduced
/// once.
///
/// # Errors
/// `ValueError`: two arrays share a part of their memory.
pub(crate) fn distinct(arrays: Vec<(Array, DataType)>) -> PyResult<Vec<(Array, DataType)>> {
    let mut order: Vec<usize> = (0..arrays.len()).collect();
    order.sort_by_key(|number| (arrays[*number].0.start(), *number));
    let mut is_repeated = vec![false; arrays.len()];
    let mut before: Option<usize> = None;
    for number in order {
        let array = &arrays[number].0;
        if array.count() == 0 {
            continue;
        }
        match before {
            Some(other) if arrays[other].0.is_same(array) => is_repeated[number] = true,
            Some(other) if arrays[other].0.overlaps(array) => {
                let error = format!(
                    "arrays {} and {} share memory: a reduction in place of both cannot be right",
                    other.min(number),
                    other.max(number)
                );
                return Err(PyValueError::new_err(error));
            }
            _ => before = Some(number),
        }
    }
    let kept = arrays.into_iter().zip(is_repeated).filter(|(_, is_repeated)| !is_repeated);
    Ok(kept.map(|(array, _)| array).collect())
}
