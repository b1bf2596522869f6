//! `Array`: the memory of a Python object, as collectives take it. NumPy arrays, `bytearray`, `array.array` and
//! `memoryview` expose it by the buffer protocol; tensors of torch and JAX by DLPack, on a GPU too. Data is never
//! copied. Used by all of this crate's calls.

use std::ptr::NonNull;

use elastic_collectives::{DataType, ReduceOp};
use elastic_node::gpu::Region;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::dlpack::{Borrowed, ElementType};
use crate::on_gpu::GroupGpu;

/// The type of the elements.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Elements {
    /// Numbers that collectives reduce.
    Numbers(DataType),
    /// Truth values, one byte each: their minimum and maximum are "and" and "or".
    Truths,
    /// Elements of this size in bytes, which are moved and never reduced.
    Opaque(usize),
}

/// The location of memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum MemorySpace {
    /// In the machine's main memory.
    Main,
    /// On the GPU that the group's collectives work on.
    Gpu,
}

/// The owner, which keeps the memory alive.
enum MemoryOwner {
    Buffer(#[expect(dead_code, reason = "dropping it gives the memory back")] Buffer),
    Tensor(#[expect(dead_code, reason = "dropping it gives the memory back")] Borrowed),
}

/// Contiguous memory of a Python object.
pub(crate) struct Array {
    address: NonNull<u8>,
    length_bytes: usize,
    elements: Elements,
    place: MemorySpace,
    _owner: MemoryOwner,
}

#[expect(unsafe_code, reason = "collectives run on a thread of their own")]
// SAFETY: the memory stays where it is while the owner is held, and the owners may be dropped anywhere.
unsafe impl Send for Array {}

/// Address of an empty array: aligned for every type.
const NOWHERE: NonNull<u8> = NonNull::<u64>::dangling().cast();

impl Array {
    /// Takes the memory of `object`, for a group that works on this GPU, if it works on any.
    ///
    /// # Errors
    /// The object has neither protocol; or it is not contiguous, neither in main memory nor on that GPU, or not
    /// writable where that is needed.
    pub(crate) fn of(
        object: &Bound<'_, PyAny>,
        writable: bool,
        gpu: Option<GroupGpu>,
    ) -> PyResult<Array> {
        if let Some(buffer) = Buffer::of(object, writable)? {
            if buffer.format().contains('O') {
                let error = "an array of Python objects has nothing that other processes could use: \
                             take broadcast_object or allgather_object";
                return Err(PyTypeError::new_err(error));
            }
            let elements = of_format(buffer.format(), buffer.item_bytes());
            let address = buffer.address().unwrap_or(NOWHERE);
            let length_bytes = buffer.length_bytes();
            let (place, _owner) = (MemorySpace::Main, MemoryOwner::Buffer(buffer));
            return Ok(Array { address, length_bytes, elements, place, _owner });
        }
        let Some((place, tensor)) = Borrowed::of(object, writable, gpu)? else {
            let name = object.get_type().name()?;
            let error = format!(
                "{name} has no memory to share: give a NumPy array, a torch tensor, or another object with \
                 the buffer protocol or DLPack"
            );
            return Err(PyTypeError::new_err(error));
        };
        let elements = of_dlpack(tensor.element())?;
        let length_bytes = tensor.count() * elements.size_bytes();
        let address = tensor.address().filter(|_| length_bytes > 0).unwrap_or(NOWHERE);
        Ok(Array { address, length_bytes, elements, place, _owner: MemoryOwner::Tensor(tensor) })
    }

    /// The type in which the elements are moved, and how many values of that type make one element.
    pub(crate) const fn moved_as(&self) -> (DataType, usize) {
        match self.elements {
            Elements::Numbers(data_type) => (data_type, 1),
            Elements::Truths => (DataType::U8, 1),
            Elements::Opaque(size) => (DataType::U8, size),
        }
    }

    /// The type in which the elements are reduced.
    ///
    /// # Errors
    /// `ValueError`: such elements cannot be reduced, or not by this operation.
    pub(crate) fn reduced_as(&self, op: ReduceOp) -> PyResult<DataType> {
        match (self.elements, op) {
            (Elements::Numbers(data_type), _) => Ok(data_type),
            (Elements::Truths, ReduceOp::Min | ReduceOp::Max) => Ok(DataType::U8),
            (Elements::Truths, _) => Err(PyValueError::new_err(
                "truth values have no sum: take Min (all) or Max (any), or convert them to integers",
            )),
            (Elements::Opaque(size), _) => Err(PyValueError::new_err(format!(
                "elements of this type ({size} bytes) cannot be reduced: convert them to float16, bfloat16, \
                 float32, float64, uint8, int32, int64, uint32 or uint64"
            ))),
        }
    }

    /// Number of elements.
    pub(crate) const fn count(&self) -> usize {
        self.length_bytes / self.elements.size_bytes()
    }

    /// Number of bytes.
    pub(crate) const fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// The location of the memory.
    pub(crate) const fn place(&self) -> MemorySpace {
        self.place
    }

    /// Whether both have the same type of elements.
    pub(crate) fn is_like(&self, other: &Array) -> bool {
        self.elements == other.elements
    }

    pub(crate) fn overlaps(&self, other: &Array) -> bool {
        let (start, other_start) = (self.address.addr().get(), other.address.addr().get());
        start < other_start + other.length_bytes && other_start < start + self.length_bytes
    }

    /// Whether both are the same elements at the same address.
    pub(crate) fn is_same(&self, other: &Array) -> bool {
        (self.address, self.length_bytes, self.elements)
            == (other.address, other.length_bytes, other.elements)
    }

    /// Address of the first byte.
    pub(crate) fn start(&self) -> usize {
        self.address.addr().get()
    }

    /// The memory, if it is on the GPU.
    pub(crate) fn region(&self) -> Region<'_> {
        assert_eq!(self.place, MemorySpace::Gpu, "memory on the GPU");
        #[expect(unsafe_code, reason = "the memory belongs to a Python object")]
        // SAFETY: the owner keeps the memory in place, on this group's GPU. The launcher of the operation
        // promised to leave it alone until the operation is done, and `on_gpu` keeps the owner for as long as
        // the GPU may use the memory.
        unsafe {
            Region::of_others(self.address.addr().get() as u64, self.length_bytes)
        }
    }

    /// The memory, to be read. The launcher of the operation promised to leave it alone until the operation is
    /// done.
    pub(crate) fn bytes(&self) -> &[u8] {
        assert_eq!(self.place, MemorySpace::Main, "main memory");
        #[expect(unsafe_code, reason = "the memory belongs to a Python object")]
        // SAFETY: the owner keeps the memory in place; the address is never null.
        unsafe {
            std::slice::from_raw_parts(self.address.as_ptr(), self.length_bytes)
        }
    }

    /// The memory, to be written to.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert_eq!(self.place, MemorySpace::Main, "main memory");
        #[expect(unsafe_code, reason = "the memory belongs to a Python object")]
        // SAFETY: as for `bytes`; arrays of one operation that overlap are told apart before it is launched.
        unsafe {
            std::slice::from_raw_parts_mut(self.address.as_ptr(), self.length_bytes)
        }
    }
}

impl Elements {
    const fn size_bytes(self) -> usize {
        match self {
            Elements::Numbers(data_type) => data_type.size_bytes(),
            Elements::Truths => 1,
            Elements::Opaque(size) => size,
        }
    }
}

/// The type for a format of Python's `struct`; the size tells the variants of a letter apart.
fn of_format(format: &str, size: usize) -> Elements {
    let letters = format.trim_start_matches([
        '@',
        '=',
        if cfg!(target_endian = "little") { '<' } else { '>' },
    ]);
    match (letters, size) {
        ("?", 1) => Elements::Truths,
        ("e", 2) => Elements::Numbers(DataType::F16),
        ("f", 4) => Elements::Numbers(DataType::F32),
        ("d", 8) => Elements::Numbers(DataType::F64),
        ("B" | "c", 1) => Elements::Numbers(DataType::U8),
        ("i" | "l", 4) => Elements::Numbers(DataType::I32),
        ("l" | "q" | "n", 8) => Elements::Numbers(DataType::I64),
        ("I" | "L", 4) => Elements::Numbers(DataType::U32),
        ("L" | "Q" | "N", 8) => Elements::Numbers(DataType::U64),
        (_, size) => Elements::Opaque(size.max(1)),
    }
}

/// The type for a code of `DLDataTypeCode`.
fn of_dlpack(element: ElementType) -> PyResult<Elements> {
    let ElementType { code, bits, lanes } = element;
    Ok(match (code, bits, lanes) {
        (2, 16, 1) => Elements::Numbers(DataType::F16),
        (2, 32, 1) => Elements::Numbers(DataType::F32),
        (2, 64, 1) => Elements::Numbers(DataType::F64),
        (4, 16, 1) => Elements::Numbers(DataType::Bf16),
        (1, 8, 1) => Elements::Numbers(DataType::U8),
        (0, 32, 1) => Elements::Numbers(DataType::I32),
        (0, 64, 1) => Elements::Numbers(DataType::I64),
        (1, 32, 1) => Elements::Numbers(DataType::U32),
        (1, 64, 1) => Elements::Numbers(DataType::U64),
        (6, 8, 1) => Elements::Truths,
        (_, bits, 1) if bits > 0 && bits.is_multiple_of(8) => {
            Elements::Opaque(usize::from(bits / 8))
        }
        _ => {
            let error = format!("elements of DLPack type ({code}, {bits}, {lanes}) are not known");
            return Err(PyTypeError::new_err(error));
        }
    })
}
