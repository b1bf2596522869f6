//! The fields of a state type, with their types. Checkpoints have them, since postcard's bytes do not: without them, a program
//! whose fields stand in another order, or have other types, would read one value as another. Members of a generation
//! compare their digest. `membership` asks for them.
//!
//! A type tells them by the questions that its `Deserialize` asks. Each place is looked at by a decoding of its own, which leads
//! to that place and ends there with an error. So no value is made up, but for the simple keys of maps. A place that cannot
//! be reached is unknown, and is not compared: elements of a tuple behind the first, and what a type asks for only after it has
//! seen a value.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;

use elastic_checkpoint::{StateFields, TensorRecord};
use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use xxhash_rust::xxh3::xxh3_64;

use super::checkpoint::tensors::block_type;

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
    let element = |name: &str| match own.get(name)?.split_once(BULK) {
        Some(("", element)) => Some(element.to_owned()),
        _ => own.get(&format!("{name}[]")).filter(|it| NUMBERS.contains(&it.as_str())).cloned(),
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

/// Beginning of the word for a block of numbers.
const BULK: &str = "bulk ";

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

/// Beginning of the word for an enum.
const ENUM: &str = "enum ";

/// A step on the way to a place in a type.
#[derive(Clone, Copy)]
enum PlaceStep {
    Field(&'static str),
    /// An element of a sequence, or the first one of a tuple.
    Element,
    /// The value in an option.
    Some,
    Key,
    /// The value behind a key.
    Value,
    Variant(&'static str),
}

/// The name of a place. The arrays of a commit have the same names, where fields alone lead to them.
fn place(way: &[PlaceStep]) -> String {
    let mut place = String::new();
    for step in way {
        match step {
            PlaceStep::Field(name) if place.is_empty() => place.push_str(name),
            PlaceStep::Field(name) | PlaceStep::Variant(name) => place.extend([".", name]),
            PlaceStep::Element => place.push_str("[]"),
            PlaceStep::Some => place.push('?'),
            PlaceStep::Key => place.push_str("{key}"),
            PlaceStep::Value => place.push_str("{value}"),
        }
    }
    place
}

/// What a type asks for at a place.
enum PlaceQuestion {
    /// A value of a type with this word.
    Plain(&'static str),
    /// A block of numbers, whose elements have this type.
    Bulk(String),
    Option,
    Sequence,
    Tuple(usize),
    Map,
    Struct(&'static [&'static str]),
    Enum(&'static [&'static str]),
}

impl PlaceQuestion {
    /// The steps that lead on from here.
    fn steps(&self) -> Vec<PlaceStep> {
        match self {
            Self::Plain(_) | Self::Bulk(_) | Self::Tuple(0) => Vec::new(),
            Self::Option => vec![PlaceStep::Some],
            Self::Sequence | Self::Tuple(_) => vec![PlaceStep::Element],
            Self::Map => vec![PlaceStep::Key, PlaceStep::Value],
            Self::Struct(fields) => fields.iter().map(|field| PlaceStep::Field(field)).collect(),
            Self::Enum(variants) => variants.iter().map(|it| PlaceStep::Variant(it)).collect(),
        }
    }
}

impl fmt::Display for PlaceQuestion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(word) => formatter.write_str(word),
            Self::Bulk(numbers) => write!(formatter, "{BULK}{numbers}"),
            Self::Option => formatter.write_str("option"),
            Self::Sequence => formatter.write_str("sequence"),
            Self::Tuple(length) => write!(formatter, "tuple of {length}"),
            Self::Map => formatter.write_str("map"),
            Self::Struct(fields) => write!(formatter, "struct {}", fields.join(", ")),
            Self::Enum(variants) => write!(formatter, "{ENUM}{}", variants.join(", ")),
        }
    }
}

/// The question that `T` asks at the end of this way; none if the way does not lead there.
fn question<T: DeserializeOwned>(way: &[PlaceStep]) -> Option<PlaceQuestion> {
    let mut question = None;
    // It always ends with an error, behind the question.
    drop(T::deserialize(AskedPlace { way, question: &mut question }));
    question
}

fn no_value() -> Error {
    Error::custom("there is no value")
}

/// Leads a type to a place, takes note of what it asks for there, and has no value.
struct AskedPlace<'a> {
    way: &'a [PlaceStep],
    question: &'a mut Option<PlaceQuestion>,
}

impl AskedPlace<'_> {
    /// The next step, and what follows it; at the end of the way the question is noted.
    fn step(self, question: PlaceQuestion) -> Result<(PlaceStep, Self), Error> {
        let Some((step, way)) = self.way.split_first() else {
            *self.question = Some(question);
            return Err(no_value());
        };
        Ok((*step, Self { way, question: self.question }))
    }
}

macro_rules! plain {
    ($($method:ident: $word:literal;)*) => {
        $(fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            self.step(PlaceQuestion::Plain($word)).and_then(|_| Err(no_value()))
        })*
    };
}

impl<'de> Deserializer<'de> for AskedPlace<'_> {
    type Error = Error;

    plain! {
        deserialize_any: "a type that describes itself";
        deserialize_ignored_any: "a type that describes itself";
        deserialize_identifier: "a type that describes itself";
        deserialize_bool: "bool";
        deserialize_i8: "i8";
        deserialize_i16: "i16";
        deserialize_i32: "i32";
        deserialize_i64: "i64";
        deserialize_i128: "i128";
        deserialize_u8: "u8";
        deserialize_u16: "u16";
        deserialize_u32: "u32";
        deserialize_u64: "u64";
        deserialize_u128: "u128";
        deserialize_f32: "f32";
        deserialize_f64: "f64";
        deserialize_char: "char";
        deserialize_str: "text";
        deserialize_string: "text";
        deserialize_bytes: "bytes";
        deserialize_byte_buf: "bytes";
        deserialize_unit: "unit";
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Some(numbers) = block_type(name) else { return visitor.visit_newtype_struct(self) };
        self.step(PlaceQuestion::Bulk(format!("{numbers:?}").to_lowercase()))
            .and_then(|_| Err(no_value()))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self.step(PlaceQuestion::Option)?.1)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(self.step(PlaceQuestion::Sequence)?.1)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(self.step(PlaceQuestion::Tuple(length))?.1)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let (step, behind) = self.step(PlaceQuestion::Map)?;
        visitor.visit_map(Entry { step, behind })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let (step, behind) = self.step(PlaceQuestion::Struct(fields))?;
        visitor.visit_map(Entry { step, behind })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let (step, behind) = self.step(PlaceQuestion::Enum(variants))?;
        let PlaceStep::Variant(variant) = step else { return Err(no_value()) };
        visitor.visit_enum(Variant { variant, behind })
    }
}

/// The elements of a sequence: the first one is where the way leads.
impl<'de> SeqAccess<'de> for AskedPlace<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        seed.deserialize(AskedPlace { way: self.way, question: self.question }).map(Some)
    }
}

/// The entry of a map, or the field of a struct, to which or behind which the way leads.
struct Entry<'a> {
    step: PlaceStep,
    behind: AskedPlace<'a>,
}

impl<'de> MapAccess<'de> for Entry<'_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        match self.step {
            PlaceStep::Field(name) => seed.deserialize(StrDeserializer::new(name)).map(Some),
            PlaceStep::Value => seed.deserialize(AnyKey).map(Some),
            _ => {
                let AskedPlace { way, question } = &mut self.behind;
                seed.deserialize(AskedPlace { way, question }).map(Some)
            }
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let AskedPlace { way, question } = &mut self.behind;
        seed.deserialize(AskedPlace { way, question })
    }
}

/// A key of the simple types that are keys most often.
struct AnyKey;

impl<'de> Deserializer<'de> for AnyKey {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(no_value())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str("")
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u32(0)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(0)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u128 f32 f64 char str bytes byte_buf option unit unit_struct newtype_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

/// The variant of an enum to which the way leads.
struct Variant<'a> {
    variant: &'static str,
    behind: AskedPlace<'a>,
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = Error;
    type Variant = AskedPlace<'a>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, AskedPlace<'a>), Error> {
        Ok((seed.deserialize(StrDeserializer::new(self.variant))?, self.behind))
    }
}

impl<'de> VariantAccess<'de> for AskedPlace<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        self.step(PlaceQuestion::Plain("unit")).and_then(|_| Err(no_value()))
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_tuple(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_struct("", fields, visitor)
    }
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
    }
}
