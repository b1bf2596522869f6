//! Property tests of arrays in values of any nesting, against a simple model of the rules in `tensors`.

use elastic_checkpoint::Dtype;
use elastic_collectives::DataType;
use proptest::prelude::*;
use serde::ser::{
    Serialize, SerializeMap as _, SerializeSeq as _, SerializeStruct as _,
    SerializeStructVariant as _, SerializeTuple as _, SerializeTupleStruct as _,
    SerializeTupleVariant as _, Serializer,
};

use super::super::tensors::{NamedArray, PER_RANK, announce, are_wanted, block_name};
use crate::state::training::snapshot::StateSnapshot;

const FIELDS: [&str; 3] = ["a", "b", "c"];
const VARIANT: &str = "Kind";

/// A value that a program may hold in its state.
#[derive(Clone, Debug)]
enum Value {
    F32(f32),
    F64(f64),
    U8(u8),
    I64(i64),
    Bool(bool),
    Text(String),
    Nothing,
    Unit,
    Variant(u32),
    Bytes(Vec<u8>),
    /// A block of numbers (`elastic_node::bulk`).
    Block(DataType, Vec<u8>),
    /// A block of bytes that a binding announces, and whether each rank has its own.
    Announced(NamedArray, Vec<u8>),
    Some(Box<Value>),
    Newtype(Box<Value>),
    PerRank(Box<Value>),
    NewtypeVariant(Box<Value>),
    Seq(Vec<Value>),
    Tuple(Vec<Value>),
    TupleStruct(Vec<Value>),
    TupleVariant(Vec<Value>),
    Struct(Vec<Value>),
    StructVariant(Vec<Value>),
    Map(Vec<Value>),
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::F32(value) => to.serialize_f32(*value),
            Self::F64(value) => to.serialize_f64(*value),
            Self::U8(value) => to.serialize_u8(*value),
            Self::I64(value) => to.serialize_i64(*value),
            Self::Bool(value) => to.serialize_bool(*value),
            Self::Text(value) => to.serialize_str(value),
            Self::Nothing => to.serialize_none(),
            Self::Unit => to.serialize_unit(),
            Self::Variant(index) => to.serialize_unit_variant("Enum", *index, VARIANT),
            Self::Bytes(bytes) => to.serialize_bytes(bytes),
            Self::Block(numbers, bytes) => {
                to.serialize_newtype_struct(block_name(*numbers), &Self::Bytes(bytes.clone()))
            }
            Self::Announced(array, bytes) => {
                if are_wanted() {
                    announce(Some(array.clone()));
                }
                to.serialize_bytes(bytes)
            }
            Self::Some(value) => to.serialize_some(value),
            Self::Newtype(value) => to.serialize_newtype_struct("Plain", value),
            Self::PerRank(value) => to.serialize_newtype_struct(PER_RANK, value),
            Self::NewtypeVariant(value) => to.serialize_newtype_variant("Enum", 1, VARIANT, value),
            Self::Seq(values) => {
                let mut seq = to.serialize_seq(Some(values.len()))?;
                values.iter().try_for_each(|value| seq.serialize_element(value))?;
                seq.end()
            }
            Self::Tuple(values) => {
                let mut tuple = to.serialize_tuple(values.len())?;
                values.iter().try_for_each(|value| tuple.serialize_element(value))?;
                tuple.end()
            }
            Self::TupleStruct(values) => {
                let mut tuple = to.serialize_tuple_struct("Pair", values.len())?;
                values.iter().try_for_each(|value| tuple.serialize_field(value))?;
                tuple.end()
            }
            Self::TupleVariant(values) => {
                let mut tuple = to.serialize_tuple_variant("Enum", 2, VARIANT, values.len())?;
                values.iter().try_for_each(|value| tuple.serialize_field(value))?;
                tuple.end()
            }
            Self::Struct(values) => {
                let mut fields = to.serialize_struct("Layer", values.len())?;
                let named = FIELDS.iter().zip(values);
                named
                    .into_iter()
                    .try_for_each(|(name, value)| fields.serialize_field(name, value))?;
                fields.end()
            }
            Self::StructVariant(values) => {
                let mut fields = to.serialize_struct_variant("Enum", 3, VARIANT, values.len())?;
                let named = FIELDS.iter().zip(values);
                named
                    .into_iter()
                    .try_for_each(|(name, value)| fields.serialize_field(name, value))?;
                fields.end()
            }
            Self::Map(values) => {
                let mut map = to.serialize_map(Some(values.len()))?;
                let named = FIELDS.iter().zip(values);
                named.into_iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
                map.end()
            }
        }
    }
}

/// An array that the rules find in a value.
#[derive(Clone, Debug, PartialEq)]
struct Expected {
    /// The parts of its path below the value.
    path: Vec<String>,
    /// The name that a binding has given it.
    named: Option<String>,
    dtype: Dtype,
    shape: Vec<usize>,
    offset: usize,
    is_per_rank: bool,
}

impl Expected {
    fn new(dtype: Dtype, shape: Vec<usize>, offset: usize, is_per_rank: bool) -> Self {
        Self { path: Vec::new(), named: None, dtype, shape, offset, is_per_rank }
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }

    fn below(mut self, part: &str, offset: usize) -> Self {
        self.path.insert(0, part.to_owned());
        self.offset += offset;
        self
    }

    fn name(&self) -> String {
        match &self.named {
            Some(name) => name.clone(),
            None if self.path.is_empty() => "state".to_owned(),
            None => self.path.join("."),
        }
    }
}

fn encoded(value: &Value) -> Vec<u8> {
    postcard::to_allocvec(value).expect("it encodes")
}

/// Type of a value that is one number of an array. A number of which each rank has its own is none.
fn number(value: &Value, is_per_rank: bool) -> Option<Dtype> {
    match value {
        Value::F32(_) => Some(Dtype::F32),
        Value::F64(_) => Some(Dtype::F64),
        Value::Newtype(value) => number(value, is_per_rank),
        Value::PerRank(value) if is_per_rank => number(value, is_per_rank),
        _ => None,
    }
}

fn dtype(numbers: DataType) -> Dtype {
    match numbers {
        DataType::F32 => Dtype::F32,
        DataType::I64 => Dtype::I64,
        _ => Dtype::U8,
    }
}

/// The arrays of a value, with offsets from its first byte.
fn expected(value: &Value, is_per_rank: bool) -> Vec<Expected> {
    let moved = |value: &Value, by: usize| {
        let mut arrays = expected(value, is_per_rank);
        arrays.iter_mut().for_each(|array| array.offset += by);
        arrays
    };
    match value {
        Value::Block(_, bytes) if bytes.is_empty() => Vec::new(),
        Value::Block(numbers, bytes) => {
            let (dtype, before) = (dtype(*numbers), encoded(value).len() - bytes.len());
            let count = bytes.len() * 8 / dtype.bitsize();
            vec![Expected::new(dtype, vec![count], before, is_per_rank)]
        }
        Value::Announced(array, bytes) => {
            let before = encoded(value).len() - bytes.len();
            let is_per_rank = is_per_rank || array.is_per_rank;
            let mut found = Expected::new(array.dtype, array.shape.clone(), before, is_per_rank);
            found.named = Some(array.name.clone());
            if found.bytes() == bytes.len() { vec![found] } else { Vec::new() }
        }
        Value::Some(value) => moved(value, 1),
        Value::Newtype(value) => expected(value, is_per_rank),
        Value::PerRank(value) => expected(value, true),
        Value::NewtypeVariant(value) => {
            expected(value, is_per_rank).into_iter().map(|it| it.below(VARIANT, 1)).collect()
        }
        Value::Seq(values) => indexed(value, values, false, is_per_rank),
        Value::Tuple(values) | Value::TupleStruct(values) => {
            indexed(value, values, true, is_per_rank)
        }
        Value::TupleVariant(values) => {
            let arrays = indexed(value, values, true, is_per_rank);
            arrays.into_iter().map(|it| it.below(VARIANT, 0)).collect()
        }
        Value::Struct(values) => named(values, 0, 0, is_per_rank),
        Value::StructVariant(values) => {
            let arrays = named(values, 1, 0, is_per_rank);
            arrays.into_iter().map(|it| it.below(VARIANT, 0)).collect()
        }
        // A byte for the length of each key, and one for its letter.
        Value::Map(values) => named(values, 1, 2, is_per_rank),
        _ => Vec::new(),
    }
}

fn named(values: &[Value], before: usize, before_each: usize, is_per_rank: bool) -> Vec<Expected> {
    let mut at = before;
    let mut arrays = Vec::new();
    for (name, value) in FIELDS.iter().zip(values) {
        at += before_each;
        arrays.extend(expected(value, is_per_rank).into_iter().map(|it| it.below(name, at)));
        at += encoded(value).len();
    }
    arrays
}

fn indexed(whole: &Value, values: &[Value], is_dense: bool, is_per_rank: bool) -> Vec<Expected> {
    let lengths: Vec<usize> = values.iter().map(|value| encoded(value).len()).collect();
    let before = encoded(whole).len() - lengths.iter().sum::<usize>();
    let first = values.first().and_then(|value| number(value, is_per_rank));
    let is_alike = |value: &Value| number(value, is_per_rank) == first;
    if let Some(dtype) = first.filter(|_| values.iter().all(is_alike)) {
        return vec![Expected::new(dtype, vec![values.len()], before, is_per_rank)];
    }
    let each: Vec<Vec<Expected>> =
        values.iter().map(|value| expected(value, is_per_rank)).collect();
    let row = |(arrays, length): (&Vec<Expected>, &usize)| match arrays.as_slice() {
        [row] if row.offset == 0 && row.bytes() == *length => {
            Some((row.dtype, row.shape.clone(), row.is_per_rank))
        }
        _ => None,
    };
    let rows: Vec<_> = each.iter().zip(&lengths).map(row).collect();
    if let Some(Some((dtype, shape, is_per_rank))) = rows.first()
        && is_dense
        && rows.iter().all(|row| *row == rows[0])
    {
        let shape = [&[values.len()], shape.as_slice()].concat();
        return vec![Expected::new(*dtype, shape, before, *is_per_rank)];
    }
    let mut at = before;
    let mut arrays = Vec::new();
    for (index, (found, length)) in each.into_iter().zip(lengths).enumerate() {
        arrays.extend(found.into_iter().map(|it| it.below(&index.to_string(), at)));
        at += length;
    }
    arrays
}

fn values() -> impl Strategy<Value = Value> {
    let block =
        (prop::sample::select(vec![DataType::F32, DataType::I64, DataType::U8]), 0..3_usize)
            .prop_map(|(numbers, count)| {
                Value::Block(numbers, vec![7; count * numbers.size_bytes()])
            });
    let announced = ("[xyz]", 0..3_usize, 0..9_usize, any::<bool>()).prop_map(
        |(name, rows, bytes, is_per_rank)| {
            let mut array = NamedArray::new(name, "float32", vec![rows, 1]).expect("a known type");
            array.is_per_rank = is_per_rank;
            Value::Announced(array, vec![3; bytes])
        },
    );
    let leaf = prop_oneof![
        6 => any::<f32>().prop_map(Value::F32),
        2 => any::<f64>().prop_map(Value::F64),
        1 => any::<u8>().prop_map(Value::U8),
        1 => any::<i64>().prop_map(Value::I64),
        1 => any::<bool>().prop_map(Value::Bool),
        1 => "[a-z]{0,4}".prop_map(Value::Text),
        1 => Just(Value::Nothing),
        1 => Just(Value::Unit),
        // The number of the second one is as long as an element.
        1 => prop::sample::select(vec![0, 1 << 21]).prop_map(Value::Variant),
        1 => prop::collection::vec(any::<u8>(), 0..9).prop_map(Value::Bytes),
        2 => block,
        2 => announced,
    ];
    leaf.prop_recursive(4, 48, 3, |inner| {
        let boxed = inner.clone().prop_map(Box::new);
        let many = prop::collection::vec(inner.clone(), 0..=3);
        // Rows of a matrix are alike. Each rank may have its own of the last one.
        let row = prop_oneof![
            inner,
            prop::collection::vec(any::<f32>().prop_map(Value::F32), 1..3).prop_map(Value::Tuple)
        ];
        let alike = (row, 1..=3_usize, any::<bool>()).prop_map(|(row, count, is_own)| {
            let mut rows = vec![row; count];
            if is_own && let Some(last) = rows.pop() {
                rows.push(Value::PerRank(Box::new(last)));
            }
            rows
        });
        let many = prop_oneof![many, alike];
        prop_oneof![
            1 => boxed.clone().prop_map(Value::Some),
            1 => boxed.clone().prop_map(Value::Newtype),
            1 => boxed.clone().prop_map(Value::PerRank),
            1 => boxed.prop_map(Value::NewtypeVariant),
            3 => many.clone().prop_map(Value::Seq),
            4 => many.clone().prop_map(Value::Tuple),
            1 => many.clone().prop_map(Value::TupleStruct),
            1 => many.clone().prop_map(Value::TupleVariant),
            2 => many.clone().prop_map(Value::Struct),
            1 => many.clone().prop_map(Value::StructVariant),
            1 => many.prop_map(Value::Map),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_096))]

    #[test]
    fn c_5_arrays_are_found_in_values_of_any_nesting(value in values()) {
        let mut snapshot = StateSnapshot::default();
        let (commit, noted) = snapshot.encode_with_arrays(&(), &value).expect("it encodes");
        let bytes = commit.bytes;
        prop_assert_eq!(&bytes, &encoded(&value), "the bytes are postcard's");
        let plain = snapshot.encode(&value).expect("it encodes").bytes;
        prop_assert_eq!(&plain, &bytes, "with arrays and without");
        let arrays = expected(&value, false);
        // Of several arrays with one name, the further ones are numbered.
        let mut names = std::collections::BTreeSet::new();
        let mut own_name = |name: String| {
            let numbered = (2_u64..).map(|number| format!("{name}#{number}"));
            let mut choices = std::iter::once(name.clone()).chain(numbered);
            choices.find(|name| names.insert(name.clone())).expect("one is free")
        };
        let found: Vec<_> = noted
            .tensors
            .iter()
            .map(|it| {
                let is_per_rank = noted.per_rank.contains(&it.name);
                (it.name.clone(), it.dtype, it.shape.clone(), it.offset, is_per_rank)
            })
            .collect();
        let arrays: Vec<_> = arrays
            .into_iter()
            .map(|it| (own_name(it.name()), it.dtype, it.shape, it.offset, it.is_per_rank))
            .collect();
        prop_assert_eq!(found, arrays);
        let known = noted.tensors.iter().map(|it| &it.name);
        prop_assert!(noted.per_rank.iter().all(|name| known.clone().any(|it| it == name)));
    }
}
