// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pieces between two layouts whose blocks end at different places, in a pattern that repeats.
//!
//! Where a block ends on one side or the other is found once. What runs for each repetition decides
//! nothing: no branch is mispredicted, which takes as long as moving a hundred bytes.
//!
//! ```text
//! from   aaaaaaaaaaaa....bbbbbbbbbbbb....      blocks of 12, 16 apart
//! to     aaaaaaaa..aaaabbbb..bbbbbbbb..        blocks of  8, 10 apart
//! moves  8, 4, 4, 8; the next ones 32 bytes further there, 30 bytes further here
//! ```

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::instructions::has_avx2;
use super::pattern::{Piece, Repeats};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::x86::Shuffle;

/// The pieces of one repetition.
pub(in super::super) struct Weave {
    /// Moves of [`LENGTHS`] bytes.
    moves: [Vec<Move>; LENGTHS.len()],
    /// The same as vectors, where that is faster.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    shuffle: Option<Shuffle>,
}

const LENGTHS: [usize; 6] = [32, 16, 8, 4, 2, 1];

#[derive(Clone, Copy)]
struct Move {
    to: i32,
    from: i32,
}

/// More moves would not stay in the first-level cache beside what they move.
const MOST: usize = 2048;

/// Shorter pieces take less time through a buffer, in longer loops.
const SHORT: i64 = 24;

impl Weave {
    /// `None` if it would not be worth it: too many pieces, too short ones, or too far apart.
    pub(in super::super) fn new(pieces: &[Piece]) -> Option<Weave> {
        let mut moves: [Vec<Move>; LENGTHS.len()] = Default::default();
        let mut count = 0;
        for piece in pieces {
            let which = LENGTHS.iter().position(|n| *n as i64 <= piece.len)?;
            let step = LENGTHS[which] as i64;
            // The last one overlaps the one before it.
            let starts = (0..piece.len / step).map(|i| i * step);
            let last = (piece.len % step > 0).then_some(piece.len - step);
            for at in starts.chain(last) {
                moves[which].push(Move {
                    to: i32::try_from(piece.to + at).ok()?,
                    from: i32::try_from(piece.from + at).ok()?,
                });
                count += 1;
            }
            if count > MOST {
                return None;
            }
        }
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let shuffle = Shuffle::new(pieces, count);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let is_shuffled = shuffle.is_some();
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let is_shuffled = false;
        let bytes: i64 = pieces.iter().map(|piece| piece.len).sum();
        if !is_shuffled && bytes < SHORT * pieces.len() as i64 {
            return None;
        }
        Some(Weave {
            moves,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            shuffle,
        })
    }

    /// Moves the pieces of all repetitions.
    ///
    /// # Safety
    ///
    /// All pieces are readable and writable at their places from `from` and `to`, repeated as
    /// `repeats` says, and none of the former overlaps one of the latter.
    pub(in super::super) unsafe fn run(&self, to: *mut u8, from: *const u8, repeats: Repeats) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let (to, from, repeats) = match &self.shuffle {
            Some(shuffle) if repeats.count > 1 => {
                // The vectors of the last one could reach beyond everything that may be read.
                let count = repeats.count - 1;
                // SAFETY: the caller's promise; there is one repetition more.
                unsafe { shuffle.run(to, from, Repeats { count, ..repeats }) };
                let skip = |step: isize| count as isize * step;
                (
                    to.wrapping_offset(skip(repeats.to)),
                    from.wrapping_offset(skip(repeats.from)),
                    Repeats {
                        count: 1,
                        ..repeats
                    },
                )
            }
            _ => (to, from, repeats),
        };
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if has_avx2() {
            /// # Safety
            ///
            /// As for [`Weave::run`]; the processor has AVX2.
            #[target_feature(enable = "avx2")]
            unsafe fn with_avx2(weave: &Weave, to: *mut u8, from: *const u8, repeats: Repeats) {
                // SAFETY: the caller's promise.
                unsafe { weave.each(to, from, repeats) }
            }
            // SAFETY: the caller's promise; the processor has AVX2.
            return unsafe { with_avx2(self, to, from, repeats) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.each(to, from, repeats) }
    }

    /// # Safety
    ///
    /// As for [`Weave::run`].
    #[inline(always)]
    unsafe fn each(&self, to: *mut u8, from: *const u8, repeats: Repeats) {
        let [a, b, c, d, e, f] = &self.moves;
        let (mut to, mut from) = (to, from);
        for _ in 0..repeats.count {
            // SAFETY: the caller's promise.
            unsafe {
                all::<{ LENGTHS[0] }>(to, from, a);
                all::<{ LENGTHS[1] }>(to, from, b);
                all::<{ LENGTHS[2] }>(to, from, c);
                all::<{ LENGTHS[3] }>(to, from, d);
                all::<{ LENGTHS[4] }>(to, from, e);
                all::<{ LENGTHS[5] }>(to, from, f);
            }
            to = to.wrapping_offset(repeats.to);
            from = from.wrapping_offset(repeats.from);
        }
    }
}

/// # Safety
///
/// As for [`Weave::run`], for one repetition of pieces of `LEN` bytes.
#[inline(always)]
unsafe fn all<const LEN: usize>(to: *mut u8, from: *const u8, moves: &[Move]) {
    for piece in moves {
        let to = to.wrapping_offset(piece.to as isize);
        let from = from.wrapping_offset(piece.from as isize);
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, LEN) };
    }
}
