//! `reduce` and `combine` of every level against the reference: all types and operations, special values, any alignment,
//! odd lengths, in place and apart, many operands, both kinds of stores.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call and the arithmetic of its pointers share one proof"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use std::num::NonZeroU32;

use half::{bf16, f16};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    strategy::{Just, ValueTree},
};
use ringway_kernels::{Finish, Level, Stores, combine_at, reduce_at, reference};
use ringway_plan::{DataType, ReduceOp};

/// Room before, between and after operands; its bytes must not change.
const GUARD: usize = 64;

fn levels() -> Vec<Level> {
    Level::ALL
        .into_iter()
        .filter(|level| level.is_supported())
        .collect()
}

fn dtype_and_op() -> impl Strategy<Value = (DataType, ReduceOp)> {
    let all = DataType::ALL
        .into_iter()
        .flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    select(
        all.filter(|(dtype, op)| op.supports(*dtype))
            .collect::<Vec<_>>(),
    )
}

/// One element's bits, with those that need care as likely as all others together.
fn element(dtype: DataType) -> BoxedStrategy<u64> {
    let special: &[u64] = match dtype {
        DataType::F16 => &[
            0, 0x8000, 1, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe01,
            0x7c01, 0xfdff,
        ],
        DataType::Bf16 => &[
            0, 0x8000, 1, 0x8001, 0x007f, 0x0080, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc1,
            0x7f81, 0xffbf,
        ],
        DataType::F32 => &[
            0,
            0x8000_0000,
            1,
            0x8000_0001,
            0x007f_ffff,
            0x0080_0000,
            0x7f7f_ffff,
            0xff7f_ffff,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0xffc0_0001,
            0x7f80_0001,
            0xffbf_ffff,
        ],
        DataType::F64 => &[
            0,
            1 << 63,
            1,
            1 << 63 | 1,
            0x000f_ffff_ffff_ffff,
            1 << 52,
            0x7fef_ffff_ffff_ffff,
            0xffef_ffff_ffff_ffff,
            0x7ff0_0000_0000_0000,
            0xfff0_0000_0000_0000,
            0x7ff8_0000_0000_0000,
            0xfff8_0000_0000_0001,
            0x7ff0_0000_0000_0001,
            0xfff7_ffff_ffff_ffff,
        ],
        _ => &[
            0,
            1,
            2,
            u64::MAX,
            u64::MAX - 1,
            i8::MAX as u64,
            i16::MAX as u64,
            i32::MAX as u64,
            i64::MAX as u64,
            0x80,
            0x8000,
            0x8000_0000,
            1 << 63,
        ],
    };
    let any_float = match dtype {
        DataType::F16 => (-9.0..9.0f32)
            .prop_map(|x| u64::from(f16::from_f32(x).to_bits()))
            .boxed(),
        DataType::Bf16 => (-9.0..9.0f32)
            .prop_map(|x| u64::from(bf16::from_f32(x).to_bits()))
            .boxed(),
        DataType::F32 => (-9.0..9.0f32).prop_map(|x| u64::from(x.to_bits())).boxed(),
        DataType::F64 => (-9.0..9.0f64).prop_map(f64::to_bits).boxed(),
        _ => any::<u64>().boxed(),
    };
    prop_oneof![select(special), any_float, any::<u64>()].boxed()
}

/// Where an operand starts, modulo 64: mostly aligned to something, sometimes to nothing.
fn offset() -> impl Strategy<Value = usize> {
    prop_oneof![
        Just(0usize),
        Just(32),
        (0..8usize).prop_map(|k| 8 * k),
        (0..16usize).prop_map(|k| 4 * k),
        0..64usize
    ]
}

#[derive(Clone, Debug)]
struct Case {
    dtype: DataType,
    op: ReduceOp,
    count: usize,
    /// Values that sources take their elements from, at a stride of their own.
    pool: Vec<u64>,
    srcs: Vec<usize>,
    /// Where a destination is: in memory of its own at that offset, or in the place of that source.
    dsts: Vec<Place>,
    finish: Finish,
    stores: Stores,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Apart(usize),
    Source(usize),
}

fn count() -> impl Strategy<Value = usize> {
    prop_oneof![0..20usize, 0..200usize, 0..1500usize]
}

fn case(max_operands: usize) -> impl Strategy<Value = Case> {
    let place = prop_oneof![
        offset().prop_map(Place::Apart),
        any::<prop::sample::Index>().prop_map(|i| Place::Source(i.index(9)))
    ];
    let finish = prop_oneof![
        Just(None),
        (1..=9u32).prop_map(Some),
        any::<u32>().prop_map(Some)
    ];
    (
        dtype_and_op(),
        count(),
        vec(offset(), 1..=max_operands),
        vec(place, 1..=max_operands),
        finish,
        any::<bool>(),
    )
        .prop_flat_map(|((dtype, op), count, srcs, dsts, finish, streaming)| {
            vec(element(dtype), 61).prop_map(move |pool| {
                let dsts = dsts.iter().map(|&dst| match dst {
                    Place::Source(s) => Place::Source(s % srcs.len()),
                    apart => apart,
                });
                Case {
                    dtype,
                    op,
                    count,
                    pool,
                    dsts: dsts.collect(),
                    srcs: srcs.clone(),
                    finish: finish
                        .and_then(NonZeroU32::new)
                        .map_or(Finish::None, Finish::Divide),
                    stores: if streaming {
                        Stores::Streaming
                    } else {
                        Stores::Cached
                    },
                }
            })
        })
}

/// Memory for a case: all operands in one allocation, guarded.
struct Arena {
    bytes: Vec<u8>,
    srcs: Vec<usize>,
    dsts: Vec<usize>,
}

impl Arena {
    fn new(case: &Case) -> Self {
        let size = case.dtype.size();
        let len = (case.count * size).next_multiple_of(64) + 2 * GUARD;
        let apart = case
            .dsts
            .iter()
            .filter(|dst| matches!(dst, Place::Apart(_)))
            .count();
        let mut bytes = vec![0xa5; (case.srcs.len() + apart + 2) * len];
        let base = bytes.as_ptr().align_offset(64);
        let mut slots = (0..).map(|slot| base + slot * len + GUARD);
        let mut next = |offset: usize| slots.next().unwrap() + offset % 64;
        let srcs: Vec<usize> = case.srcs.iter().map(|&offset| next(offset)).collect();
        let dsts = case.dsts.iter().map(|&dst| match dst {
            Place::Apart(offset) => next(offset),
            Place::Source(s) => srcs[s],
        });
        let dsts = dsts.collect();
        for (s, &start) in srcs.iter().enumerate() {
            for i in 0..case.count {
                let value = case.pool[(i * (2 * s + 1) + 7 * s) % case.pool.len()].to_le_bytes();
                bytes[start + i * size..][..size].copy_from_slice(&value[..size]);
            }
        }
        Self { bytes, srcs, dsts }
    }

    fn pointers(&mut self) -> (Vec<*mut u8>, Vec<*const u8>) {
        let base = self.bytes.as_mut_ptr();
        let at = |&start: &usize| base.wrapping_add(start);
        (
            self.dsts.iter().map(at).collect(),
            self.srcs.iter().map(|s| at(s).cast_const()).collect(),
        )
    }
}

fn is_nan(dtype: DataType, bits: u64) -> bool {
    match dtype {
        DataType::F16 => f16::from_bits(bits as u16).is_nan(),
        DataType::Bf16 => bf16::from_bits(bits as u16).is_nan(),
        DataType::F32 => f32::from_bits(bits as u32).is_nan(),
        DataType::F64 => f64::from_bits(bits).is_nan(),
        _ => false,
    }
}

/// The same bytes everywhere, but for NaNs that come out of arithmetic.
fn assert_same(case: &Case, level: Level, found: &Arena, expected: &Arena) {
    let size = case.dtype.size();
    let exact = matches!(case.op, ReduceOp::Min | ReduceOp::Max) && case.finish == Finish::None;
    let mut found_bytes = found.bytes.clone();
    if !exact {
        for (&f, &e) in found.dsts.iter().zip(&expected.dsts) {
            for i in 0..case.count {
                let element = |bytes: &[u8], start: usize| {
                    let mut le = [0; 8];
                    le[..size].copy_from_slice(&bytes[start + i * size..][..size]);
                    u64::from_le_bytes(le)
                };
                if is_nan(case.dtype, element(&found.bytes, f))
                    && is_nan(case.dtype, element(&expected.bytes, e))
                {
                    found_bytes[f + i * size..][..size]
                        .copy_from_slice(&expected.bytes[e + i * size..][..size]);
                }
            }
        }
    }
    // Allocations differ in alignment: compare from the first slot.
    let (f, e) = (found.srcs[0] - GUARD, expected.srcs[0] - GUARD);
    let len = (found_bytes.len() - f).min(expected.bytes.len() - e);
    let difference = (0..len).find(|&i| found_bytes[f + i] != expected.bytes[e + i]);
    assert_eq!(
        difference, None,
        "{level:?}: first different byte, counted from the first slot; {case:?}"
    );
}

fn check_combine(case: &Case) {
    let mut expected = Arena::new(case);
    let (dsts, srcs) = expected.pointers();
    // SAFETY: the arena has room for all operands; they are the same or apart.
    unsafe { reference::combine(case.dtype, case.op, &dsts, &srcs, case.count, case.finish) };
    for level in levels() {
        let mut found = Arena::new(case);
        let (dsts, srcs) = found.pointers();
        // SAFETY: as above.
        unsafe {
            combine_at(
                level,
                case.dtype,
                case.op,
                &dsts,
                &srcs,
                case.count,
                case.finish,
                case.stores,
            )
        };
        assert_same(case, level, &found, &expected);
    }
}

fn check_reduce(case: &Case) {
    let mut expected = Arena::new(case);
    let (dsts, srcs) = expected.pointers();
    // SAFETY: the arena has room for all operands; they are the same or apart.
    unsafe { reference::reduce(case.dtype, case.op, dsts[0], srcs[0], srcs[1], case.count) };
    for level in levels() {
        let mut found = Arena::new(case);
        let (dsts, srcs) = found.pointers();
        // SAFETY: as above.
        unsafe {
            reduce_at(
                level, case.dtype, case.op, dsts[0], srcs[0], srcs[1], case.count,
            )
        };
        assert_same(case, level, &found, &expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn combine_is_the_reference(case in case(9)) {
        check_combine(&case);
    }

    #[test]
    fn reduce_is_the_reference(mut case in case(2)) {
        case.srcs.resize(2, 4);
        case.dsts.truncate(1);
        case.finish = Finish::None;
        check_reduce(&case);
    }
}

/// Every type and operation, whatever proptest's dice say.
#[test]
fn every_type_and_operation() {
    let places = [
        vec![Place::Apart(0)],
        vec![Place::Source(0), Place::Source(1)],
        vec![
            Place::Apart(8),
            Place::Apart(8),
            Place::Source(1),
            Place::Apart(3),
        ],
    ];
    for dtype in DataType::ALL {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let pool: Vec<u64> = vec(element(dtype), 127)
            .new_tree(&mut runner)
            .unwrap()
            .current();
        for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
            for n in [1usize, 2, 3, 5, 66] {
                for dsts in &places {
                    for stores in [Stores::Cached, Stores::Streaming] {
                        for ranks in [0, 2, 3] {
                            let case = Case {
                                dtype,
                                op,
                                count: 333,
                                pool: pool.clone(),
                                srcs: (0..n).map(|s| 8 * s).collect(),
                                dsts: dsts
                                    .iter()
                                    .map(|&dst| match dst {
                                        Place::Source(s) => Place::Source(s % n),
                                        apart => apart,
                                    })
                                    .collect(),
                                finish: NonZeroU32::new(ranks).map_or(Finish::None, Finish::Divide),
                                stores,
                            };
                            check_combine(&case);
                            if n == 2 && ranks == 0 {
                                check_reduce(&case);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// More destinations than there are bits in the mask of streamed ones, and lengths beyond every threshold.
#[test]
fn many_destinations_and_long_operands() {
    for (n, count) in [(70, 1000), (2, 200_001)] {
        let case = Case {
            dtype: DataType::F32,
            op: ReduceOp::Average,
            count,
            pool: (0..61)
                .map(|i| u64::from((i as f32 - 20.5).to_bits()))
                .collect(),
            srcs: vec![0, 4, 20],
            dsts: (0..n)
                .map(|d| Place::Apart(if d % 3 == 0 { 12 } else { 4 * d }))
                .collect(),
            finish: Finish::of(ReduceOp::Average, 3),
            stores: Stores::Streaming,
        };
        check_combine(&case);
        check_reduce(&case);
    }
}

/// `f16` and `bf16`: two operands as if added exactly and rounded once; many likewise, where `f32` holds the sum exactly.
#[test]
fn halves_round_once() {
    let sums = |dtype: DataType, srcs: &[Vec<u16>]| {
        let mut results = Vec::new();
        for level in levels() {
            let pointers: Vec<*const u8> = srcs.iter().map(|src| src.as_ptr().cast()).collect();
            let mut dst = vec![0u16; srcs[0].len()];
            let dsts = [dst.as_mut_ptr().cast()];
            let count = dst.len();
            // SAFETY: all have `count` elements of two bytes and are apart.
            unsafe {
                combine_at(
                    level,
                    dtype,
                    ReduceOp::Sum,
                    &dsts,
                    &pointers,
                    count,
                    Finish::None,
                    Stores::Cached,
                );
            }
            results.push(dst);
        }
        results
    };
    // All values of the first operand against a spread of the second.
    for b in (0..=u16::MAX).step_by(1327) {
        let srcs = [(0..=u16::MAX).collect::<Vec<_>>(), vec![b; 1 << 16]];
        for (dtype, value) in [
            (DataType::F16, f16_value as fn(u16) -> f64),
            (DataType::Bf16, bf16_value),
        ] {
            for found in sums(dtype, &srcs) {
                for (a, &found) in (0..=u16::MAX).zip(&found) {
                    let (found, exact) = (value(found), value(a) + value(b));
                    let correct = round(dtype, exact);
                    let same =
                        found == correct && found.is_sign_negative() == correct.is_sign_negative();
                    assert!(
                        same || (found.is_nan() && exact.is_nan()),
                        "{a:#x} + {b:#x} = {found}, not {exact}"
                    );
                }
            }
        }
    }
    // Sums that rounding after every addition would get wrong: 2048 + 1 + 1 + ..., 256 + 1 + 1 + ...
    let ones = |first: u16, one: u16| {
        std::iter::once(vec![first; 33])
            .chain(std::iter::repeat_n(vec![one; 33], 8))
            .collect::<Vec<_>>()
    };
    for found in sums(
        DataType::F16,
        &ones(f16::from_f32(2048.0).to_bits(), f16::ONE.to_bits()),
    ) {
        assert!(found.iter().all(|&x| f16::from_bits(x).to_f32() == 2056.0));
    }
    for found in sums(
        DataType::Bf16,
        &ones(bf16::from_f32(256.0).to_bits(), bf16::ONE.to_bits()),
    ) {
        assert!(found.iter().all(|&x| bf16::from_bits(x).to_f32() == 264.0));
    }
}

fn f16_value(bits: u16) -> f64 {
    f16::from_bits(bits).to_f64_const()
}

fn bf16_value(bits: u16) -> f64 {
    bf16::from_bits(bits).to_f64_const()
}

/// The nearest number of a 16-bit format, the even one of two; from the definition of the formats.
fn round(dtype: DataType, x: f64) -> f64 {
    let (fraction, smallest_exponent, largest) = match dtype {
        DataType::F16 => (10, -14, f16::MAX.to_f64_const()),
        _ => (7, -126, bf16::MAX.to_f64_const()),
    };
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    // Sums of two 16-bit numbers are never subnormal as f64.
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let unit = 2.0f64.powi(exponent.max(smallest_exponent) - fraction);
    let rounded = (x / unit).round_ties_even() * unit;
    if rounded.abs() > largest {
        f64::INFINITY.copysign(x)
    } else {
        rounded
    }
}

/// Min and max against what `ReduceOp` says of them, not against the reference.
#[test]
fn min_and_max_order_zeros_and_keep_nan() {
    let values = [
        f32::NAN,
        -f32::NAN,
        f32::from_bits(0x7f80_0001),
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        1.0,
        -1.0e-40,
    ];
    for level in levels() {
        for a in values {
            for b in values {
                for op in [ReduceOp::Min, ReduceOp::Max] {
                    let mut found = [0.0f32; 2];
                    for (found, [x, y]) in found.iter_mut().zip([[a, b], [b, a]]) {
                        // SAFETY: one element each.
                        unsafe {
                            let (x, y) = ((&raw const x).cast(), (&raw const y).cast());
                            reduce_at(
                                level,
                                DataType::F32,
                                op,
                                std::ptr::from_mut(found).cast(),
                                x,
                                y,
                                1,
                            );
                        }
                    }
                    assert_eq!(
                        found[0].to_bits(),
                        found[1].to_bits(),
                        "{level:?}: {op} of {a} and {b} depends on the order"
                    );
                    if a.is_nan() || b.is_nan() {
                        assert!(found[0].is_nan());
                    } else {
                        let expected = match (op, a.total_cmp(&b).is_lt()) {
                            (ReduceOp::Min, true) | (ReduceOp::Max, false) => a,
                            _ => b,
                        };
                        assert_eq!(
                            found[0].to_bits(),
                            expected.to_bits(),
                            "{level:?}: {op} of {a} and {b}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn bitwise_operations_on_floats_are_refused() {
    for level in levels() {
        let attempt = std::panic::catch_unwind(|| {
            let mut x = 1.0f32;
            let p = (&raw mut x).cast::<u8>();
            // SAFETY: one element, in place.
            unsafe { reduce_at(level, DataType::F32, ReduceOp::Xor, p, p, p, 1) }
        });
        assert!(attempt.is_err());
    }
}
