//! Element types and reduce operations: what a buffer holds and how two of its elements become one.

use std::{fmt, str::FromStr};

/// The type of a buffer's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataType {
    /// bfloat16: 8 bits of exponent, 7 of fraction.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
}

impl DataType {
    /// Every type, for tests and help texts.
    pub const ALL: [Self; 12] = [
        Self::Bf16,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::Bf16 | Self::F16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::Bf16 | Self::F16 | Self::F32 | Self::F64)
    }

    /// The name users write: `f32`, `bf16`, `u8` ...
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not one of the expected ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} '{got}'; expected one of {expected}")]
pub struct UnknownName {
    /// What was being named: "data type", "algorithm" ...
    pub what: &'static str,
    /// The name that was given.
    pub got: String,
    /// The names that are known, separated by commas.
    pub expected: String,
}

/// Finds a name, however its words are joined and written: `all_reduce`, `all-reduce`, `AllReduce`.
pub(crate) fn lookup<T: Copy>(
    what: &'static str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
    aliases: &[(&str, T)],
    got: &str,
) -> Result<T, UnknownName> {
    let plain = |name: &str| name.trim().to_ascii_lowercase().replace(['-', '_'], "");
    let wanted = plain(got);
    all.iter()
        .map(|&t| (name(t), t))
        .chain(aliases.iter().copied())
        .find(|(name, _)| plain(name) == wanted)
        .map(|(_, t)| t)
        .ok_or_else(|| UnknownName {
            what,
            got: got.to_owned(),
            expected: all.iter().map(|&t| name(t)).collect::<Vec<_>>().join(", "),
        })
}

impl FromStr for DataType {
    type Err = UnknownName;

    /// Accepts Ringway's names and those of nccl-tests (`float`, `half`, `int32` ...).
    fn from_str(s: &str) -> Result<Self, UnknownName> {
        const ALIASES: &[(&str, DataType)] = &[
            ("bfloat16", DataType::Bf16),
            ("half", DataType::F16),
            ("float16", DataType::F16),
            ("float", DataType::F32),
            ("float32", DataType::F32),
            ("double", DataType::F64),
            ("float64", DataType::F64),
            ("int8", DataType::I8),
            ("int16", DataType::I16),
            ("int32", DataType::I32),
            ("int64", DataType::I64),
            ("uint8", DataType::U8),
            ("uint16", DataType::U16),
            ("uint32", DataType::U32),
            ("uint64", DataType::U64),
        ];
        lookup("data type", &Self::ALL, Self::name, ALIASES, s)
    }
}

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReduceOp {
    /// Bitwise and; integers only.
    And,
    /// The sum divided by the number of ranks; integers round towards zero.
    Average,
    /// The larger; NaN if either is NaN, and +0 is larger than -0.
    Max,
    /// The smaller; NaN if either is NaN, and -0 is smaller than +0.
    Min,
    /// Bitwise or; integers only.
    Or,
    /// The product; integers wrap around.
    Product,
    /// The sum; integers wrap around.
    Sum,
    /// Bitwise exclusive or; integers only.
    Xor,
}

impl ReduceOp {
    /// Every operation, for tests and help texts.
    pub const ALL: [Self; 8] = [
        Self::And,
        Self::Average,
        Self::Max,
        Self::Min,
        Self::Or,
        Self::Product,
        Self::Sum,
        Self::Xor,
    ];

    /// The name users write: `sum`, `avg` ...
    pub const fn name(self) -> &'static str {
        match self {
            Self::And => "and",
            Self::Average => "avg",
            Self::Max => "max",
            Self::Min => "min",
            Self::Or => "or",
            Self::Product => "prod",
            Self::Sum => "sum",
            Self::Xor => "xor",
        }
    }

    /// Whether the operation is defined for elements of `dtype`.
    pub const fn supports(self, dtype: DataType) -> bool {
        !(dtype.is_float() && matches!(self, Self::And | Self::Or | Self::Xor))
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    fn from_str(s: &str) -> Result<Self, UnknownName> {
        const ALIASES: &[(&str, ReduceOp)] = &[
            ("average", ReduceOp::Average),
            ("mean", ReduceOp::Average),
            ("product", ReduceOp::Product),
            ("band", ReduceOp::And),
            ("bor", ReduceOp::Or),
            ("bxor", ReduceOp::Xor),
        ];
        lookup("reduce operation", &Self::ALL, Self::name, ALIASES, s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for d in DataType::ALL {
            assert_eq!(d.name().parse(), Ok(d));
        }
        for op in ReduceOp::ALL {
            assert_eq!(op.name().parse(), Ok(op));
        }
        assert_eq!("Float".parse(), Ok(DataType::F32));
        assert_eq!("b-and".parse(), Ok(ReduceOp::And));
        let error = "f17".parse::<DataType>().unwrap_err().to_string();
        assert!(error.contains("'f17'") && error.contains("bf16"), "{error}");
    }
}
