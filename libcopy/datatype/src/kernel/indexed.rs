// SPDX-License-Identifier: MIT OR Apache-2.0

//! Blocks at listed offsets.

use super::super::offsets::Offsets;
use super::caches::{first_level, fit_second, overflow_last};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::instructions::has_avx2;
use super::order::PieceOrder;
use super::piece::{dense, halves, several};
use super::prefetch::{prefetch, prefetch_to_write};
pub(super) use super::sorted::Number;
use super::sorted::{BOTH, Moves, NOTHING, PLACES, Sorted, in_order};

/// Moves one block; `PACK` says which way.
///
/// # Safety
///
/// As for [`super::piece::dense`].
#[inline(always)]
unsafe fn fixed<const PACK: bool, const LEN: usize>(user: *mut u8, packed: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        if PACK {
            std::ptr::copy_nonoverlapping(user, packed, LEN);
        } else {
            std::ptr::copy_nonoverlapping(packed, user, LEN);
        }
    }
}

/// Moves blocks `first` up to `end` of equal length between their offsets from `user` and the
/// packed stream.
///
/// # Safety
///
/// All blocks are readable and writable on the sides that `PACK` says, and the sides do not
/// overlap; the range lies in the list.
pub(in super::super) unsafe fn scattered<const PACK: bool>(
    user: *mut u8,
    offsets: &Offsets,
    (first, end): (usize, usize),
    packed: *mut u8,
    len: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match offsets {
            Offsets::Narrow(list) => {
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                if super::x86::listed::<PACK>(user, &list[first..end], packed, len) {
                    return;
                }
                by_len::<PACK, i32>(user, &list[first..end], packed, len)
            }
            Offsets::Wide(list) => by_len::<PACK, i64>(user, &list[first..end], packed, len),
        }
    }
}

/// # Safety
///
/// As for [`scattered`].
unsafe fn by_len<const PACK: bool, N: Number>(
    user: *mut u8,
    offsets: &[N],
    packed: *mut u8,
    len: usize,
) {
    /// # Safety
    ///
    /// As for [`scattered`].
    unsafe fn packing<const LEN: usize, N: Number>(user: *mut u8, list: &[N], packed: *mut u8) {
        let mut packed = packed;
        let (fours, rest) = list.split_at(list.len() / 4 * 4);
        for four in fours.chunks_exact(4) {
            for (i, &offset) in four.iter().enumerate() {
                let packed = packed.wrapping_add(i * LEN);
                // SAFETY: the caller's promise.
                unsafe { fixed::<true, LEN>(user.wrapping_offset(offset.get()), packed) };
            }
            packed = packed.wrapping_add(4 * LEN);
        }
        for &offset in rest {
            // SAFETY: the caller's promise.
            unsafe { fixed::<true, LEN>(user.wrapping_offset(offset.get()), packed) };
            packed = packed.wrapping_add(LEN);
        }
    }
    /// # Safety
    ///
    /// As for [`scattered`].
    unsafe fn unpacking<const LEN: usize, N: Number>(user: *mut u8, list: &[N], packed: *mut u8) {
        let mut packed = packed;
        let (fours, rest) = list.split_at(list.len() / 4 * 4);
        for four in fours.chunks_exact(4) {
            for (i, &offset) in four.iter().enumerate() {
                let packed = packed.wrapping_add(i * LEN);
                // SAFETY: the caller's promise.
                unsafe { fixed::<false, LEN>(user.wrapping_offset(offset.get()), packed) };
            }
            packed = packed.wrapping_add(4 * LEN);
        }
        for &offset in rest {
            // SAFETY: the caller's promise.
            unsafe { fixed::<false, LEN>(user.wrapping_offset(offset.get()), packed) };
            packed = packed.wrapping_add(LEN);
        }
    }
    macro_rules! with_type {
        ($name:ident) => {{
            macro_rules! at {
                ($size:literal) => {
                    $name::<$size, N>(user, offsets, packed)
                };
            }
            match len {
                1 => at!(1),
                2 => at!(2),
                4 => at!(4),
                8 => at!(8),
                12 => at!(12),
                16 => at!(16),
                20 => at!(20),
                24 => at!(24),
                32 => at!(32),
                40 => at!(40),
                48 => at!(48),
                64 => at!(64),
                _ => other::<PACK, N>(user, offsets, packed, len),
            }
        }};
    }
    // SAFETY: the caller's promise.
    unsafe {
        if PACK {
            with_type!(packing)
        } else {
            with_type!(unpacking)
        }
    }
}

/// # Safety
///
/// As for [`scattered`].
unsafe fn other<const PACK: bool, N: Number>(
    user: *mut u8,
    offsets: &[N],
    mut packed: *mut u8,
    len: usize,
) {
    for &offset in offsets {
        let user = user.wrapping_offset(offset.get());
        // SAFETY: the caller's promise.
        unsafe { either::<PACK>(user, packed, len) };
        packed = packed.wrapping_add(len);
    }
}

/// # Safety
///
/// As for [`super::piece::dense`].
#[inline(always)]
unsafe fn either<const PACK: bool>(user: *mut u8, packed: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if PACK {
            dense(packed, user, len);
        } else {
            dense(user, packed, len);
        }
    }
}

/// Dense pieces of different lengths at listed offsets.
#[derive(Clone, Copy)]
pub(in super::super) struct Pieces<'a> {
    /// Where each is.
    pub(in super::super) offsets: &'a Offsets,
    /// Bytes before each, and of all of them.
    pub(in super::super) starts: &'a Offsets,
    /// How they are moved, where there is a choice.
    pub(in super::super) order: Option<&'a PieceOrder>,
}

/// Moves whole pieces `first` up to `end`; `packed` is where the first of them is.
///
/// # Safety
///
/// As for [`scattered`]; the lists belong together.
pub(in super::super) unsafe fn pieces<const PACK: bool>(
    user: *mut u8,
    pieces: Pieces,
    range: (usize, usize),
    packed: *mut u8,
) {
    let lists = (pieces.offsets, pieces.starts);
    // SAFETY: the caller's promise.
    let by = |sorted: Option<&Sorted>, moves| unsafe {
        pieces_by::<PACK>(user, lists, range, packed, (sorted, moves))
    };
    match pieces.order {
        Some(order) => order.with::<PACK>(lists, range.1 - range.0, by),
        None => by(None, Moves::of_list(pieces.offsets.len())),
    }
}

/// As [`pieces`]; sorted, or in their own order by the moves.
///
/// # Safety
///
/// As for [`pieces`]; the processor has what the moves take.
pub(super) unsafe fn pieces_by<const PACK: bool>(
    user: *mut u8,
    (offsets, starts): (&Offsets, &Offsets),
    range: (usize, usize),
    packed: *mut u8,
    order: (Option<&Sorted>, Moves),
) {
    // SAFETY: the caller's promise.
    unsafe {
        match (offsets, starts) {
            (Offsets::Narrow(o), Offsets::Narrow(s)) => {
                piecewise::<PACK, i32, i32>(user, (o, s), order, range, packed)
            }
            (Offsets::Wide(o), Offsets::Narrow(s)) => {
                piecewise::<PACK, i64, i32>(user, (o, s), order, range, packed)
            }
            (Offsets::Narrow(o), Offsets::Wide(s)) => {
                piecewise::<PACK, i32, i64>(user, (o, s), order, range, packed)
            }
            (Offsets::Wide(o), Offsets::Wide(s)) => {
                piecewise::<PACK, i64, i64>(user, (o, s), order, range, packed)
            }
        }
    }
}

/// Pieces by which a piece is asked for ahead of its turn: to read it, where the second-level cache
/// does not hold both sides, and to write it, where no cache does. Such places are in another page
/// every few pieces, and the hardware does not follow: packing 1M pieces of 22 bytes on average
/// took 7.6 ms without and 3.3 ms with it on AMD's Zen 5, unpacking 5.6 and 5.2 ms. From the
/// last-level cache, asking for lines to write took a fifth longer.
const AHEAD: usize = 16;

/// # Safety
///
/// As for [`pieces`]; there is one more start than there are offsets.
unsafe fn piecewise<const PACK: bool, O: Number, S: Number>(
    user: *mut u8,
    (offsets, starts): (&[O], &[S]),
    (sorted, moves): (Option<&Sorted>, Moves),
    (first, end): (usize, usize),
    packed: *mut u8,
) {
    let bytes = (starts[end].get() - starts[first].get()) as usize;
    let far = if PACK {
        !fit_second(bytes)
    } else {
        overflow_last(bytes)
    };
    if let Some(sorted) = sorted {
        let lists = (offsets, starts);
        // SAFETY: the caller's promise.
        // In the order of a batch, the hardware does not guess which line is next.
        return unsafe {
            if bytes <= first_level() {
                in_order::<PACK, NOTHING, O, S>(sorted, user, lists, (first, end), packed)
            } else if PACK && far {
                in_order::<PACK, BOTH, O, S>(sorted, user, lists, (first, end), packed)
            } else {
                in_order::<PACK, PLACES, O, S>(sorted, user, lists, (first, end), packed)
            }
        };
    }
    let (offsets, starts) = (&offsets[first..end], &starts[first..=end]);
    let asked = if far {
        offsets.len().saturating_sub(AHEAD)
    } else {
        0
    };
    let (near, rest) = (starts[asked].get() - starts[0].get(), &offsets[asked..]);
    // SAFETY: the caller's promise, for the pieces before `asked` and for those from it on.
    unsafe {
        each_piece::<PACK, true, O, S>(moves, user, offsets, &starts[..=asked], packed);
        let packed = packed.wrapping_offset(near);
        each_piece::<PACK, false, O, S>(moves, user, rest, &starts[asked..], packed);
    }
}

/// Moves as many pieces as `starts` has, less one; with `ASK`, the place [`AHEAD`] pieces later,
/// which `offsets` has, is asked for.
///
/// # Safety
///
/// As for [`pieces_by`].
#[inline(always)]
unsafe fn each_piece<const PACK: bool, const ASK: bool, O: Number, S: Number>(
    moves: Moves,
    user: *mut u8,
    offsets: &[O],
    starts: &[S],
    packed: *mut u8,
) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        /// # Safety
        ///
        /// As for [`each_piece`]; the processor has AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn with_avx2<const PACK: bool, const ASK: bool, O: Number, S: Number>(
            user: *mut u8,
            offsets: &[O],
            starts: &[S],
            packed: *mut u8,
        ) {
            // SAFETY: the caller's promise.
            unsafe { in_turn::<PACK, ASK, 32, O, S>(user, offsets, starts, packed) }
        }
        if moves == Moves::Masks {
            // SAFETY: the caller's promise; the processor has masks.
            return unsafe { in_turn::<PACK, ASK, MASKS, O, S>(user, offsets, starts, packed) };
        }
        if has_avx2() {
            // SAFETY: the caller's promise; the processor has AVX2.
            return unsafe { with_avx2::<PACK, ASK, O, S>(user, offsets, starts, packed) };
        }
    }
    let _ = moves;
    // SAFETY: the caller's promise.
    unsafe { with_any::<PACK, ASK, O, S>(user, offsets, starts, packed) }
}

/// As [`each_piece`] on any processor. A function of its own: within its caller, the loop had too
/// few registers.
///
/// # Safety
///
/// As for [`each_piece`].
#[inline(never)]
unsafe fn with_any<const PACK: bool, const ASK: bool, O: Number, S: Number>(
    user: *mut u8,
    offsets: &[O],
    starts: &[S],
    packed: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe { in_turn::<PACK, ASK, HALVES, O, S>(user, offsets, starts, packed) }
}

/// The step of [`in_turn`] that stands for vectors of 16 bytes, two at a time.
const HALVES: usize = 16;

/// The step of [`in_turn`] that stands for masked vectors.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const MASKS: usize = 64;

/// As [`each_piece`], in moves of `STEP` bytes.
///
/// # Safety
///
/// As for [`each_piece`]; the processor has AVX-512 if the step is [`MASKS`].
#[inline(always)]
unsafe fn in_turn<const PACK: bool, const ASK: bool, const STEP: usize, O: Number, S: Number>(
    user: *mut u8,
    offsets: &[O],
    starts: &[S],
    mut packed: *mut u8,
) {
    let later = offsets.get(if ASK { AHEAD } else { 0 }..).unwrap_or(&[]);
    for ((offset, later), bounds) in offsets.iter().zip(later).zip(starts.windows(2)) {
        if ASK {
            let later = user.wrapping_offset(later.get());
            if PACK {
                prefetch(later);
            } else {
                prefetch_to_write(later);
            }
        }
        let len = (bounds[1].get() - bounds[0].get()) as usize;
        let user = user.wrapping_offset(offset.get());
        let (to, from) = if PACK { (packed, user) } else { (user, packed) };
        // SAFETY: the caller's promise; no piece is empty.
        unsafe {
            match STEP {
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                MASKS => super::x86::masked(to, from, len),
                HALVES => halves(to, from, len),
                _ => several::<STEP>(to, from, len),
            }
        }
        packed = packed.wrapping_add(len);
    }
}
