// SPDX-License-Identifier: MIT OR Apache-2.0

//! States against the list of bytes of random trees, and images whose words were changed.
//!
//! `WALK_CASES=1000000 cargo test -p libcopy-walk` is a long run; Miri runs a few cases.

use libcopy_walk::{Builder, Child, Image, State};

/// xorshift64*: the same cases on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn offset(&mut self) -> i64 {
        self.below(400) as i64 - 200
    }
}

fn cases() -> u64 {
    let default = if cfg!(miri) { 12 } else { 4000 };
    match std::env::var("WALK_CASES") {
        Ok(text) => text.parse().expect("WALK_CASES is not a number"),
        Err(_) => default,
    }
}

/// A random tree: the words of its image, and the offset of every byte of its packed stream.
fn tree(random: &mut Random) -> (Vec<u32>, Vec<i64>) {
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

/// The bytes that `len` bytes from a state are.
fn bytes_of<const DEPTH: usize>(state: &mut State<DEPTH>, image: Image, len: i32) -> Vec<i64> {
    let mut bytes = Vec::new();
    state.pieces(image, len, |memory, stream, piece| {
        assert_eq!(stream as usize, bytes.len());
        assert!(piece > 0);
        assert!(memory >= image.low() && memory + piece <= image.high());
        bytes.extend(i64::from(memory)..i64::from(memory + piece));
    });
    bytes
}

fn walks<const DEPTH: usize>(image: Image, bytes: &[i64], random: &mut Random) {
    let size = bytes.len();
    let mut state = State::<DEPTH>::start(image);
    assert_eq!(bytes_of(&mut state, image, i32::MAX), bytes);
    assert!(state.is_at_end());
    assert_eq!(state.position() as usize, size);
    let mut kept = State::<DEPTH>::start(image);
    for _ in 0..6 {
        let from = random.below(size as u64 + 1) as usize;
        let len = random.below(40) as usize;
        let expected = &bytes[from..(from + len).min(size)];
        let mut sought = kept;
        sought.seek(image, from as i32);
        let mut resumed = kept;
        resumed.resume(image, from as i32);
        let mut caught = kept;
        let anew = caught.catch_up(image, from as i32);
        assert_eq!(anew, (from as i32) < kept.position());
        for state in [&mut sought, &mut resumed, &mut caught] {
            assert_eq!(state.position() as usize, from);
            assert_eq!(state.is_at_end(), from == size);
            assert_eq!(bytes_of(state, image, len as i32), expected);
            assert_eq!(state.position() as usize, from + expected.len());
        }
        // Strip by strip.
        let mut stepped = kept;
        stepped.resume(image, from as i32);
        let mut left = len as i32;
        let mut found = Vec::new();
        while left > 0 {
            let Some(strip) = stepped.strip(image) else {
                break;
            };
            let blocks = (left / strip.len).min(strip.count).max(1);
            let block = strip.len.min(left);
            for i in 0..blocks {
                let at = i64::from(strip.offset + i * strip.stride);
                found.extend(at..at + i64::from(block));
            }
            stepped.advance(image, blocks * block);
            left -= blocks * block;
        }
        assert_eq!(found, expected);
        kept = if random.below(2) == 0 {
            resumed
        } else {
            stepped
        };
    }
}

#[test]
fn states_agree_with_the_list_of_bytes() {
    let mut random = Random(0x5eed);
    for _ in 0..cases() {
        let (words, bytes) = tree(&mut random);
        let image = Image::check(&words).unwrap();
        walks::<8>(image, &bytes, &mut random);
        // Trees deeper than the state.
        walks::<3>(image, &bytes, &mut random);
        walks::<1>(image, &bytes, &mut random);
    }
}

/// Walks an image that was accepted; ends after a bounded number of pieces.
fn walk_some(image: Image, random: &mut Random) {
    use libcopy_walk::Tree;
    let (low, high) = (i64::from(image.low()), i64::from(image.high()));
    let size = image.size();
    for _ in 0..4 {
        let from = random.below(size as u64 + 1) as i32;
        let mut state = State::<4>::start(image);
        state.resume(image, from);
        assert_eq!(state.position(), from);
        let mut done = 0;
        state.pieces(image, (size - from).min(5000), |memory, stream, len| {
            let memory = i64::from(memory);
            assert!(low <= memory && memory + i64::from(len) <= high && len > 0);
            assert_eq!(stream, done);
            done += len;
        });
        assert_eq!(done, (size - from).min(5000));
    }
}

#[test]
fn changed_images_are_refused_or_stay_within_their_extent() {
    let mut random = Random(0xf00d);
    let (mut refused, mut accepted) = (0, 0);
    for _ in 0..cases() {
        let (mut words, _) = tree(&mut random);
        for _ in 0..1 + random.below(3) {
            let at = random.below(words.len() as u64) as usize;
            words[at] = match random.below(6) {
                0 => 0,
                1 => random.next() as u32,
                2 => words[at].wrapping_add(1),
                3 => words[at].wrapping_sub(1),
                4 => words[at] ^ (1 << random.below(32)),
                _ => words[random.below(words.len() as u64) as usize],
            };
        }
        match Image::check(&words) {
            Ok(image) => {
                accepted += 1;
                walk_some(image, &mut random);
            }
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
        }
        // Unchecked: it ends without a panic, wherever the pieces are.
        let image = Image::trusted(&words);
        let mut state = State::<4>::start(image);
        state.seek(image, random.next() as i32 & 0xfff);
        state.pieces(image, 300, |_, _, len| assert!(len > 0));
        state.resume(image, random.next() as i32 & 0xfff);
        state.catch_up(image, state.position().saturating_add(100));
    }
    assert!(refused > 0 && accepted > 0, "{refused} and {accepted}");
}

#[test]
fn random_words_are_refused_or_stay_within_their_extent() {
    let mut random = Random(0xbeef);
    for _ in 0..cases() {
        let mut words: Vec<u32> = (0..random.below(60))
            .map(|_| random.next() as u32 % 40)
            .collect();
        if let [magic, len, records, ..] = &mut words[..] {
            *magic = u32::from_le_bytes(*b"LCW1");
            *len = 0;
            *records %= 4;
        }
        if words.len() > 1 {
            words[1] = words.len() as u32;
        }
        if let Ok(image) = Image::check(&words) {
            walk_some(image, &mut random);
        }
        let image = Image::trusted(&words);
        let mut state = State::<2>::start(image);
        state.seek(image, 3);
        state.pieces(image, 200, |_, _, len| assert!(len > 0));
    }
}

#[test]
fn a_state_of_another_image_ends() {
    let mut random = Random(0xcafe);
    for _ in 0..cases() {
        let (one, _) = tree(&mut random);
        let (other, bytes) = tree(&mut random);
        let (one, other) = (Image::trusted(&one), Image::trusted(&other));
        let mut state = State::<8>::start(one);
        state.resume(one, random.below(500) as i32);
        state.pieces(other, 1000, |_, _, len| assert!(len > 0));
        state.resume(other, random.below(bytes.len() as u64) as i32);
        state.catch_up(other, random.below(bytes.len() as u64) as i32);
        state.pieces(other, 1000, |_, _, len| assert!(len > 0));
    }
}

#[test]
fn errors_name_the_word_and_the_value() {
    let mut words = [0; 40];
    let mut builder = Builder::new(&mut words, 1).unwrap();
    let root = builder.stream(3, 20, Child::dense(4)).unwrap();
    let image = builder.finish(root, -4).unwrap();
    assert_eq!((image.low(), image.high(), image.depth()), (-4, 40, 1));
    let good = image.words().to_vec();
    assert_eq!(good.len(), 16);
    let mut bad = good.clone();
    bad[8 + 4] = 4;
    let error = Image::check(&bad).unwrap_err().to_string();
    assert!(error.contains("word 9 ") && error.contains("12"), "{error}");
    bad = good.clone();
    bad[6] = 39;
    let error = Image::check(&bad).unwrap_err().to_string();
    assert!(error.contains("word 6 ") && error.contains("39"), "{error}");
    let error = Image::check(&good[1..]).unwrap_err().to_string();
    assert!(error.contains("LCW1"), "{error}");
    let error = Image::check(&good[..15]).unwrap_err().to_string();
    assert!(error.contains("16") && error.contains("15"), "{error}");

    let mut builder = Builder::new(&mut words, 1).unwrap();
    let error = builder.stream(3, 1 << 30, Child::dense(4)).unwrap_err();
    assert!(error.to_string().contains("2147483648"), "{error}");
    let error = builder.stream(0, 8, Child::dense(4)).unwrap_err();
    assert!(error.to_string().contains("positive"), "{error}");
    let foreign = Child { id: 16, size: 4 };
    assert!(builder.stream(2, 8, foreign).is_err());
    assert!(Builder::new(&mut [0; 15], 1).is_err());
    let empty = Builder::new(&mut words, 0).unwrap().finish_empty().unwrap();
    let empty = Image::check(empty.words()).unwrap();
    assert!(State::<8>::start(empty).is_at_end());
}
