// SPDX-License-Identifier: MIT OR Apache-2.0

//! Derived datatypes against a naive interpreter of type maps, over random type trees.
//!
//! `PROPTEST_CASES=10000000 cargo test --release -p libcopy-datatype --test datatype -- random` is
//! the long run; the default is short.

mod equal;
mod feed;
mod fuzz;
mod generate;
mod oracle;
mod variants;

use generate::{Choices, build, counted, shifted, tree};
use libcopy_datatype::{
    Blocks, Checkpoints, Cursor, Datatype, Elements, InstructionSet, Layout, Named, Places, Segment,
};
use oracle::{Map, Tree, map};
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
    let (description, one, count) = counted(choices);
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
        overlap(self.bytes.iter().map(|&byte| self.at(byte)), self.buffer)
    }
}

/// Whether two of the places below `end` are the same.
fn overlap(mut places: impl Iterator<Item = usize>, end: usize) -> bool {
    let mut taken = vec![false; end];
    places.any(|at| std::mem::replace(&mut taken[at], true))
}

/// Bytes that tell places apart.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = vec![0; len];
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&shifted(&mut state).to_be_bytes()[..word.len()]);
    }
    bytes
}

fn check(choices: &mut Choices) -> Result<(), TestCaseError> {
    let case = case(choices);
    facts(&case)?;
    choices.go_on();
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
    let elements = Elements::new(datatype, 1).unwrap();
    let elements = elements.map(|(e, at)| (at, i64::from(e.size)));
    prop_assert!(elements.eq(one.entries.iter().copied()));
    elements_in(datatype, one)?;
    let (low, high) = match (case.bytes.iter().min(), case.bytes.iter().max()) {
        (Some(low), Some(high)) => (*low, high + 1),
        _ => (0, 0),
    };
    prop_assert_eq!(case.layout.bounds(), low..high);
    Ok(())
}

/// Basic elements in the first bytes of two elements: every number of bytes, or some hundred.
fn elements_in(datatype: &Datatype, one: &Map) -> Result<(), TestCaseError> {
    const MOST: usize = 300;
    let mut ends = vec![0];
    for (_, len) in one.entries.iter().chain(&one.entries) {
        ends.push(ends[ends.len() - 1] + *len as u64);
    }
    let all = 0..=ends[ends.len() - 1];
    let some = all.step_by(1 + 2 * one.size() as usize / MOST);
    for bytes in some.chain(ends.iter().copied().step_by(1 + ends.len() / MOST)) {
        let elements = ends.binary_search(&bytes).ok().map(|i| i as u64);
        prop_assert_eq!(datatype.elements_in(bytes), elements);
    }
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
    let packed = pattern(case.bytes.len(), 2);
    let blank = pattern(case.buffer, 3);
    let mut expected = blank.clone();
    // Where pieces overlap, the last one in the type map wins.
    for (&at, &byte) in case.bytes.iter().zip(&packed) {
        expected[case.at(at)] = byte;
    }
    let mut buffer = blank.clone();
    case.layout
        .unpack(&packed, &mut buffer, case.origin)
        .unwrap();
    prop_assert_eq!(&buffer, &expected);
    // By ranges in ascending order; in any order, if no byte belongs to two.
    let mut buffer = blank.clone();
    let mut parts = cuts(packed.len(), choices);
    parts.sort_unstable();
    for (low, high) in parts {
        let part = &packed[low..high];
        case.layout
            .unpack_range(part, low as u64, &mut buffer, case.origin)
            .unwrap();
    }
    prop_assert_eq!(&buffer, &expected);
    let is_disjoint = case.layout.form().is_disjoint();
    prop_assert!(!(is_disjoint && case.overlaps()));
    if case.overlaps() {
        return Ok(());
    }
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
    let mut bytes = Follow(&case.bytes);
    let mut found = 0;
    for segment in case.layout.segments() {
        prop_assert!(bytes.by(segment), "segment {found} is {segment:?}");
        found += 1;
    }
    prop_assert_eq!(found, count);
    prop_assert!(bytes.0.is_empty());
    let lens = case.layout.segments().map(|segment| segment.len);
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let lengths = (lens.clone().min().unwrap_or(0), lens.fold(0, gcd));
    prop_assert_eq!(case.layout.segment_lengths(), lengths);
    // Bytes in a row without a gap are one segment, however they were described.
    let gaps = case.bytes.windows(2).filter(|pair| pair[0] + 1 != pair[1]);
    let runs = gaps.count() as u64 + u64::from(!case.bytes.is_empty());
    prop_assert_eq!(count, runs);
    let mut pieces = case.layout.cursor();
    for segment in case.layout.segments() {
        prop_assert_eq!(pieces.next_segment(u64::MAX), Some(segment));
    }
    prop_assert!(pieces.next_segment(1).is_none());
    let mut listed = Vec::new();
    let mut cursor = case.layout.cursor();
    cursor.segments(u64::MAX, |segment| listed.push(segment));
    prop_assert!(listed.iter().copied().eq(case.layout.segments()));
    prop_assert_eq!(cursor.remaining(), 0);
    prop_assert!(case.layout.segment(count).is_none());
    for _ in 0..3 {
        // Where a segment begins is known from those before it.
        let k = choices.below(count.max(1));
        let at = case
            .layout
            .segments()
            .take(k as usize)
            .map(|s| s.len)
            .sum::<u64>();
        let mut bytes = Follow(&case.bytes[at as usize..]);
        let alone = case.layout.segment(k);
        prop_assert_eq!(alone.is_some(), k < count);
        if let Some(alone) = alone {
            let skip = choices.below(alone.len);
            prop_assert_eq!(case.layout.segment_at(at + skip), Some((k, skip)));
        }
        prop_assert!(alone.is_none_or(|alone| bytes.by(alone)));
    }
    let mut batch = vec![Segment::default(); 1 + choices.below(40) as usize];
    let mut cursor = case.layout.cursor();
    let mut bytes = Follow(&case.bytes);
    loop {
        let n = cursor.fill(&mut batch);
        prop_assert!(batch[..n].iter().all(|&segment| bytes.by(segment)));
        if n < batch.len() {
            break;
        }
    }
    prop_assert!(bytes.0.is_empty());
    Ok(())
}

/// The oracle's bytes that segments have not named yet.
struct Follow<'a>(&'a [i64]);

impl Follow<'_> {
    /// Whether the segment is what comes next, and not empty.
    fn by(&mut self, segment: Segment) -> bool {
        let Some((bytes, rest)) = self.0.split_at_checked(segment.len as usize) else {
            return false;
        };
        self.0 = rest;
        !bytes.is_empty() && (segment.offset..).zip(bytes).all(|(at, &byte)| at == byte)
    }
}

/// The blocks of a cursor are what comes next.
fn blocks(cursor: &Cursor, mut bytes: Follow<'_>) -> Result<(), TestCaseError> {
    let Some(Blocks {
        offset,
        len,
        places,
    }) = cursor.blocks()
    else {
        return Ok(());
    };
    let starts: Vec<i64> = match places {
        Places::Stride(count, stride) => (0..count as i64).map(|index| index * stride).collect(),
        Places::List(list) => list.iter().map(|at| i64::from(*at)).collect(),
    };
    prop_assert_eq!(starts.len() as u64, places.count());
    prop_assert!(!starts.is_empty());
    for start in starts {
        let block = Segment {
            offset: offset + start,
            len,
        };
        prop_assert!(bytes.by(block), "{block:?} of {places:?}");
    }
    Ok(())
}

/// Cursors and checkpoints at random positions continue as the oracle's list does.
fn cursors(case: &Case, choices: &mut Choices) -> Result<(), TestCaseError> {
    let size = case.layout.size();
    let interval = 1 + choices.below(300) * (1 + size / 1024);
    let checkpoints = Checkpoints::new(&case.layout, interval).unwrap();
    let mut cursor = case.layout.cursor();
    prop_assert!(cursor.seek(size + 1).is_err());
    for _ in 0..4 {
        let position = choices.below(size + 1);
        cursor.seek(position).unwrap();
        let mut other = checkpoints.cursor(position).unwrap();
        prop_assert_eq!(other.position(), position);
        blocks(&cursor, Follow(&case.bytes[position as usize..]))?;
        let (most, mut listed) = (choices.below(200), Vec::new());
        let (mut at_once, mut one_by_one) = (cursor.clone(), cursor.clone());
        at_once.segments(most, |segment| listed.push(segment));
        let mut bytes = 0;
        for segment in listed {
            prop_assert_eq!(one_by_one.next_segment(most - bytes), Some(segment));
            bytes += segment.len;
        }
        prop_assert_eq!(bytes, most.min(size - position));
        prop_assert_eq!(at_once.position(), position + bytes);
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
    let low = places.iter().min().copied().unwrap_or(0);
    let high = places.iter().max().copied().unwrap_or(0);
    let reach = (high - low) as usize + 9;
    if reach > 64 << 20 {
        return Ok(());
    }
    let origin = 3 - low as isize;
    let mut result = pattern(reach, 7);
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
    /// One case in 32 is a copy of many elements, which takes as long as ten of the others.
    #[test]
    fn random_types_agree_with_their_type_maps(
        list in prop::collection::vec(any::<u16>(), 20..160)
    ) {
        InstructionSet::ALL[list.len() % 3].0.limit();
        let mut choices = Choices::new(&list);
        match choices.below(32) {
            31 => copying_much(&mut choices)?,
            _ => check(&mut choices)?,
        }
    }
}

/// Copies of enough elements that blocks on one side are filled or emptied one after the other,
/// against the oracle's places.
fn copying_much(choices: &mut Choices) -> Result<(), TestCaseError> {
    let depth = 1 + choices.below(4) as u32;
    let (description, one) = tree(choices, depth, 40);
    let datatype = build(&description).unwrap();
    let Some(count) = (64_u64 << 10).checked_div(datatype.size()) else {
        return Ok(());
    };
    // Nine times as much, and far apart, now and then: it takes as many times as long.
    let count = (count + 1) * (1 + 8 * (choices.below(4) / 3));
    let farthest = if choices.below(8) == 7 {
        32 << 20
    } else {
        4 << 20
    };
    let size = count * datatype.size();
    let bounds = one.true_bounds();
    let last = (count as i64 - 1) * one.extent();
    let (low, high) = (bounds.0 + last.min(0), bounds.1 + last.max(0));
    if high - low > farthest {
        return Ok(());
    }
    let origin = 3 - low as isize;
    let elements = || {
        (0..count as i64).flat_map(|i| {
            let base = i * one.extent() + origin as i64;
            let place = move |e: &(i64, i64)| ((base + e.0) as usize, e.1 as usize);
            one.entries.iter().map(place)
        })
    };
    let layout = Layout::new(&datatype, count).unwrap();
    // Blocks of about as many bytes as the pieces have, of a fraction, or of a multiple.
    let mean = (size / layout.segment_count()).max(1);
    let about = match choices.below(4) {
        0 => mean,
        1 => mean * (2 + choices.below(20)) + choices.below(9),
        2 => mean / (2 + choices.below(20)),
        _ => 1 + choices.below(900),
    };
    let block = divisor(size, about.clamp(1, size));
    let gap = 1 + choices.below(70) as usize;
    let byte = Datatype::named(Named::Byte);
    let blocks = byte
        .vector(size / block, block, (block + gap as u64) as i64)
        .unwrap();
    let blocks = Layout::new(&blocks, 1).unwrap();
    let block = block as usize;
    // Calls with the places of each part of an element on both sides, and its length.
    let each = |part: &mut dyn FnMut(usize, usize, usize)| {
        let (mut there, mut left) = (2, block);
        for (mut here, mut len) in elements() {
            while len > 0 {
                let n = len.min(left);
                part(here, there, n);
                (here, len) = (here + n, len - n);
                (there, left) = (there + n, left - n);
                if left == 0 {
                    (there, left) = (there + gap, block);
                }
            }
        }
    };
    let user = pattern((high - low) as usize + 9, 3);
    let other = pattern(size as usize / block * (block + gap) + 12, 5);
    let (mut wanted, mut result) = (other.clone(), other.clone());
    each(&mut |here, there, n| {
        wanted[there..there + n].copy_from_slice(&user[here..here + n]);
    });
    let from = user.as_ptr().wrapping_offset(origin);
    // SAFETY: the oracle says that all bytes of the layout lie within the vector; the blocks do.
    unsafe { layout.copy_raw(from, &blocks, result.as_mut_ptr().add(2)) };
    prop_assert!(
        result == wanted,
        "{} to {block} + {gap}",
        datatype.expression()
    );
    let (mut wanted, mut result) = (user.clone(), user);
    each(&mut |here, there, n| {
        wanted[here..here + n].copy_from_slice(&other[there..there + n]);
    });
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

/// The smallest divisor of `n` that is not below `least`, which is not above `n`.
fn divisor(n: u64, least: u64) -> u64 {
    (1..)
        .take_while(|d| d * d <= n)
        .filter(|d| n % d == 0)
        .flat_map(|d| [d, n / d])
        .filter(|d| *d >= least)
        .min()
        .unwrap_or(n)
}

proptest! {
    // Few of them are among the cases above unless those are very many.
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn copies_of_many_elements_agree_with_their_type_maps(
        list in prop::collection::vec(any::<u16>(), 20..160)
    ) {
        InstructionSet::ALL[list.len() % 3].0.limit();
        copying_much(&mut Choices::new(&list))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Lists of blocks of all lengths, for each set of instructions: ascending, descending and in
    /// any order, with and without blocks that share bytes.
    #[test]
    fn irregular_lists_agree_with_their_type_maps(
        seed in any::<u64>(),
        count in 33usize..1500,
        unit in prop::sample::select(vec![1u64, 2, 4, 8, 12]),
        longest in 2u64..40,
        gap in -1i64..4,
        order in 0..3,
    ) {
        let mut state = seed | 1;
        let mut below = |bound: u64| (shifted(&mut state) >> 32) % bound;
        let mut end = 0;
        let mut blocks: Vec<(u64, i64)> = (0..count)
            .map(|_| {
                let (length, at) = (1 + below(longest), end);
                end = (at + length as i64 + gap).max(0);
                (length, at)
            })
            .collect();
        match order {
            0 => {}
            1 => blocks.reverse(),
            _ => (0..count).for_each(|i| blocks.swap(i, below(count as u64) as usize)),
        }
        let element = Tree::Contiguous(unit, Box::new(Tree::Named(Named::Uint8)));
        let tree = Tree::Indexed(blocks, Box::new(element));
        let (datatype, one) = (build(&tree).unwrap(), map(&tree));
        let (low, high) = one.true_bounds();
        for (set, _) in InstructionSet::ALL {
            set.limit();
            let case = Case {
                datatype: datatype.clone(),
                layout: Layout::new(&datatype, 1).unwrap(),
                bytes: one.bytes(),
                one: one.clone(),
                buffer: (high - low) as usize + 13,
                origin: 5 - low as isize,
            };
            let mut choices = Choices::new(&[]);
            choices.go_on();
            let buffer = pattern(case.buffer, seed);
            let expected: Vec<u8> = case.bytes.iter().map(|&b| buffer[case.at(b)]).collect();
            packing(&case, &buffer, &expected, &mut choices)?;
            unpacking(&case, &mut choices)?;
            copying(&case, &buffer, &expected, &mut choices)?;
        }
    }
}

/// The random cases are worth their number: types of all sizes are among them, deep ones, and ones
/// that overlap.
#[test]
fn the_mix_has_types_of_all_kinds() {
    let mut state = 1;
    let mut found = [0; 6];
    let cases = 8000;
    for _ in 0..cases {
        let len = shifted(&mut state) >> 32;
        let list: Vec<u16> = (0..20 + len % 140)
            .map(|_| (shifted(&mut state) >> 48) as u16)
            .collect();
        let case = case(&mut Choices::new(&list));
        let segments = case.layout.segment_count();
        let brackets = case.datatype.expression();
        let levels = brackets.bytes().scan(0, |depth, byte| {
            *depth += i32::from(byte == b'(') - i32::from(byte == b')');
            Some(*depth)
        });
        let levels = levels.max().unwrap_or(0);
        let is = [
            case.bytes.is_empty(),
            case.one.entries.len() > 30,
            case.one.entries.len() > 3000,
            case.one.entries.len() > 65_536 || segments > 65_536,
            levels >= 7,
            case.overlaps(),
        ];
        for (sum, is) in found.iter_mut().zip(is) {
            *sum += usize::from(is);
        }
    }
    let [empty, some, many, most, deep, overlapping] = found;
    assert!(empty < cases / 2 && some > cases / 10, "{found:?}");
    assert!(many > 10 && most > 0, "{found:?}");
    assert!(deep > cases / 20 && overlapping > cases / 20, "{found:?}");
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
