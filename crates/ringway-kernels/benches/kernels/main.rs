//! How close the kernels come to what the machine can do: `cargo bench -p ringway-kernels [FILTER]`.
//!
//! Each case runs its variants in turn, many times, and prints medians: figures of one line were measured under the same
//! conditions, whatever else the machine was doing, and the ratio is to the first variant, the yardstick.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one proof covers the operands of a call"
)]

mod codec;
#[cfg(target_arch = "x86_64")]
mod peak;

use std::{alloc::Layout, hint::black_box, time::Instant};

use ringway_kernels::{
    Cast, Finish, Level, Stores, cast, cast_at, combine, copy_streaming, reduce, reduce_at,
};
use ringway_plan::{DataType, ReduceOp};

/// Memory aligned to a page, written once so that it is really there; lives until the process ends.
pub(crate) fn memory(bytes: usize) -> *mut u8 {
    let Ok(layout) = Layout::from_size_align(bytes, 4096) else {
        panic!("no layout for {bytes} bytes")
    };
    // SAFETY: the size is not zero.
    let ptr = unsafe { std::alloc::alloc(layout) };
    assert!(!ptr.is_null(), "no memory for {bytes} bytes");
    for i in (0..bytes).step_by(4) {
        // SAFETY: within the allocation, and aligned.
        unsafe { ptr.add(i).cast::<f32>().write((i % 977) as f32) };
    }
    ptr
}

pub(crate) type Variant<'a> = (&'a str, Box<dyn FnMut() + 'a>);

/// Runs the variants alternately and prints the median time of each as bytes per second of `bytes`, and its ratio to the
/// first one's.
pub(crate) fn compare(
    filter: &str,
    case: &str,
    bytes: usize,
    repeat: usize,
    rounds: usize,
    mut variants: Vec<Variant<'_>>,
) {
    if !case.contains(filter) {
        return;
    }
    let mut times = vec![Vec::new(); variants.len()];
    for round in 0..=rounds {
        for ((_, f), times) in variants.iter_mut().zip(&mut times) {
            let start = Instant::now();
            for _ in 0..repeat {
                f();
            }
            let elapsed = start.elapsed().as_secs_f64() / repeat as f64;
            if round > 0 {
                times.push(elapsed);
            }
        }
    }
    println!("{case}");
    let mut yardstick = None;
    for ((name, _), times) in variants.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let yardstick = *yardstick.get_or_insert(median);
        println!(
            "  {name:36} {:9.1} ns {:8.2} GB/s   ratio {:5.2}",
            median * 1e9,
            bytes as f64 / median / 1e9,
            yardstick / median
        );
    }
}

const SUM: ReduceOp = ReduceOp::Sum;

/// A variant that reduces.
fn reduces<'a>(
    dtype: DataType,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    bytes: usize,
) -> Box<dyn FnMut() + 'a> {
    // SAFETY: all callers pass memory of `bytes` bytes.
    Box::new(move || unsafe { reduce(dtype, SUM, black_box(dst), a, b, bytes / dtype.size()) })
}

/// A variant that combines.
fn combines<'a>(
    dtype: DataType,
    dsts: Vec<*mut u8>,
    srcs: Vec<*const u8>,
    bytes: usize,
    stores: Stores,
) -> Box<dyn FnMut() + 'a> {
    Box::new(move || {
        // SAFETY: all callers pass memory of `bytes` bytes.
        unsafe {
            combine(
                dtype,
                SUM,
                black_box(&dsts),
                &srcs,
                bytes / dtype.size(),
                Finish::None,
                stores,
            )
        }
    })
}

fn main() {
    let filter = std::env::args()
        .skip(1)
        .find(|arg| !arg.starts_with('-'))
        .unwrap_or_default();
    println!("best level: {:?}", Level::best());
    small(&filter);
    near(&filter);
    far(&filter);
    codec::all(&filter);
}

/// Calls for a few elements: dispatch and nothing else.
fn small(filter: &str) {
    let [a, b, c, d] = [(); 4].map(|()| memory(4096));
    for count in [1usize, 2, 4, 16, 100] {
        let bytes = count * 4;
        let plain = Box::new(move || {
            let (dst, a, b) = (black_box(c).cast::<f32>(), a.cast::<f32>(), b.cast::<f32>());
            for i in 0..count {
                // SAFETY: `count` elements are within the memory.
                unsafe { *dst.add(i) = *a.add(i) + *b.add(i) };
            }
        });
        compare(
            filter,
            &format!("small: f32 sum of {count}"),
            bytes,
            100_000,
            15,
            vec![
                ("plain loop, inlined", plain),
                ("reduce", reduces(DataType::F32, c, a, b, bytes)),
                (
                    "combine 2 to 1",
                    combines(DataType::F32, vec![c], vec![a, b], bytes, Stores::Cached),
                ),
                (
                    "combine 2 to 2",
                    combines(DataType::F32, vec![c, d], vec![a, b], bytes, Stores::Cached),
                ),
            ],
        );
    }
}

/// Operands in the first and second cache.
fn near(filter: &str) {
    let [a, b, c, d] = [(); 4].map(|()| memory(1 << 20));
    for (kib, repeat) in [(8usize, 2000), (256, 50)] {
        let bytes = kib << 10;
        let mut variants: Vec<Variant<'_>> = Vec::new();
        #[cfg(target_arch = "x86_64")]
        if Level::Avx512.is_supported() {
            // SAFETY: memory of 1 MiB; the level is supported.
            variants.push((
                "load, load, store",
                Box::new(move || unsafe { peak::load_load_store(black_box(c), a, b, bytes) }),
            ));
        }
        variants.push(("f32 reduce", reduces(DataType::F32, c, a, b, bytes)));
        variants.push((
            "f32 reduce in place",
            reduces(DataType::F32, c, c, b, bytes),
        ));
        // SAFETY: memory of 1 MiB.
        let avx2 = move || unsafe {
            reduce_at(
                Level::Avx2,
                DataType::F32,
                SUM,
                black_box(c),
                a,
                b,
                bytes / 4,
            )
        };
        variants.push(("f32 reduce, AVX2", Box::new(avx2)));
        // SAFETY: memory of 1 MiB.
        let plain = move || unsafe {
            reduce_at(
                Level::Portable,
                DataType::F32,
                SUM,
                black_box(c),
                a,
                b,
                bytes / 4,
            )
        };
        variants.push(("f32 reduce, portable", Box::new(plain)));
        variants.push((
            "f32 combine 2 to 1",
            combines(DataType::F32, vec![c], vec![a, b], bytes, Stores::Cached),
        ));
        variants.push((
            "f32 combine 2 to 2",
            combines(DataType::F32, vec![c, d], vec![a, b], bytes, Stores::Cached),
        ));
        variants.push(("f16 reduce", reduces(DataType::F16, c, a, b, bytes)));
        variants.push(("bf16 reduce", reduces(DataType::Bf16, c, a, b, bytes)));
        for (name, cast_of) in [
            ("f32 to f16", Cast::F32ToF16),
            ("f16 to f32", Cast::F16ToF32),
            ("f32 to bf16", Cast::F32ToBf16),
            ("bf16 to f32", Cast::Bf16ToF32),
        ] {
            // SAFETY: memory of 1 MiB.
            variants.push((
                name,
                Box::new(move || unsafe { cast(cast_of, black_box(c), a, bytes / 4) }),
            ));
        }
        compare(
            filter,
            &format!("near: {kib} KiB operands"),
            bytes,
            repeat,
            15,
            variants,
        );
        let mut variants: Vec<Variant<'_>> = Vec::new();
        for (name, cast_of) in [
            ("portable, f32 to f16", Cast::F32ToF16),
            ("portable, f32 to bf16", Cast::F32ToBf16),
        ] {
            // SAFETY: memory of 1 MiB.
            variants.push((
                name,
                Box::new(move || unsafe {
                    cast_at(Level::Portable, cast_of, black_box(c), a, bytes / 4)
                }),
            ));
        }
        compare(
            filter,
            &format!("near: {kib} KiB casts, portable"),
            bytes,
            repeat / 10,
            5,
            variants,
        );
    }
}

/// Operands beyond the caches.
fn far(filter: &str) {
    for (mib, rounds) in [(8usize, 31), (64, 21), (256, 7)] {
        if !format!("far: {mib} MiB").contains(filter)
            && !filter.starts_with("far")
            && !filter.is_empty()
        {
            continue;
        }
        let bytes = mib << 20;
        let [a, b, c, d] = [(); 4].map(|()| memory(bytes));
        let mut variants: Vec<Variant<'_>> = Vec::new();
        #[cfg(target_arch = "x86_64")]
        if Level::Avx512.is_supported() {
            // SAFETY: memory of `bytes` bytes; the level is supported.
            unsafe {
                variants.push((
                    "load, load, store, asked ahead",
                    Box::new(move || peak::load_load_store_ahead(black_box(c), a, b, bytes)),
                ));
                variants.push((
                    "load, load, store",
                    Box::new(move || peak::load_load_store(black_box(c), a, b, bytes)),
                ));
            }
        }
        variants.push(("f32 reduce", reduces(DataType::F32, c, a, b, bytes)));
        variants.push((
            "f32 combine 2 to 1",
            combines(DataType::F32, vec![c], vec![a, b], bytes, Stores::Cached),
        ));
        compare(
            filter,
            &format!("far: {mib} MiB, cached stores"),
            bytes,
            1,
            rounds,
            variants,
        );

        let mut variants: Vec<Variant<'_>> = Vec::new();
        #[cfg(target_arch = "x86_64")]
        if Level::Avx512.is_supported() {
            // SAFETY: memory of `bytes` bytes; the level is supported.
            variants.push((
                "load, load, stream",
                Box::new(move || unsafe { peak::load_load_stream(black_box(c), a, b, bytes) }),
            ));
        }
        variants.push((
            "f32 combine 2 to 1",
            combines(DataType::F32, vec![c], vec![a, b], bytes, Stores::Streaming),
        ));
        variants.push((
            "f16 combine 2 to 1",
            combines(DataType::F16, vec![c], vec![a, b], bytes, Stores::Streaming),
        ));
        variants.push((
            "bf16 combine 2 to 1",
            combines(
                DataType::Bf16,
                vec![c],
                vec![a, b],
                bytes,
                Stores::Streaming,
            ),
        ));
        compare(
            filter,
            &format!("far: {mib} MiB, streaming stores"),
            bytes,
            1,
            rounds,
            variants,
        );

        let f32s = |dsts: &[*mut u8], srcs: &[*mut u8], stores| {
            combines(
                DataType::F32,
                dsts.to_vec(),
                srcs.iter().map(|p| p.cast_const()).collect(),
                bytes,
                stores,
            )
        };
        compare(
            filter,
            &format!("far: {mib} MiB, f32 combine 2 to 2"),
            bytes,
            1,
            rounds,
            vec![
                (
                    "apart, streaming",
                    f32s(&[c, d], &[a, b], Stores::Streaming),
                ),
                ("apart, cached", f32s(&[c, d], &[a, b], Stores::Cached)),
                ("in place, cached", f32s(&[a, b], &[a, b], Stores::Cached)),
                (
                    "in place, streaming",
                    f32s(&[a, b], &[a, b], Stores::Streaming),
                ),
            ],
        );
        // SAFETY: memory of `bytes` bytes.
        unsafe {
            compare(
                filter,
                &format!("far: {mib} MiB, copy"),
                bytes,
                1,
                rounds,
                vec![
                    (
                        "memcpy",
                        Box::new(move || std::ptr::copy_nonoverlapping(a, black_box(c), bytes)),
                    ),
                    (
                        "copy_streaming",
                        Box::new(move || copy_streaming(black_box(c), a, bytes)),
                    ),
                ],
            );
        }
        for ptr in [a, b, c, d] {
            // SAFETY: from `memory`, with that layout, and used no more.
            unsafe { std::alloc::dealloc(ptr, Layout::from_size_align_unchecked(bytes, 4096)) }
        }
    }
}
