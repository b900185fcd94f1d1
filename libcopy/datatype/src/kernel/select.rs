// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which loop copies a nest.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::loop_nest::blocks;
use super::loop_nest::{DIMS, Dim, Nest, SMALL};
use super::order::PieceOrder;
use super::piece::dense;
use super::profile::CpuProfile;
use super::sorted::Moves;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::x86;
use super::{far, long_blocks, short_blocks, transpose};

impl Nest {
    /// `None` if there are too many dimensions. The order of `dims` is the kernel's choice.
    pub(in super::super) fn new(len: usize, dims: &[Dim]) -> Option<Nest> {
        Nest::with(CpuProfile::here(), len, dims)
    }

    /// As [`Nest::new`], for a processor with this profile.
    pub(super) fn with(profile: &CpuProfile, len: usize, dims: &[Dim]) -> Option<Nest> {
        let mut own = [Dim::ONCE; DIMS];
        own.get_mut(..dims.len())?.copy_from_slice(dims);
        let transposed = len <= SMALL && dims.len() > 1;
        let other = if transposed {
            transpose::partner(len, dims)
        } else {
            None
        };
        own.swap(1, other.unwrap_or(1));
        Some(Nest::of(profile, len, own, other.is_some()))
    }

    /// Inlined, because a call of it copies `dims` and the result.
    #[inline]
    fn of(profile: &CpuProfile, len: usize, dims: [Dim; DIMS], transposed: bool) -> Nest {
        let run = if transposed {
            transpose::run
        } else if dims == [Dim::ONCE; DIMS] {
            single
        } else if len > SMALL {
            long_blocks::select(profile, len, &dims)
        } else {
            short_blocks::select(profile, len, &dims)
        };
        Nest { run, len, dims }
    }
}

/// # Safety
///
/// As for [`Nest::run`].
unsafe fn single(to: *mut u8, from: *const u8, nest: &Nest) {
    // SAFETY: the caller's promise.
    unsafe { dense(to, from, nest.len) }
}

/// Copies blocks of `len` bytes along all dimensions, the first one innermost. The order in which
/// it does so is up to it, and so are the dimensions afterwards.
///
/// # Safety
///
/// As for [`Nest::run`].
pub(in super::super) unsafe fn nest(to: *mut u8, from: *const u8, len: usize, dims: &mut [Dim]) {
    if dims.is_empty() {
        // SAFETY: the caller's promise.
        return unsafe { dense(to, from, len) };
    }
    if let Some(nest) = Nest::new(len, dims) {
        // SAFETY: the caller's promise.
        return unsafe { nest.run(to, from) };
    }
    let other = if len <= SMALL {
        transpose::partner(len, dims)
    } else {
        None
    };
    dims.swap(1, other.unwrap_or(1));
    let (inner, rest) = dims.split_at(DIMS);
    let mut own = [Dim::ONCE; DIMS];
    own.copy_from_slice(inner);
    let inner = Nest::of(CpuProfile::here(), len, own, other.is_some());
    // SAFETY: each call is for a part of the nest, each part once.
    odometer(to, from, rest, |to, from| unsafe { inner.run(to, from) });
}

/// Whether [`nest`] runs a transposition.
fn transposes(len: usize, dims: &[Dim]) -> bool {
    dims.len() > 1 && len <= SMALL && transpose::partner(len, dims).is_some()
}

/// Whether it does that block by block.
pub(in super::super) fn transposes_blocks(len: usize, dims: &[Dim]) -> bool {
    if dims.len() < 2 || len > SMALL {
        return false;
    }
    match transpose::partner(len, dims) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Some(other) => !x86::transposes(len, dims[0], dims[other]),
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        Some(_) => true,
        None => false,
    }
}

/// Which loop [`nest`] runs, for a person.
pub(in super::super) fn name(len: usize, dims: &[Dim]) -> String {
    if dims.is_empty() {
        return "memcpy".to_owned();
    }
    if transposes(len, dims) {
        return "transposed in tiles".to_owned();
    }
    let profile = CpuProfile::here();
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let vectors = x86::name(profile, len, blocks(dims).saturating_mul(len));
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let vectors: Option<&str> = None;
    match vectors {
        Some(name) => name.to_owned(),
        None if len > 2 * SMALL => "memcpy each".to_owned(),
        None if far::writes_few(profile, len, dims)
            || far::asks_ahead(profile, dims) && far::waits(profile, dims) =>
        {
            format!("a loop for {len} bytes, a few lines at a time")
        }
        None if far::asks_ahead(profile, dims) => {
            format!("a loop for {len} bytes with prefetch")
        }
        None => format!("a loop for {len} bytes"),
    }
}

/// Which loop [`pieces`] runs, for a person.
pub(in super::super) fn name_of_pieces(order: Option<&PieceOrder>, n: usize) -> &'static str {
    order.map_or_else(|| Moves::of_list(n).name(), PieceOrder::name)
}

/// Calls `kernel` for every combination of indices of `dims`, the first one fastest.
fn odometer(
    to: *mut u8,
    from: *const u8,
    dims: &[Dim],
    mut kernel: impl FnMut(*mut u8, *const u8),
) {
    let [faster @ .., slowest] = dims else {
        return kernel(to, from);
    };
    let (mut to, mut from) = (to, from);
    for _ in 0..slowest.count {
        if let [a] = faster {
            let (mut to, mut from) = (to, from);
            for _ in 0..a.count {
                kernel(to, from);
                to = to.wrapping_offset(a.to);
                from = from.wrapping_offset(a.from);
            }
        } else {
            // As deep as there are dimensions, which is bounded by the caller's array.
            odometer(
                to,
                from,
                faster,
                &mut kernel as &mut dyn FnMut(*mut u8, *const u8),
            );
        }
        to = to.wrapping_offset(slowest.to);
        from = from.wrapping_offset(slowest.from);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::offsets::Offsets;
    use super::super::indexed::{pieces_by, scattered};
    use super::super::instructions::{InstructionSet, has_512};
    use super::super::sorted::Sorted;
    use super::*;

    /// Runs a test for each set of instructions that the processor has.
    fn with_each_set(test: impl Fn()) {
        for (set, _) in InstructionSet::ALL {
            if set.limit() == set {
                test();
            }
        }
    }

    /// Copies a nest block by block, to compare with.
    fn by_block(
        to: &mut [u8],
        start: usize,
        from: &[u8],
        begin: usize,
        len: usize,
        dims: [Dim; 3],
    ) {
        let [a, b, c] = dims;
        for k in 0..c.count as isize {
            for j in 0..b.count as isize {
                for i in 0..a.count as isize {
                    let to_at = (start as isize + i * a.to + j * b.to + k * c.to) as usize;
                    let from_at = (begin as isize + i * a.from + j * b.from + k * c.from) as usize;
                    to[to_at..to_at + len].copy_from_slice(&from[from_at..from_at + len]);
                }
            }
        }
    }

    /// Strides of rows with `gap` bytes between blocks, rows and planes; all dense if it is 0.
    fn strides(len: usize, counts: [usize; 3], gap: isize) -> [isize; 3] {
        let a = len as isize + gap;
        let b = a * counts[0] as isize + 3 * gap;
        [a, b, b * counts[1] as isize + 5 * gap]
    }

    fn compare(len: usize, counts: [usize; 3], gap: isize) {
        // Places that are no line's start, of blocks that cross lines and of those that do not.
        for places in [(7, 3), (32, 48)] {
            compare_at(places, len, counts, gap);
        }
    }

    fn compare_at(places: (usize, usize), len: usize, counts: [usize; 3], gap: isize) {
        compare_for(CpuProfile::here(), places, len, counts, gap);
    }

    fn compare_for(
        profile: &CpuProfile,
        (start, begin): (usize, usize),
        len: usize,
        counts: [usize; 3],
        gap: isize,
    ) {
        let (apart, dense) = (strides(len, counts, gap), strides(len, counts, 0));
        let reach = |strides: [isize; 3]| {
            let last: isize = (0..3).map(|d| strides[d] * (counts[d] as isize - 1)).sum();
            last as usize + len
        };
        for (to, from) in [(dense, apart), (apart, dense), (apart, apart)] {
            let dims = [0, 1, 2].map(|d| Dim {
                count: counts[d],
                to: to[d],
                from: from[d],
            });
            // Exactly as long as they must be.
            let some: Vec<u8> = (0..251).map(|i| (i * 167 / 5) as u8).collect();
            let mut source = some.repeat(reach(from) / some.len() + 1);
            source.truncate(reach(from) + begin);
            source.resize(reach(from) + begin, 0x5a);
            let mut target = vec![0xa5; start + reach(to) + 6];
            let mut expected = target.clone();
            by_block(&mut expected, start, &source, begin, len, dims);
            let used = 3 - dims.iter().rev().take_while(|dim| dim.count == 1).count();
            let nest = Nest::with(profile, len, &dims[..used]).unwrap();
            // SAFETY: both buffers hold all blocks.
            unsafe { nest.run(target.as_mut_ptr().add(start), source.as_ptr().add(begin)) };
            assert!(target == expected, "{len} {counts:?} {gap} {dims:?}");
        }
    }

    #[test]
    fn every_other_block_is_copied_wherever_lines_begin() {
        with_each_set(|| {
            for len in [4, 8, 16] {
                for count in if cfg!(miri) { 8..12 } else { 8..90 } {
                    for start in (0..80).step_by(if cfg!(miri) { 28 } else { 4 }) {
                        compare_at((start, start / 2), len, [count, 2, 1], len as isize);
                    }
                }
            }
        });
    }

    #[test]
    fn every_length_is_copied_whole_and_nothing_else() {
        with_each_set(|| {
            // Miri takes a thousand times as long.
            let lengths: Vec<usize> = if cfg!(miri) {
                vec![1, 2, 3, 5, 8, 12, 17, 31, 32, 47, 64, 65, 100, 128, 129]
            } else {
                (1..=700).collect()
            };
            for len in lengths {
                for (counts, gap) in [
                    ([1, 1, 1], 0),
                    ([3, 1, 1], 1),
                    ([4, 1, 1], 7),
                    ([5, 3, 2], 24),
                    ([9, 2, 1], 100),
                ] {
                    compare(len, counts, gap);
                }
            }
            let (lengths, many): (&[usize], _) = if cfg!(miri) {
                (&[8], 1030)
            } else {
                (&[1, 4, 7, 8, 12, 16, 24, 40], 1500)
            };
            for &len in lengths {
                for gap in [1, 4, 8, 16, 600] {
                    let far = gap == 600 || !cfg!(miri);
                    compare(len, [if far { many } else { 20 }, 1, 1], gap);
                    // Rows of which the next is asked for, and rows that are transposed.
                    compare(len, [37, if far { 30 } else { 3 }, 1], gap);
                }
            }
        });
    }

    /// Each way to read them, by how many there are.
    #[test]
    #[cfg_attr(miri, ignore = "too much for it")]
    fn strides_of_powers_of_two_are_no_exception() {
        with_each_set(|| {
            for len in [1, 3, 8, 24] {
                compare(len, [1700, 1, 1], 1024 - len as isize);
            }
            compare(8, [40, 50, 1], 248);
        });
        // With all instructions: it takes a while.
        for len in [1, 3, 8, 24] {
            compare(len, [70_000, 1, 1], 1024 - len as isize);
        }
    }

    #[test]
    fn listed_blocks_are_moved_whole_and_nothing_else() {
        with_each_set(|| {
            // Long lists ask for later places.
            let counts: &[usize] = if cfg!(miri) {
                &[8]
            } else {
                &[1, 7, 8, 9, 10, 11, 12, 40, 1100, 1101]
            };
            for len in 1..=40usize {
                for &n in counts {
                    let apart = len + 1 + n % 3;
                    let place = |i: usize| (i * 7919 % n) * apart;
                    let offsets: Vec<i32> = (0..n).map(|i| place(i) as i32).collect();
                    let reach = (n - 1) * apart + len;
                    let user: Vec<u8> = (0..reach).map(|i| (i * 167 / 5) as u8).collect();
                    let mut packed = vec![0x5a; n * len + 3];
                    let mut other = vec![0xa5; reach];
                    let mut expected = (packed.clone(), other.clone());
                    for i in 0..n {
                        let (at, to) = (place(i), i * len);
                        expected.0[to..to + len].copy_from_slice(&user[at..at + len]);
                        expected.1[at..at + len].copy_from_slice(&user[at..at + len]);
                    }
                    let list = Offsets::Narrow(offsets.into());
                    let source = user.as_ptr().cast_mut();
                    // SAFETY: all blocks lie in the buffers; what is packed is only read.
                    unsafe {
                        scattered::<true>(source, &list, (0, n), packed.as_mut_ptr(), len);
                        scattered::<false>(
                            other.as_mut_ptr(),
                            &list,
                            (0, n),
                            packed.as_mut_ptr(),
                            len,
                        );
                    }
                    assert!(packed == expected.0, "pack {n} of {len}");
                    assert!(other == expected.1, "unpack {n} of {len}");
                }
            }
        });
    }

    /// Moves pieces of these lengths at these places, whole and in parts, in both directions; where
    /// they overlap, the last one wins.
    fn compare_pieces(places: &[i64], lens: &[usize], reach: usize) {
        let n = places.len();
        let mut ends = vec![0i64];
        lens.iter()
            .for_each(|len| ends.push(ends[ends.len() - 1] + *len as i64));
        let user: Vec<u8> = (0..reach).map(|i| (i * 167 / 5) as u8).collect();
        let mut packed = vec![0x5a; ends[n] as usize];
        // What is unpacked is not what was packed, so that pieces that overlap differ there.
        let stream: Vec<u8> = (0..packed.len()).map(|i| (i * 131 / 3) as u8).collect();
        let mut other = vec![0xa5; reach];
        let mut expected = (packed.clone(), other.clone());
        for i in 0..n {
            let (at, to) = (places[i] as usize, ends[i] as usize);
            expected.0[to..to + lens[i]].copy_from_slice(&user[at..at + lens[i]]);
            expected.1[at..at + lens[i]].copy_from_slice(&stream[to..to + lens[i]]);
        }
        let narrow = |list: &[i64]| {
            Offsets::Narrow(list.iter().map(|&at| at as i32).collect::<Vec<_>>().into())
        };
        let wide = |list: &[i64]| Offsets::Wide(list.to_vec().into());
        let widths = [
            (narrow(places), narrow(&ends)),
            (wide(places), narrow(&ends)),
            (narrow(places), wide(&ends)),
            (wide(places), wide(&ends)),
        ];
        // Megabytes take a while.
        let widths = if n > 10_000 { &widths[..1] } else { &widths };
        for (offsets, starts) in widths {
            let lists = (offsets, starts);
            let sorted = Sorted::of_lists(offsets, starts).unwrap();
            let mut ways = vec![
                (Some(&sorted), Moves::Overlapping),
                (None, Moves::Overlapping),
            ];
            if has_512() {
                ways.push((None, Moves::Masks));
            }
            // Whole, and cut where no batch ends.
            for (way, part) in ways
                .into_iter()
                .flat_map(|way| [(way, n), (way, n / 3 + 1)])
            {
                packed.fill(0x5a);
                other.fill(0xa5);
                for first in (0..n).step_by(part) {
                    let range = (first, n.min(first + part));
                    let start = ends[first] as usize;
                    // SAFETY: all pieces lie in the buffers; what is packed is only read.
                    unsafe {
                        let to = packed.as_mut_ptr().add(start);
                        pieces_by::<true>(user.as_ptr().cast_mut(), lists, range, to, way);
                        let from = stream.as_ptr().add(start).cast_mut();
                        pieces_by::<false>(other.as_mut_ptr(), lists, range, from, way);
                    }
                }
                assert!(packed == expected.0, "pack {n} by {part}");
                assert!(other == expected.1, "unpack {n} by {part}");
            }
        }
    }

    /// Pieces of all lengths; from memory, later ones are asked for.
    #[test]
    #[cfg_attr(miri, ignore = "too much for it")]
    fn listed_pieces_are_moved_whole_and_nothing_else() {
        with_each_set(|| {
            for (n, longest) in [
                (1, 9),
                (15, 90),
                (16, 90),
                (17, 40),
                (64, 3),
                (129, 300),
                (3000, 70),
                (9000, 700),
                (60_000, 900),
            ] {
                let lens: Vec<usize> = (0..n).map(|i| 1 + i * 7919 % longest).collect();
                let mut at = 0;
                let ascending: Vec<i64> = lens
                    .iter()
                    .enumerate()
                    .map(|(i, len)| {
                        at += len + i % 3;
                        (at - len) as i64
                    })
                    .collect();
                compare_pieces(&ascending, &lens, at);
                // The same pieces in the opposite order.
                let (mut places, mut lens) = (ascending, lens);
                places.reverse();
                lens.reverse();
                compare_pieces(&places, &lens, at);
            }
        });
    }

    /// Pieces of which some share bytes, in any order.
    #[test]
    #[cfg_attr(miri, ignore = "too much for it")]
    fn listed_pieces_that_overlap_are_written_in_order() {
        with_each_set(|| {
            for (n, longest, apart) in [(64, 9, 4), (300, 70, 20), (700, 150, 90), (500, 40, 39)] {
                let lens: Vec<usize> = (0..n).map(|i| 1 + i * 7919 % longest).collect();
                let ascending: Vec<i64> = (0..n).map(|i| (i * apart) as i64).collect();
                let shuffled: Vec<i64> = (0..n).map(|i| (i * 7919 % n * apart) as i64).collect();
                for places in [ascending, shuffled] {
                    compare_pieces(&places, &lens, n * apart + longest);
                }
            }
        });
    }

    /// Source and target dense along different dimensions.
    #[test]
    fn transposed_blocks_arrive_where_they_belong() {
        with_each_set(|| {
            for len in [1usize, 3, 4, 8, 16, 24, 40] {
                let (rows, columns) = if cfg!(miri) { (9, 5) } else { (70, 37) };
                let source: Vec<u8> = (0..len * rows * columns).map(|i| (i % 251) as u8).collect();
                let unit = len as isize;
                let x = Dim {
                    count: columns,
                    to: unit * rows as isize,
                    from: unit,
                };
                let y = Dim {
                    count: rows,
                    to: unit,
                    from: unit * columns as isize,
                };
                for dims in [[x, y], [y, x]] {
                    let (mut target, mut expected) = (source.clone(), source.clone());
                    by_block(&mut expected, 0, &source, 0, len, [x, y, Dim::ONCE]);
                    let nest = Nest::new(len, &dims).unwrap();
                    // SAFETY: both buffers hold all blocks.
                    unsafe { nest.run(target.as_mut_ptr(), source.as_ptr()) };
                    assert!(target == expected, "{len} {dims:?}");
                }
            }
        });
    }

    /// Whatever a profile says, on whatever processor: each kernel for each class of lengths, level
    /// and flag, as far as this processor has the instructions.
    #[test]
    #[cfg_attr(miri, ignore = "too much for it")]
    fn blocks_are_copied_whole_with_any_profile() {
        use proptest::prelude::*;
        let total = prop_oneof![
            3 => 1usize..20_000,
            3 => 20_000usize..300_000,
            1 => 300_000usize..3_000_000
        ];
        let len = prop_oneof![1usize..70, 33usize..530, 513usize..20_000];
        let gap = prop_oneof![Just(0isize), 1isize..130, Just(-1)];
        let case = (
            any::<u64>(),
            len,
            total,
            gap,
            0usize..70,
            0usize..70,
            1usize..4,
        );
        let config = ProptestConfig {
            cases: 400,
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        proptest!(config, |((seed, len, total, gap, start, begin, rows) in case)| {
            let profile = CpuProfile::random(seed);
            let count = (total / len).max(1);
            // -1: the distance of blocks is a power of two.
            let gap = match gap {
                -1 => {
                    let apart = (len + 400).max(512 << (seed % 4)).next_power_of_two();
                    (apart - len) as isize
                }
                gap => gap,
            };
            let count = count.min((24 << 20) / (len + gap as usize)).max(1);
            let counts = [count.div_ceil(rows), rows, 1];
            compare_for(&profile, (start, begin), len, counts, gap);
        });
    }

    /// Each kernel for long blocks, which are chosen by the total.
    #[test]
    #[cfg_attr(miri, ignore = "too much for it")]
    fn long_blocks_are_copied_by_every_kernel() {
        for len in [
            513, 1024, 1537, 2048, 4095, 4096, 12_288, 12_289, 30_000, 300_000,
        ] {
            for total in [1, 100 << 10, 1 << 20, 3 << 20] {
                let count = (total / len).max(1);
                compare(len, [count, 1, 1], 40);
                compare(len, [count.div_ceil(4), 2, 2], 9);
            }
        }
    }
}
