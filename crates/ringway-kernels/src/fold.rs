//! The loops around the arithmetic, for every instruction set, element type and operation.

use ringway_plan::ReduceOp;

use crate::simd::{Arithmetic, Divisor, Halves, Op};

/// How far ahead of use memory is asked for, in bytes. Measured: the hardware's prefetchers alone reach half the
/// bandwidth of the third-level cache.
const AHEAD: usize = 2048;

/// Operands up to this many bytes are taken to be in the second-level cache or nearer, where asking ahead only costs.
const NEAR: usize = 128 << 10;

/// From this many bytes on, an unaligned start is worth a step of its own.
const WORTH_ALIGNING: usize = 1024;

/// What [`combine`] is to do.
#[derive(Clone, Copy)]
pub(crate) struct Combine<'a> {
    pub(crate) dsts: &'a [*mut u8],
    /// The first source.
    pub(crate) first: *const u8,
    /// All others.
    pub(crate) rest: &'a [*const u8],
    pub(crate) bytes: usize,
    pub(crate) op: ReduceOp,
    pub(crate) divisor: Option<Divisor>,
    /// Bit `d`: write to `dsts[d]` past the caches. Those are all aligned alike.
    pub(crate) streaming: u64,
    /// Bytes to be taken first so that the destinations that matter are aligned; less than 64.
    pub(crate) head: usize,
}

/// The bytes up to the next multiple of 64, if there is a whole number of elements before it and enough after.
pub(crate) fn head(dst: *mut u8, size: usize, bytes: usize) -> usize {
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
) -> Option<(u64, *mut u8)> {
    if bytes < WORTH_ALIGNING {
        return None;
    }
    let mut found: Option<(u64, *mut u8)> = None;
    for (d, &dst) in dsts.iter().enumerate().take(64) {
        if !dst.addr().is_multiple_of(size) || srcs.contains(&dst.cast_const()) {
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

/// `dst = a op b`, taking `N` blocks at a time.
///
/// # Safety
/// As for [`crate::reduce`], with `bytes` a whole number of elements.
#[inline(always)]
pub(crate) unsafe fn reduce<T, O: Op<T, I>, I: Arithmetic<T>, const N: usize>(
    isa: I,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    bytes: usize,
) {
    let mut at = 0;
    let mut until = if bytes < N * I::BLOCK {
        bytes
    } else {
        head(dst, size_of::<T>(), bytes)
    };
    loop {
        while at < until {
            let n = (until - at).min(I::BLOCK);
            // SAFETY: `n` bytes from `at` are in range.
            unsafe {
                let x = isa.widen(isa.load_part(a.add(at), n));
                let y = isa.widen(isa.load_part(b.add(at), n));
                isa.store_part(dst.add(at), isa.narrow(O::apply(isa, x, y)), n);
            }
            at += n;
        }
        if at == bytes {
            return;
        }
        while bytes - at >= N * I::BLOCK {
            // SAFETY: `N` blocks from `at` are in range.
            unsafe {
                if bytes > NEAR {
                    for line in (0..N * I::BLOCK).step_by(64) {
                        isa.prefetch(a.wrapping_add(at + AHEAD + line));
                        isa.prefetch(b.wrapping_add(at + AHEAD + line));
                    }
                }
                let (a, b, dst) = (a.add(at), b.add(at), dst.add(at));
                let mut acc = [isa.widen(isa.load(a)); N];
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
            at += N * I::BLOCK;
        }
        until = bytes;
    }
}

/// All sources in order into all destinations, taking `N` blocks at a time.
///
/// The operation is looked up for each group of blocks, which costs next to nothing beside the memory, and makes one
/// function of what would be eight for each element type.
///
/// # Safety
/// As for [`crate::combine`], with `bytes` a whole number of elements.
#[inline(always)]
pub(crate) unsafe fn combine<T, I: Arithmetic<T>, const N: usize>(isa: I, c: &Combine<'_>) {
    // A copy, of which the compiler knows that no store changes it.
    let c = *c;
    let mut at = 0;
    let mut until = if c.bytes < N * I::BLOCK {
        c.bytes
    } else {
        c.head
    };
    loop {
        while at < until {
            let n = (until - at).min(I::BLOCK);
            // SAFETY: the bytes from `at` are in range.
            unsafe { combine_part(isa, c, at, n) };
            at += n;
        }
        if at == c.bytes {
            break;
        }
        while c.bytes - at >= N * I::BLOCK {
            // SAFETY: the blocks from `at` are in range, and streamed destinations are aligned there.
            unsafe { combine_group::<T, I, N>(isa, c, at) };
            at += N * I::BLOCK;
        }
        until = c.bytes;
    }
    if c.streaming != 0 {
        isa.fence();
    }
}

/// `acc[k] = acc[k] op b[k]`.
#[inline(always)]
fn apply<T, I: Arithmetic<T>, const N: usize>(
    isa: I,
    op: ReduceOp,
    acc: &mut [I::Acc; N],
    b: &[I::Acc; N],
) {
    macro_rules! each {
        (|$x:ident, $y:ident| $result:expr) => {
            for (x, &$y) in acc.iter_mut().zip(b) {
                let $x = *x;
                *x = $result;
            }
        };
    }
    match op {
        ReduceOp::Sum | ReduceOp::Average => each!(|x, y| isa.sum(x, y)),
        ReduceOp::Product => each!(|x, y| isa.product(x, y)),
        ReduceOp::Min => each!(|x, y| isa.lesser(x, y)),
        ReduceOp::Max => each!(|x, y| isa.greater(x, y)),
        ReduceOp::And if I::INTEGER => {
            each!(|x, y| isa.widen(isa.and(isa.narrow(x), isa.narrow(y))))
        }
        ReduceOp::Or if I::INTEGER => each!(|x, y| isa.widen(isa.or(isa.narrow(x), isa.narrow(y)))),
        ReduceOp::Xor if I::INTEGER => {
            each!(|x, y| isa.widen(isa.xor(isa.narrow(x), isa.narrow(y))))
        }
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {}
    }
}

/// # Safety
/// The `n` bytes from `at` must be in the range of `c`, and at most a block.
#[inline(always)]
unsafe fn combine_part<T, I: Arithmetic<T>>(isa: I, c: Combine<'_>, at: usize, n: usize) {
    // SAFETY: every source has these bytes.
    let mut acc = unsafe { [isa.widen(isa.load_part(c.first.add(at), n))] };
    for &src in c.rest {
        // SAFETY: as above.
        let block = unsafe { [isa.widen(isa.load_part(src.add(at), n))] };
        apply(isa, c.op, &mut acc, &block);
    }
    if let Some(divisor) = &c.divisor {
        acc[0] = isa.divide(acc[0], divisor);
    }
    let result = isa.narrow(acc[0]);
    for &dst in c.dsts {
        // SAFETY: every destination has room for these bytes.
        unsafe { isa.store_part(dst.add(at), result, n) }
    }
}

/// # Safety
/// `N` blocks from `at` must be in the range of `c`, and the streamed destinations aligned there.
#[inline(always)]
unsafe fn combine_group<T, I: Arithmetic<T>, const N: usize>(isa: I, c: Combine<'_>, at: usize) {
    let far = c.bytes > NEAR || c.streaming != 0;
    // SAFETY: every source has these blocks.
    let mut acc = unsafe { load_group::<T, I, N>(isa, c.first.add(at), far) };
    for &src in c.rest {
        // SAFETY: as above.
        let blocks = unsafe { load_group::<T, I, N>(isa, src.add(at), far) };
        apply(isa, c.op, &mut acc, &blocks);
    }
    if let Some(divisor) = &c.divisor {
        for acc in &mut acc {
            *acc = isa.divide(*acc, divisor);
        }
    }
    let mut result = [isa.narrow(acc[0]); N];
    for (result, &acc) in result.iter_mut().zip(&acc).skip(1) {
        *result = isa.narrow(acc);
    }
    let mut streaming = c.streaming;
    for &dst in c.dsts {
        // SAFETY: every destination has room for these blocks, and those streamed to are aligned.
        unsafe {
            let dst = dst.add(at);
            if streaming & 1 == 1 {
                for (k, &result) in result.iter().enumerate() {
                    isa.stream(dst.add(k * I::BLOCK), result);
                }
            } else {
                for (k, &result) in result.iter().enumerate() {
                    isa.store(dst.add(k * I::BLOCK), result);
                }
            }
        }
        streaming >>= 1;
    }
}

/// `N` blocks, asking ahead if they are `far`. A function, as a closure need not be inlined where the instruction set is
/// known, and every instruction is a call then.
///
/// # Safety
/// `src` must hold `N` blocks.
#[inline(always)]
unsafe fn load_group<T, I: Arithmetic<T>, const N: usize>(
    isa: I,
    src: *const u8,
    far: bool,
) -> [I::Acc; N] {
    if far {
        for line in (0..N * I::BLOCK).step_by(64) {
            isa.prefetch(src.wrapping_add(AHEAD + line));
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        let mut blocks = [isa.widen(isa.load(src)); N];
        for (k, block) in blocks.iter_mut().enumerate().skip(1) {
            *block = isa.widen(isa.load(src.add(k * I::BLOCK)));
        }
        blocks
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
            if 2 * rest <= I::BLOCK {
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
            let halves = if 2 * rest <= I::BLOCK {
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
