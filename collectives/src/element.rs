//! The element types that collectives carry: [`DataType`] at run time, [`Element`] at compile time. Used by all of
//! this crate.

use std::fmt;

use bytemuck::Pod;
use half::{bf16, f16};

/// The type of the elements of a buffer, as it stands in a frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum DataType {
    /// IEEE 754 single precision.
    F32 = 1,
    /// IEEE 754 double precision.
    F64 = 2,
    /// IEEE 754 half precision; reductions accumulate in `f32`.
    F16 = 3,
    /// The upper half of an `f32`; reductions accumulate in `f32`.
    Bf16 = 4,
    /// Unsigned bytes.
    U8 = 5,
    /// Signed, 32 bits.
    I32 = 6,
    /// Signed, 64 bits.
    I64 = 7,
    /// Unsigned, 32 bits.
    U32 = 8,
    /// Unsigned, 64 bits.
    U64 = 9,
}

impl DataType {
    /// Every data type, in the order of the codes.
    pub const ALL: [DataType; 9] = [
        DataType::F32,
        DataType::F64,
        DataType::F16,
        DataType::Bf16,
        DataType::U8,
        DataType::I32,
        DataType::I64,
        DataType::U32,
        DataType::U64,
    ];

    /// The size of one element, in bytes; also the alignment that a buffer needs.
    pub const fn size_bytes(self) -> usize {
        match self {
            DataType::U8 => 1,
            DataType::F16 | DataType::Bf16 => 2,
            DataType::F32 | DataType::I32 | DataType::U32 => 4,
            DataType::F64 | DataType::I64 | DataType::U64 => 8,
        }
    }

    /// Whether the type is an integer; [`crate::ReduceOp::Mean`] is refused for these.
    pub const fn is_integer(self) -> bool {
        matches!(self, DataType::U8 | DataType::I32 | DataType::I64 | DataType::U32 | DataType::U64)
    }

    /// The code in a frame header.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type of a code; `None` for an unknown code.
    pub fn from_code(code: u8) -> Option<DataType> {
        DataType::ALL.into_iter().find(|data_type| data_type.code() == code)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            DataType::F32 => "f32",
            DataType::F64 => "f64",
            DataType::F16 => "f16",
            DataType::Bf16 => "bf16",
            DataType::U8 => "u8",
            DataType::I32 => "i32",
            DataType::I64 => "i64",
            DataType::U32 => "u32",
            DataType::U64 => "u64",
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type whose slices a collective can carry. Sealed: the backends know every one of them.
pub trait Element: sealed::Sealed + Pod + PartialEq + fmt::Debug + Send + Sync {
    /// The run-time name of the type.
    const DATA_TYPE: DataType;
}

macro_rules! element {
    ($($rust:ty => $data_type:ident),* $(,)?) => {
        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const DATA_TYPE: DataType = DataType::$data_type;
            }
        )*
    };
}

element! {
    f32 => F32,
    f64 => F64,
    f16 => F16,
    bf16 => Bf16,
    u8 => U8,
    i32 => I32,
    i64 => I64,
    u32 => U32,
    u64 => U64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_come_back() {
        for data_type in DataType::ALL {
            assert_eq!(DataType::from_code(data_type.code()), Some(data_type));
        }
        assert_eq!(DataType::from_code(0), None);
        assert_eq!(DataType::from_code(10), None);
    }
}
