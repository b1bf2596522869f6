//! Tests of the arrays in a commit and their names.

mod nesting;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use elastic_checkpoint::Dtype;
use elastic_collectives::DataType;
use serde::{Deserialize, Serialize};

use super::tensors::{self, NamedArray, announce};
use crate::state::training::restored::{CommitContent, decode};
use crate::state::training::shaped::ShapedArray;
use crate::state::training::snapshot::StateSnapshot;

#[derive(Deserialize, PartialEq, Serialize, Debug)]
struct Model {
    layers: Vec<Layer>,
    #[serde(with = "crate::state::training::bulk")]
    table: Vec<i64>,
    by_name: BTreeMap<String, Vec<f64>>,
    square: [[f32; 3]; 2],
}

#[derive(Deserialize, PartialEq, Serialize, Debug)]
struct Layer {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    activation: Activation,
}

#[derive(Deserialize, PartialEq, Serialize, Debug)]
enum Activation {
    Relu,
    Leaky { slopes: Vec<f32> },
}

#[derive(Deserialize, PartialEq, Serialize, Debug)]
struct Training {
    epoch: u64,
    model: Model,
    losses: Vec<(u32, f32)>,
    empty: Vec<f32>,
}

fn training() -> Training {
    let layer = |bias, activation| Layer { weight: vec![1.5, -2.0, 3.25], bias, activation };
    Training {
        epoch: 300,
        model: Model {
            layers: vec![
                layer(None, Activation::Relu),
                layer(Some(vec![0.5]), Activation::Leaky { slopes: vec![0.1, 0.2] }),
            ],
            table: vec![1, -1, i64::MAX],
            by_name: BTreeMap::from([("conv1".to_owned(), vec![2.0, 4.0])]),
            square: [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
        },
        losses: vec![(1, 0.5), (2, 0.25)],
        empty: Vec::new(),
    }
}

#[test]
fn arrays_have_the_names_of_the_fields_that_lead_to_them() {
    let mut snapshot = StateSnapshot::default();
    let head = (vec![0_u64; 3], "ledger");
    let plain = snapshot.encode(&(&head.0, &head.1, training())).expect("it encodes").bytes;
    let (encoded, arrays) = snapshot.encode_with_arrays(&head, &training()).expect("it encodes");
    let bytes = encoded.bytes;
    let tensors = arrays.tensors;
    assert_eq!(bytes, plain, "the bytes do not depend on whether arrays are noted");
    let found: Vec<(&str, Dtype, &[usize])> =
        tensors.iter().map(|it| (it.name.as_str(), it.dtype, it.shape.as_slice())).collect();
    let expected: [(&str, Dtype, &[usize]); 7] = [
        ("model.layers.0.weight", Dtype::F32, &[3]),
        ("model.layers.1.weight", Dtype::F32, &[3]),
        ("model.layers.1.bias", Dtype::F32, &[1]),
        ("model.layers.1.activation.Leaky.slopes", Dtype::F32, &[2]),
        ("model.table", Dtype::I64, &[3]),
        ("model.by_name.conv1", Dtype::F64, &[2]),
        ("model.square", Dtype::F32, &[2, 3]),
    ];
    assert_eq!(found, expected);
    let content = |index: usize| &bytes[tensors[index].offset..][..tensors[index].bytes()];
    assert_eq!(content(4), bytemuck::cast_slice::<i64, u8>(&[1, -1, i64::MAX]));
    assert_eq!(content(6), bytemuck::cast_slice::<f32, u8>(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
}

/// A block of bytes, as a binding of another language has it.
struct Block;

impl Serialize for Block {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = "model.layer1.weight".to_owned();
        if tensors::are_wanted() {
            announce(NamedArray::new(name, "bfloat16", vec![2, 1]));
        }
        serializer.serialize_bytes(&[1, 2, 3, 4])
    }
}

#[test]
fn a_binding_says_what_its_blocks_are() {
    let mut snapshot = StateSnapshot::default();
    let state = BTreeMap::from([("model", Block)]);
    let (encoded, arrays) = snapshot.encode_with_arrays(&0_u8, &state).expect("it encodes");
    let bytes = encoded.bytes;
    let tensors = arrays.tensors;
    assert_eq!(tensors.len(), 1);
    assert_eq!((tensors[0].name.as_str(), tensors[0].dtype), ("model.layer1.weight", Dtype::BF16));
    assert_eq!(&bytes[tensors[0].offset..], [1, 2, 3, 4]);
    assert!(!tensors::are_wanted(), "outside of a save nobody looks for names");
}

/// Numbers by rows.
#[derive(Debug, PartialEq)]
struct Grid([f32; 6]);

impl ShapedArray for Grid {
    fn data_type(&self) -> DataType {
        DataType::F32
    }

    fn shape(&self) -> Vec<usize> {
        vec![3, 2]
    }

    fn bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(bytemuck::cast_slice(&self.0))
    }

    fn from_bytes(_: DataType, _: &[usize], bytes: &[u8]) -> Result<Self, String> {
        Ok(Self(bytemuck::pod_read_unaligned(bytes)))
    }
}

#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Shaped {
    layers: Vec<ShapedLayer>,
    #[serde(with = "crate::state::training::bulk")]
    table: Vec<i64>,
}

#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct ShapedLayer {
    #[serde(with = "crate::state::training::shaped")]
    weight: Grid,
    #[serde(with = "crate::state::training::shaped")]
    moment: Grid,
}

#[test]
fn c_5_an_array_with_a_shape_has_its_fields_name_and_its_shape() {
    let grid = |first: f32| Grid([first, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let layer = |first| ShapedLayer { weight: grid(first), moment: grid(-first) };
    let state = Shaped { layers: vec![layer(7.0), layer(8.0)], table: vec![1, 2] };
    let mut snapshot = StateSnapshot::default();
    let plain = snapshot.encode(&(3_u8, &state)).expect("it encodes").bytes;
    let (encoded, arrays) = snapshot.encode_with_arrays(&3_u8, &state).expect("it encodes");
    let bytes = encoded.bytes;
    assert_eq!(bytes, plain, "the bytes do not depend on whether arrays are noted");
    let found: Vec<(&str, Dtype, &[usize])> =
        arrays.tensors.iter().map(|it| (it.name.as_str(), it.dtype, it.shape.as_slice())).collect();
    let expected: [(&str, Dtype, &[usize]); 5] = [
        ("layers.0.weight", Dtype::F32, &[3, 2]),
        ("layers.0.moment", Dtype::F32, &[3, 2]),
        ("layers.1.weight", Dtype::F32, &[3, 2]),
        ("layers.1.moment", Dtype::F32, &[3, 2]),
        ("table", Dtype::I64, &[2]),
    ];
    assert_eq!(found, expected);
    let third = &arrays.tensors[2];
    assert_eq!(
        bytes[third.offset..][..third.bytes()],
        *bytemuck::cast_slice::<f32, u8>(&grid(8.0).0)
    );
    let content = CommitContent { bytes: Arc::new(bytes), stored: None };
    let (restored, _): ((u8, Shaped), usize) = decode(&content).expect("it decodes");
    assert_eq!(restored.1, state);
}

/// A block of bytes that nobody has named.
struct Raw;

impl Serialize for Raw {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&[7; 3])
    }
}

/// Compound values whose bytes would do for an array of as many numbers as they have elements.
#[derive(Serialize)]
struct Mixed {
    with_a_tuple: (f32, [f32; 1]),
    with_bytes: (f32, Raw),
    of_two_types: ([f32; 2], [f64; 1]),
}

#[test]
fn what_only_has_the_length_of_an_array_is_none() {
    let state = Mixed {
        with_a_tuple: (1.0, [2.0]),
        with_bytes: (3.0, Raw),
        of_two_types: ([4.0; 2], [5.0]),
    };
    let (_, arrays) =
        StateSnapshot::default().encode_with_arrays(&0_u8, &state).expect("it encodes");
    let found: Vec<(&str, Dtype)> =
        arrays.tensors.iter().map(|it| (it.name.as_str(), it.dtype)).collect();
    let expected = [
        ("with_a_tuple.1", Dtype::F32),
        ("of_two_types.0", Dtype::F32),
        ("of_two_types.1", Dtype::F64),
    ];
    assert_eq!(found, expected);
}

#[derive(Serialize)]
struct OwnAndShared {
    #[serde(with = "crate::state::training::per_rank")]
    own: Vec<f32>,
    shared: Vec<f32>,
}

#[test]
fn a_field_of_each_rank_ends_before_the_next_field() {
    let state = OwnAndShared { own: vec![1.0], shared: vec![2.0] };
    let (_, arrays) =
        StateSnapshot::default().encode_with_arrays(&0_u8, &state).expect("it encodes");
    assert_eq!(arrays.tensors.len(), 2);
    assert!(arrays.per_rank.iter().eq(["own"]), "{:?}", arrays.per_rank);
}

#[test]
fn each_type_of_array_has_its_name_in_numpy_and_torch() {
    let types = [
        ("bool", Dtype::BOOL),
        ("uint8", Dtype::U8),
        ("int8", Dtype::I8),
        ("uint16", Dtype::U16),
        ("int16", Dtype::I16),
        ("float16", Dtype::F16),
        ("bfloat16", Dtype::BF16),
        ("uint32", Dtype::U32),
        ("int32", Dtype::I32),
        ("float32", Dtype::F32),
        ("uint64", Dtype::U64),
        ("int64", Dtype::I64),
        ("float64", Dtype::F64),
        ("complex64", Dtype::C64),
        ("float8_e4m3fn", Dtype::F8_E4M3),
        ("float8_e5m2", Dtype::F8_E5M2),
    ];
    for (name, dtype) in types {
        let array = NamedArray::new("w".to_owned(), name, vec![2, 3]).expect(name);
        assert_eq!((array.dtype, array.shape), (dtype, vec![2, 3]), "{name}");
    }
    assert!(NamedArray::new("w".to_owned(), "complex128", vec![]).is_none());
}

/// Names of the arrays that are noted in this value.
fn noted(value: &impl Serialize) -> Vec<String> {
    let (_, arrays) = StateSnapshot::default().encode_with_arrays(&(), value).expect("it encodes");
    arrays.tensors.into_iter().map(|array| array.name).collect()
}

#[test]
fn an_array_whose_name_is_too_long_is_not_noted() {
    let of = |length: usize| BTreeMap::from([("x".repeat(length), vec![1.0_f32])]);
    assert_eq!(noted(&of(1_024)), ["x".repeat(1_024)]);
    assert!(noted(&of(1_025)).is_empty());
}

#[test]
fn arrays_beyond_the_bound_are_not_noted() {
    let names = noted(&vec![vec![1.0_f32]; (1 << 16) + 1]);
    assert_eq!(names.len(), 1 << 16);
    assert_eq!(names.last().map(String::as_str), Some("65535"));
}
