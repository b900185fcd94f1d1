// SPDX-License-Identifier: MIT OR Apache-2.0

//! Equal layouts, described in different ways, have the same canonical form; and what a form may
//! cost.

use libcopy_datatype::{Datatype, Layout, Named, Order};
use proptest::prelude::*;

/// A box in an array of `int`s: per dimension, the slowest first, size, subsize and start.
fn descriptions(dims: [(u64, u64, u64); 3]) -> Vec<Datatype> {
    let int = Datatype::named(Named::Int);
    let sizes = dims.map(|d| d.0);
    let subsizes = dims.map(|d| d.1);
    let starts = dims.map(|d| d.2);
    let row = 4 * sizes[2] as i64;
    let plane = row * sizes[1] as i64;
    let origin = starts[0] as i64 * plane + starts[1] as i64 * row + 4 * starts[2] as i64;
    let at = |datatype: &Datatype| datatype.hindexed(&[1], &[origin]).unwrap();
    let reversed = |mut list: [u64; 3]| {
        list.reverse();
        list
    };
    let line = int.contiguous(subsizes[2]).unwrap();
    let mut elements = Vec::new();
    let mut rows = Vec::new();
    for i in 0..subsizes[0] as i64 {
        for j in 0..subsizes[1] as i64 {
            rows.push(origin + i * plane + j * row);
            elements.extend((0..subsizes[2] as i64).map(|k| (rows[rows.len() - 1] + 4 * k) / 4));
        }
    }
    let planes: Vec<i64> = (0..subsizes[0] as i64)
        .map(|i| origin + i * plane)
        .collect();
    let face = line.hvector(subsizes[1], 1, row).unwrap();
    let lengths = vec![subsizes[2]; rows.len()];
    vec![
        int.subarray(&sizes, &subsizes, &starts, Order::C).unwrap(),
        int.subarray(
            &reversed(sizes),
            &reversed(subsizes),
            &reversed(starts),
            Order::Fortran,
        )
        .unwrap(),
        at(&face.hvector(subsizes[0], 1, plane).unwrap()),
        at(&face
            .resized(-5, plane)
            .unwrap()
            .contiguous(subsizes[0])
            .unwrap()
            .dup()),
        int.hindexed(&lengths, &rows).unwrap(),
        line.hindexed_block(1, &rows).unwrap(),
        int.indexed_block(1, &elements).unwrap(),
        Datatype::structure(
            &vec![1; planes.len()],
            &planes,
            &vec![face.clone(); planes.len()],
        )
        .unwrap(),
        Datatype::structure(&lengths, &rows, &vec![int.clone(); rows.len()]).unwrap(),
        // Each plane described on its own, so that no two are the same handle.
        Datatype::structure(
            &vec![1; planes.len()],
            &planes,
            &planes
                .iter()
                .map(|_| {
                    int.vector(subsizes[1], subsizes[2], sizes[2] as i64)
                        .unwrap()
                })
                .collect::<Vec<_>>(),
        )
        .unwrap(),
    ]
}

fn dimension() -> impl Strategy<Value = (u64, u64, u64)> {
    (1u64..9, 0u64..4, 0u64..4)
        .prop_map(|(subsize, start, rest)| (subsize + start + rest, subsize, start))
}

proptest! {
    #[test]
    fn a_box_has_one_form(dims in [dimension(), dimension(), dimension()]) {
        let all = descriptions(dims);
        for other in &all[1..] {
            prop_assert_eq!(other.commit(), all[0].commit(), "{:?}", other);
        }
    }

    /// Large lists take a short cut; a struct with a member per block does not.
    #[test]
    fn the_short_cut_for_large_lists_leads_to_the_same_form(
        steps in prop::collection::vec((0u64..4, 0i64..3), 256..600),
        shuffle in any::<bool>(),
        period in 1usize..5,
        run in 1usize..5,
        equal in any::<bool>(),
    ) {
        let double = Datatype::named(Named::Double);
        let mut blocks = Vec::new();
        let mut at = 0;
        for _ in 0..period.saturating_sub(2).max(1) {
            for (i, &(length, gap)) in steps.iter().enumerate() {
                // Runs of equal steps, and lists of equal blocks.
                let (length, gap) = match (i % run, equal) {
                    (0, false) => (length, gap),
                    (0, true) => (2, gap),
                    _ => (2, 1),
                };
                blocks.push((length, at));
                at += length as i64 + gap;
            }
        }
        if shuffle {
            let n = blocks.len();
            for i in 0..n {
                blocks.swap(i, (i * 7919 + 13) % n);
            }
        }
        let (lengths, places): (Vec<u64>, Vec<i64>) = blocks.into_iter().unzip();
        let short = double.indexed(&lengths, &places).unwrap();
        let bytes: Vec<i64> = places.iter().map(|p| 8 * p).collect();
        let children = vec![double.clone(); places.len()];
        let long = Datatype::structure(&lengths, &bytes, &children).unwrap();
        prop_assert_eq!(short.commit(), long.commit());
        if let Some(&length) = lengths.first().filter(|first| lengths.iter().all(|l| l == *first)) {
            let block = double.indexed_block(length, &places).unwrap();
            prop_assert_eq!(block.commit(), long.commit());
        }
        let memory: Vec<u8> = (0..8 * at as usize).map(|i| (i * 31 / 8 + i) as u8).collect();
        let layout = Layout::new(&short, 1).unwrap();
        let mut packed = vec![0; layout.size() as usize];
        layout.pack(&memory, 0, &mut packed).unwrap();
        let mut expected = Vec::new();
        for (&length, &place) in lengths.iter().zip(&bytes) {
            expected.extend(&memory[place as usize..place as usize + 8 * length as usize]);
        }
        prop_assert_eq!(&packed, &expected);
        let mut back = vec![0; memory.len()];
        layout.unpack(&packed, &mut back, 0).unwrap();
        let mut again = vec![0; packed.len()];
        layout.pack(&back, 0, &mut again).unwrap();
        prop_assert_eq!(&again, &packed);
    }
}

#[test]
fn depth_costs_no_stack() {
    let byte = Datatype::named(Named::Byte);
    let mut nested = byte.clone();
    for _ in 0..100_000 {
        nested = Datatype::structure(&[1, 1], &[0, 2], &[byte.clone(), nested]).unwrap();
    }
    assert_eq!(nested.size(), 100_001);
    // Every other byte: one stream, however deep the description.
    assert_eq!(nested.commit().unwrap().nodes().len(), 2);
    let mut wrapped = byte;
    for _ in 0..100_000 {
        wrapped = wrapped.contiguous(1).unwrap().dup();
    }
    assert_eq!(wrapped.commit().unwrap().nodes().len(), 1);
}

#[test]
fn millions_of_segments_take_a_few_words() {
    let byte = Datatype::named(Named::Byte);
    let sizes = [1024, 4096, 2048];
    let part = byte
        .subarray(&sizes, &[1000, 3000, 1000], &[0, 0, 0], Order::C)
        .unwrap();
    assert_eq!(part.commit().unwrap().segments(), 3_000_000);
    assert!(
        part.commit().unwrap().memory() < 1024,
        "{}",
        part.commit().unwrap().memory()
    );
}

#[test]
fn sharing_a_type_does_not_multiply_it() {
    // 2^40 bytes of data, 40 descriptions.
    let mut datatype = Datatype::named(Named::Byte);
    for i in 0..40 {
        let far = 3i64 << i;
        datatype = Datatype::structure(&[1, 1], &[0, far], &[datatype.clone(), datatype]).unwrap();
    }
    assert_eq!(datatype.size(), 1 << 40);
    assert!(datatype.commit().unwrap().memory() < 1 << 16);
}

#[test]
fn overflow_is_an_error_that_names_the_values() {
    let double = Datatype::named(Named::Double);
    let large = double.contiguous(1 << 59).unwrap();
    for error in [
        large.contiguous(4).unwrap_err(),
        double.vector(2, 1, i64::MAX).unwrap_err(),
        double.hindexed(&[1, 1], &[i64::MIN, i64::MAX]).unwrap_err(),
        double.resized(i64::MAX, 1).unwrap_err(),
        double
            .subarray(&[1 << 40, 1 << 40], &[1, 1], &[0, 0], Order::C)
            .unwrap_err(),
    ] {
        assert!(
            error.to_string().chars().any(|c| c.is_ascii_digit()),
            "{error}"
        );
    }
    assert!(double.indexed(&[1, 2], &[0]).is_err());
    assert!(double.subarray(&[4], &[3], &[2], Order::C).is_err());
    assert!(double.darray(4, 4, &[9], &[], &[4], Order::C).is_err());
}

/// Blocks of which few are neighbours are kept as they were described; the stretches that would be
/// cut on the way there are not made, unless they lead elsewhere.
#[test]
fn neighbours_among_equal_blocks_do_not_change_the_form() {
    let double = Datatype::named(Named::Double);
    // Which of 400 blocks follow the one before without a gap.
    let cases: [fn(usize) -> bool; 6] = [
        |i| i % 25 == 7,
        |i| i == 1 || i % 30 == 0,
        |i| (100..120).contains(&i),
        |i| (100..115).contains(&i),
        |i| (100..160).contains(&i) && i % 3 != 0,
        |i| (100..160).contains(&i) && i % 2 == 0,
    ];
    for (case, adjacent) in cases.iter().enumerate() {
        let mut at = 0;
        let places: Vec<i64> = (0..400)
            .map(|i| {
                at += if adjacent(i) {
                    1
                } else {
                    2 + (i * i % 7) as i64
                };
                at
            })
            .collect();
        let bytes: Vec<i64> = places.iter().map(|p| 8 * p).collect();
        let ones = vec![1; places.len()];
        let children = vec![double.clone(); places.len()];
        let long = Datatype::structure(&ones, &bytes, &children).unwrap();
        let block = double.indexed_block(1, &places).unwrap();
        assert_eq!(block.commit(), long.commit(), "{case}");
        let listed = double.indexed(&ones, &places).unwrap();
        assert_eq!(listed.commit(), long.commit(), "{case}");
    }
}

/// Lengths and places of blocks, in elements.
fn blocks(n: usize, mut next: impl FnMut(usize) -> (u64, i64)) -> (Vec<u64>, Vec<i64>) {
    let mut at = 0;
    (0..n)
        .map(|i| {
            let (length, gap) = next(i);
            let place = at;
            at += length as i64 + gap;
            (length, place)
        })
        .unzip()
}

/// Lists of 2^16 pieces and more are looked at as arrays, with rules of their own; a struct of as
/// many members, and shorter children several at a time, come there on other ways.
#[test]
fn long_lists_have_one_form_and_the_right_segments() {
    const N: usize = 70_001;
    let double = Datatype::named(Named::Double);
    let noise = |i: usize| (i * 7919 + i * i % 1013 * 31) % 97;
    let cases: Vec<(&str, Vec<u64>, Vec<i64>)> = [
        ("irregular", blocks(N, |i| (1, 1 + (noise(i) % 9) as i64))),
        (
            "mixed",
            blocks(N, |i| {
                (1 + (noise(i) % 8) as u64, 1 + (noise(i + 3) % 5) as i64)
            }),
        ),
        (
            "empty",
            blocks(2 * N, |i| {
                ((noise(i) % 5) as u64, (noise(i + 1) % 4) as i64)
            }),
        ),
        (
            "neighbours",
            blocks(N, |i| {
                (
                    1,
                    if noise(i) % 10 == 0 {
                        0
                    } else {
                        2 + (noise(i + 7) % 3) as i64
                    },
                )
            }),
        ),
        (
            "all but few neighbours",
            blocks(12 * N, |i| (1, i64::from(i % 11 == 0))),
        ),
        (
            "runs of 3",
            blocks(N, |i| {
                (
                    1,
                    if i % 3 == 2 {
                        9 + (noise(i) % 9) as i64
                    } else {
                        2
                    },
                )
            }),
        ),
        (
            "runs of 40",
            blocks(3 * N, |i| {
                (
                    1,
                    if i % 40 == 9 {
                        9 + (noise(i) % 9) as i64
                    } else {
                        1 + (i as i64 / 40 + 30) % 3
                    },
                )
            }),
        ),
        (
            "runs of runs",
            blocks(9 * N, |i| {
                (
                    1,
                    match i {
                        _ if i % 1000 == 999 => 70 + (noise(i) % 9) as i64,
                        _ if i % 4 == 3 => 5,
                        _ => 1,
                    },
                )
            }),
        ),
        (
            "two units",
            blocks(2 * N, |i| {
                (if i < N { 1 } else { 3 }, 1 + (noise(i) % 4) as i64)
            }),
        ),
        (
            "units in the middle",
            blocks(3 * N, |i| match i {
                _ if !(N..2 * N).contains(&i) => {
                    (1 + (noise(i) % 7) as u64, 1 + (noise(i + 1) % 3) as i64)
                }
                _ => (
                    if noise(i) % 9 == 0 { 4 } else { 2 },
                    1 + (noise(i) % 3) as i64,
                ),
            }),
        ),
        (
            "periodic",
            blocks(100 * 999, |i| {
                (1 + (i % 100 / 60) as u64, (i % 100 % 7) as i64)
            }),
        ),
        (
            "nearly periodic",
            blocks(100 * 999, |i| {
                (
                    1,
                    if i == 99_898 {
                        8
                    } else {
                        1 + (noise(i % 100) % 5) as i64
                    },
                )
            }),
        ),
        (
            "nearly regular",
            blocks(N, |i| (2, if i == N - 2 { 5 } else { 3 })),
        ),
        ("regular", blocks(N, |_| (2, 3))),
        ("dense", blocks(N, |_| (2, 0))),
    ]
    .into_iter()
    .map(|(name, (lengths, places))| (name, lengths, places))
    .collect();
    for (name, lengths, places) in cases {
        // Near, and so far apart that offsets need 64 bits.
        for unit in [8, 8 << 17] {
            let bytes: Vec<i64> = places.iter().map(|at| at * unit - 5 * unit).collect();
            let listed = double.hindexed(&lengths, &bytes).unwrap();
            let mut expected: Vec<(i64, u64)> = Vec::new();
            for (&length, &at) in lengths
                .iter()
                .zip(&bytes)
                .filter(|(length, _)| **length > 0)
            {
                match expected.last_mut() {
                    Some((before, len)) if *before + *len as i64 == at => *len += 8 * length,
                    _ => expected.push((at, 8 * length)),
                }
            }
            let layout = Layout::new(&listed, 1).unwrap();
            let found: Vec<(i64, u64)> = layout.segments().map(|s| (s.offset, s.len)).collect();
            // Pieces that are cut into blocks are several segments.
            let mut joined: Vec<(i64, u64)> = Vec::new();
            for (at, len) in found {
                match joined.last_mut() {
                    Some((before, all)) if *before + *all as i64 == at => *all += len,
                    _ => joined.push((at, len)),
                }
            }
            assert!(joined == expected, "{name}, unit {unit}");
            let memory = listed.commit().unwrap().memory();
            assert!(memory < 2000 + 16 * lengths.len(), "{name}: {memory} bytes");
            let children = vec![double.clone(); lengths.len()];
            let members = Datatype::structure(&lengths, &bytes, &children).unwrap();
            if lengths.len() < 3 * N {
                assert_eq!(members.commit(), listed.commit(), "{name}, unit {unit}");
            }
            if lengths.iter().all(|&length| length == 2) {
                // Two doubles beside each other, but not as a contiguous type.
                let pair = Datatype::structure(&[1, 1], &[0, 8], &[double.clone(), double.clone()]);
                let pairs = pair.unwrap().resized(0, 64).unwrap();
                let pairs = pairs.hindexed_block(1, &bytes).unwrap();
                assert_eq!(pairs.commit(), listed.commit(), "{name}, unit {unit}");
            }
        }
    }
}

/// Children with a gap, each as its pieces.
#[test]
fn a_long_list_of_children_is_that_of_their_pieces() {
    const N: usize = 40_000;
    let int = Datatype::named(Named::Int);
    let places: Vec<i64> = (0..N as i64).map(|i| 40 * i + i * i % 7).collect();
    for (child, pieces) in [
        (int.vector(2, 1, 2).unwrap(), vec![(0, 4), (8, 4)]),
        (
            int.hindexed(&[1, 2, 1], &[0, 8, 20]).unwrap(),
            vec![(0, 4), (8, 8), (20, 4)],
        ),
    ] {
        let child = child.resized(0, 24).unwrap();
        let blocks = child.hindexed_block(1, &places).unwrap();
        let (lengths, all): (Vec<u64>, Vec<i64>) = places
            .iter()
            .flat_map(|at| {
                pieces
                    .iter()
                    .map(move |(offset, len)| (len / 4, at + offset))
            })
            .unzip();
        let listed = int.hindexed(&lengths, &all).unwrap();
        assert_eq!(blocks.commit(), listed.commit());
        let size = listed.size() as usize;
        let memory: Vec<u8> = (0..listed.true_upper_bound() as usize)
            .map(|i| (i * 31 / 8 + i) as u8)
            .collect();
        let mut packed = vec![0; size];
        let layout = Layout::new(&blocks, 1).unwrap();
        layout.pack(&memory, 0, &mut packed).unwrap();
        let mut expected = Vec::with_capacity(size);
        for (&length, &at) in lengths.iter().zip(&all) {
            expected.extend(&memory[at as usize..at as usize + 4 * length as usize]);
        }
        assert!(packed == expected);
        let mut back = vec![0; memory.len()];
        layout.unpack(&packed, &mut back, 0).unwrap();
        let mut again = vec![0; size];
        layout.pack(&back, 0, &mut again).unwrap();
        assert!(again == packed);
    }
}

/// Many different small members are written out as pieces at once; what is left of them is the list
/// of these pieces, also where a member cannot be written out.
#[test]
fn a_struct_of_many_different_members_is_the_list_of_their_pieces() {
    let int = Datatype::named(Named::Int);
    let short = Datatype::named(Named::Short);
    let pair = Datatype::structure(&[1, 1], &[0, 6], &[short.clone(), int.clone()]).unwrap();
    for (n, odd) in [
        (255, false),
        (256, false),
        (3000, false),
        (3000, true),
        (40_000, false),
    ] {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64 ^ n as u64;
        let mut below = |most: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % most
        };
        let (mut lengths, mut places, mut children) = (Vec::new(), Vec::new(), Vec::new());
        let (mut pieces, mut sizes) = (Vec::new(), Vec::new());
        let mut at = -1000i64;
        for i in 0..n {
            let element = if below(2) == 0 { &int } else { &short };
            let child = match below(7) {
                0 => element.clone(),
                1 => element.contiguous(below(4)).unwrap(),
                2 => element
                    .vector(1 + below(4), 1 + below(3), 3 + below(9) as i64)
                    .unwrap(),
                3 => element
                    .vector(1 + below(4), 1, -2 - below(9) as i64)
                    .unwrap(),
                4 => element
                    .hvector(2, 1 + below(2), 16 + below(20) as i64)
                    .unwrap(),
                _ => {
                    let (rows, columns) = (2 + below(5), 2 + below(5));
                    let order = if below(2) == 0 {
                        Order::C
                    } else {
                        Order::Fortran
                    };
                    let (row, column) = (below(rows), below(columns));
                    let size = [(rows - row).min(3), (columns - column).min(2), 2];
                    let array = [rows, columns, 2 + below(2)];
                    element
                        .subarray(&array, &size, &[row, column, 0], order)
                        .unwrap()
                }
            };
            let child = match (below(8), odd && i == n / 2 + 7) {
                (_, true) => pair.clone(),
                (0, _) => child.resized(-4, child.extent() + 10).unwrap(),
                (1, _) => child.dup(),
                _ => child,
            };
            // Some begin where the one before them ends.
            at += below(3) as i64;
            let length = [1, 1, 1, 0, 2][below(5) as usize];
            for segment in Layout::new(&child, length).unwrap().segments() {
                pieces.push(at + segment.offset);
                sizes.push(segment.len);
            }
            lengths.push(length);
            places.push(at);
            at += child.true_extent() * length as i64;
            children.push(child);
        }
        let members = Datatype::structure(&lengths, &places, &children).unwrap();
        let listed = Datatype::named(Named::Byte)
            .hindexed(&sizes, &pieces)
            .unwrap();
        assert_eq!(members.commit(), listed.commit(), "{n} members");
        // Within another type, and as one of several.
        let twice = Datatype::structure(&[1, 1], &[0, 7 * at], &[members.clone(), int.clone()]);
        let other = Datatype::structure(&[1, 1], &[0, 7 * at], &[listed, int.clone()]);
        assert_eq!(
            twice.unwrap().commit(),
            other.unwrap().commit(),
            "{n} members"
        );
    }
}

/// Members that are equal, or dense however long they are, each a type of its own.
#[test]
fn a_struct_of_many_equal_or_dense_members_is_the_list_of_their_pieces() {
    let double = Datatype::named(Named::Double);
    type Member = fn(&Datatype, u64) -> libcopy_datatype::Result<Datatype>;
    let kinds: [(&str, Member); 6] = [
        ("rows", |double, i| {
            double.subarray(&[10, 80], &[1 + i % 7 % 4, 80], &[i % 5, 0], Order::C)
        }),
        ("equal rows", |double, i| {
            double.subarray(&[10, 8], &[3, 8], &[i * i % 7, 0], Order::C)
        }),
        ("equal boxes of rows", |double, i| {
            double.subarray(&[10, 8], &[3, 2], &[i * i % 7, i % 6], Order::C)
        }),
        ("equal pairs", |double, i| {
            double.subarray(&[10, 8], &[2, 3], &[i * i % 8, i % 5], Order::C)
        }),
        ("even boxes", |double, _| {
            double.subarray(&[10, 8], &[3, 2], &[1, 2], Order::C)
        }),
        ("even rows", |double, _| {
            double.subarray(&[10, 8], &[3, 8], &[1, 0], Order::C)
        }),
    ];
    for (kind, member) in kinds {
        for n in [256, 1000, 30_000, 70_000_u64] {
            let children: Vec<Datatype> = (0..n).map(|i| member(&double, i).unwrap()).collect();
            let places: Vec<i64> = (0..n as i64).map(|i| 6400 * i).collect();
            let (mut pieces, mut sizes) = (Vec::new(), Vec::new());
            for (child, place) in children.iter().zip(&places) {
                for segment in Layout::new(child, 1).unwrap().segments() {
                    pieces.push(place + segment.offset);
                    sizes.push(segment.len);
                }
            }
            let lengths = vec![1; children.len()];
            let members = Datatype::structure(&lengths, &places, &children).unwrap();
            let listed = Datatype::named(Named::Byte).hindexed(&sizes, &pieces);
            assert_eq!(members.commit(), listed.unwrap().commit(), "{n} {kind}");
        }
    }
}

/// A struct of one type has the form of the type that MPI calls `hindexed`, and the size and the
/// bounds.
#[test]
fn a_struct_of_one_type_is_a_list_of_it() {
    let double = Datatype::named(Named::Double);
    let odd = Datatype::structure(&[1, 2], &[0, 5], &[Named::Char.into(), Named::Int.into()]);
    let children = [
        double.clone(),
        double
            .subarray(&[10, 8], &[3, 2], &[1, 2], Order::C)
            .unwrap(),
        double.vector(8, 1, -3).unwrap(),
        double.vector(2, 1, 3).unwrap(),
        double.vector(20, 1, 3).unwrap(),
        double.resized(-3, 11).unwrap(),
        odd.unwrap().dup(),
    ];
    for (which, child) in children.iter().enumerate() {
        for n in [2, 3, 300, 30_000_usize] {
            for uneven in [false, true] {
                let noise = |i: usize| i.wrapping_mul(0x9e37_79b9) >> 7;
                let length = |i| if uneven { noise(i) as u64 % 3 } else { 1 };
                let lengths: Vec<u64> = (0..n).map(length).collect();
                // Some begin where the one before them ends, or continue its row.
                let place = |i: usize| 640 * i as i64 - 3 + (noise(i) % 4 * 8) as i64;
                let spread: Vec<i64> = (0..n).map(place).collect();
                let close: Vec<i64> = (0..n as i64).map(|i| i * child.true_extent()).collect();
                let (mut at, mut mixed) = (0, Vec::new());
                for i in 0..n {
                    mixed.push(at);
                    at += [child.extent(), 192, 144, 800][noise(i) % 4];
                }
                for places in [spread, close, mixed] {
                    let members = vec![child.clone(); n];
                    let members = Datatype::structure(&lengths, &places, &members).unwrap();
                    let listed = child.hindexed(&lengths, &places).unwrap();
                    let facts = |datatype: &Datatype| {
                        (
                            (datatype.size(), *datatype.signature(), datatype.alignment()),
                            (datatype.lower_bound(), datatype.upper_bound()),
                            (datatype.true_lower_bound(), datatype.true_upper_bound()),
                        )
                    };
                    let what = format!("{n} of {which}");
                    assert_eq!(facts(&members), facts(&listed), "{what}");
                    assert_eq!(members.commit(), listed.commit(), "{what}");
                    // Each member a type of its own.
                    let apart: Vec<Datatype> = (0..n).map(|_| child.dup()).collect();
                    let apart = Datatype::structure(&lengths, &places, &apart).unwrap();
                    assert_eq!(facts(&members), facts(&apart), "{what}");
                    let same = |layout: &Datatype| {
                        let layout = Layout::new(layout, 1).unwrap();
                        layout.segments().collect::<Vec<_>>()
                    };
                    assert!(same(&members) == same(&apart), "{what}");
                    if n * child.size() as usize / 8 > 1 << 16 && !uneven {
                        let (mut pieces, mut sizes) = (Vec::new(), Vec::new());
                        for segment in same(&members) {
                            pieces.push(segment.offset);
                            sizes.push(segment.len);
                        }
                        let listed = Datatype::named(Named::Byte).hindexed(&sizes, &pieces);
                        let listed = listed.unwrap();
                        let form = members.commit().unwrap();
                        assert!(
                            which == 4 || form == listed.commit().unwrap(),
                            "{what} as a list"
                        );
                    }
                }
            }
        }
    }
}
