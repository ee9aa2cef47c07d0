//! What the machine can do at most: loops that only load and store.

use std::arch::asm;

/// Loads both sources and stores the first, without arithmetic: the work of a two-operand reduction but for the addition.
///
/// # Safety
/// All three must be valid for `bytes` bytes, a multiple of 512, and the processor must have AVX-512.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn load_load_store(dst: *mut u8, a: *const u8, b: *const u8, bytes: usize) {
    // SAFETY: accesses `bytes` bytes from each pointer, 512 at a time.
    unsafe {
        asm!(
            ".p2align 6",
            "2:",
            "vmovdqu64 zmm16, [{a} + {i}]",
            "vmovdqu64 zmm17, [{a} + {i} + 64]",
            "vmovdqu64 zmm18, [{a} + {i} + 128]",
            "vmovdqu64 zmm19, [{a} + {i} + 192]",
            "vmovdqu64 zmm20, [{b} + {i}]",
            "vmovdqu64 zmm21, [{b} + {i} + 64]",
            "vmovdqu64 zmm22, [{b} + {i} + 128]",
            "vmovdqu64 zmm23, [{b} + {i} + 192]",
            "vmovdqu64 [{d} + {i}], zmm16",
            "vmovdqu64 [{d} + {i} + 64], zmm17",
            "vmovdqu64 [{d} + {i} + 128], zmm18",
            "vmovdqu64 [{d} + {i} + 192], zmm19",
            "add {i}, 256",
            "cmp {i}, {n}",
            "jb 2b",
            a = in(reg) a, b = in(reg) b, d = in(reg) dst, n = in(reg) bytes, i = inout(reg) 0usize => _,
            out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
            out("xmm20") _, out("xmm21") _, out("xmm22") _, out("xmm23") _,
            options(nostack),
        );
    }
}

/// The same, asking for lines 2 KiB ahead.
///
/// # Safety
/// As for [`load_load_store`].
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn load_load_store_ahead(dst: *mut u8, a: *const u8, b: *const u8, bytes: usize) {
    // SAFETY: accesses `bytes` bytes from each pointer, 256 at a time.
    unsafe {
        asm!(
            ".p2align 6",
            "2:",
            "prefetcht0 [{a} + {i} + 2048]",
            "prefetcht0 [{a} + {i} + 2112]",
            "prefetcht0 [{b} + {i} + 2048]",
            "prefetcht0 [{b} + {i} + 2112]",
            "vmovdqu64 zmm16, [{a} + {i}]",
            "vmovdqu64 zmm17, [{a} + {i} + 64]",
            "vmovdqu64 zmm18, [{b} + {i}]",
            "vmovdqu64 zmm19, [{b} + {i} + 64]",
            "vmovdqu64 [{d} + {i}], zmm16",
            "vmovdqu64 [{d} + {i} + 64], zmm17",
            "add {i}, 128",
            "cmp {i}, {n}",
            "jb 2b",
            a = in(reg) a, b = in(reg) b, d = in(reg) dst, n = in(reg) bytes, i = inout(reg) 0usize => _,
            out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
            options(nostack),
        );
    }
}

/// The same with stores past the caches.
///
/// # Safety
/// As for [`load_load_store`], with `dst` aligned to 64.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn load_load_stream(dst: *mut u8, a: *const u8, b: *const u8, bytes: usize) {
    // SAFETY: accesses `bytes` bytes from each pointer, 256 at a time.
    unsafe {
        asm!(
            ".p2align 6",
            "2:",
            "vmovdqu64 zmm16, [{a} + {i}]",
            "vmovdqu64 zmm17, [{a} + {i} + 64]",
            "vmovdqu64 zmm18, [{a} + {i} + 128]",
            "vmovdqu64 zmm19, [{a} + {i} + 192]",
            "vmovdqu64 zmm20, [{b} + {i}]",
            "vmovdqu64 zmm21, [{b} + {i} + 64]",
            "vmovdqu64 zmm22, [{b} + {i} + 128]",
            "vmovdqu64 zmm23, [{b} + {i} + 192]",
            "vmovntdq [{d} + {i}], zmm16",
            "vmovntdq [{d} + {i} + 64], zmm17",
            "vmovntdq [{d} + {i} + 128], zmm18",
            "vmovntdq [{d} + {i} + 192], zmm19",
            "add {i}, 256",
            "cmp {i}, {n}",
            "jb 2b",
            "sfence",
            a = in(reg) a, b = in(reg) b, d = in(reg) dst, n = in(reg) bytes, i = inout(reg) 0usize => _,
            out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
            out("xmm20") _, out("xmm21") _, out("xmm22") _, out("xmm23") _,
            options(nostack),
        );
    }
}
