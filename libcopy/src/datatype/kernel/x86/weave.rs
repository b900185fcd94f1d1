// SPDX-License-Identifier: MIT OR Apache-2.0

//! Short pieces of a repeating pattern as vectors that are put together from two others.

use super::super::weave::{Piece, Repeats};
use super::piece::has_512;

/// Bytes of a vector, and of a word of it.
const VECTOR: i64 = 64;
const WORD: i64 = 4;

/// Vectors of the target, each of words from two vectors of the source.
pub(in super::super) struct Shuffle {
    /// Which word goes where, for each of the [`Shuffle::steps`].
    indexes: Vec<[u32; (VECTOR / WORD) as usize]>,
    steps: Vec<Step>,
}

/// Where the vectors are, and which words of the target's are written.
#[derive(Clone, Copy)]
#[repr(C)]
struct Step {
    first: i32,
    second: i32,
    to: i32,
    mask: u32,
}

/// More steps would not stay in the first-level cache beside what they move.
const MOST: usize = 128;

impl Shuffle {
    /// `None` if the pieces are not whole words, or if the `moves` that they are else would be faster.
    pub(in super::super) fn new(pieces: &[Piece], moves: usize) -> Option<Shuffle> {
        if !has_512() || moves > 16 * MOST || pieces.iter().any(|piece| piece.len % WORD != 0) {
            return None;
        }
        let mut shuffle = Shuffle {
            indexes: Vec::new(),
            steps: Vec::new(),
        };
        let mut words = pieces.iter().flat_map(|piece| {
            let at = (0..piece.len).step_by(WORD as usize);
            at.map(move |at| (piece.to + at, piece.from + at, piece))
        });
        let within =
            |at: i64, start: i64| (0..VECTOR).contains(&(at - start)) && (at - start) % WORD == 0;
        let mut word = words.next();
        while let Some((start, ..)) = word {
            let (mut index, mut mask) = ([0; (VECTOR / WORD) as usize], 0);
            let (mut first, mut second) = (None, None);
            while let Some((to, from, piece)) = word {
                if !within(to, start) {
                    break;
                }
                let vector = || {
                    // As far ahead as what may be read allows.
                    let at = from.min(piece.high.saturating_sub(VECTOR));
                    (at >= piece.low).then_some(at)
                };
                let a = *first.get_or_insert(vector()?);
                let from = if within(from, a) {
                    from - a
                } else {
                    let b = match second {
                        Some(b) => b,
                        None => *second.insert(vector()?),
                    };
                    if !within(from, b) {
                        break;
                    }
                    from - b + VECTOR
                };
                let place = ((to - start) / WORD) as usize;
                index[place] = (from / WORD) as u32;
                mask |= 1 << place;
                word = words.next();
            }
            let number = |at: i64| i32::try_from(at).ok();
            let first = first?;
            shuffle.indexes.push(index);
            shuffle.steps.push(Step {
                first: number(first)?,
                second: number(second.unwrap_or(first))?,
                to: number(start)?,
                mask,
            });
            if shuffle.steps.len() > MOST {
                return None;
            }
        }
        let (steps, bytes) = (
            shuffle.steps.len(),
            pieces.iter().map(|piece| piece.len).sum::<i64>(),
        );
        // A step takes as long as two or three moves, and reads two vectors, however few of their
        // words it needs.
        (5 * steps < 2 * moves && bytes >= VECTOR / 2 * steps as i64).then_some(shuffle)
    }

    /// # Safety
    ///
    /// As for [`super::super::Weave::run`], of which there is one repetition more.
    pub(in super::super) unsafe fn run(&self, to: *mut u8, from: *const u8, repeats: Repeats) {
        let (mut to, mut from) = (to, from);
        for _ in 0..repeats.count {
            // SAFETY: what is read lies between the blocks of this repetition and the next one;
            // only words of the mask are written. There is at least one step.
            unsafe {
                std::arch::asm!(
                    ".p2align 4",
                    "2:",
                    "movsxd {a}, dword ptr [{steps}]",
                    "movsxd {b}, dword ptr [{steps} + 4]",
                    "movsxd {c}, dword ptr [{steps} + 8]",
                    "kmovw k1, word ptr [{steps} + 12]",
                    "vmovdqu64 zmm16, zmmword ptr [{from} + {a}]",
                    "vmovdqu64 zmm17, zmmword ptr [{indexes}]",
                    "vpermt2d zmm16, zmm17, zmmword ptr [{from} + {b}]",
                    "vmovdqu32 zmmword ptr [{to} + {c}] {{k1}}, zmm16",
                    "add {steps}, 16",
                    "add {indexes}, 64",
                    "dec {count}",
                    "jnz 2b",
                    steps = inout(reg) self.steps.as_ptr() => _,
                    indexes = inout(reg) self.indexes.as_ptr() => _,
                    count = inout(reg) self.steps.len() => _,
                    from = in(reg) from,
                    to = in(reg) to,
                    a = out(reg) _,
                    b = out(reg) _,
                    c = out(reg) _,
                    out("k1") _,
                    out("xmm16") _, out("xmm17") _,
                    options(nostack),
                );
            }
            to = to.wrapping_offset(repeats.to);
            from = from.wrapping_offset(repeats.from);
        }
    }
}
