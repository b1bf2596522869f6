//! Finds the arrays in a commit while it is encoded: a serializer in front of postcard's, which writes the same bytes and
//! notes where sequences of numbers lie, with the path of fields that leads to them as their name. So a program names
//! its arrays by naming its fields, and has nothing else to do.
//!
//! An array is a sequence of `f32` or `f64` only, or a vector with `#[serde(with = "elastic_node::bulk")]`, or an array
//! with a shape and `#[serde(with = "elastic_node::shaped")]`, or one that a binding announces ([`announce`]). Its
//! bytes in postcard's output are those in memory. All other values are no arrays.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use elastic_checkpoint::{CheckpointTensor, Dtype};
use elastic_collectives::DataType;
use postcard::ser_flavors::Flavor;
use serde::ser::Serialize;

use self::noting::{FoundArray, Noting};

mod noting;

/// Name, type and shape of an array that a binding encodes as a block of bytes.
#[derive(Clone, Debug)]
pub struct NamedArray {
    /// Its whole name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Whether each rank has content of its own.
    pub is_per_rank: bool,
}

impl NamedArray {
    /// An array whose type has this name in NumPy and torch; none if checkpoints have no such type.
    pub fn new(name: String, dtype: &str, shape: Vec<usize>) -> Option<Self> {
        let dtype = match dtype {
            "bool" => Dtype::BOOL,
            "uint8" => Dtype::U8,
            "int8" => Dtype::I8,
            "uint16" => Dtype::U16,
            "int16" => Dtype::I16,
            "float16" => Dtype::F16,
            "bfloat16" => Dtype::BF16,
            "uint32" => Dtype::U32,
            "int32" => Dtype::I32,
            "float32" => Dtype::F32,
            "uint64" => Dtype::U64,
            "int64" => Dtype::I64,
            "float64" => Dtype::F64,
            "complex64" => Dtype::C64,
            "float8_e4m3fn" => Dtype::F8_E4M3,
            "float8_e5m2" => Dtype::F8_E5M2,
            _ => return None,
        };
        Some(Self { name, dtype, shape, is_per_rank: false })
    }
}

thread_local! {
    static WANTED: Cell<bool> = const { Cell::new(false) };
    static NEXT: RefCell<Option<NamedArray>> = const { RefCell::new(None) };
    static SHAPE: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
}

/// Whether arrays are noted in the encoding that is under way on this thread. A binding asks before it looks for names.
pub fn are_wanted() -> bool {
    WANTED.get()
}

/// Sets the array that the next encoded block of bytes on this thread stands for.
pub fn announce(array: Option<NamedArray>) {
    NEXT.set(array);
}

/// Sets the shape of the next block of numbers that this thread encodes. The block is the last part of a tuple that has
/// the block's shape before it.
pub(in crate::state::training) fn announce_shape(shape: Vec<usize>) {
    if are_wanted() {
        SHAPE.set(Some(shape));
    }
}

/// The newtype around values of which each rank has its own (`#[serde(with = "elastic_node::per_rank")]`).
pub(in crate::state::training) const PER_RANK: &str = "elastic_node::per_rank";

/// The newtype around a block of numbers, by which [`Noting`] knows their type: name, type of elements.
const BLOCKS: [(&str, Dtype); 9] = [
    ("elastic_node::bulk::F32", Dtype::F32),
    ("elastic_node::bulk::F64", Dtype::F64),
    ("elastic_node::bulk::F16", Dtype::F16),
    ("elastic_node::bulk::BF16", Dtype::BF16),
    ("elastic_node::bulk::U8", Dtype::U8),
    ("elastic_node::bulk::I32", Dtype::I32),
    ("elastic_node::bulk::I64", Dtype::I64),
    ("elastic_node::bulk::U32", Dtype::U32),
    ("elastic_node::bulk::U64", Dtype::U64),
];

/// The name of the newtype around a block of these numbers.
pub(in crate::state::training) fn block_name(numbers: DataType) -> &'static str {
    let place = DataType::ALL.iter().position(|of| *of == numbers).unwrap_or_default();
    BLOCKS[place].0
}

/// The type of the numbers in a block with this newtype's name; none if it is no block's.
pub(in crate::state::training) fn block_type(newtype: &str) -> Option<Dtype> {
    BLOCKS.iter().find(|(block, _)| *block == newtype).map(|(_, dtype)| *dtype)
}

/// A place in the output whose end is known.
pub(in crate::state::training) trait Counted: Flavor {
    /// Bytes so far.
    fn written(&self) -> usize;
}

/// The arrays in a commit.
#[derive(Clone, Debug, Default)]
pub(in crate::state::training) struct NotedArrays {
    /// The arrays, by their offsets.
    pub(in crate::state::training) tensors: Vec<CheckpointTensor>,
    /// The names of those of which each rank has its own.
    pub(in crate::state::training) per_rank: BTreeSet<String>,
}

/// Encodes `value` behind what `output` holds already, with the arrays in it.
///
/// # Errors
/// As postcard's own serializer.
pub(in crate::state::training) fn encode<F: Counted>(
    value: &impl Serialize,
    output: &mut postcard::Serializer<F>,
) -> postcard::Result<NotedArrays> {
    let mut noting = Noting::new(output);
    WANTED.set(true);
    let encoded = value.serialize(&mut noting);
    WANTED.set(false);
    NEXT.set(None);
    SHAPE.set(None);
    encoded?;
    let mut found = noting.into_found();
    give_names_of_their_own(&mut found);
    let of_each_rank = found.iter().filter(|array| array.is_per_rank);
    let per_rank = of_each_rank.map(|array| array.tensor.name.clone()).collect();
    let tensors = found.into_iter().map(|array| array.tensor).collect();
    Ok(NotedArrays { tensors, per_rank })
}

/// Numbers the further arrays of one name, such as `a.b#2`: keys of maps may hold dots. The files of a checkpoint have one array
/// of a name.
fn give_names_of_their_own(found: &mut [FoundArray]) {
    // Each name with the number that comes next.
    let mut names: BTreeMap<String, u64> = BTreeMap::new();
    for FoundArray { tensor, .. } in found {
        while let Some(next) = names.get_mut(&tensor.name) {
            let numbered = format!("{}#{next}", tensor.name);
            *next += 1;
            if !names.contains_key(&numbered) {
                tensor.name = numbered;
            }
        }
        names.insert(tensor.name.clone(), 2);
    }
}
