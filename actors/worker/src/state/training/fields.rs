//! The fields of a state type, with their types. Checkpoints have them, since postcard's bytes do not: without them, a program
//! whose fields stand in another order, or have other types, would read one value as another. Members of a generation
//! compare their digest. `membership` asks for them.

mod places;

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use elastic_checkpoint::{StateFields, TensorRecord};
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use places::{BULK, ENUM, PlaceQuestion, PlaceStep, SEQUENCE, place, question};

/// Most fields of a type whose names are kept.
const FIELDS_MAX: usize = 1024;
/// Most places of a type that are looked at.
const PLACES_MAX: usize = 1024;
/// Most steps to a place: a type may contain itself.
const STEPS_MAX: usize = 8;
/// Longest name of a place and longest word for a type, in bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// The fields of a struct, in the order of its bytes, with their types; none if `T` is no struct, or has more than
/// [`FIELDS_MAX`].
pub(super) fn fields_of<T: DeserializeOwned>() -> Option<StateFields> {
    let Some(PlaceQuestion::Struct(fields)) = question::<T>(&[]) else { return None };
    if fields.len() > FIELDS_MAX {
        return None;
    }
    let names = fields.iter().map(|field| (*field).to_owned()).collect();
    let mut types = BTreeMap::new();
    let mut ways: Vec<Vec<PlaceStep>> =
        fields.iter().rev().map(|field| vec![PlaceStep::Field(field)]).collect();
    let mut looked_at = 0;
    while let Some(way) = ways.pop() {
        looked_at += 1;
        if looked_at > PLACES_MAX {
            break;
        }
        let Some(question) = question::<T>(&way) else { continue };
        let (place, word) = (place(&way), question.to_string());
        if way.len() < STEPS_MAX {
            let next = |step| way.iter().copied().chain([step]).collect();
            ways.extend(question.steps().into_iter().rev().map(next));
        }
        if place.len() <= TEXT_BYTES_MAX && word.len() <= TEXT_BYTES_MAX {
            types.insert(place, word);
        }
    }
    Some(StateFields { names, types })
}

/// A number that differs between types with other fields, in all likelihood.
pub(super) fn digest(fields: &StateFields) -> NonZeroU64 {
    let texts = fields.types.iter().flat_map(|(place, word)| [place, word]);
    let mut bytes = Vec::new();
    for text in fields.names.iter().chain(texts) {
        bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    NonZeroU64::new(xxh3_64(&bytes)).unwrap_or(NonZeroU64::MIN)
}

/// The first place whose type differs so that its bytes would be misread, in words.
pub(super) fn other_type(
    saved: &BTreeMap<String, String>,
    own: &BTreeMap<String, String>,
) -> Option<String> {
    let (place, was, is) = saved.iter().find_map(|(place, was)| {
        own.get(place).filter(|is| !is_readable(was, is)).map(|is| (place, was, is))
    })?;
    Some(format!("{place} was saved as {was}, and the program reads {is}"))
}

/// The first array that was saved with elements of another type than the program reads, in words. For checkpoints that do not
/// have the types of fields.
pub(super) fn other_elements(
    saved: &[TensorRecord],
    own: &BTreeMap<String, String>,
) -> Option<String> {
    let element = |name: &str| match own.get(name)?.as_str() {
        SEQUENCE => {
            own.get(&format!("{name}[]")).filter(|it| NUMBERS.contains(&it.as_str())).cloned()
        }
        // Other types have elements that are no numbers of the array, such as the type and the shape in a tuple.
        word => word.strip_prefix(BULK).map(str::to_owned),
    };
    saved.iter().find_map(|array| {
        let (was, is) = (format!("{:?}", array.dtype).to_lowercase(), element(&array.name)?);
        (was != is).then(|| {
            format!(
                "the array {} was saved with elements of {was}, and the program reads {is}",
                array.name
            )
        })
    })
}

const NUMBERS: [&str; 10] = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64"];

/// Whether the bytes of one type are read as the same value by the other.
fn is_readable(was: &str, is: &str) -> bool {
    // Their bytes do not depend on the width.
    let widths = [["u16", "u32", "u64", "u128"], ["i16", "i32", "i64", "i128"]];
    let is_wider = widths.iter().any(|of| {
        let place = |word| of.iter().position(|width| *width == word);
        place(was).zip(place(is)).is_some_and(|(was, is)| was < is)
    });
    // Variants are numbered, so others may follow.
    let has_more =
        was.starts_with(ENUM) && is.strip_prefix(was).is_some_and(|it| it.starts_with(", "));
    was == is || is_wider || has_more
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use elastic_checkpoint::Dtype;
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
        let names = |fields: Option<StateFields>| fields.map(|fields| fields.names);
        assert_eq!(names(fields_of::<Model>()).as_ref(), Some(&expected));
        assert_eq!(names(fields_of::<Wrapped>()), Some(expected));
        assert_eq!(fields_of::<(u64, Vec<f32>)>(), None);
        assert_eq!(fields_of::<Vec<Model>>(), None);
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "its fields alone count")]
    enum Schedule {
        Constant,
        Cosine { steps: u64 },
        Table(Vec<f32>),
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "its fields alone count")]
    struct Tree {
        children: Vec<Tree>,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "its fields alone count")]
    struct Everything {
        model: Model,
        #[serde(with = "super::super::bulk")]
        momentum: Vec<f64>,
        bias: [f32; 8],
        best: Option<i16>,
        table: BTreeMap<String, Vec<u8>>,
        schedule: Schedule,
        #[serde(skip)]
        cache: String,
        name: String,
    }

    #[test]
    fn c_1_a_type_tells_the_types_of_its_fields_and_of_what_is_in_them() {
        let types = fields_of::<Everything>().expect("it is a struct").types;
        let types: Vec<(&str, &str)> =
            types.iter().map(|(place, word)| (place.as_str(), word.as_str())).collect();
        let expected = [
            ("best", "option"),
            ("best?", "i16"),
            ("bias", "tuple of 8"),
            ("bias[]", "f32"),
            ("model", "struct step, rate, weights"),
            ("model.rate", "f32"),
            ("model.step", "u64"),
            ("model.weights", "sequence"),
            ("model.weights[]", "f32"),
            ("momentum", "bulk f64"),
            ("name", "text"),
            ("schedule", "enum Constant, Cosine, Table"),
            ("schedule.Constant", "unit"),
            ("schedule.Cosine", "struct steps"),
            ("schedule.Cosine.steps", "u64"),
            ("schedule.Table", "sequence"),
            ("schedule.Table[]", "f32"),
            ("table", "map"),
            ("table{key}", "text"),
            ("table{value}", "sequence"),
            ("table{value}[]", "u8"),
        ];
        assert_eq!(types, expected);
    }

    #[test]
    fn a_type_that_contains_itself_is_looked_at_to_a_depth() {
        let types = fields_of::<Tree>().expect("it is a struct").types;
        assert_eq!(types.len(), STEPS_MAX);
    }

    #[test]
    fn c_1_only_what_would_be_misread_is_another_type_and_what_is_unknown_is_none() {
        let one = |word: &str| BTreeMap::from([("step".to_owned(), word.to_owned())]);
        let differs = |was: &str, is: &str| other_type(&one(was), &one(is)).is_some();
        for (was, is) in [
            ("u64", "i64"),
            ("u64", "u32"),
            ("u8", "u16"),
            ("f32", "f64"),
            ("sequence", "bulk f32"),
            ("enum A, B", "enum B, A"),
            ("enum A, B", "enum A"),
            ("struct a", "struct a, b"),
            ("enum A", "enum Ab, B"),
        ] {
            assert!(differs(was, is), "{was} {is}");
        }
        for (was, is) in [("u64", "u64"), ("u32", "u64"), ("i16", "i128"), ("enum A", "enum A, B")]
        {
            assert!(!differs(was, is), "{was} {is}");
        }
        assert_eq!(other_type(&one("u64"), &BTreeMap::new()), None);
        assert_eq!(other_type(&BTreeMap::new(), &one("u64")), None);
        assert_eq!(
            other_type(&one("u64"), &one("i64")).expect("they differ"),
            "step was saved as u64, and the program reads i64"
        );
    }

    #[test]
    fn c_1_an_array_that_was_saved_with_other_elements_is_named_with_both() {
        let array = |name: &str, dtype| TensorRecord {
            name: name.to_owned(),
            dtype,
            shape: vec![1],
            offset: 0,
            bytes: 8,
            file: String::new(),
            file_offset: 0,
        };
        let own = fields_of::<Everything>().expect("it is a struct").types;
        let same = [
            array("momentum", Dtype::F64),
            array("model.weights", Dtype::F32),
            array("other", Dtype::I8),
        ];
        assert_eq!(other_elements(&same, &own), None);
        let other = other_elements(&[array("momentum", Dtype::F32)], &own).expect("it differs");
        assert_eq!(
            other,
            "the array momentum was saved with elements of f32, and the program reads f64"
        );
        assert!(other_elements(&[array("model.weights", Dtype::F64)], &own).is_some());
        let shaped = [("table", "tuple of 3"), ("table[]", "u8")];
        let shaped = shaped.map(|(place, word)| (place.to_owned(), word.to_owned())).into();
        assert_eq!(other_elements(&[array("table", Dtype::F32)], &shaped), None, "a shaped one");
    }
}
