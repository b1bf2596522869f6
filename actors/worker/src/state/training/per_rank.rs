//! `#[serde(with = "elastic_node::per_rank")]`: a field of the state whose content differs between ranks, such as
//! averages over a rank's own data. It is not compared between ranks (`--on-divergence`). The bytes are the same as
//! without this attribute. Used by training programs.
//!
//! It is part of the commit as any other field: after a reset, and at a newcomer, it is that of the rank whose commit the others
//! took over.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::checkpoint::tensors::PER_RANK;

/// Encodes the field.
///
/// # Errors
/// The serializer's error.
pub fn serialize<T: Serialize, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_newtype_struct(PER_RANK, value)
}

/// Decodes the field.
///
/// # Errors
/// The deserializer's error.
pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    T::deserialize(deserializer)
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    struct Model {
        step: u64,
        #[serde(with = "super")]
        averages: Vec<f32>,
    }

    #[test]
    fn a_field_of_each_rank_is_encoded_as_any_other() {
        let model = Model { step: 3, averages: vec![1.5, -0.0] };
        let bytes = postcard::to_stdvec(&model).expect("it encodes");
        let plain = postcard::to_stdvec(&(3_u64, vec![1.5_f32, -0.0])).expect("it encodes");
        assert_eq!(bytes, plain);
        assert_eq!(postcard::from_bytes::<Model>(&bytes), Ok(model));
    }
}
