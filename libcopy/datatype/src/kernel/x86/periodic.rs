// SPDX-License-Identifier: MIT OR Apache-2.0

//! Short pieces of a repeating pattern as vectors that are put together from two or four others.
//!
//! ```text
//! two vectors of 64 bytes     pieces close to each other: two vectors hold many of them
//! four vectors of 16 bytes    pieces farther apart, each of which is in one vector
//! ```

use super::super::instructions::has_512;
use super::super::pattern::{Piece, Repeats};

/// Bytes of a vector, and of a word of it.
const VECTOR: i64 = 64;
const WORD: i64 = 4;

/// Vectors of the target, each of words from a few vectors of the source.
pub(in super::super) enum Shuffle {
    /// Two vectors of 64 bytes.
    Two(Steps<2, VECTOR>),
    /// Four vectors of 16 bytes.
    Four(Steps<4, { VECTOR / 4 }>),
}

/// Vectors of the target, each of words from at most `N` vectors of `WIDTH` bytes.
pub(in super::super) struct Steps<const N: usize, const WIDTH: i64> {
    /// Which word goes where, for each of the steps.
    indexes: Vec<[u32; (VECTOR / WORD) as usize]>,
    steps: Vec<Step<N>>,
}

/// Where the vectors are, and which words of the target's are written.
#[derive(Clone, Copy)]
#[repr(C)]
struct Step<const N: usize> {
    from: [i32; N],
    to: i32,
    mask: u32,
}

/// More steps would not stay in the first-level cache beside what they move.
const MOST: usize = 128;

impl Shuffle {
    /// `None` if the pieces are not whole words, or if the `moves` that they are else would be
    /// faster.
    pub(in super::super) fn new(pieces: &[Piece], moves: usize) -> Option<Shuffle> {
        if !has_512() || moves > 16 * MOST || pieces.iter().any(|piece| piece.len % WORD != 0) {
            return None;
        }
        let bytes = pieces.iter().map(|piece| piece.len).sum::<i64>();
        // A step takes as long as two or three moves, and reads two vectors, however few of their
        // words it needs.
        let suits = |steps: usize| 5 * steps < 2 * moves && bytes >= VECTOR / 2 * steps as i64;
        if let Some(two) = Steps::new(pieces).filter(|two| suits(two.steps.len())) {
            return Some(Shuffle::Two(two));
        }
        let suits = |steps: usize| 4 * steps < moves && bytes >= VECTOR / 2 * steps as i64;
        let four = Steps::new(pieces).filter(|four| suits(four.steps.len()))?;
        Some(Shuffle::Four(four))
    }

    /// # Safety
    ///
    /// As for [`super::super::Weave::run`], of which there is one repetition more.
    pub(in super::super) unsafe fn run(&self, to: *mut u8, from: *const u8, repeats: Repeats) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Shuffle::Two(two) => two.run(to, from, repeats),
                Shuffle::Four(four) => four.run(to, from, repeats),
            }
        }
    }
}

impl<const N: usize, const WIDTH: i64> Steps<N, WIDTH> {
    /// `None` if there are too many, or if a word is in no vector that may be read.
    fn new(pieces: &[Piece]) -> Option<Self> {
        let mut shuffle = Steps {
            indexes: Vec::new(),
            steps: Vec::new(),
        };
        let mut words = pieces.iter().flat_map(|piece| {
            let at = (0..piece.len).step_by(WORD as usize);
            at.map(move |at| (piece.to + at, piece.from + at, piece))
        });
        let within = |at: i64, start: i64, width: i64| {
            (0..width).contains(&(at - start)) && (at - start) % WORD == 0
        };
        let mut word = words.next();
        while let Some((start, ..)) = word {
            let (mut index, mut mask) = ([0; (VECTOR / WORD) as usize], 0);
            let (mut vectors, mut used) = ([0; N], 0);
            while let Some((to, from, piece)) = word {
                if !within(to, start, VECTOR) {
                    break;
                }
                let holds = |at: &i64| within(from, *at, WIDTH);
                let which = match vectors[..used].iter().position(holds) {
                    Some(which) => which,
                    None => {
                        // As far ahead as what may be read allows.
                        let at = from.min(piece.high.saturating_sub(WIDTH));
                        if at < piece.low || !within(from, at, WIDTH) {
                            return None;
                        }
                        if used == N {
                            break;
                        }
                        vectors[used] = at;
                        used += 1;
                        used - 1
                    }
                };
                let place = ((to - start) / WORD) as usize;
                let offset = which as i64 * WIDTH + from - vectors[which];
                index[place] = (offset / WORD) as u32;
                mask |= 1 << place;
                word = words.next();
            }
            let number = |at: i64| i32::try_from(at).ok();
            // A step has all its vectors, needed or not.
            let first = vectors[0];
            vectors[used..].fill(first);
            let mut step = Step {
                from: [0; N],
                to: number(start)?,
                mask,
            };
            for (to, from) in step.from.iter_mut().zip(vectors) {
                *to = number(from)?;
            }
            shuffle.indexes.push(index);
            shuffle.steps.push(step);
            if shuffle.steps.len() > MOST {
                return None;
            }
        }
        Some(shuffle)
    }
}

/// Runs an assembly kernel for each of the steps, for each repetition.
macro_rules! each_step {
    ($all:expr, $to:expr, $from:expr, $repeats:expr, $($line:expr),*) => {{
        let (all, repeats) = ($all, $repeats);
        let (mut to, mut from) = ($to, $from);
        for _ in 0..repeats.count {
            std::arch::asm!(
                ".p2align 4",
                "2:",
                $($line,)*
                "add {indexes}, 64",
                "dec {count}",
                "jnz 2b",
                steps = inout(reg) all.steps.as_ptr() => _,
                indexes = inout(reg) all.indexes.as_ptr() => _,
                count = inout(reg) all.steps.len() => _,
                from = in(reg) from,
                to = in(reg) to,
                a = out(reg) _,
                b = out(reg) _,
                c = out(reg) _,
                out("k1") _,
                out("xmm16") _, out("xmm17") _,
                options(nostack),
            );
            to = to.wrapping_offset(repeats.to);
            from = from.wrapping_offset(repeats.from);
        }
    }};
}

impl Steps<2, VECTOR> {
    /// # Safety
    ///
    /// As for [`Shuffle::run`].
    unsafe fn run(&self, to: *mut u8, from: *const u8, repeats: Repeats) {
        // SAFETY: what is read lies between the blocks of this repetition and the next one;
        // only words of the mask are written. There is at least one step.
        unsafe {
            each_step!(
                self,
                to,
                from,
                repeats,
                "movsxd {a}, dword ptr [{steps}]",
                "movsxd {b}, dword ptr [{steps} + 4]",
                "movsxd {c}, dword ptr [{steps} + 8]",
                "kmovw k1, word ptr [{steps} + 12]",
                "vmovdqu64 zmm16, zmmword ptr [{from} + {a}]",
                "vmovdqu64 zmm17, zmmword ptr [{indexes}]",
                "vpermt2d zmm16, zmm17, zmmword ptr [{from} + {b}]",
                "vmovdqu32 zmmword ptr [{to} + {c}] {{k1}}, zmm16",
                "add {steps}, 16"
            );
        }
    }
}

impl Steps<4, { VECTOR / 4 }> {
    /// # Safety
    ///
    /// As for [`Shuffle::run`].
    unsafe fn run(&self, to: *mut u8, from: *const u8, repeats: Repeats) {
        // SAFETY: as above.
        unsafe {
            each_step!(
                self,
                to,
                from,
                repeats,
                "movsxd {a}, dword ptr [{steps}]",
                "movsxd {b}, dword ptr [{steps} + 4]",
                "movsxd {c}, dword ptr [{steps} + 8]",
                "vmovdqu64 xmm16, xmmword ptr [{from} + {a}]",
                "movsxd {a}, dword ptr [{steps} + 12]",
                "vinserti32x4 ymm16, ymm16, xmmword ptr [{from} + {b}], 1",
                "vinserti32x4 zmm16, zmm16, xmmword ptr [{from} + {c}], 2",
                "movsxd {b}, dword ptr [{steps} + 16]",
                "vinserti32x4 zmm16, zmm16, xmmword ptr [{from} + {a}], 3",
                "kmovw k1, word ptr [{steps} + 20]",
                "vmovdqu64 zmm17, zmmword ptr [{indexes}]",
                "vpermd zmm16, zmm17, zmm16",
                "vmovdqu32 zmmword ptr [{to} + {b}] {{k1}}, zmm16",
                "add {steps}, 24"
            );
        }
    }
}
