//! The loops around the arithmetic, for every instruction set, element type and operation.

use crate::simd::{Arithmetic, Divisor, Halves, Op};

/// Blocks taken at a time: enough independent work to hide latencies, few enough that two-register accumulators of all
/// of them stay in registers.
const GROUP: usize = 4;

/// How far ahead of use memory is asked for, in bytes. Measured: the hardware's prefetchers alone reach half the
/// bandwidth of the third-level cache.
const AHEAD: usize = 2048;

/// Operands up to this many bytes are taken to be in the second-level cache or nearer, where asking ahead only costs.
const NEAR: usize = 128 << 10;

/// From this many bytes on, an unaligned start is worth a step of its own.
const WORTH_ALIGNING: usize = 1024;

/// What [`combine`] is to do.
pub(crate) struct Combine<'a> {
    pub(crate) dsts: &'a [*mut u8],
    pub(crate) srcs: &'a [*const u8],
    pub(crate) bytes: usize,
    pub(crate) divisor: Divisor,
    /// Bit `d`: write to `dsts[d]` past the caches. Those are all aligned alike.
    pub(crate) streaming: u64,
    /// Bytes to be taken first so that the destinations that matter are aligned; less than 64.
    pub(crate) head: usize,
}

/// The bytes up to the next multiple of 64, if there is a whole number of elements before it and enough after.
pub(crate) fn head(dst: *const u8, size: usize, bytes: usize) -> usize {
    let head = dst.addr().wrapping_neg() % 64;
    if bytes >= WORTH_ALIGNING && head.is_multiple_of(size) {
        head
    } else {
        0
    }
}

/// The destinations that are to be written past the caches, and one of them; all others may be aligned differently.
///
/// Not those that are a source as well: their lines are in the cache when they are written, and taking them out first
/// costs more than it saves (measured: 1.5 to 2 times the time of the whole).
pub(crate) fn streaming(
    dsts: &[*mut u8],
    srcs: &[*const u8],
    size: usize,
    bytes: usize,
) -> Option<(u64, *const u8)> {
    if bytes < WORTH_ALIGNING {
        return None;
    }
    let mut found: Option<(u64, *const u8)> = None;
    for (d, &dst) in dsts.iter().enumerate().take(64) {
        let dst = dst.cast_const();
        if !dst.addr().is_multiple_of(size) || srcs.contains(&dst) {
            continue;
        }
        match &mut found {
            None => found = Some((1 << d, dst)),
            Some((mask, first)) if (dst.addr() ^ first.addr()).is_multiple_of(64) => {
                *mask |= 1 << d
            }
            Some(_) => {}
        }
    }
    found
}

/// `dst = a op b`.
///
/// # Safety
/// As for [`crate::reduce`], with `bytes` a whole number of elements.
#[inline(always)]
pub(crate) unsafe fn reduce<T, O: Op<T, I>, I: Arithmetic<T>>(
    isa: I,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    bytes: usize,
) {
    // SAFETY: `at + n` never exceeds `bytes`.
    let part = |at: usize, n: usize| unsafe {
        let x = isa.widen(isa.load_part(a.add(at), n));
        let y = isa.widen(isa.load_part(b.add(at), n));
        isa.store_part(dst.add(at), isa.narrow(O::apply(isa, x, y)), n);
    };
    let mut at = 0;
    if bytes >= WORTH_ALIGNING {
        let first = head(dst, size_of::<T>(), bytes);
        while at < first {
            let n = (first - at).min(I::BLOCK / 2);
            part(at, n);
            at += n;
        }
    }
    let far = bytes > NEAR;
    while bytes - at >= GROUP * I::BLOCK {
        // SAFETY: a group of blocks from `at` is in range.
        unsafe {
            if far {
                for line in (0..GROUP * I::BLOCK).step_by(64) {
                    isa.prefetch(a.wrapping_add(at + AHEAD + line));
                    isa.prefetch(b.wrapping_add(at + AHEAD + line));
                }
            }
            let (a, b, dst) = (a.add(at), b.add(at), dst.add(at));
            let mut acc = [isa.widen(isa.load(a)); GROUP];
            for (k, acc) in acc.iter_mut().enumerate().skip(1) {
                *acc = isa.widen(isa.load(a.add(k * I::BLOCK)));
            }
            for (k, acc) in acc.iter_mut().enumerate() {
                *acc = O::apply(isa, *acc, isa.widen(isa.load(b.add(k * I::BLOCK))));
            }
            for (k, &acc) in acc.iter().enumerate() {
                isa.store(dst.add(k * I::BLOCK), isa.narrow(acc));
            }
        }
        at += GROUP * I::BLOCK;
    }
    while bytes - at >= I::BLOCK {
        // SAFETY: a block from `at` is in range.
        unsafe {
            let (x, y) = (
                isa.widen(isa.load(a.add(at))),
                isa.widen(isa.load(b.add(at))),
            );
            isa.store(dst.add(at), isa.narrow(O::apply(isa, x, y)));
        }
        at += I::BLOCK;
    }
    if at < bytes {
        part(at, bytes - at);
    }
}

/// All sources in order into all destinations.
///
/// # Safety
/// As for [`crate::combine`], with `bytes` a whole number of elements and at least one source.
#[inline(always)]
pub(crate) unsafe fn combine<T, O: Op<T, I>, I: Arithmetic<T>>(isa: I, c: &Combine<'_>) {
    let mut at = 0;
    while at < c.head {
        let n = (c.head - at).min(I::BLOCK / 2);
        // SAFETY: the head is part of the range.
        unsafe { combine_part::<T, O, I>(isa, c, at, n) };
        at += n;
    }
    let far = c.bytes > NEAR;
    while c.bytes - at >= GROUP * I::BLOCK {
        // SAFETY: a group of blocks from `at` is in range, and streamed destinations are aligned there.
        unsafe { combine_blocks::<T, O, I, GROUP>(isa, c, at, far) };
        at += GROUP * I::BLOCK;
    }
    while c.bytes - at >= I::BLOCK {
        // SAFETY: a block from `at` is in range, and streamed destinations are aligned there.
        unsafe { combine_blocks::<T, O, I, 1>(isa, c, at, false) };
        at += I::BLOCK;
    }
    if at < c.bytes {
        // SAFETY: the rest, less than a block.
        unsafe { combine_part::<T, O, I>(isa, c, at, c.bytes - at) };
    }
    if c.streaming != 0 {
        isa.fence();
    }
}

/// # Safety
/// The `n` bytes from `at` must be in the range of `c`, and fewer than a block.
#[inline(always)]
unsafe fn combine_part<T, O: Op<T, I>, I: Arithmetic<T>>(
    isa: I,
    c: &Combine<'_>,
    at: usize,
    n: usize,
) {
    // SAFETY: every source has these bytes.
    let load = |src: *const u8| unsafe { isa.widen(isa.load_part(src.add(at), n)) };
    let mut acc = load(c.srcs[0]);
    for &src in &c.srcs[1..] {
        acc = O::apply(isa, acc, load(src));
    }
    let result = isa.narrow(O::finish(isa, acc, &c.divisor));
    for &dst in c.dsts {
        // SAFETY: every destination has room for these bytes.
        unsafe { isa.store_part(dst.add(at), result, n) }
    }
}

/// # Safety
/// `N` blocks from `at` must be in the range of `c`, and the streamed destinations aligned there.
#[inline(always)]
unsafe fn combine_blocks<T, O: Op<T, I>, I: Arithmetic<T>, const N: usize>(
    isa: I,
    c: &Combine<'_>,
    at: usize,
    far: bool,
) {
    // SAFETY: every source has these blocks.
    let load =
        |src: *const u8, k: usize| unsafe { isa.widen(isa.load(src.add(at + k * I::BLOCK))) };
    let ahead = |src: *const u8| {
        if far {
            for line in (0..N * I::BLOCK).step_by(64) {
                isa.prefetch(src.wrapping_add(at + AHEAD + line));
            }
        }
    };
    let first = c.srcs[0];
    ahead(first);
    let mut acc = [load(first, 0); N];
    for (k, acc) in acc.iter_mut().enumerate().skip(1) {
        *acc = load(first, k);
    }
    for &src in &c.srcs[1..] {
        ahead(src);
        for (k, acc) in acc.iter_mut().enumerate() {
            *acc = O::apply(isa, *acc, load(src, k));
        }
    }
    let mut result = [isa.narrow(O::finish(isa, acc[0], &c.divisor)); N];
    for (k, result) in result.iter_mut().enumerate().skip(1) {
        *result = isa.narrow(O::finish(isa, acc[k], &c.divisor));
    }
    for (d, &dst) in c.dsts.iter().enumerate() {
        // SAFETY: every destination has room for these blocks.
        let dst = unsafe { dst.add(at) };
        // The mask covers the first 64 destinations.
        if d < 64 && c.streaming >> d & 1 == 1 {
            for (k, &result) in result.iter().enumerate() {
                // SAFETY: as above; aligned by the caller's promise.
                unsafe { isa.stream(dst.add(k * I::BLOCK), result) }
            }
        } else {
            for (k, &result) in result.iter().enumerate() {
                // SAFETY: as above.
                unsafe { isa.store(dst.add(k * I::BLOCK), result) }
            }
        }
    }
}

/// 16-bit floats to `f32`.
///
/// # Safety
/// `src` must hold `count` elements of `T`, `dst` have room for as many `f32`.
#[inline(always)]
pub(crate) unsafe fn widen<T, I: Halves<T>>(isa: I, dst: *mut u8, src: *const u8, count: usize) {
    let bytes = 2 * count;
    let mut at = 0;
    // SAFETY: `at` and what is taken from there is within `bytes` of the source, and within twice that of the destination.
    unsafe {
        while bytes - at >= I::BLOCK {
            let [low, high] = isa.unpack(isa.load(src.add(at)));
            isa.store(dst.add(2 * at), low);
            isa.store(dst.add(2 * at + I::BLOCK), high);
            at += I::BLOCK;
        }
        let rest = bytes - at;
        if rest > 0 {
            let [low, high] = isa.unpack(isa.load_part(src.add(at), rest));
            let dst = dst.add(2 * at);
            if 2 * rest < I::BLOCK {
                isa.store_part(dst, low, 2 * rest);
            } else {
                isa.store(dst, low);
                isa.store_part(dst.add(I::BLOCK), high, 2 * rest - I::BLOCK);
            }
        }
    }
}

/// `f32` to 16-bit floats.
///
/// # Safety
/// `src` must hold `count` elements of `f32`, `dst` have room for as many of `T`.
#[inline(always)]
pub(crate) unsafe fn narrow<T, I: Halves<T>>(isa: I, dst: *mut u8, src: *const u8, count: usize) {
    let bytes = 2 * count;
    let mut at = 0;
    // SAFETY: `at` and what is taken from there is within `bytes` of the destination, and within twice that of the source.
    unsafe {
        while bytes - at >= I::BLOCK {
            let halves = [
                isa.load(src.add(2 * at)),
                isa.load(src.add(2 * at + I::BLOCK)),
            ];
            isa.store(dst.add(at), isa.pack(halves));
            at += I::BLOCK;
        }
        let rest = bytes - at;
        if rest > 0 {
            let src = src.add(2 * at);
            let halves = if 2 * rest < I::BLOCK {
                let low = isa.load_part(src, 2 * rest);
                [low, low]
            } else {
                [
                    isa.load(src),
                    isa.load_part(src.add(I::BLOCK), 2 * rest - I::BLOCK),
                ]
            };
            isa.store_part(dst.add(at), isa.pack(halves), rest);
        }
    }
}
