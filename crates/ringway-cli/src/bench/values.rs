//! What ranks bring to a benchmark, and what must come out.

use half::{bf16, f16};
use ringway::{Collective, DataType, Rank, ReduceOp};

/// Writes `value` as element `at` of `bytes`; integers wrap.
pub(crate) fn write(dtype: DataType, bytes: &mut [u8], at: usize, value: f64) {
    let integer = value as i64;
    let size = dtype.size();
    let into = &mut bytes[at * size..(at + 1) * size];
    match dtype {
        DataType::Bf16 => into.copy_from_slice(&bf16::from_f64(value).to_le_bytes()),
        DataType::F16 => into.copy_from_slice(&f16::from_f64(value).to_le_bytes()),
        DataType::F32 => into.copy_from_slice(&(value as f32).to_le_bytes()),
        DataType::F64 => into.copy_from_slice(&value.to_le_bytes()),
        _ => into.copy_from_slice(&integer.to_le_bytes()[..size]),
    }
}

/// Element `at` of `bytes`; integers as their low bits, unsigned.
fn read(dtype: DataType, bytes: &[u8], at: usize) -> f64 {
    let size = dtype.size();
    let from = &bytes[at * size..(at + 1) * size];
    let mut word = [0; 8];
    word[..size].copy_from_slice(from);
    let bits = u64::from_le_bytes(word);
    match dtype {
        DataType::Bf16 => bf16::from_bits(bits as u16).to_f64(),
        DataType::F16 => f16::from_bits(bits as u16).to_f64(),
        DataType::F32 => f64::from(f32::from_bits(bits as u32)),
        DataType::F64 => f64::from_bits(bits),
        _ => bits as f64,
    }
}

/// What `rank` brings at place `i` of the vector: small numbers, that products stay small with too.
pub(crate) fn brought(op: ReduceOp, ranks: usize, rank: Rank, i: usize) -> f64 {
    match op {
        ReduceOp::Product if i % ranks == rank => 2.0,
        ReduceOp::Product => 1.0,
        _ => (rank % 8 + 1 + i % 7) as f64,
    }
}

/// What must stand at place `i` of the vector in the output of rank `me`.
pub(crate) fn expected(
    collective: Collective,
    op: ReduceOp,
    ranks: usize,
    me: Rank,
    part: usize,
    i: usize,
) -> f64 {
    let all = (0..ranks).map(|rank| brought(op, ranks, rank, i));
    match collective {
        Collective::AllReduce | Collective::Reduce { .. } | Collective::ReduceScatter => match op {
            ReduceOp::Average => all.sum::<f64>() / ranks as f64,
            ReduceOp::Max => all.fold(f64::MIN, f64::max),
            ReduceOp::Min => all.fold(f64::MAX, f64::min),
            ReduceOp::Product => all.product(),
            ReduceOp::Sum => all.sum(),
            ReduceOp::And => all.fold(-1_i64, |a, b| a & b as i64) as f64,
            ReduceOp::Or => all.fold(0_i64, |a, b| a | b as i64) as f64,
            ReduceOp::Xor => all.fold(0_i64, |a, b| a ^ b as i64) as f64,
        },
        Collective::AllGather | Collective::Gather { .. } => brought(op, ranks, i / part, i),
        Collective::AllToAll => brought(op, ranks, i / part, me * part + i % part),
        Collective::Broadcast { root } | Collective::Scatter { root } => {
            brought(op, ranks, root, i)
        }
        Collective::Barrier => 0.0,
    }
}

/// Whether element `at` of `bytes` is `value`, up to what `ranks` roundings of its type may lose.
pub(crate) fn is(dtype: DataType, ranks: usize, bytes: &[u8], at: usize, value: f64) -> bool {
    let mut wanted = [0; 8];
    write(dtype, &mut wanted, 0, value);
    let (got, wanted) = (read(dtype, bytes, at), read(dtype, &wanted, 0));
    let epsilon = match dtype {
        DataType::Bf16 => 2_f64.powi(-8),
        DataType::F16 => 2_f64.powi(-11),
        DataType::F32 => 2_f64.powi(-24),
        DataType::F64 => 2_f64.powi(-53),
        _ => 0.0,
    };
    (got - wanted).abs() <= epsilon * ranks as f64 * wanted.abs()
}
