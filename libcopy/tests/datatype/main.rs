// SPDX-License-Identifier: MIT OR Apache-2.0

//! Derived datatypes against a naive interpreter of type maps, over random type trees.
//!
//! `PROPTEST_CASES=10000000 cargo test --release -p libcopy --test datatype -- random` is the long
//! run; the default is short.

mod equal;
mod feed;
mod fuzz;
mod generate;
mod oracle;
mod variants;

use generate::{Choices, build, tree};
use libcopy::datatype::{Checkpoints, Datatype, Elements, Layout, Named, Segment};
use oracle::Map;
use proptest::prelude::*;

/// A type, its layout for a count, and what the oracle says about them.
struct Case {
    datatype: Datatype,
    layout: Layout,
    one: Map,
    /// Displacement of every byte of `count` elements, in packed order.
    bytes: Vec<i64>,
    buffer: usize,
    origin: isize,
}

fn case(choices: &mut Choices) -> Case {
    let depth = 1 + choices.below(8) as u32;
    let (description, one) = tree(choices, depth, 300);
    let count = match choices.below(4) {
        0 => 1,
        1 => choices.below(3),
        _ => choices.below(20),
    };
    let datatype = build(&description).unwrap_or_else(|e| panic!("{description:?}: {e}"));
    let all = Map::place((0..count as i64).map(|i| (i * one.extent(), &one)));
    let layout = Layout::new(&datatype, count).unwrap();
    let (low, high) = all.true_bounds();
    Case {
        datatype,
        layout,
        bytes: all.bytes(),
        one,
        buffer: (high - low) as usize + 13,
        origin: 5 - low as isize,
    }
}

impl Case {
    fn at(&self, byte: i64) -> usize {
        (byte + self.origin as i64) as usize
    }

    fn overlaps(&self) -> bool {
        let mut sorted = self.bytes.clone();
        sorted.sort_unstable();
        sorted.windows(2).any(|pair| pair[0] == pair[1])
    }
}

/// Bytes that tell places apart.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as u8
        })
        .collect()
}

fn check(choices: &mut Choices) -> Result<(), TestCaseError> {
    let case = case(choices);
    facts(&case)?;
    let buffer = pattern(case.buffer, 1);
    let expected: Vec<u8> = case.bytes.iter().map(|&b| buffer[case.at(b)]).collect();
    packing(&case, &buffer, &expected, choices)?;
    unpacking(&case, choices)?;
    segments(&case, choices)?;
    cursors(&case, choices)?;
    copying(&case, &buffer, &expected, choices)?;
    Ok(())
}

fn facts(case: &Case) -> Result<(), TestCaseError> {
    let (datatype, one) = (&case.datatype, &case.one);
    prop_assert_eq!(datatype.size() as i64, one.size());
    prop_assert_eq!(datatype.lower_bound(), one.lb.unwrap_or(0));
    prop_assert_eq!(datatype.upper_bound(), one.ub.unwrap_or(0));
    let (low, high) = one.true_bounds();
    prop_assert_eq!(datatype.true_lower_bound(), low);
    prop_assert_eq!(datatype.true_upper_bound(), high);
    prop_assert_eq!(datatype.signature().elements() as usize, one.entries.len());
    prop_assert_eq!(case.layout.size() as usize, case.bytes.len());
    let elements: Vec<(i64, i64)> = Elements::new(datatype, 1)
        .unwrap()
        .map(|(e, at)| (at, e.size.into()))
        .collect();
    prop_assert_eq!(&elements, &one.entries);
    let (low, high) = match (case.bytes.iter().min(), case.bytes.iter().max()) {
        (Some(low), Some(high)) => (*low, high + 1),
        _ => (0, 0),
    };
    prop_assert_eq!(case.layout.bounds(), low..high);
    Ok(())
}

/// Cuts `len` into ranges, in an order that is not ascending.
fn cuts(len: usize, choices: &mut Choices) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < len {
        let piece = 1 + choices.below(97) as usize * (1 + choices.below(9) as usize);
        ranges.push((at, (at + piece).min(len)));
        at += piece;
    }
    for i in 0..ranges.len() {
        let other = choices.below(ranges.len() as u64) as usize;
        ranges.swap(i, other);
    }
    ranges
}

fn packing(
    case: &Case,
    buffer: &[u8],
    expected: &[u8],
    choices: &mut Choices,
) -> Result<(), TestCaseError> {
    let mut packed = vec![0; expected.len()];
    case.layout.pack(buffer, case.origin, &mut packed).unwrap();
    prop_assert_eq!(&packed[..], expected);
    packed.fill(0);
    for (low, high) in cuts(packed.len(), choices) {
        let part = &mut packed[low..high];
        case.layout
            .pack_range(buffer, case.origin, low as u64, part)
            .unwrap();
    }
    prop_assert_eq!(&packed[..], expected);
    Ok(())
}

fn unpacking(case: &Case, choices: &mut Choices) -> Result<(), TestCaseError> {
    if case.overlaps() {
        return Ok(());
    }
    let packed = pattern(case.bytes.len(), 2);
    let blank = pattern(case.buffer, 3);
    let mut expected = blank.clone();
    for (&at, &byte) in case.bytes.iter().zip(&packed) {
        expected[case.at(at)] = byte;
    }
    let mut buffer = blank.clone();
    case.layout
        .unpack(&packed, &mut buffer, case.origin)
        .unwrap();
    prop_assert_eq!(&buffer, &expected);
    let mut buffer = blank;
    for (low, high) in cuts(packed.len(), choices) {
        let part = &packed[low..high];
        case.layout
            .unpack_range(part, low as u64, &mut buffer, case.origin)
            .unwrap();
    }
    prop_assert_eq!(&buffer, &expected);
    Ok(())
}

fn segments(case: &Case, choices: &mut Choices) -> Result<(), TestCaseError> {
    let count = case.layout.segment_count();
    let segments: Vec<_> = case.layout.segments().collect();
    prop_assert_eq!(segments.len() as u64, count);
    prop_assert!(case.layout.segment(count).is_none());
    let bytes: Vec<i64> = segments
        .iter()
        .flat_map(|s| s.offset..s.offset + s.len as i64)
        .collect();
    prop_assert_eq!(&bytes, &case.bytes);
    let mut batch = vec![Segment::default(); 1 + choices.below(40) as usize];
    let mut cursor = case.layout.cursor();
    let mut bytes = Vec::new();
    loop {
        let n = cursor.fill(&mut batch);
        bytes.extend(
            batch[..n]
                .iter()
                .flat_map(|s| s.offset..s.offset + s.len as i64),
        );
        if n < batch.len() {
            break;
        }
    }
    prop_assert_eq!(&bytes, &case.bytes);
    Ok(())
}

/// Cursors and checkpoints at random positions continue as the oracle's list does.
fn cursors(case: &Case, choices: &mut Choices) -> Result<(), TestCaseError> {
    let size = case.layout.size();
    let checkpoints = Checkpoints::new(&case.layout, 1 + choices.below(300)).unwrap();
    let mut cursor = case.layout.cursor();
    prop_assert!(cursor.seek(size + 1).is_err());
    for _ in 0..4 {
        let position = choices.below(size + 1);
        cursor.seek(position).unwrap();
        let mut other = checkpoints.cursor(position).unwrap();
        prop_assert_eq!(other.position(), position);
        let mut at = position as usize;
        for _ in 0..5 {
            let most = 1 + choices.below(50);
            let segment = cursor.next_segment(most);
            prop_assert_eq!(segment, other.next_segment(most));
            let Some(segment) = segment else {
                prop_assert_eq!(at as u64, size);
                break;
            };
            prop_assert!(segment.len <= most);
            for offset in segment.offset..segment.offset + segment.len as i64 {
                prop_assert_eq!(offset, case.bytes[at]);
                at += 1;
            }
        }
        prop_assert_eq!(cursor.position(), at as u64);
    }
    Ok(())
}

/// Copies to another layout of as many bytes.
fn copying(
    case: &Case,
    buffer: &[u8],
    expected: &[u8],
    choices: &mut Choices,
) -> Result<(), TestCaseError> {
    let size = expected.len() as u64;
    // A second random type, as often as it fits, and the rest of the bytes behind it.
    let depth = 1 + choices.below(5) as u32;
    let (description, one) = tree(choices, depth, 100);
    let target = build(&description).unwrap();
    let whole = size.checked_div(target.size()).unwrap_or(0);
    let repeated = Map::place((0..whole as i64).map(|i| (i * one.extent(), &one)));
    let rest = size - whole * target.size();
    let behind = repeated.true_bounds().1 + choices.below(9) as i64;
    let byte = Datatype::named(Named::Byte);
    let element = target.contiguous(whole).unwrap();
    let both = Datatype::structure(&[1, rest], &[0, behind], &[element, byte.clone()]).unwrap();
    // The signatures differ; plain bytes on the source's side would be allowed, so say that.
    let to = Layout::new(&both, 1).unwrap();
    let mut places = repeated.bytes();
    places.extend(behind..behind + rest as i64);
    let mut sorted = places.clone();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    let (low, high) = (
        sorted.first().copied().unwrap_or(0),
        sorted.last().copied().unwrap_or(0),
    );
    let origin = 3 - low as isize;
    let mut result = pattern((high - low) as usize + 9, 7);
    let mut wanted = result.clone();
    for (&at, &byte) in places.iter().zip(expected) {
        wanted[(at + origin as i64) as usize] = byte;
    }
    let from = buffer.as_ptr().wrapping_offset(case.origin);
    let target = result.as_mut_ptr().wrapping_offset(origin);
    // SAFETY: the oracle says that all bytes of both layouts lie within the vectors.
    unsafe { case.layout.copy_raw(from, &to, target) };
    prop_assert_eq!(&result, &wanted);
    let plain = Layout::new(&byte, size).unwrap();
    let mut flat = vec![0; expected.len()];
    case.layout
        .copy(buffer, case.origin, &plain, &mut flat, 0)
        .unwrap();
    prop_assert_eq!(&flat[..], expected);
    Ok(())
}

proptest! {
    #[test]
    fn random_types_agree_with_their_type_maps(
        list in prop::collection::vec(any::<u16>(), 0..160)
    ) {
        check(&mut Choices::new(&list))?;
    }
}

/// Copies of so many elements that blocks on one side are filled or emptied one after the other,
/// against the oracle's places.
fn copying_much(choices: &mut Choices) -> Result<(), TestCaseError> {
    let depth = 1 + choices.below(4) as u32;
    let (description, one) = tree(choices, depth, 40);
    let datatype = build(&description).unwrap();
    let Some(count) = (64_u64 << 10).checked_div(datatype.size()) else {
        return Ok(());
    };
    let count = (count + 1) * (1 + 8 * choices.below(2));
    let size = count * datatype.size();
    let bounds = one.true_bounds();
    let last = (count as i64 - 1) * one.extent();
    let (low, high) = (bounds.0 + last.min(0), bounds.1 + last.max(0));
    if high - low > 32 << 20 {
        return Ok(());
    }
    let mut places = Map::place((0..count as i64).map(|i| (i * one.extent(), &one))).bytes();
    let layout = Layout::new(&datatype, count).unwrap();
    // Blocks of about as many bytes as the pieces have, of a fraction, or of a multiple.
    let mean = (size / layout.segment_count()).max(1);
    let about = match choices.below(4) {
        0 => mean,
        1 => mean * (2 + choices.below(20)) + choices.below(9),
        2 => mean / (2 + choices.below(20)),
        _ => 1 + choices.below(900),
    };
    let block = (about.clamp(1, size)..=size)
        .find(|block| size % block == 0)
        .unwrap_or(size);
    let gap = 1 + choices.below(70) as i64;
    let byte = Datatype::named(Named::Byte);
    let blocks = byte
        .vector(size / block, block, block as i64 + gap)
        .unwrap();
    let blocks = Layout::new(&blocks, 1).unwrap();
    let flat = |i: usize| i + i / block as usize * gap as usize;
    let origin = 3 - low as isize;
    let user = pattern((high - low) as usize + 9, 3);
    let other = pattern(flat(size as usize - 1) + 12, 5);
    let (mut wanted, mut result) = (other.clone(), other.clone());
    for (i, &at) in places.iter().enumerate() {
        wanted[2 + flat(i)] = user[(at + origin as i64) as usize];
    }
    let from = user.as_ptr().wrapping_offset(origin);
    // SAFETY: the oracle says that all bytes of the layout lie within the vector; the blocks do.
    unsafe { layout.copy_raw(from, &blocks, result.as_mut_ptr().add(2)) };
    prop_assert!(
        result == wanted,
        "{} to {block} + {gap}",
        datatype.expression()
    );
    let (mut wanted, mut result) = (user.clone(), user);
    for (i, &at) in places.iter().enumerate() {
        wanted[(at + origin as i64) as usize] = other[2 + flat(i)];
    }
    places.sort_unstable();
    if places.windows(2).any(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    let target = result.as_mut_ptr().wrapping_offset(origin);
    // SAFETY: as above.
    unsafe { blocks.copy_raw(other.as_ptr().add(2), &layout, target) };
    prop_assert!(
        result == wanted,
        "{block} + {gap} to {}",
        datatype.expression()
    );
    Ok(())
}

proptest! {
    // Each of them is as much as hundreds of small ones.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.div_ceil(8),
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_large_copies_agree_with_their_type_maps(
        list in prop::collection::vec(any::<u16>(), 0..160)
    ) {
        copying_much(&mut Choices::new(&list))?;
    }
}

/// Copies that are too large for the random ones: transpositions in tiles and in two steps, blocks
/// that end at different places on both sides, long pieces on one side.
#[test]
fn large_copies_are_packing_and_unpacking() {
    let columns = |n: u64| {
        format!(
            "contiguous({n},resized(0,16,vector({n},1,{},contiguous(2,double))))",
            2 * n
        )
    };
    let pairs = [
        (columns(96), "vector(288,64,65,double)".to_owned()),
        (columns(288), "vector(2592,64,65,double)".to_owned()),
        (columns(288), "contiguous(165888,double)".to_owned()),
        (
            "vector(2400,20,30,double)".to_owned(),
            "vector(750,64,65,double)".to_owned(),
        ),
        (
            "vector(70,20,30,double)".to_owned(),
            "vector(175,8,9,double)".to_owned(),
        ),
        (
            "vector(6,8192,8200,double)".to_owned(),
            "vector(49152,1,2,double)".to_owned(),
        ),
    ];
    for (a, b) in pairs {
        for (from, to) in [(&a, &b), (&b, &a)] {
            let layout = |text: &str| Layout::new(&text.parse::<Datatype>().unwrap(), 1).unwrap();
            let (source, target) = (layout(from), layout(to));
            let buffer = pattern(source.bounds().end as usize, 1);
            let mut packed = vec![0; source.size() as usize];
            source.pack(&buffer, 0, &mut packed).unwrap();
            let mut expected = pattern(target.bounds().end as usize, 2);
            let mut result = expected.clone();
            target.unpack(&packed, &mut expected, 0).unwrap();
            source.copy(&buffer, 0, &target, &mut result, 0).unwrap();
            assert!(result == expected, "{from} to {to}");
        }
    }
}
