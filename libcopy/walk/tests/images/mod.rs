// SPDX-License-Identifier: MIT OR Apache-2.0

//! Random images, changed images, and one entry for bytes of a fuzzer: an image is refused with
//! words, or every walk over it ends and stays within its extent. Everything else is a panic, as a
//! fuzzer wants it.

#![allow(dead_code, reason = "the fuzzer needs only a part")]

use libcopy_walk::{Builder, Child, Image, State, Tree};

/// xorshift64*: the same cases on every machine.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A seed of 0 would stay 0.
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn offset(&mut self) -> i64 {
        self.below(400) as i64 - 200
    }
}

/// A random tree: the words of its image, and the offset of every byte of its packed stream.
pub fn tree(random: &mut Random) -> (Vec<u32>, Vec<i64>) {
    let levels = 1 + random.below(12);
    let mut words = vec![0; 8 + 8 * levels as usize + 4096];
    let mut builder = Builder::new(&mut words, levels as usize).unwrap();
    // Nodes made so far, with the bytes of each, relative to its origin.
    let mut known: Vec<(Child<i64>, Vec<i64>)> = Vec::new();
    for level in 0..levels {
        // Mostly the last one, so that the tree is deep.
        let pick = |random: &mut Random, known: &[(Child<i64>, Vec<i64>)]| {
            let choice = random.below(8);
            let big = known.last().is_some_and(|(_, bytes)| bytes.len() > 300);
            if known.is_empty() || choice == 0 || big {
                let len = 1 + random.below(9) as i64;
                return (Child::dense(len), (0..len).collect());
            }
            let back = (choice as usize / 5).min(known.len() - 1);
            known[known.len() - 1 - back].clone()
        };
        let count = 1 + random.below(4) as usize;
        let node = match random.below(if level == 0 { 5 } else { 4 }) {
            0 => {
                let (child, bytes) = pick(random, &known);
                let stride = random.offset();
                let count = 1 + random.below(5) as i64;
                let node = builder.stream(count, stride, child).unwrap();
                let all = (0..count).flat_map(|i| bytes.iter().map(move |b| b + i * stride));
                (node, all.collect::<Vec<_>>())
            }
            1 => {
                let (child, bytes) = pick(random, &known);
                let offsets: Vec<i64> = (0..count).map(|_| random.offset()).collect();
                let node = builder.blocks(offsets.iter().copied(), child).unwrap();
                let all = offsets
                    .iter()
                    .flat_map(|o| bytes.iter().map(move |b| b + o));
                (node, all.collect())
            }
            2 => {
                let pieces: Vec<(i64, i64)> = (0..count)
                    .map(|_| (random.offset(), 1 + random.below(11) as i64))
                    .collect();
                let node = builder.pieces(pieces.iter().copied()).unwrap();
                let all = pieces.iter().flat_map(|(o, len)| *o..o + len);
                (node, all.collect())
            }
            3 => {
                let parts: Vec<_> = (0..count)
                    .map(|_| (random.offset(), pick(random, &known)))
                    .collect();
                let node = builder
                    .sequence(parts.iter().map(|(offset, (child, _))| (*offset, *child)))
                    .unwrap();
                let all = parts
                    .iter()
                    .flat_map(|(offset, (_, bytes))| bytes.iter().map(move |b| b + offset));
                (node, all.collect())
            }
            _ => {
                let len = 1 + random.below(50) as i64;
                (builder.dense(len).unwrap(), (0..len).collect())
            }
        };
        known.push(node);
    }
    let (root, bytes) = known.pop().unwrap();
    let origin = random.offset();
    let image = builder.finish(root, origin).unwrap();
    let words = image.words().to_vec();
    (words, bytes.iter().map(|byte| byte + origin).collect())
}

/// The most bytes that are walked at a time: a message may have 2 GiB.
const MOST: i32 = 5000;

/// Walks an image that was accepted; ends after a bounded number of pieces.
fn walk_some(image: Image, random: &mut Random) {
    let (low, high) = (i64::from(image.low()), i64::from(image.high()));
    assert!(low <= high && image.depth() as usize <= image.words().len() / 8);
    let size = image.size();
    let mut kept = State::<4>::start(image);
    for _ in 0..4 {
        let from = random.below(size as u64 + 1) as i32;
        let len = (size - from).min(1 + random.below(MOST as u64) as i32);
        let mut whole = Vec::new();
        let mut state = kept;
        state.resume(image, from);
        assert_eq!(state.position(), from);
        state.pieces(image, len, |memory, stream, len| {
            let start = i64::from(memory);
            assert!(low <= start && start + i64::from(len) <= high && len > 0);
            assert_eq!(stream, whole.len() as i32);
            whole.extend(start..start + i64::from(len));
        });
        assert_eq!((whole.len() as i32, state.position()), (len, from + len));
        // In two parts, after a descent from the root and after a catch-up.
        let cut = random.below(len as u64 + 1) as i32;
        let mut parts = Vec::new();
        let mut take = |state: &mut State<2>, len| {
            state.pieces(image, len, |memory, _, len| {
                parts.extend(i64::from(memory)..i64::from(memory) + i64::from(len));
            });
        };
        let mut first = State::<2>::at(image, from);
        take(&mut first, cut);
        let mut second = State::<2>::at(image, from);
        second.catch_up(image, from + cut);
        assert_eq!(second, first);
        take(&mut second, len - cut);
        assert_eq!(parts, whole);
        kept = state;
    }
}

/// Whether the words are an image. If so, walks are checked; in any case walks over the unchecked
/// words end.
pub fn holds_together(words: &[u32], random: &mut Random) -> bool {
    let checked = Image::check(words);
    match &checked {
        Ok(image) => walk_some(*image, random),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    // Unchecked: it ends without a panic, wherever the pieces are.
    let image = Image::trusted(words);
    let mut state = State::<4>::start(image);
    state.seek(image, random.next() as i32 & 0xfff);
    state.pieces(image, 300, |_, _, len| assert!(len > 0));
    state.resume(image, random.next() as i32 & 0xfff);
    state.catch_up(image, state.position().saturating_add(100));
    checked.is_ok()
}

/// What word `at` becomes by one of six kinds of change.
pub fn changed(words: &[u32], at: usize, kind: u8, value: u32) -> u32 {
    let word = words[at];
    match kind % 6 {
        0 => 0,
        1 => value,
        2 => word.wrapping_add(1),
        3 => word.wrapping_sub(1),
        4 => word ^ (1 << (value % 32)),
        _ => words[value as usize % words.len()],
    }
}

/// Bytes of a fuzzer; whether they made an image that was accepted. The first two say what the
/// others are: the words themselves, or a random image (a seed of 4 bytes) and changes of it, 7
/// bytes each: word, kind, value.
pub fn feed(bytes: &[u8]) -> bool {
    let Some(([kind, seed], rest)) = bytes.split_first_chunk() else {
        return false;
    };
    let mut random = Random::new(u64::from(*seed));
    let chunk = |chunk: &[u8]| u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
    if kind % 4 == 0 {
        let words: Vec<u32> = rest.chunks_exact(4).map(chunk).collect();
        return holds_together(&words, &mut random);
    }
    let Some((seed, changes)) = rest.split_first_chunk::<4>() else {
        return false;
    };
    let (mut words, _) = tree(&mut Random::new(u64::from(u32::from_le_bytes(*seed)) << 1));
    for change in changes.chunks_exact(7) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % words.len();
        words[at] = changed(&words, at, change[2], chunk(&change[3..]));
    }
    holds_together(&words, &mut random)
}
