//! A serializer in front of postcard's, which writes the same bytes and refuses a field that is left out of a struct. A state's
//! fields are stored by their position, so a commit without one of them cannot be read back. Used by `snapshot`.

use std::fmt::Display;

use postcard::ser_flavors::Flavor;
use serde::ser::{self, Serialize, Serializer};

use super::refused::refuse;

/// Refuses to leave out a field (`#[serde(skip_serializing_if)]`).
pub(super) fn refuse_to_skip(field: &'static str) -> postcard::Result<()> {
    refuse(format!(
        "its field {field} is left out by skip_serializing_if, and a state's fields are stored by their position: remove that \
         attribute from the field"
    ));
    Err(postcard::Error::SerdeSerCustom)
}

/// The serializer in front of postcard's, for a value or for the rest of a compound value.
pub(super) struct Positional<'a, F: Flavor>(pub(super) &'a mut postcard::Serializer<F>);

impl<F: Flavor> Positional<'_, F> {
    fn element(&mut self, value: &(impl Serialize + ?Sized)) -> postcard::Result<()> {
        value.serialize(Positional(&mut *self.0))
    }
}

macro_rules! plain {
    ($($name:ident: $type:ty;)*) => {
        $(fn $name(self, value: $type) -> postcard::Result<()> {
            self.0.$name(value)
        })*
    };
}

impl<F: Flavor> Serializer for Positional<'_, F> {
    type Ok = ();
    type Error = postcard::Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    plain! {
        serialize_bool: bool;
        serialize_i8: i8;
        serialize_i16: i16;
        serialize_i32: i32;
        serialize_i64: i64;
        serialize_i128: i128;
        serialize_u8: u8;
        serialize_u16: u16;
        serialize_u32: u32;
        serialize_u64: u64;
        serialize_u128: u128;
        serialize_f32: f32;
        serialize_f64: f64;
        serialize_char: char;
        serialize_str: &str;
        serialize_bytes: &[u8];
        serialize_unit_struct: &'static str;
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_unit(self) -> postcard::Result<()> {
        self.0.serialize_unit()
    }

    fn serialize_none(self) -> postcard::Result<()> {
        self.0.serialize_none()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> postcard::Result<()> {
        // As postcard: a byte, and the value.
        (&mut *self.0).serialize_u8(1)?;
        value.serialize(self)
    }

    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> postcard::Result<()> {
        self.0.serialize_unit_variant(name, index, variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        value: &T,
    ) -> postcard::Result<()> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> postcard::Result<()> {
        // As postcard: the variant's number, and the value.
        (&mut *self.0).serialize_unit_variant(name, index, variant)?;
        value.serialize(self)
    }

    fn serialize_seq(self, length: Option<usize>) -> postcard::Result<Self> {
        (&mut *self.0).serialize_seq(length)?;
        Ok(self)
    }

    fn serialize_tuple(self, _length: usize) -> postcard::Result<Self> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _name: &'static str, _length: usize) -> postcard::Result<Self> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        _length: usize,
    ) -> postcard::Result<Self> {
        (&mut *self.0).serialize_unit_variant(name, index, variant)?;
        Ok(self)
    }

    fn serialize_map(self, length: Option<usize>) -> postcard::Result<Self> {
        (&mut *self.0).serialize_map(length)?;
        Ok(self)
    }

    fn serialize_struct(self, _name: &'static str, _length: usize) -> postcard::Result<Self> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        _length: usize,
    ) -> postcard::Result<Self> {
        (&mut *self.0).serialize_unit_variant(name, index, variant)?;
        Ok(self)
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> postcard::Result<()> {
        self.0.collect_str(value)
    }
}

macro_rules! elements {
    ($($trait:ident: $method:ident;)*) => {
        $(impl<F: Flavor> ser::$trait for Positional<'_, F> {
            type Ok = ();
            type Error = postcard::Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> postcard::Result<()> {
                self.element(value)
            }

            fn end(self) -> postcard::Result<()> {
                Ok(())
            }
        })*
    };
}

elements! {
    SerializeSeq: serialize_element;
    SerializeTuple: serialize_element;
    SerializeTupleStruct: serialize_field;
    SerializeTupleVariant: serialize_field;
}

macro_rules! fields {
    ($($trait:ident)*) => {
        $(impl<F: Flavor> ser::$trait for Positional<'_, F> {
            type Ok = ();
            type Error = postcard::Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                _key: &'static str,
                value: &T,
            ) -> postcard::Result<()> {
                self.element(value)
            }

            fn skip_field(&mut self, key: &'static str) -> postcard::Result<()> {
                refuse_to_skip(key)
            }

            fn end(self) -> postcard::Result<()> {
                Ok(())
            }
        })*
    };
}

fields! { SerializeStruct SerializeStructVariant }

impl<F: Flavor> ser::SerializeMap for Positional<'_, F> {
    type Ok = ();
    type Error = postcard::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> postcard::Result<()> {
        self.element(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> postcard::Result<()> {
        self.element(value)
    }

    fn end(self) -> postcard::Result<()> {
        Ok(())
    }
}
