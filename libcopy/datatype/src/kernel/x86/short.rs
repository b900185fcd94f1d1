// SPDX-License-Identifier: MIT OR Apache-2.0

//! Blocks of at most 32 bytes.

use std::arch::x86_64::*;

use super::super::caches::LINE;
use super::super::caches::{first_level, fit_second, overflow_first};
use super::super::instructions::{has_512, has_avx2};
use super::super::loop_nest::{Dim, Nest, Run, blocks};
use super::super::prefetch::{prefetch, prefetch_to_write};
use super::super::profile::CpuProfile;
use super::piece::{has_fast_strings, masked_narrow};

/// The vector loop for a nest of short blocks, if there is one; `far` if lines had better be asked
/// for.
pub(in super::super) fn strip(
    profile: &CpuProfile,
    len: usize,
    dims: &[Dim; 3],
    far: bool,
) -> Option<Run> {
    let [a, ..] = *dims;
    if !has_avx2() {
        return None;
    }
    let unit = len as isize;
    let total = blocks(dims).saturating_mul(len);
    let near = total <= first_level();
    // Whether lines are asked for where blocks follow each other closely.
    let asks = !near && profile.ask_close;
    // Blocks and gaps of a few whole lines.
    let wide = || (near || profile.permute_in_second && fit_second(total)) && has_512();
    if a.to == unit {
        if a.from == 2 * unit && a.count * len >= 2 * LINE {
            match len {
                16 if wide() => return Some(every_other_wide::<16>),
                8 if wide() => return Some(every_other_wide::<8>),
                4 if wide() => return Some(every_other_wide::<4>),
                // Elsewhere than in one row, vectors of 32 bytes cross more lines.
                16 if dims[1].count == 1 && !asks => return Some(every_other::<16, false>),
                16 if dims[1].count == 1 => return Some(every_other::<16, true>),
                8 if !asks => return Some(every_other::<8, false>),
                8 => return Some(every_other::<8, true>),
                4 => return Some(every_other::<4, false>),
                _ => {}
            }
        }
        return match room(len) {
            // What is read behind a block lies before the next one, in the page of one of the two.
            Some(room)
                if (room as isize..=128).contains(&a.from) && a.count * len >= room + len =>
            {
                match room {
                    8 => Some(packing::<8>),
                    16 => Some(packing::<16>),
                    _ => Some(packing::<32>),
                }
            }
            // Processors with fast string instructions, from Ice Lake and Zen 3 on, store twice in
            // a cycle: there, putting blocks together takes longer than storing each.
            None if len == 8 && a.count >= 8 && !far && !has_fast_strings() => Some(fours),
            _ => None,
        };
    }
    if a.from != unit || a.count < 8 {
        return None;
    }
    if a.to == 2 * unit && a.count * len >= 2 * LINE && wide() {
        match len {
            16 => return Some(to_every_other::<16>),
            8 => return Some(to_every_other::<8>),
            4 => return Some(to_every_other::<4>),
            _ => {}
        }
    }
    if a.to == 2 * unit && a.count * len >= AHEAD_IN_ROW && asks {
        match len {
            16 => return Some(spread::<16>),
            8 => return Some(spread::<8>),
            _ => {}
        }
    }
    match len {
        8 => (!far).then_some(halves as Run),
        // Where each block has a line of its own, narrower stores take less time.
        _ if a.to.unsigned_abs() >= LINE && !profile.masked_far => None,
        _ if !is_masked(len) => None,
        _ if profile.masked_far && near && len <= 16 && a.to.unsigned_abs() < LINE => None,
        _ if asks => Some(unpacking::<true>),
        _ => Some(unpacking::<false>),
    }
}

/// [`every_other`] with AVX-512.
///
/// # Safety
///
/// As for [`every_other`], for blocks of 16 bytes too; the processor has AVX-512.
unsafe fn every_other_wide<const LEN: usize>(to: *mut u8, from: *const u8, nest: &Nest) {
    // Which of the words of two vectors go into one.
    const INDEX: [[u32; 16]; 3] = [
        [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30],
        [0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29],
        [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27],
    ];
    let index = INDEX[LEN.trailing_zeros() as usize - 2].as_ptr();
    // Not the gap behind the last block of two vectors: it may not be readable.
    let mask = u32::from(u16::MAX >> (LEN / 4));
    let count = nest.dims[0].count;
    let (groups, rest) = (count * LEN / LINE, count % (LINE / LEN));
    // SAFETY: both vectors of a group lie within the blocks that the caller promises, but for gaps
    // between them, and the target's bytes are those of the blocks; there is at least one group.
    unsafe {
        nest.each_row(to, from, |to, from| {
            let (mut to, mut from) = (to, from);
            std::arch::asm!(
                "kmovw k1, {mask:e}",
                "vmovdqu64 zmm18, zmmword ptr [{index}]",
                ".p2align 4",
                "2:",
                "vmovdqu64 zmm16, zmmword ptr [{from}]",
                "vmovdqu32 zmm17 {{k1}} {{z}}, zmmword ptr [{from} + 64]",
                "vpermt2d zmm16, zmm18, zmm17",
                "vmovdqu64 zmmword ptr [{to}], zmm16",
                "add {from}, 128",
                "add {to}, 64",
                "dec {groups}",
                "jnz 2b",
                mask = in(reg) mask,
                index = in(reg) index,
                from = inout(reg) from,
                to = inout(reg) to,
                groups = inout(reg) groups => _,
                out("k1") _,
                out("xmm16") _, out("xmm17") _, out("xmm18") _,
                options(nostack),
            );
            for _ in 0..rest {
                std::ptr::copy_nonoverlapping(from, to, LEN);
                to = to.wrapping_add(LEN);
                from = from.wrapping_add(2 * LEN);
            }
        });
    }
}

/// Unpacks to every other block of `LEN` bytes, all of a line's blocks with one masked store.
///
/// # Safety
///
/// As for [`Nest::run`]; the source is dense along the rows, the blocks of the target are twice
/// their length apart; the processor has AVX-512.
unsafe fn to_every_other<const LEN: usize>(to: *mut u8, from: *const u8, nest: &Nest) {
    // Which word of half a vector goes where: blocks twice, so that they are in the right place
    // whether a line begins with a block or with a gap.
    const INDEX: [[u32; 16]; 3] = [
        [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7],
        [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7],
        [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7],
    ];
    const MASK: [u32; 3] = [0x5555, 0x3333, 0x0f0f];
    let which = LEN.trailing_zeros() as usize - 2;
    let (index, mask) = (INDEX[which].as_ptr(), MASK[which]);
    let count = nest.dims[0].count;
    // SAFETY: the caller's promise; bytes outside the mask are not written.
    unsafe {
        let few = |to: *mut u8, from: *const u8, count: usize| {
            let (mut to, mut from) = (to, from);
            for _ in 0..count {
                std::ptr::copy_nonoverlapping(from, to, LEN);
                to = to.wrapping_add(2 * LEN);
                from = from.wrapping_add(LEN);
            }
        };
        nest.each_row(to, from, |to, from| {
            if to.addr() % LEN != 0 {
                // Blocks that reach into the next line.
                return few(to, from, count);
            }
            // Up to the first line that begins with a block or with a gap that a block follows.
            let before = match to.addr() % LINE {
                at if at < 2 * LEN => 0,
                at => (LINE - at).div_ceil(2 * LEN),
            };
            few(to, from, before);
            let to = to.wrapping_add(before * 2 * LEN);
            let from = from.wrapping_add(before * LEN);
            let (skew, left) = (to.addr() % LINE, count - before);
            let lines = left * 2 * LEN / LINE;
            if lines > 0 {
                std::arch::asm!(
                    "kmovw k1, {mask:e}",
                    "vmovdqu64 zmm18, zmmword ptr [{index}]",
                    ".p2align 4",
                    "2:",
                    "vmovdqu64 ymm17, ymmword ptr [{from}]",
                    "vpermd zmm16, zmm18, zmm17",
                    "vmovdqu32 zmmword ptr [{to}] {{k1}}, zmm16",
                    "add {from}, 32",
                    "add {to}, 64",
                    "dec {lines}",
                    "jnz 2b",
                    mask = in(reg) mask << (skew / 4),
                    index = in(reg) index,
                    from = inout(reg) from => _,
                    to = inout(reg) to.wrapping_sub(skew) => _,
                    lines = inout(reg) lines => _,
                    out("k1") _,
                    out("xmm16") _, out("xmm17") _, out("xmm18") _,
                    options(nostack),
                );
            }
            let done = lines * LINE / (2 * LEN);
            few(
                to.wrapping_add(done * 2 * LEN),
                from.wrapping_add(done * LEN),
                left - done,
            );
        });
    }
}

/// Packs blocks of 8 bytes, four with one store.
///
/// # Safety
///
/// As for [`Nest::run`]; the target is dense along the rows; the processor has AVX2.
unsafe fn fours(to: *mut u8, from: *const u8, nest: &Nest) {
    // SAFETY: the caller's promise.
    unsafe { nest.each_row(to, from, |to, from| fours_of_row(to, from, nest.dims[0])) }
}

/// # Safety
///
/// As for [`fours`], for one row.
#[target_feature(enable = "avx2")]
unsafe fn fours_of_row(mut to: *mut u8, mut from: *const u8, dim: Dim) {
    // SAFETY: the caller's promise.
    unsafe {
        for _ in 0..dim.count / 4 {
            let at = |i: isize| from.wrapping_offset(i * dim.from).cast::<f64>();
            let low = _mm_loadh_pd(_mm_load_sd(at(0)), at(1));
            let high = _mm_loadh_pd(_mm_load_sd(at(2)), at(3));
            let four = _mm256_insertf128_pd::<1>(_mm256_castpd128_pd256(low), high);
            _mm256_storeu_pd(to.cast(), four);
            to = to.wrapping_add(32);
            from = from.wrapping_offset(4 * dim.from);
        }
        for _ in 0..dim.count % 4 {
            std::ptr::copy_nonoverlapping(from, to, 8);
            to = to.wrapping_add(8);
            from = from.wrapping_offset(dim.from);
        }
    }
}

/// Unpacks blocks of 8 bytes, two with one load.
///
/// # Safety
///
/// As for [`Nest::run`]; the source is dense along the rows.
unsafe fn halves(to: *mut u8, from: *const u8, nest: &Nest) {
    let dim = nest.dims[0];
    // SAFETY: the caller's promise.
    unsafe {
        nest.each_row(to, from, |to, from| {
            let (mut to, mut from) = (to, from);
            for _ in 0..dim.count / 4 {
                for i in 0..2 {
                    let two = _mm_loadu_pd(from.add(16 * i).cast());
                    let to = to.wrapping_offset(2 * i as isize * dim.to);
                    _mm_storel_pd(to.cast(), two);
                    _mm_storeh_pd(to.wrapping_offset(dim.to).cast(), two);
                }
                to = to.wrapping_offset(4 * dim.to);
                from = from.wrapping_add(32);
            }
            for _ in 0..dim.count % 4 {
                std::ptr::copy_nonoverlapping(from, to, 8);
                to = to.wrapping_offset(dim.to);
                from = from.wrapping_add(8);
            }
        });
    }
}

/// How far ahead of blocks that follow each other closely their lines are asked for, in bytes. The
/// hardware does so within a page; it was measured to take 4 to 15 % more time by itself from 256
/// KiB on, and twice as much where many megabytes are unpacked.
const AHEAD_IN_ROW: usize = 1024;

/// Unpacks to every other block of `LEN` bytes, 16 or eight, beyond the first-level cache.
///
/// # Safety
///
/// As for [`Nest::run`]; the source is dense along the rows, the blocks of the target are twice
/// their length apart.
unsafe fn spread<const LEN: usize>(to: *mut u8, from: *const u8, nest: &Nest) {
    let (count, few) = (nest.dims[0].count, LINE / LEN);
    // SAFETY: the caller's promise; what is asked for may be anywhere.
    unsafe {
        nest.each_row(to, from, |to, from| {
            let (mut to, mut from) = (to, from);
            for _ in 0..count / few {
                prefetch(from.wrapping_add(AHEAD_IN_ROW / 2));
                prefetch_to_write(to.wrapping_add(AHEAD_IN_ROW));
                prefetch_to_write(to.wrapping_add(AHEAD_IN_ROW + LINE));
                for i in 0..few {
                    std::ptr::copy_nonoverlapping(from.add(i * LEN), to.add(2 * i * LEN), LEN);
                }
                to = to.wrapping_add(2 * LINE);
                from = from.wrapping_add(LINE);
            }
            for _ in 0..count % few {
                std::ptr::copy_nonoverlapping(from, to, LEN);
                to = to.wrapping_add(2 * LEN);
                from = from.wrapping_add(LEN);
            }
        });
    }
}

/// Every other block of `LEN` bytes, 16, eight or four; `ASK` if lines of later ones are asked for.
///
/// # Safety
///
/// As for [`Nest::run`]; the target is dense along the rows; the processor has AVX2.
unsafe fn every_other<const LEN: usize, const ASK: bool>(
    to: *mut u8,
    from: *const u8,
    nest: &Nest,
) {
    let count = nest.dims[0].count;
    // SAFETY: the caller's promise.
    unsafe {
        nest.each_row(to, from, |to, from| match LEN {
            16 => every_other_sixteen::<ASK>(to, from, count),
            8 => every_other_eight::<ASK>(to, from, count),
            _ => every_other_four(to, from, count),
        });
    }
}

/// Asks for the lines of what comes later, where two that are read become one.
#[inline(always)]
fn ask_in_row(to: *mut u8, from: *const u8) {
    prefetch(from.wrapping_add(AHEAD_IN_ROW));
    prefetch(from.wrapping_add(AHEAD_IN_ROW + LINE));
    prefetch_to_write(to.wrapping_add(AHEAD_IN_ROW / 2));
}

/// # Safety
///
/// `count` blocks of 16 bytes are readable, 32 bytes apart; the target is writable. The processor
/// has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn every_other_sixteen<const ASK: bool>(mut to: *mut u8, mut from: *const u8, count: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        for _ in 0..count / 4 {
            if ASK {
                ask_in_row(to, from);
            }
            for i in 0..2 {
                let (a, b) = (from.add(64 * i), from.add(64 * i + 32));
                let two = _mm256_inserti128_si256::<1>(
                    _mm256_castsi128_si256(_mm_loadu_si128(a.cast())),
                    _mm_loadu_si128(b.cast()),
                );
                _mm256_storeu_si256(to.add(32 * i).cast(), two);
            }
            to = to.wrapping_add(64);
            from = from.wrapping_add(128);
        }
        for _ in 0..count % 4 {
            std::ptr::copy_nonoverlapping(from, to, 16);
            to = to.wrapping_add(16);
            from = from.wrapping_add(32);
        }
    }
}

/// # Safety
///
/// `count` blocks of 8 bytes are readable, 16 bytes apart, the bytes between them are in pages
/// that are; the target is writable. The processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn every_other_eight<const ASK: bool>(mut to: *mut u8, mut from: *const u8, count: usize) {
    // The last block is left to the end: what follows it may not be readable.
    let groups = (count - 1) / 8;
    for _ in 0..groups {
        if ASK {
            ask_in_row(to, from);
        }
        // SAFETY: 8 blocks and the bytes behind each, which is not the last one.
        unsafe {
            let at = from.cast::<__m256i>();
            let (a, b) = (_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1)));
            let (c, d) = (_mm256_loadu_si256(at.add(2)), _mm256_loadu_si256(at.add(3)));
            let first = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_unpacklo_epi64(a, b));
            let second = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_unpacklo_epi64(c, d));
            _mm256_storeu_si256(to.cast(), first);
            _mm256_storeu_si256(to.cast::<__m256i>().add(1), second);
        }
        to = to.wrapping_add(64);
        from = from.wrapping_add(128);
    }
    for _ in 0..count - groups * 8 {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, 8) };
        to = to.wrapping_add(8);
        from = from.wrapping_add(16);
    }
}

/// # Safety
///
/// As for [`every_other_eight`], with blocks of 4 bytes, 8 bytes apart.
#[target_feature(enable = "avx2")]
unsafe fn every_other_four(mut to: *mut u8, mut from: *const u8, count: usize) {
    let groups = (count - 1) / 8;
    for _ in 0..groups {
        // SAFETY: 8 blocks and the bytes behind each, which is not the last one.
        unsafe {
            let at = from.cast::<f32>();
            let (a, b) = (_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8)));
            let mixed = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
            let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(mixed);
            _mm256_storeu_si256(to.cast(), ordered);
        }
        to = to.wrapping_add(32);
        from = from.wrapping_add(64);
    }
    for _ in 0..count - groups * 8 {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, 4) };
        to = to.wrapping_add(4);
        from = from.wrapping_add(8);
    }
}

/// Bytes of the vector that a block of 5 to 31 bytes is moved with, unless it is exactly as long.
fn room(len: usize) -> Option<usize> {
    let room = match len {
        5..=8 => 8,
        9..=16 => 16,
        17..=31 => 32,
        _ => return None,
    };
    (room != len).then_some(room)
}

/// Packs blocks of 5 to 31 bytes with one vector each, that reaches beyond the block on both
/// sides; the next block overwrites what it left there. Blocks that nothing follows are copied as
/// they are.
///
/// # Safety
///
/// As for [`Nest::run`]; the target is dense along the rows, their blocks are at least `ROOM` bytes
/// apart; the processor has AVX2.
unsafe fn packing<const ROOM: usize>(to: *mut u8, from: *const u8, nest: &Nest) {
    let (len, [a, b, c]) = (nest.len, nest.dims);
    // The last `tail` blocks have less than `ROOM` bytes of the target behind their begin.
    let tail = (ROOM - len).div_ceil(len).max(1);
    let row = (a.count * len) as isize;
    // Rows one behind the other in the target, and forward in the source.
    let joined = (b.count == 1 || b.to == row && b.from > 0)
        && (c.count == 1 || c.to == b.count as isize * row && c.from > 0);
    for k in 0..c.count {
        for j in 0..b.count {
            let (j_, k_) = (j as isize, k as isize);
            let to = to.wrapping_offset(j_ * b.to + k_ * c.to);
            let from = from.wrapping_offset(j_ * b.from + k_ * c.from);
            let last = from.wrapping_offset((a.count - 1) as isize * a.from);
            let is_last = j + 1 == b.count && k + 1 == c.count;
            // Behind a row's last block there may be nothing, unless that is in the same page.
            let whole = joined && !is_last && last.addr() % PAGE + ROOM <= PAGE;
            let fast = if whole { a.count } else { a.count - tail };
            // SAFETY: the caller's promise; the processor has AVX2.
            unsafe {
                overrun::<ROOM>(to, from, len, fast, a.from);
                for i in fast..a.count {
                    let from = from.wrapping_offset(i as isize * a.from);
                    std::ptr::copy_nonoverlapping(from, to.add(i * len), len);
                }
            }
        }
    }
}

/// No page is smaller.
const PAGE: usize = 4096;

/// # Safety
///
/// As for [`packing`], for `count` blocks that have room behind them on both sides; the processor
/// has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn overrun<const ROOM: usize>(
    to: *mut u8,
    from: *const u8,
    len: usize,
    count: usize,
    stride: isize,
) {
    let (mut to, mut from) = (to, from);
    for _ in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            match ROOM {
                8 => to
                    .cast::<u64>()
                    .write_unaligned(from.cast::<u64>().read_unaligned()),
                16 => _mm_storeu_si128(to.cast(), _mm_loadu_si128(from.cast())),
                _ => _mm256_storeu_si256(to.cast(), _mm256_loadu_si256(from.cast())),
            }
        }
        to = to.wrapping_add(len);
        from = from.wrapping_offset(stride);
    }
}

/// Whether blocks of this length are unpacked with one masked store each.
#[inline]
fn is_masked(len: usize) -> bool {
    (5..32).contains(&len) && !len.is_power_of_two() && has_512()
}

/// Unpacks blocks of 5 to 31 bytes, none of a length that is a power of two, with one masked store
/// each: two narrower ones take longer. A store that is as narrow as it can be reaches into the
/// next line less often, and that takes time even where the mask leaves nothing to store there.
///
/// # Safety
///
/// As for [`Nest::run`]; the source is dense along the rows; [`is_masked`] of the length.
unsafe fn unpacking<const ASK: bool>(to: *mut u8, from: *const u8, nest: &Nest) {
    let (len, dim) = (nest.len, nest.dims[0]);
    let room: usize = if len <= 16 { 16 } else { 32 };
    let tail = room.div_ceil(len) - 1;
    macro_rules! kernel {
        ($vector:literal, $size:literal, $($ask:literal)?) => {
            |to: *mut u8, from: *const u8| {
                std::arch::asm!(
                    "kmovq k1, {mask}",
                    ".p2align 4",
                    "2:",
                    $(concat!("prefetchw byte ptr [{to} + ", $ask, "]"),)?
                    concat!("vmovdqu8 ", $vector, ", ", $size, " ptr [{from}]"),
                    concat!("vmovdqu8 ", $size, " ptr [{to}] {{k1}}, ", $vector),
                    "add {from}, {len}",
                    "add {to}, {stride}",
                    "dec {whole}",
                    "jnz 2b",
                    // Behind the last blocks there is no whole vector.
                    "3:",
                    concat!("vmovdqu8 ", $vector, " {{k1}} {{z}}, ", $size, " ptr [{from}]"),
                    concat!("vmovdqu8 ", $size, " ptr [{to}] {{k1}}, ", $vector),
                    "add {from}, {len}",
                    "add {to}, {stride}",
                    "dec {count}",
                    "jnz 3b",
                    whole = inout(reg) dim.count - tail => _,
                    mask = in(reg) (1u64 << len) - 1,
                    len = in(reg) len,
                    stride = in(reg) dim.to,
                    from = inout(reg) from => _,
                    to = inout(reg) to => _,
                    count = inout(reg) tail => _,
                    out("k1") _,
                    out("xmm16") _,
                    options(nostack),
                );
            }
        };
    }
    // SAFETY: bytes outside the mask are not written; those behind a block of the first loop are in
    // later blocks. There are more blocks than `tail`, which is 1 to 3.
    unsafe {
        match (len <= 16, ASK) {
            (true, false) => nest.each_row(to, from, kernel!("xmm16", "xmmword",)),
            (true, true) => nest.each_row(to, from, kernel!("xmm16", "xmmword", 1024)),
            (false, false) => nest.each_row(to, from, kernel!("ymm16", "ymmword",)),
            (false, true) => nest.each_row(to, from, kernel!("ymm16", "ymmword", 1024)),
        }
    }
}

/// How many blocks ahead [`listed`] asks for the place of one that it writes to.
const AHEAD: usize = 32;

/// Blocks of 5 to 31 bytes, none of a length that is a power of two, at listed offsets: with one
/// move each of which the mask leaves out what is not the block's, four at a time. Where they go,
/// if that is not in the first-level cache, is asked for early. Returns whether they are such
/// blocks.
///
/// # Safety
///
/// As for [`super::super::indexed::scattered`].
#[inline]
pub(in super::super) unsafe fn listed<const PACK: bool>(
    user: *mut u8,
    offsets: &[i32],
    packed: *mut u8,
    len: usize,
) -> bool {
    if offsets.len() < 8 || !is_masked(len) {
        return false;
    }
    // Whole vectors on the packed side end with the bytes there, and so does what is asked for with
    // the list.
    let room: usize = if len <= 16 { 16 } else { 32 };
    let is_far = !PACK && overflow_first(offsets.len(), LINE);
    let behind = if is_far {
        AHEAD
    } else {
        room.div_ceil(len) - 1
    };
    let fours = (offsets.len() - behind) / 4;
    let (first, rest) = offsets.split_at(4 * fours);
    macro_rules! kernel {
        ($($line:expr),*) => {
            std::arch::asm!(
                "kmovd k1, {a:e}",
                ".p2align 4",
                "2:",
                $($line,)*
                "add {list}, 16",
                "lea {packed}, [{packed} + 4*{len}]",
                "dec {fours}",
                "jnz 2b",
                a = inout(reg) (1usize << len) - 1 => _,
                b = out(reg) _,
                c = out(reg) _,
                d = out(reg) _,
                len = in(reg) len,
                thrice = in(reg) 3 * len,
                user = in(reg) user,
                packed = inout(reg) packed => _,
                list = inout(reg) first.as_ptr() => _,
                fours = inout(reg) fours => _,
                out("k1") _,
                out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
                options(nostack),
            )
        };
    }
    macro_rules! moves {
        ($vector:literal, $size:literal, $($ahead:literal)*) => {
            if PACK {
                kernel!(
                    "movsxd {a}, dword ptr [{list}]",
                    "movsxd {b}, dword ptr [{list} + 4]",
                    "movsxd {c}, dword ptr [{list} + 8]",
                    "movsxd {d}, dword ptr [{list} + 12]",
                    concat!("vmovdqu8 ", $vector, "16 {{k1}} {{z}}, ", $size, " ptr [{user} + {a}]"),
                    concat!("vmovdqu8 ", $vector, "17 {{k1}} {{z}}, ", $size, " ptr [{user} + {b}]"),
                    concat!("vmovdqu8 ", $vector, "18 {{k1}} {{z}}, ", $size, " ptr [{user} + {c}]"),
                    concat!("vmovdqu8 ", $vector, "19 {{k1}} {{z}}, ", $size, " ptr [{user} + {d}]"),
                    concat!("vmovdqu8 ", $size, " ptr [{packed}], ", $vector, "16"),
                    concat!("vmovdqu8 ", $size, " ptr [{packed} + {len}], ", $vector, "17"),
                    concat!("vmovdqu8 ", $size, " ptr [{packed} + 2*{len}], ", $vector, "18"),
                    concat!("vmovdqu8 ", $size, " ptr [{packed} + {thrice}], ", $vector, "19")
                )
            } else {
                kernel!(
                    $(
                        concat!("movsxd {a}, dword ptr [{list} + ", $ahead, "]"),
                        "prefetchw byte ptr [{user} + {a}]",
                    )*
                    "movsxd {a}, dword ptr [{list}]",
                    "movsxd {b}, dword ptr [{list} + 4]",
                    "movsxd {c}, dword ptr [{list} + 8]",
                    "movsxd {d}, dword ptr [{list} + 12]",
                    concat!("vmovdqu8 ", $vector, "16, ", $size, " ptr [{packed}]"),
                    concat!("vmovdqu8 ", $vector, "17, ", $size, " ptr [{packed} + {len}]"),
                    concat!("vmovdqu8 ", $vector, "18, ", $size, " ptr [{packed} + 2*{len}]"),
                    concat!("vmovdqu8 ", $vector, "19, ", $size, " ptr [{packed} + {thrice}]"),
                    concat!("vmovdqu8 ", $size, " ptr [{user} + {a}] {{k1}}, ", $vector, "16"),
                    concat!("vmovdqu8 ", $size, " ptr [{user} + {b}] {{k1}}, ", $vector, "17"),
                    concat!("vmovdqu8 ", $size, " ptr [{user} + {c}] {{k1}}, ", $vector, "18"),
                    concat!("vmovdqu8 ", $size, " ptr [{user} + {d}] {{k1}}, ", $vector, "19")
                )
            }
        };
    }
    // SAFETY: the caller's promise. On the user's side, bytes outside the mask are neither read nor
    // written. On the other side, what a vector has of later blocks is overwritten by them, and all
    // of it lies within them. The list is read within its bounds, 128 bytes ahead if it is long.
    unsafe {
        if fours > 0 {
            match (len <= 16, is_far) {
                (true, false) => moves!("xmm", "xmmword",),
                (true, true) => moves!("xmm", "xmmword", 128 132 136 140),
                (false, false) => moves!("ymm", "ymmword",),
                (false, true) => moves!("ymm", "ymmword", 128 132 136 140),
            }
        }
        for (i, &offset) in rest.iter().enumerate() {
            let user = user.wrapping_offset(offset as isize);
            let packed = packed.wrapping_add((4 * fours + i) * len);
            let (to, from) = if PACK { (packed, user) } else { (user, packed) };
            if len <= 16 {
                masked_narrow::<16>(to, from, len);
            } else {
                masked_narrow::<32>(to, from, len);
            }
        }
    }
    true
}
