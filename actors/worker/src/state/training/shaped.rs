//! `#[serde(with = "elastic_node::shaped")]`: an array with a shape as one block of bytes, of any type that is a
//! [`ShapedArray`]. A durable checkpoint has it under the name of its field, with that shape. Used by training
//! programs.
//!
//! The bytes are in the machine's own order, so all machines of a job must have the same byte order.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use elastic_collectives::DataType;
use serde::de::{DeserializeSeed, Error as _, SeqAccess, Visitor};
use serde::ser::{Error as _, SerializeTuple as _};
use serde::{Deserializer, Serialize, Serializer};

use super::checkpoint::tensors::{announce_shape, block_name};

/// An array of numbers that knows its shape: a type of the program around a matrix of ndarray or a tensor of candle, for instance.
pub trait ShapedArray: Sized {
    /// Type of its elements.
    fn data_type(&self) -> DataType;

    /// Its shape, the slowest dimension first; empty for a single number.
    fn shape(&self) -> Vec<usize>;

    /// Its elements in the order of rows, in the machine's byte order: as many as the shape says.
    fn bytes(&self) -> Cow<'_, [u8]>;

    /// The array of this type and shape.
    ///
    /// # Errors
    /// Why this type cannot have them, in words.
    fn from_bytes(data_type: DataType, shape: &[usize], bytes: &[u8]) -> Result<Self, String>;
}

/// Encodes an array.
///
/// # Errors
/// The array has more or fewer bytes than its shape says; the serializer's error.
pub fn serialize<T: ShapedArray, S: Serializer>(
    array: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let (data_type, shape, bytes) = (array.data_type(), array.shape(), array.bytes());
    check(data_type, &shape, bytes.len()).map_err(S::Error::custom)?;
    let mut parts = serializer.serialize_tuple(PARTS)?;
    parts.serialize_element(&data_type.code())?;
    parts.serialize_element(&shape)?;
    announce_shape(shape);
    parts.serialize_element(&ShapedBlock { data_type, bytes: &bytes })?;
    parts.end()
}

/// Decodes an array.
///
/// # Errors
/// There is none, or the type refuses it.
pub fn deserialize<'de, T: ShapedArray, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    deserializer.deserialize_tuple(PARTS, ShapedArrayVisitor(PhantomData))
}

/// Code of the elements' type, shape, block of bytes.
const PARTS: usize = 3;

fn check(data_type: DataType, shape: &[usize], bytes: usize) -> Result<(), String> {
    let count = shape.iter().try_fold(1_usize, |count, length| count.checked_mul(*length));
    match count.and_then(|count| count.checked_mul(data_type.size_bytes())) {
        Some(expected) if expected == bytes => Ok(()),
        _ => Err(format!("an array of {data_type} of shape {shape:?} has {bytes} bytes")),
    }
}

struct ShapedBlock<'a> {
    data_type: DataType,
    bytes: &'a [u8],
}

impl Serialize for ShapedBlock<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The newtype adds nothing to the bytes; checkpoints know the numbers' type by its name.
        serializer.serialize_newtype_struct(block_name(self.data_type), &ShapedBytes(self.bytes))
    }
}

struct ShapedBytes<'a>(&'a [u8]);

impl Serialize for ShapedBytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

struct ShapedArrayVisitor<T>(PhantomData<T>);

impl<'de, T: ShapedArray> Visitor<'de> for ShapedArrayVisitor<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("type, shape and bytes of an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<T, A::Error> {
        let missing = |part| A::Error::invalid_length(part, &"type, shape and bytes of an array");
        let code: u8 = parts.next_element()?.ok_or_else(|| missing(0))?;
        let data_type = DataType::from_code(code)
            .ok_or_else(|| A::Error::custom(format!("there is no type of elements {code}")))?;
        let shape: Vec<usize> = parts.next_element()?.ok_or_else(|| missing(1))?;
        let body = ShapedBody { data_type, shape, array: PhantomData };
        parts.next_element_seed(body)?.ok_or_else(|| missing(2))
    }
}

/// The bytes of an array of known type and shape.
struct ShapedBody<T> {
    data_type: DataType,
    shape: Vec<usize>,
    array: PhantomData<T>,
}

impl<'de, T: ShapedArray> DeserializeSeed<'de> for ShapedBody<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl<T: ShapedArray> Visitor<'_> for ShapedBody<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "bytes of an array of {} of shape {:?}", self.data_type, self.shape)
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<T, E> {
        check(self.data_type, &self.shape, bytes.len()).map_err(E::custom)?;
        T::from_bytes(self.data_type, &self.shape, bytes).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// A matrix of `f64`, by rows.
    #[derive(Clone, Debug, PartialEq)]
    struct Matrix {
        columns: usize,
        numbers: Vec<f64>,
    }

    impl ShapedArray for Matrix {
        fn data_type(&self) -> DataType {
            DataType::F64
        }

        fn shape(&self) -> Vec<usize> {
            vec![self.numbers.len() / self.columns.max(1), self.columns]
        }

        fn bytes(&self) -> Cow<'_, [u8]> {
            Cow::Borrowed(bytemuck::cast_slice(&self.numbers))
        }

        fn from_bytes(data_type: DataType, shape: &[usize], bytes: &[u8]) -> Result<Self, String> {
            let (DataType::F64, [_, columns]) = (data_type, shape) else {
                return Err(format!(
                    "a matrix of f64 is no array of {data_type} of shape {shape:?}"
                ));
            };
            let mut numbers = vec![0.0; bytes.len() / size_of::<f64>()];
            bytemuck::cast_slice_mut(&mut numbers).copy_from_slice(bytes);
            Ok(Self { columns: *columns, numbers })
        }
    }

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    struct Model {
        name: String,
        #[serde(with = "super")]
        weight: Matrix,
        epoch: u64,
    }

    fn model(name: &str, columns: usize, numbers: &[f64]) -> Model {
        let weight = Matrix { columns, numbers: numbers.to_vec() };
        Model { name: name.to_owned(), weight, epoch: 300 }
    }

    #[test]
    fn what_is_encoded_is_decoded_with_its_shape_whatever_stands_before_it() {
        for name in ["", "a", "abc"] {
            for (columns, numbers) in [(2, &[1.5, -0.0, f64::MAX, 4.0][..]), (1, &[1.0]), (3, &[])]
            {
                let model = model(name, columns, numbers);
                let bytes = postcard::to_stdvec(&model).expect("it encodes");
                assert_eq!(postcard::from_bytes::<Model>(&bytes), Ok(model));
            }
        }
    }

    #[test]
    fn an_array_that_is_not_as_long_as_its_shape_says_is_refused() {
        assert!(postcard::to_stdvec(&model("", 2, &[1.0, 2.0, 3.0])).is_err());
        let mut bytes = postcard::to_stdvec(&model("", 2, &[1.0, 2.0])).expect("it encodes");
        // Name, code, number of dimensions, rows.
        assert_eq!(bytes[..4], [0, DataType::F64.code(), 2, 1]);
        bytes[3] = 2;
        assert!(postcard::from_bytes::<Model>(&bytes).is_err());
    }

    #[test]
    fn a_type_that_does_not_fit_is_refused_by_the_one_that_takes_it() {
        let flat =
            (String::new(), (DataType::F64.code(), vec![1_usize], ShapedBytes(&[0; 8])), 3_u64);
        let bytes = postcard::to_stdvec(&flat).expect("it encodes");
        assert!(postcard::from_bytes::<Model>(&bytes).is_err());
    }
}
