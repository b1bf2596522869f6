//! `Noting`: a serializer in front of postcard's, which writes the same bytes and notes the arrays among them. Used by `tensors` for
//! each commit.

use std::fmt::Display;

use elastic_checkpoint::{CheckpointTensor, Dtype};
use serde::ser::{self, Serialize, Serializer};

use super::{Counted, NEXT, NamedArray, PER_RANK, SHAPE, block_type};
use crate::state::training::positional::refuse_to_skip;

/// Most arrays of a commit that are noted; the rest stays among the bytes that are no array.
const TENSORS_MAX: usize = 1 << 16;
/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 1024;

/// A step on the way to a value.
#[derive(Debug)]
enum Part {
    Name(String),
    Index(u64),
}

/// The parts of a path as a name.
fn joined(path: &[Part]) -> String {
    let parts: Vec<String> = path
        .iter()
        .map(|part| match part {
            Part::Name(name) => name.clone(),
            Part::Index(index) => index.to_string(),
        })
        .collect();
    parts.join(".")
}

/// An array that was found.
#[derive(Debug)]
pub(super) struct FoundArray {
    pub(super) tensor: CheckpointTensor,
    /// Whether each rank has content of its own.
    pub(super) is_per_rank: bool,
}

/// A compound value that is being encoded.
#[derive(Debug)]
struct CompoundFrame {
    /// Offset of its content.
    start: usize,
    /// The arrays found before it.
    found: usize,
    /// Type of its elements, as long as all are numbers of one type that stand as they stand in memory.
    numbers: Option<Dtype>,
    is_mixed: bool,
    count: usize,
    /// Whether its elements are numbered, and not named.
    is_indexed: bool,
    /// Whether nothing stands between its elements.
    is_dense: bool,
    /// Whether each of its elements so far has one array.
    has_rows: bool,
}

/// The serializer in front of postcard's.
pub(super) struct Noting<'a, F: Counted> {
    output: &'a mut postcard::Serializer<F>,
    path: Vec<Part>,
    frames: Vec<CompoundFrame>,
    /// The key of a map that is being encoded, as text.
    key: Option<String>,
    found: Vec<FoundArray>,
    /// Whether each rank has its own content of the value that is being encoded.
    is_per_rank: bool,
    /// Type of the block of bytes that comes next.
    block: Option<Dtype>,
}

impl<'a, F: Counted> Noting<'a, F> {
    pub(super) const fn new(output: &'a mut postcard::Serializer<F>) -> Self {
        Self {
            output,
            path: Vec::new(),
            frames: Vec::new(),
            key: None,
            found: Vec::new(),
            is_per_rank: false,
            block: None,
        }
    }

    /// The arrays, by their offsets.
    pub(super) fn into_found(self) -> Vec<FoundArray> {
        self.found
    }

    fn at(&self) -> usize {
        self.output.output.written()
    }

    fn name(&self) -> String {
        joined(&self.path)
    }

    fn found(&mut self, mut tensor: CheckpointTensor, is_per_rank: bool) {
        if tensor.name.is_empty() {
            tensor.name = "state".to_owned();
        }
        if self.found.len() < TENSORS_MAX && tensor.name.len() <= NAME_BYTES_MAX {
            self.found.push(FoundArray { tensor, is_per_rank });
        }
    }

    /// A value that is no number of an array.
    fn other(&mut self) {
        if let Some(frame) = self.frames.last_mut() {
            frame.is_mixed = true;
        }
    }

    fn number(&mut self, dtype: Dtype) {
        let Some(frame) = self.frames.last_mut() else { return };
        frame.is_mixed |= frame.numbers.is_some_and(|numbers| numbers != dtype);
        frame.numbers = Some(dtype);
    }

    fn key(&mut self, text: impl Display) {
        if let Some(key) = &mut self.key {
            *key = text.to_string();
        }
    }

    fn open(&mut self, is_indexed: bool, is_dense: bool) {
        self.other();
        let (start, found) = (self.at(), self.found.len());
        let frame = CompoundFrame {
            start,
            found,
            numbers: None,
            is_mixed: false,
            count: 0,
            is_indexed,
            is_dense,
            has_rows: true,
        };
        self.frames.push(frame);
        self.path.push(Part::Index(0));
    }

    fn element(&mut self, value: &(impl Serialize + ?Sized)) -> postcard::Result<()> {
        if let Some(frame) = self.frames.last_mut() {
            if frame.is_indexed
                && let Some(part) = self.path.last_mut()
            {
                *part = Part::Index(frame.count as u64);
            }
            frame.count += 1;
        }
        let found = self.found.len();
        value.serialize(&mut *self)?;
        let is_row = self.found.len() == found + 1;
        if let Some(frame) = self.frames.last_mut() {
            frame.has_rows &= is_row;
        }
        Ok(())
    }

    fn field(&mut self, name: &str, value: &(impl Serialize + ?Sized)) -> postcard::Result<()> {
        if let Some(part) = self.path.last_mut() {
            *part = Part::Name(name.to_owned());
        }
        self.element(value)
    }

    fn close(&mut self) -> postcard::Result<()> {
        self.path.pop();
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        let bytes = self.at() - frame.start;
        if let (Some(dtype), false, true) = (frame.numbers, frame.is_mixed, frame.is_indexed) {
            if bytes == frame.count * dtype.bitsize() / 8 {
                let (name, shape) = (self.name(), vec![frame.count]);
                let tensor = CheckpointTensor { name, dtype, shape, offset: frame.start };
                self.found(tensor, self.is_per_rank);
            }
        } else if frame.is_dense && frame.has_rows {
            self.merge(&frame, bytes);
        }
        Ok(())
    }

    /// Makes one array of rows that follow each other without anything between them.
    fn merge(&mut self, frame: &CompoundFrame, bytes: usize) {
        let rows = &self.found[frame.found..];
        let Some(FoundArray { tensor: first, is_per_rank }) = rows.first() else { return };
        let row = first.bytes();
        let is_row = |(place, other): (usize, &FoundArray)| {
            (other.tensor.dtype, &other.tensor.shape) == (first.dtype, &first.shape)
                && other.is_per_rank == *is_per_rank
                && other.tensor.offset == frame.start + place * row
        };
        if bytes == row * frame.count && rows.iter().enumerate().all(is_row) {
            let (dtype, mut shape, is_per_rank) = (first.dtype, first.shape.clone(), *is_per_rank);
            shape.insert(0, frame.count);
            self.found.truncate(frame.found);
            let name = self.name();
            let tensor = CheckpointTensor { name, dtype, shape, offset: frame.start };
            self.found(tensor, is_per_rank);
        }
    }

    fn variant(&mut self, variant: &'static str) {
        self.path.push(Part::Name(variant.to_owned()));
    }
}

/// A compound value.
pub(super) struct Compound<'n, 'a, F: Counted> {
    noting: &'n mut Noting<'a, F>,
    /// Whether a variant's name is to be taken off the path at the end.
    is_variant: bool,
}

impl<F: Counted> Compound<'_, '_, F> {
    fn finish(self) -> postcard::Result<()> {
        self.noting.close()?;
        if self.is_variant {
            self.noting.path.pop();
        }
        Ok(())
    }
}

macro_rules! plain {
    ($($name:ident: $type:ty;)*) => {
        $(fn $name(self, value: $type) -> postcard::Result<()> {
            self.other();
            self.key(value);
            (&mut *self.output).$name(value)
        })*
    };
}

impl<'n, 'a, F: Counted> Serializer for &'n mut Noting<'a, F> {
    type Ok = ();
    type Error = postcard::Error;
    type SerializeSeq = Compound<'n, 'a, F>;
    type SerializeTuple = Compound<'n, 'a, F>;
    type SerializeTupleStruct = Compound<'n, 'a, F>;
    type SerializeTupleVariant = Compound<'n, 'a, F>;
    type SerializeMap = Compound<'n, 'a, F>;
    type SerializeStruct = Compound<'n, 'a, F>;
    type SerializeStructVariant = Compound<'n, 'a, F>;

    fn is_human_readable(&self) -> bool {
        false
    }

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
        serialize_char: char;
        serialize_str: &str;
    }

    fn serialize_f32(self, value: f32) -> postcard::Result<()> {
        self.number(Dtype::F32);
        (&mut *self.output).serialize_f32(value)
    }

    fn serialize_f64(self, value: f64) -> postcard::Result<()> {
        self.number(Dtype::F64);
        (&mut *self.output).serialize_f64(value)
    }

    fn serialize_bytes(self, bytes: &[u8]) -> postcard::Result<()> {
        self.other();
        (&mut *self.output).serialize_bytes(bytes)?;
        let offset = self.at() - bytes.len();
        let shape = SHAPE.take();
        if let Some(NamedArray { name, dtype, shape, is_per_rank }) = NEXT.take() {
            if shape.iter().product::<usize>() * dtype.bitsize() / 8 == bytes.len() {
                let is_per_rank = is_per_rank || self.is_per_rank;
                self.found(CheckpointTensor { name, dtype, shape, offset }, is_per_rank);
            }
        } else if let Some(dtype) = self.block.take()
            && !bytes.is_empty()
        {
            let (name, shape) = match (shape, self.path.split_last()) {
                // The array is the tuple.
                (Some(shape), Some((_, path))) => (joined(path), shape),
                _ => (self.name(), vec![bytes.len() * 8 / dtype.bitsize()]),
            };
            self.found(CheckpointTensor { name, dtype, shape, offset }, self.is_per_rank);
        }
        Ok(())
    }

    fn serialize_none(self) -> postcard::Result<()> {
        self.other();
        (&mut *self.output).serialize_none()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> postcard::Result<()> {
        self.other();
        // As postcard: a byte, and the value.
        (&mut *self.output).serialize_u8(1)?;
        value.serialize(self)
    }

    // A unit has no bytes: an array with one among its numbers is too short for its count, and is not noted.
    fn serialize_unit(self) -> postcard::Result<()> {
        (&mut *self.output).serialize_unit()
    }

    fn serialize_unit_struct(self, name: &'static str) -> postcard::Result<()> {
        (&mut *self.output).serialize_unit_struct(name)
    }

    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> postcard::Result<()> {
        self.other();
        self.key(variant);
        (&mut *self.output).serialize_unit_variant(name, index, variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> postcard::Result<()> {
        if name == PER_RANK {
            if !self.is_per_rank {
                // A number of which each rank has its own is no part of an array that all share.
                self.other();
            }
            let around = std::mem::replace(&mut self.is_per_rank, true);
            let encoded = value.serialize(&mut *self);
            self.is_per_rank = around;
            return encoded;
        }
        self.block = block_type(name);
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> postcard::Result<()> {
        self.other();
        // As postcard: the variant's number, and the value.
        (&mut *self.output).serialize_unit_variant(name, index, variant)?;
        self.variant(variant);
        value.serialize(&mut *self)?;
        self.path.pop();
        Ok(())
    }

    fn serialize_seq(self, length: Option<usize>) -> postcard::Result<Self::SerializeSeq> {
        (&mut *self.output).serialize_seq(length)?;
        self.open(true, false);
        Ok(Compound { noting: self, is_variant: false })
    }

    fn serialize_tuple(self, _length: usize) -> postcard::Result<Self::SerializeTuple> {
        self.open(true, true);
        Ok(Compound { noting: self, is_variant: false })
    }

    fn serialize_tuple_struct(
        self,
        _name: &'static str,
        length: usize,
    ) -> postcard::Result<Self::SerializeTupleStruct> {
        self.serialize_tuple(length)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        _length: usize,
    ) -> postcard::Result<Self::SerializeTupleVariant> {
        (&mut *self.output).serialize_unit_variant(name, index, variant)?;
        self.variant(variant);
        self.open(true, true);
        Ok(Compound { noting: self, is_variant: true })
    }

    fn serialize_map(self, length: Option<usize>) -> postcard::Result<Self::SerializeMap> {
        (&mut *self.output).serialize_map(length)?;
        self.open(false, false);
        Ok(Compound { noting: self, is_variant: false })
    }

    fn serialize_struct(
        self,
        _name: &'static str,
        _length: usize,
    ) -> postcard::Result<Self::SerializeStruct> {
        self.open(false, false);
        Ok(Compound { noting: self, is_variant: false })
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        _length: usize,
    ) -> postcard::Result<Self::SerializeStructVariant> {
        (&mut *self.output).serialize_unit_variant(name, index, variant)?;
        self.variant(variant);
        self.open(false, false);
        Ok(Compound { noting: self, is_variant: true })
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> postcard::Result<()> {
        self.other();
        self.key(value);
        (&mut *self.output).collect_str(value)
    }
}

macro_rules! elements {
    ($($trait:ident: $method:ident;)*) => {
        $(impl<F: Counted> ser::$trait for Compound<'_, '_, F> {
            type Ok = ();
            type Error = postcard::Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> postcard::Result<()> {
                self.noting.element(value)
            }

            fn end(self) -> postcard::Result<()> {
                self.finish()
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
        $(impl<F: Counted> ser::$trait for Compound<'_, '_, F> {
            type Ok = ();
            type Error = postcard::Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> postcard::Result<()> {
                self.noting.field(key, value)
            }

            fn skip_field(&mut self, key: &'static str) -> postcard::Result<()> {
                refuse_to_skip(key)
            }

            fn end(self) -> postcard::Result<()> {
                self.finish()
            }
        })*
    };
}

fields! { SerializeStruct SerializeStructVariant }

impl<F: Counted> ser::SerializeMap for Compound<'_, '_, F> {
    type Ok = ();
    type Error = postcard::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> postcard::Result<()> {
        self.noting.key = Some(String::new());
        key.serialize(&mut *self.noting)?;
        let text = self.noting.key.take().unwrap_or_default();
        if let Some(part) = self.noting.path.last_mut() {
            *part = Part::Name(text);
        }
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> postcard::Result<()> {
        self.noting.element(value)
    }

    fn end(self) -> postcard::Result<()> {
        self.finish()
    }
}
