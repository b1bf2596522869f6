//! The names of a state type's fields. Checkpoints have them, since postcard's bytes do not: without them, a program whose
//! fields stand in another order would read one field's value as another's. `membership` asks for them.

use serde::de::value::Error;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// Most fields of a type whose names are kept.
const FIELDS_MAX: usize = 1024;

/// The fields of a struct, in the order of its bytes; none if `T` is no struct, or has more than [`FIELDS_MAX`].
pub(super) fn fields_of<T: DeserializeOwned>() -> Option<Vec<String>> {
    let mut fields = None;
    // It always ends with an error, behind the question for the fields.
    drop(T::deserialize(FieldsAsked(&mut fields)));
    let fields = fields.filter(|fields| fields.len() <= FIELDS_MAX)?;
    Some(fields.iter().map(|field| (*field).to_owned()).collect())
}

/// Takes note of the fields that a type asks for, and has no value.
struct FieldsAsked<'a>(&'a mut Option<&'static [&'static str]>);

impl<'de> Deserializer<'de> for FieldsAsked<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("there is no value"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = Some(fields);
        Err(Error::custom("there is no value"))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq
        tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "its fields alone count")]
    struct Model {
        step: u64,
        #[serde(rename = "rate")]
        lr: f32,
        weights: Vec<f32>,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "its fields alone count")]
    struct Wrapped(Model);

    #[test]
    fn c_1_a_struct_tells_its_fields_in_their_order_and_other_types_have_none() {
        let expected = ["step", "rate", "weights"].map(str::to_owned).to_vec();
        assert_eq!(fields_of::<Model>().as_ref(), Some(&expected));
        assert_eq!(fields_of::<Wrapped>(), Some(expected));
        assert_eq!(fields_of::<(u64, Vec<f32>)>(), None);
        assert_eq!(fields_of::<Vec<Model>>(), None);
    }
}
