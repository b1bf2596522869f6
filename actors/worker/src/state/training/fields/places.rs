//! The places of a type, and what it asks for at each. `fields` walks over them.
//!
//! A type tells them by the questions that its `Deserialize` asks. Each place is looked at by a decoding of its own, which leads
//! to that place and ends there with an error. So no value is made up, but for the simple keys of maps. A place that cannot
//! be reached is unknown, and is not compared: elements of a tuple behind the first, and what a type asks for only after it has
//! seen a value.

use std::fmt;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::state::training::checkpoint::tensors::block_type;

/// Beginning of the word for a block of numbers.
pub(super) const BULK: &str = "bulk ";
/// The word for a sequence, such as a list of numbers.
pub(super) const SEQUENCE: &str = "sequence";
/// Beginning of the word for an enum.
pub(super) const ENUM: &str = "enum ";

/// A step on the way to a place in a type.
#[derive(Clone, Copy)]
pub(super) enum PlaceStep {
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
pub(super) fn place(way: &[PlaceStep]) -> String {
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

/// The kind of value that a type asks for at a place.
pub(super) enum PlaceQuestion {
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
    pub(super) fn steps(&self) -> Vec<PlaceStep> {
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
            Self::Sequence => formatter.write_str(SEQUENCE),
            Self::Tuple(length) => write!(formatter, "tuple of {length}"),
            Self::Map => formatter.write_str("map"),
            Self::Struct(fields) => write!(formatter, "struct {}", fields.join(", ")),
            Self::Enum(variants) => write!(formatter, "{ENUM}{}", variants.join(", ")),
        }
    }
}

/// The question that `T` asks at the end of this way; none if the way does not lead there.
pub(super) fn question<T: DeserializeOwned>(way: &[PlaceStep]) -> Option<PlaceQuestion> {
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
