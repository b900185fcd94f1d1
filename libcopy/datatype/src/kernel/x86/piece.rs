// SPDX-License-Identifier: MIT OR Apache-2.0

//! Single pieces.

use std::arch::x86_64::*;
use std::sync::OnceLock;

use super::super::caches::{first_level, second_level_bytes};
use super::super::instructions::{has_512, has_avx2};
use super::super::profile::CpuProfile;
use crate::memcpy;

/// Copies one piece without a decision that depends on its length, as long as that is at most
/// 64: lists of short pieces of all lengths would mispredict nearly every one.
///
/// Written in assembly because the intrinsics are newer than the oldest supported compiler.
///
/// # Safety
///
/// As for [`super::super::piece::dense`]; `len` is at least 1; the processor has AVX-512BW.
#[inline(always)]
pub(in super::super) unsafe fn masked(to: *mut u8, from: *const u8, len: usize) {
    let (mut to, mut from, mut len) = (to, from, len);
    if len > 64 {
        if len > 512 {
            // SAFETY: the caller's promise.
            return unsafe { memcpy::copy(to, from, len) };
        }
        while len > 64 {
            // SAFETY: 64 of the bytes that the caller promises; registers above 15 do not slow
            // down code that does not know AVX.
            unsafe {
                std::arch::asm!(
                    "vmovdqu64 zmm16, zmmword ptr [{from}]",
                    "vmovdqu64 zmmword ptr [{to}], zmm16",
                    from = in(reg) from,
                    to = in(reg) to,
                    out("xmm16") _,
                    options(nostack, preserves_flags),
                );
                (to, from) = (to.add(64), from.add(64));
            }
            len -= 64;
        }
    }
    let mask = u64::MAX >> (64 - len);
    // SAFETY: bytes outside the mask are neither read nor written, and cause no fault.
    unsafe {
        std::arch::asm!(
            "kmovq k1, {mask}",
            "vmovdqu8 zmm16 {{k1}} {{z}}, zmmword ptr [{from}]",
            "vmovdqu8 zmmword ptr [{to}] {{k1}}, zmm16",
            mask = in(reg) mask,
            from = in(reg) from,
            to = in(reg) to,
            out("k1") _,
            out("xmm16") _,
            options(nostack, preserves_flags),
        );
    }
}

/// As [`masked`], for at most `ROOM` bytes, 16 or 32: narrower stores reach into the next line less
/// often.
///
/// # Safety
///
/// As for [`masked`]; the processor has AVX-512BW and VL.
#[inline(always)]
pub(in super::super) unsafe fn masked_narrow<const ROOM: usize>(
    to: *mut u8,
    from: *const u8,
    len: usize,
) {
    macro_rules! kernel {
        ($vector:literal, $size:literal) => {
            std::arch::asm!(
                "kmovd k1, {mask:e}",
                concat!("vmovdqu8 ", $vector, " {{k1}} {{z}}, ", $size, " ptr [{from}]"),
                concat!("vmovdqu8 ", $size, " ptr [{to}] {{k1}}, ", $vector),
                mask = in(reg) u32::MAX >> (32 - len),
                from = in(reg) from,
                to = in(reg) to,
                out("k1") _,
                out("xmm16") _,
                options(nostack, preserves_flags),
            )
        };
    }
    // SAFETY: bytes outside the mask are neither read nor written, and cause no fault.
    unsafe {
        match ROOM {
            16 => kernel!("xmm16", "xmmword"),
            _ => kernel!("ymm16", "ymmword"),
        }
    }
}

/// Lengths for which `memcpy` uses string instructions. Where they are not fast for short pieces
/// either (before Ice Lake), they take half as long again in the second-level cache.
const STRINGS: std::ops::RangeInclusive<usize> = 24 << 10..=256 << 10;

/// From this length on, the C library may use them (glibc 2.39 and earlier), up to the size of the
/// second-level cache.
const FEWEST: usize = 2 << 10;

/// Lengths for which vectors are faster than the C library's `memcpy` because that uses string
/// instructions.
fn slow_memcpy(profile: &CpuProfile) -> Option<std::ops::RangeInclusive<usize>> {
    if profile.slow_strings {
        Some(FEWEST..=second_level_bytes())
    } else if has_fast_strings() {
        None
    } else {
        Some(STRINGS)
    }
}

/// Whether the processor says that its string instructions are fast for pieces of all lengths.
// Newer compilers need no block.
#[allow(unused_unsafe)]
pub(super) fn has_fast_strings() -> bool {
    static FAST: OnceLock<bool> = OnceLock::new();
    *FAST.get_or_init(|| {
        // SAFETY: every x86-64 processor has the instruction.
        unsafe {
            // "Fast short rep mov".
            __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & 1 << 4 != 0
        }
    })
}

/// Whether copies of blocks may use string instructions.
pub(super) fn has_strings() -> bool {
    has_avx2() && std::arch::is_x86_feature_detected!("ermsb")
}

/// One piece of a length for which the C library's `memcpy` is not the fastest; whether it was.
/// From the first-level cache, wide vectors copied twice as fast on the first machine that was
/// measured.
///
/// # Safety
///
/// As for [`super::super::piece::dense`].
#[inline]
pub(in super::super) unsafe fn piece(to: *mut u8, from: *const u8, len: usize) -> bool {
    // SAFETY: the caller's promise; the processor can do it.
    unsafe {
        if (65..=first_level()).contains(&len) && has_512() {
            wide(to, from, len);
        } else if len >= FEWEST
            && has_avx2()
            && slow_memcpy(CpuProfile::here()).is_some_and(|lengths| lengths.contains(&len))
        {
            lines(to, from, len);
        } else {
            return false;
        }
    }
    true
}

/// One piece in vectors of a line each, to whole lines but for the ends.
///
/// # Safety
///
/// As for [`super::super::piece::dense`]; `len` is at least 64; the processor has AVX-512.
#[inline(always)]
pub(super) unsafe fn wide(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the first and the last vector may overlap those between them; all lie within the
    // caller's bytes.
    unsafe {
        std::arch::asm!(
            "vmovdqu64 zmm16, zmmword ptr [{from}]",
            "vmovdqu64 zmm17, zmmword ptr [{from} + {len} - 64]",
            "2:",
            "lea {next}, [{at} + 256]",
            "cmp {next}, {len}",
            "ja 3f",
            "vmovdqu64 zmm18, zmmword ptr [{from} + {at}]",
            "vmovdqu64 zmm19, zmmword ptr [{from} + {at} + 64]",
            "vmovdqu64 zmm20, zmmword ptr [{from} + {at} + 128]",
            "vmovdqu64 zmm21, zmmword ptr [{from} + {at} + 192]",
            "vmovdqa64 zmmword ptr [{to} + {at}], zmm18",
            "vmovdqa64 zmmword ptr [{to} + {at} + 64], zmm19",
            "vmovdqa64 zmmword ptr [{to} + {at} + 128], zmm20",
            "vmovdqa64 zmmword ptr [{to} + {at} + 192], zmm21",
            "mov {at}, {next}",
            "jmp 2b",
            "3:",
            "lea {next}, [{at} + 64]",
            "cmp {next}, {len}",
            "ja 4f",
            "vmovdqu64 zmm18, zmmword ptr [{from} + {at}]",
            "vmovdqa64 zmmword ptr [{to} + {at}], zmm18",
            "mov {at}, {next}",
            "jmp 3b",
            "4:",
            "vmovdqu64 zmmword ptr [{to}], zmm16",
            "vmovdqu64 zmmword ptr [{to} + {len} - 64], zmm17",
            from = in(reg) from,
            to = in(reg) to,
            len = in(reg) len,
            at = inout(reg) 64 - to.addr() % 64 => _,
            next = out(reg) _,
            out("xmm16") _, out("xmm17") _, out("xmm18") _,
            out("xmm19") _, out("xmm20") _, out("xmm21") _,
            options(nostack),
        );
    }
}

/// # Safety
///
/// As for [`piece`]; the processor has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn lines(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise: the first and the last vector may overlap those between them.
    unsafe {
        let first = _mm256_loadu_si256(from.cast());
        let last = _mm256_loadu_si256(from.add(len - 32).cast());
        let mut at = 32 - to.addr() % 32;
        while at + 128 <= len {
            let (f, t) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
            let (a, b) = (_mm256_loadu_si256(f), _mm256_loadu_si256(f.add(1)));
            let (c, d) = (_mm256_loadu_si256(f.add(2)), _mm256_loadu_si256(f.add(3)));
            _mm256_store_si256(t, a);
            _mm256_store_si256(t.add(1), b);
            _mm256_store_si256(t.add(2), c);
            _mm256_store_si256(t.add(3), d);
            at += 128;
        }
        while at + 32 <= len {
            _mm256_store_si256(to.add(at).cast(), _mm256_loadu_si256(from.add(at).cast()));
            at += 32;
        }
        _mm256_storeu_si256(to.cast(), first);
        _mm256_storeu_si256(to.add(len - 32).cast(), last);
    }
}
