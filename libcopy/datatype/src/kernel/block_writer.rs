// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pieces from anywhere into equal blocks at equal distances, one after the other, or back.
//!
//! ```text
//! pieces   aaa  bbbbb  cc  dddd             in the order of the packed stream
//! blocks   [aaabbb]..[bbccdd]..[dd          filled up one after the other
//! ```

use super::super::offsets::Offsets;
use super::indexed::Number;
use super::instructions::has_512;
use super::loop_nest::{Dim, Nest, SMALL};
use super::prefetch::prefetch;
use super::short_blocks::by_length;
use super::{long_blocks, short_blocks};

/// Blocks that are filled in order (`PACK`), or emptied in order.
pub(in super::super) struct Filler<const PACK: bool> {
    /// Where the next byte goes.
    at: *mut u8,
    /// Bytes left in its block, never 0.
    room: usize,
    /// Bytes of a block.
    len: usize,
    /// From the end of a block to the next one.
    gap: isize,
    /// 2^64 / `len`, rounded up.
    reciprocal: u64,
    /// What moves whole blocks; the count is set for each call.
    whole: Nest,
    /// Whether the processor has masks.
    masks: bool,
}

/// Equal blocks on the other side, `count` of them, `stride` bytes apart; behind the last one, it
/// goes on at `next` at the same distances, which is where lines are asked for.
#[derive(Clone, Copy)]
pub(in super::super) struct Row {
    pub(in super::super) user: *mut u8,
    pub(in super::super) len: usize,
    pub(in super::super) stride: isize,
    pub(in super::super) count: usize,
    pub(in super::super) next: *mut u8,
}

/// Moving this many bytes takes much longer than choosing the kernel for them.
const CHOICE: usize = 2048;

/// From this many blocks in one of the filler's on, a loop of four at a time pays.
const MANY: usize = 8;

/// How many blocks ahead lines are asked for.
const AHEAD: usize = 12;

/// Longer pieces and blocks are not for a filler: the arithmetic is exact below.
pub(in super::super) const LONGEST: i64 = 1 << 31;

impl<const PACK: bool> Filler<PACK> {
    /// Blocks of `len` bytes, `stride` apart, the first one at `at`; `total` bytes will be moved.
    pub(in super::super) fn new(at: *mut u8, len: usize, stride: isize, total: usize) -> Self {
        debug_assert!(len > 0 && (len as i64) < LONGEST);
        let unit = len as isize;
        let (to, from) = if PACK { (stride, unit) } else { (unit, stride) };
        let dims = [Dim { count: 1, to, from }, Dim::ONCE, Dim::ONCE];
        // Kernels that are made for any number of blocks, and do not ask for those behind the last.
        let run = if len > SMALL / 2 {
            long_blocks::few(len, total)
        } else {
            short_blocks::plain(len)
        };
        Filler {
            at,
            room: len,
            len,
            gap: stride - unit,
            reciprocal: (u64::MAX / len as u64).wrapping_add(1),
            whole: Nest { run, len, dims },
            masks: has_512(),
        }
    }

    /// # Safety
    ///
    /// As for [`Filler::piece`]; the bytes fit into the current block.
    #[inline(always)]
    unsafe fn put(&mut self, user: *mut u8, len: usize) {
        let (to, from) = if PACK {
            (self.at, user)
        } else {
            (user, self.at)
        };
        // SAFETY: the caller's promise.
        unsafe {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            if self.masks && self.len < 2 * SMALL {
                super::x86::masked(to, from, len);
                return self.took(len);
            }
            super::piece::fragment(to, from, len);
        }
        self.took(len);
    }

    #[inline(always)]
    fn took(&mut self, len: usize) {
        self.at = self.at.wrapping_add(len);
        self.room -= len;
        if self.room == 0 {
            self.at = self.at.wrapping_offset(self.gap);
            self.room = self.len;
        }
    }

    /// Moves one piece.
    ///
    /// # Safety
    ///
    /// `len` bytes, at least one and fewer than [`LONGEST`], and as many bytes of the blocks from
    /// the current place on are readable on one side and writable on the other, and do not overlap.
    #[inline(always)]
    pub(in super::super) unsafe fn piece(&mut self, user: *mut u8, len: usize) {
        // SAFETY: the caller's promise, for parts of the piece.
        unsafe {
            if len <= self.room {
                return self.put(user, len);
            }
            self.cut(user, len);
        }
    }

    /// A piece that does not end in the current block.
    ///
    /// # Safety
    ///
    /// As for [`Filler::piece`].
    unsafe fn cut(&mut self, user: *mut u8, len: usize) {
        let (mut user, mut len) = (user, len);
        // SAFETY: the caller's promise, for parts of the piece.
        unsafe {
            if self.room < self.len {
                let first = self.room;
                self.put(user, first);
                (user, len) = (user.add(first), len - first);
            }
            if len >= self.len {
                let n = ((len as u128 * u128::from(self.reciprocal)) >> 64) as usize;
                // The reciprocal of 1 does not fit.
                let n = if self.len == 1 { len } else { n };
                let moved = n * self.len;
                let (to, from) = if PACK {
                    (self.at, user)
                } else {
                    (user, self.at)
                };
                self.whole.dims[0].count = n;
                if moved < CHOICE {
                    self.whole.run(to, from);
                } else {
                    super::nest(to, from, self.len, &mut self.whole.dims[..1]);
                }
                self.at = self
                    .at
                    .wrapping_offset(moved as isize + n as isize * self.gap);
                (user, len) = (user.wrapping_add(moved), len - moved);
            }
            if len > 0 {
                self.put(user, len);
            }
        }
    }

    /// Moves equal blocks at equal distances.
    ///
    /// # Safety
    ///
    /// As for [`Filler::piece`], for each of them.
    pub(in super::super) unsafe fn row(&mut self, row: Row) {
        type Kernel<const PACK: bool> = unsafe fn(&mut Filler<PACK>, Row);
        let is_far = short_blocks::is_far(Dim {
            count: 1,
            to: 0,
            from: row.stride,
        });
        let any = Self::any_row as Kernel<PACK>;
        let run: Kernel<PACK> = if row.len > self.len {
            any
        } else if is_far {
            by_length!(row.len, fixed_row, PACK, true; any)
        } else {
            by_length!(row.len, fixed_row, PACK, false; any)
        };
        // SAFETY: the caller's promise.
        unsafe { run(self, row) }
    }

    /// # Safety
    ///
    /// As for [`Filler::row`].
    unsafe fn any_row(&mut self, row: Row) {
        let mut user = row.user;
        for _ in 0..row.count {
            // SAFETY: the caller's promise.
            unsafe { self.piece(user, row.len) };
            user = user.wrapping_offset(row.stride);
        }
    }

    /// Moves blocks of `len` bytes at listed offsets from `user`.
    ///
    /// # Safety
    ///
    /// As for [`Filler::piece`], for each of them.
    pub(in super::super) unsafe fn list(&mut self, user: *mut u8, offsets: &Offsets, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match offsets {
                Offsets::Narrow(list) => self.listed(user, list, len),
                Offsets::Wide(list) => self.listed(user, list, len),
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Filler::list`].
    unsafe fn listed<N: Number>(&mut self, user: *mut u8, offsets: &[N], len: usize) {
        macro_rules! at {
            ($($size:literal)*) => {
                match len {
                    $($size if len <= self.len => {
                        fixed_list::<$size, PACK, N>(self, user, offsets)
                    })*
                    _ => {
                        for &offset in offsets {
                            self.piece(user.wrapping_offset(offset.get()), len);
                        }
                    }
                }
            };
        }
        // SAFETY: the caller's promise.
        unsafe { at!(1 2 4 8 12 16 20 24 32 40 48 64) }
    }

    /// Moves pieces of different lengths; there is one start more than there are offsets.
    ///
    /// # Safety
    ///
    /// As for [`Filler::piece`], for each of them.
    pub(in super::super) unsafe fn pieces(
        &mut self,
        user: *mut u8,
        offsets: &Offsets,
        starts: &Offsets,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match (offsets, starts) {
                (Offsets::Narrow(o), Offsets::Narrow(s)) => self.piecewise(user, o, s),
                (Offsets::Wide(o), Offsets::Narrow(s)) => self.piecewise(user, o, s),
                (Offsets::Narrow(o), Offsets::Wide(s)) => self.piecewise(user, o, s),
                (Offsets::Wide(o), Offsets::Wide(s)) => self.piecewise(user, o, s),
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Filler::pieces`].
    unsafe fn piecewise<O: Number, S: Number>(
        &mut self,
        user: *mut u8,
        offsets: &[O],
        starts: &[S],
    ) {
        for (offset, bounds) in offsets.iter().zip(starts.windows(2)) {
            let len = (bounds[1].get() - bounds[0].get()) as usize;
            // SAFETY: the caller's promise; no piece is empty.
            unsafe { self.piece(user.wrapping_offset(offset.get()), len) };
        }
    }
}

/// Moves `LEN` bytes between both sides.
///
/// # Safety
///
/// As for [`Filler::piece`].
#[inline(always)]
unsafe fn fixed<const LEN: usize, const PACK: bool>(user: *mut u8, at: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        if PACK {
            std::ptr::copy_nonoverlapping(user, at, LEN);
        } else {
            std::ptr::copy_nonoverlapping(at, user, LEN);
        }
    }
}

/// Moves fewer than `LEN` bytes, at least one.
///
/// # Safety
///
/// As for [`Filler::piece`].
#[inline(always)]
unsafe fn part<const LEN: usize, const PACK: bool>(
    masks: bool,
    user: *mut u8,
    at: *mut u8,
    len: usize,
) {
    let (to, from) = if PACK { (at, user) } else { (user, at) };
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if masks {
            return match LEN {
                0..=16 => super::x86::masked_narrow::<16>(to, from, len),
                17..=32 => super::x86::masked_narrow::<32>(to, from, len),
                _ => super::x86::masked(to, from, len),
            };
        }
        let _ = masks;
        short_blocks::short(to, from, len);
    }
}

/// Where equal blocks are, one after the other.
trait Places {
    /// The next one's; asks for the line of a later one, if that is far away.
    fn next(&mut self) -> *mut u8;
}

struct Strided<const FAR: bool> {
    user: *mut u8,
    left: usize,
    row: Row,
}

impl<const FAR: bool> Places for Strided<FAR> {
    #[inline(always)]
    fn next(&mut self) -> *mut u8 {
        let user = self.user;
        if FAR {
            prefetch(if self.left > AHEAD {
                user.wrapping_offset(AHEAD as isize * self.row.stride)
            } else {
                let past = (AHEAD - self.left) as isize;
                self.row.next.wrapping_offset(past * self.row.stride)
            });
            self.left -= 1;
        }
        self.user = user.wrapping_offset(self.row.stride);
        user
    }
}

struct Listed<'a, N> {
    user: *mut u8,
    offsets: std::slice::Iter<'a, N>,
}

impl<N: Number> Places for Listed<'_, N> {
    #[inline(always)]
    fn next(&mut self) -> *mut u8 {
        let offset = self.offsets.next().map_or(0, |offset| offset.get());
        self.user.wrapping_offset(offset)
    }
}

/// Fills blocks with `count` equal ones of `LEN` bytes.
///
/// # Safety
///
/// As for [`Filler::row`], for blocks of `LEN` bytes that are not longer than the filler's.
#[inline(always)]
unsafe fn equal<const LEN: usize, const PACK: bool>(
    filler: &mut Filler<PACK>,
    count: usize,
    mut places: impl Places,
) {
    let (block, gap, masks) = (filler.len, filler.gap, filler.masks);
    // In registers, not in memory.
    let (mut at, mut room, mut left) = (filler.at, filler.room, count);
    if block == LEN && room == LEN {
        for _ in 0..count {
            // SAFETY: the caller's promise.
            unsafe { fixed::<LEN, PACK>(places.next(), at) };
            at = at.wrapping_offset(LEN as isize + gap);
        }
        filler.at = at;
        return;
    }
    let many = block >= MANY * LEN;
    // SAFETY (all blocks): the caller's promise.
    while left > 0 {
        if many {
            let n = (room / LEN).min(left);
            for _ in 0..n / 4 {
                for i in 0..4 {
                    // SAFETY: see above.
                    unsafe { fixed::<LEN, PACK>(places.next(), at.wrapping_add(i * LEN)) };
                }
                at = at.wrapping_add(4 * LEN);
            }
            for _ in 0..n % 4 {
                // SAFETY: see above.
                unsafe { fixed::<LEN, PACK>(places.next(), at) };
                at = at.wrapping_add(LEN);
            }
            left -= n;
            room -= n * LEN;
        } else {
            while room >= LEN && left > 0 {
                // SAFETY: see above.
                unsafe { fixed::<LEN, PACK>(places.next(), at) };
                at = at.wrapping_add(LEN);
                room -= LEN;
                left -= 1;
            }
        }
        if room == 0 {
            at = at.wrapping_offset(gap);
            room = block;
        } else if left > 0 {
            let user = places.next();
            left -= 1;
            let rest = LEN - room;
            // SAFETY: see above, for both parts of the block; the second is not longer than the
            // next block, and shorter than that.
            unsafe {
                part::<LEN, PACK>(masks, user, at, room);
                at = at.wrapping_offset(room as isize + gap);
                part::<LEN, PACK>(masks, user.add(room), at, rest);
            }
            at = at.wrapping_add(rest);
            room = block - rest;
        }
    }
    (filler.at, filler.room) = (at, room);
}

/// # Safety
///
/// As for [`Filler::row`], for blocks of `LEN` bytes that are not longer than the filler's; asks
/// ahead if they are `FAR` apart.
unsafe fn fixed_row<const LEN: usize, const PACK: bool, const FAR: bool>(
    filler: &mut Filler<PACK>,
    row: Row,
) {
    let places = Strided::<FAR> {
        user: row.user,
        left: row.count,
        row,
    };
    // SAFETY: the caller's promise.
    unsafe { equal::<LEN, PACK>(filler, row.count, places) }
}

/// # Safety
///
/// As for [`Filler::list`], for blocks of `LEN` bytes that are not longer than the filler's.
unsafe fn fixed_list<const LEN: usize, const PACK: bool, N: Number>(
    filler: &mut Filler<PACK>,
    user: *mut u8,
    offsets: &[N],
) {
    let places = Listed {
        user,
        offsets: offsets.iter(),
    };
    // SAFETY: the caller's promise.
    unsafe { equal::<LEN, PACK>(filler, offsets.len(), places) }
}
