// SPDX-License-Identifier: MIT OR Apache-2.0

//! States against the list of bytes of random trees, and images whose words were changed.
//!
//! `WALK_CASES=1000000 cargo test -p libcopy-walk` is a long run; Miri runs a few cases.

mod images;

use images::{Random, changed, feed, holds_together, tree};
use libcopy_walk::{Builder, Child, Image, State};

fn cases() -> u64 {
    let default = if cfg!(miri) { 12 } else { 4000 };
    match std::env::var("WALK_CASES") {
        Ok(text) => text.parse().expect("WALK_CASES is not a number"),
        Err(_) => default,
    }
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
    let mut random = Random::new(0x5eed);
    for _ in 0..cases() {
        let (words, bytes) = tree(&mut random);
        let image = Image::check(&words).unwrap();
        walks::<8>(image, &bytes, &mut random);
        // Trees deeper than the state.
        walks::<3>(image, &bytes, &mut random);
        walks::<1>(image, &bytes, &mut random);
    }
}

#[test]
fn changed_images_are_refused_or_stay_within_their_extent() {
    let mut random = Random::new(0xf00d);
    let (mut refused, mut accepted) = (0, 0);
    for _ in 0..cases() {
        let (mut words, _) = tree(&mut random);
        for _ in 0..1 + random.below(3) {
            let at = random.below(words.len() as u64) as usize;
            let kind = random.below(6) as u8;
            let value = random.next() as u32;
            words[at] = changed(&words, at, kind, value);
        }
        if holds_together(&words, &mut random) {
            accepted += 1;
        } else {
            refused += 1;
        }
    }
    assert!(refused > 0 && accepted > 0, "{refused} and {accepted}");
}

#[test]
fn random_words_are_refused_or_stay_within_their_extent() {
    let mut random = Random::new(0xbeef);
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
        holds_together(&words, &mut random);
    }
}

/// The entry of the fuzzer (`fuzz/fuzz_targets/image.rs`) with random bytes, without a fuzzer.
#[test]
fn what_the_fuzzer_feeds_holds_together() {
    let mut random = Random::new(0xfeed);
    let mut accepted = 0;
    for _ in 0..cases() {
        let mut bytes = vec![0; random.below(60) as usize];
        bytes.fill_with(|| random.next() as u8);
        accepted += u64::from(feed(&bytes));
    }
    assert!(accepted > 0);
}

/// If lists could be shared, checking `n` words would take the square of `n`.
#[test]
fn lists_that_overlap_are_refused() {
    let mut words = [0; 64];
    let mut builder = Builder::new(&mut words, 2).unwrap();
    let offsets = [0, 10, 30];
    let inner = builder
        .blocks(offsets.into_iter(), Child::dense(4))
        .unwrap();
    let root = builder.blocks(offsets.into_iter(), inner).unwrap();
    let mut words = builder.finish(root, 0).unwrap().words().to_vec();
    assert!(Image::check(&words).is_ok());
    // The lists are equal: the root may be given that of its child, but for the time that such
    // checks take.
    let list = 8 + 5;
    assert_eq!((words[list], words[8 + list]), (24, 27));
    words[8 + list] = 24;
    let error = Image::check(&words).unwrap_err().to_string();
    assert!(
        error.contains("word 21 ") && error.contains("lists"),
        "{error}"
    );
    // A part of it.
    words[8 + list] = 26;
    assert!(Image::check(&words).is_err());
}

/// An empty image has no extent: a receiver may compute `high - low`.
#[test]
fn an_empty_image_has_no_bounds() {
    let mut words = [0; 8];
    let empty = Builder::new(&mut words, 0).unwrap().finish_empty().unwrap();
    let good = empty.words().to_vec();
    assert!(Image::check(&good).is_ok());
    for at in [3, 4, 5, 6, 7] {
        let mut bad = good.clone();
        bad[at] = 1;
        let error = Image::check(&bad).unwrap_err().to_string();
        assert!(error.contains(&format!("word {at} ")), "{error}");
    }
}

#[test]
fn a_state_of_another_image_ends() {
    let mut random = Random::new(0xcafe);
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
