//! Kinds of elements as Python has them, and what they are to the engine.

use std::{ffi::CStr, str::FromStr};

use pyo3::{prelude::*, types::PyDict};
use ringway::{DataType, ReduceOp};

use crate::error::Class;

/// What an array's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Number(DataType),
    /// One byte, 0 or 1.
    Bool,
    /// Two floating-point numbers.
    Complex(DataType),
}

impl Kind {
    const ALL: [Self; 15] = {
        let mut all = [Self::Bool; 15];
        let mut at = 0;
        while at < DataType::ALL.len() {
            all[at] = Self::Number(DataType::ALL[at]);
            at += 1;
        }
        all[13] = Self::Complex(DataType::F32);
        all[14] = Self::Complex(DataType::F64);
        all
    };

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Number(dtype) => dtype.name(),
            Self::Bool => "bool",
            Self::Complex(DataType::F32) => "complex64",
            Self::Complex(_) => "complex128",
        }
    }

    /// The kind with this place in [`kinds`].
    pub(crate) fn at(place: usize) -> PyResult<Self> {
        let unknown = || Class::Argument.error(format!("there is no kind of elements {place}"));
        Self::ALL.get(place).copied().ok_or_else(unknown)
    }

    /// The kind with a name: `f32`, `float32`, `bool`, `complex64` ...
    pub(crate) fn named(name: &str) -> PyResult<Self> {
        match name {
            "bool" => Ok(Self::Bool),
            "complex64" => Ok(Self::Complex(DataType::F32)),
            "complex128" => Ok(Self::Complex(DataType::F64)),
            _ => DataType::from_str(name)
                .map(Self::Number)
                .map_err(|unknown| {
                    Class::Argument.error(format!("{unknown}, bool, complex64, complex128"))
                }),
        }
    }

    /// The kind that a buffer's format (as Python's `struct` has it) and item size tell; `None` if there is none, or
    /// bytes are in the other order.
    pub(crate) fn of_format(format: &CStr, size: usize) -> Option<Self> {
        let format = format.to_bytes();
        let native = match cfg!(target_endian = "little") {
            true => b'<',
            false => b'>',
        };
        let code = match format {
            [order, code @ ..] if [b'@', b'=', native].contains(order) => code,
            // One byte has no order.
            [_, code @ ..] if size == 1 && !code.is_empty() => code,
            code => code,
        };
        use DataType::{F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        Some(match (code, size) {
            (b"?", 1) => Self::Bool,
            (b"e", 2) => Self::Number(F16),
            (b"f", 4) => Self::Number(F32),
            (b"d", 8) => Self::Number(F64),
            (b"Zf", 8) => Self::Complex(F32),
            (b"Zd", 16) => Self::Complex(F64),
            (b"b", 1) => Self::Number(I8),
            (b"B" | b"c", 1) => Self::Number(U8),
            (b"h" | b"i" | b"l" | b"q" | b"n", 2) => Self::Number(I16),
            (b"h" | b"i" | b"l" | b"q" | b"n", 4) => Self::Number(I32),
            (b"h" | b"i" | b"l" | b"q" | b"n", 8) => Self::Number(I64),
            (b"H" | b"I" | b"L" | b"Q" | b"N", 2) => Self::Number(U16),
            (b"H" | b"I" | b"L" | b"Q" | b"N", 4) => Self::Number(U32),
            (b"H" | b"I" | b"L" | b"Q" | b"N", 8) => Self::Number(U64),
            _ => return None,
        })
    }

    /// The format of a buffer of such elements. bfloat16 has none of its own and goes as 16 bits.
    pub(crate) const fn format(self) -> &'static CStr {
        match self {
            Self::Bool => c"?",
            Self::Complex(DataType::F32) => c"Zf",
            Self::Complex(_) => c"Zd",
            Self::Number(dtype) => match dtype {
                DataType::Bf16 | DataType::U16 => c"H",
                DataType::F16 => c"e",
                DataType::F32 => c"f",
                DataType::F64 => c"d",
                DataType::I8 => c"b",
                DataType::I16 => c"h",
                DataType::I32 => c"i",
                DataType::I64 => c"q",
                DataType::U8 => c"B",
                DataType::U32 => c"I",
                DataType::U64 => c"Q",
            },
        }
    }

    /// Bytes of one element.
    pub(crate) const fn size(self) -> usize {
        self.dtype().size() * self.parts()
    }

    /// What the engine takes them for.
    pub(crate) const fn dtype(self) -> DataType {
        match self {
            Self::Number(dtype) | Self::Complex(dtype) => dtype,
            Self::Bool => DataType::U8,
        }
    }

    /// The engine's elements in one of these.
    pub(crate) const fn parts(self) -> usize {
        match self {
            Self::Complex(_) => 2,
            _ => 1,
        }
    }

    /// What `op` on these is to the engine. On truth values, sum and maximum are "or", product and minimum "and".
    pub(crate) fn reduction(self, op: ReduceOp) -> PyResult<ReduceOp> {
        match (self, op) {
            (Self::Number(_), op) => Ok(op),
            (Self::Complex(_), ReduceOp::Sum | ReduceOp::Average) => Ok(op),
            (Self::Bool, ReduceOp::Sum | ReduceOp::Max | ReduceOp::Or) => Ok(ReduceOp::Or),
            (Self::Bool, ReduceOp::Product | ReduceOp::Min | ReduceOp::And) => Ok(ReduceOp::And),
            (Self::Bool, ReduceOp::Xor) => Ok(ReduceOp::Xor),
            (kind, op) => Err(Class::Argument.error(format!(
                "{op} is not defined for {}; expected {}",
                kind.name(),
                if kind == Self::Bool {
                    "another operation than avg"
                } else {
                    "sum or avg"
                }
            ))),
        }
    }
}

/// Every kind's place by its name: what `ringway.torch` hands over for a data type.
#[pyfunction]
pub(crate) fn kinds(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let places = PyDict::new(py);
    for (place, kind) in Kind::ALL.into_iter().enumerate() {
        places.set_item(kind.name(), place)?;
    }
    Ok(places)
}
