//! `#[serde(with = "elastic_node::bulk")]`: large vectors of numbers as one block of bytes.
//!
//! A `Vec<f32>` is encoded number by number at about 1 GiB a second, and decoded at a quarter of that; as one
//! block it is copied at the speed of memory. This is worth it from some megabytes on.
//!
//! The bytes are in the machine's own order, so all machines of a job must have the same byte order.

use std::fmt;
use std::marker::PhantomData;

use elastic_collectives::Element;
use serde::de::Visitor;
use serde::{Deserializer, Serialize, Serializer};

use super::checkpoint::tensors::block_name;

/// Encodes a vector of numbers.
///
/// # Errors
/// The serializer's error.
pub fn serialize<E: Element, S: Serializer>(
    numbers: &[E],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    // The newtype adds nothing to the bytes; checkpoints know the numbers' type by its name.
    serializer.serialize_newtype_struct(block_name(E::DATA_TYPE), &Numbers(numbers))
}

/// Decodes a vector of numbers.
///
/// # Errors
/// The bytes are missing, or are not a whole number of elements.
pub fn deserialize<'de, E: Element, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<E>, D::Error> {
    // The same newtype as in `serialize`; `fields` knows the numbers' type by its name.
    deserializer.deserialize_newtype_struct(block_name(E::DATA_TYPE), Block(PhantomData))
}

/// Numbers that are encoded as a block of bytes.
struct Numbers<'a, E>(&'a [E]);

impl<E: Element> Serialize for Numbers<'_, E> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytemuck::cast_slice(self.0))
    }
}

struct Block<E>(PhantomData<E>);

impl<'de, E: Element> Visitor<'de> for Block<E> {
    type Value = Vec<E>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "bytes of whole {} numbers", E::DATA_TYPE)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Vec<E>, D::Error> {
        deserializer.deserialize_bytes(self)
    }

    fn visit_bytes<Error: serde::de::Error>(self, bytes: &[u8]) -> Result<Vec<E>, Error> {
        let size = size_of::<E>();
        if !bytes.len().is_multiple_of(size) {
            return Err(Error::invalid_length(bytes.len(), &self));
        }
        let mut numbers = vec![E::zeroed(); bytes.len() / size];
        bytemuck::cast_slice_mut(&mut numbers).copy_from_slice(bytes);
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    struct Model {
        name: String,
        #[serde(with = "super")]
        weights: Vec<f64>,
    }

    #[test]
    fn what_is_encoded_is_decoded_whatever_stands_before_it() {
        for name in ["", "a", "abc"] {
            let model = Model { name: name.to_owned(), weights: vec![1.5, -0.0, f64::MAX] };
            let bytes = postcard::to_stdvec(&model).expect("it encodes");
            assert_eq!(postcard::from_bytes::<Model>(&bytes), Ok(model));
        }
    }

    #[test]
    fn a_broken_number_is_refused() {
        let bytes = postcard::to_stdvec(&("", [0_u8; 7].as_slice())).expect("it encodes");
        assert!(postcard::from_bytes::<Model>(&bytes).is_err());
    }
}
