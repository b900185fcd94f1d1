// SPDX-License-Identifier: MIT OR Apache-2.0

//! Random type descriptions, and the library's types made from them.
//!
//! A description is read off a list of numbers; an exhausted list reads as zeros, which choose the
//! simplest of everything. So a failing case shrinks as its list does.

use libcopy_datatype::Result;
use libcopy_datatype::{Datatype, Distribution, Named, Order};

use crate::oracle::{Map, Tree, map};

/// The list of numbers that decides, and how far a type may reach.
pub struct Choices<'a> {
    list: &'a [u16],
    next: usize,
    reach: i64,
    /// What is read behind the list's end, if not zeros.
    noise: u64,
}

/// Blocks of an indexed type beyond which a few numbers decide about all.
const FEW: u64 = 24;

impl<'a> Choices<'a> {
    /// Types built with these choices reach no further than 16 KiB.
    pub fn new(list: &'a [u16]) -> Self {
        Choices {
            list,
            next: 0,
            reach: 1 << 14,
            noise: 0,
        }
    }

    /// Where to cut and what to look at needs no simplest choice: from here on the list goes on
    /// with noise.
    pub fn go_on(&mut self) {
        self.noise = self.list.iter().fold(1, |sum: u64, &x| {
            (sum ^ u64::from(x)).wrapping_mul(0x100_0000_01b3) | 1
        });
    }

    /// How many basic elements a case may have: mostly few, now and then up to 100,000, and types
    /// may reach further then.
    pub fn scale(&mut self) -> u64 {
        let (most, reach) = match self.below(256) {
            255 => (100_000, 1 << 22),
            240.. => (3000, 1 << 17),
            _ => (300, self.reach),
        };
        self.reach = reach;
        most
    }

    fn next(&mut self) -> u64 {
        let value = self.list.get(self.next).copied();
        self.next += 1;
        value.map_or_else(|| shifted(&mut self.noise) >> 48, u64::from)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        let mut value = self.next();
        if n > 1 << 16 {
            value |= self.next() << 16;
        }
        value % n.max(1)
    }

    /// Numbers without end of which one choice decides.
    fn noise(&mut self) -> impl FnMut(u64) -> u64 + use<> {
        let mut state = 2 * self.below(1 << 16) + 1;
        move |n| (shifted(&mut state) >> 16) % n
    }

    /// Places of `blocks` blocks, which are at most `length` each: in steps of a few sizes, in
    /// runs of equal steps, or anywhere.
    fn places(&mut self, blocks: u64, length: i64) -> Vec<i64> {
        let kind = self.below(4);
        let run = 1 + self.below(9);
        let gap = 1 + self.below(6);
        let mut noise = self.noise();
        let (mut at, mut step) = (0, length);
        (0..blocks)
            .map(|i| {
                let place = at;
                if i % run == 0 {
                    step = length + noise(gap) as i64;
                }
                at = match kind {
                    0 => at + step,
                    1 => at + length + noise(gap) as i64,
                    2 => noise(blocks * (length as u64 + 1)) as i64,
                    _ => at - length - noise(gap) as i64,
                };
                place
            })
            .collect()
    }

    /// A number from `low` to `high`, 0 (or the bound next to it) first.
    fn between(&mut self, low: i64, high: i64) -> i64 {
        let span = (high - low + 1) as u64;
        let start = 0.clamp(low, high) - low;
        low + (start + self.below(span) as i64) % span as i64
    }

    /// Mostly small, sometimes zero, sometimes as large as allowed.
    fn count(&mut self, most: u64) -> u64 {
        match self.below(40) {
            0 => 1,
            1 => 0,
            2..=20 => (1 + self.below(4)).min(most),
            21..=30 if most <= 300 => (1 + self.below(4)).min(most),
            _ => 1 + self.below(most),
        }
    }

    /// How many of something: seldom none.
    fn some(&mut self, most: u64) -> u64 {
        match self.below(24) {
            23 => 0,
            _ => 1 + self.below(most),
        }
    }

    fn order(&mut self) -> Order {
        match self.below(2) {
            0 => Order::C,
            _ => Order::Fortran,
        }
    }
}

/// The next state of a generator that stays at zero if it is there.
pub fn shifted(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    state.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A type description of at most this depth and with at most a given number of basic elements. Its
/// map is returned too, because making sure that it is not too large computes it.
pub fn tree(choices: &mut Choices, depth: u32, most: u64) -> (Tree, Map) {
    let named = |choices: &mut Choices| {
        let common = [
            Named::Byte,
            Named::Int,
            Named::Double,
            Named::CDoubleComplex,
            Named::Short,
        ];
        let named = match choices.below(12) {
            i @ 0..=4 => common[i as usize],
            _ => Named::ALL[choices.below(Named::ALL.len() as u64) as usize],
        };
        let tree = Tree::Named(named);
        let map = map(&tree);
        (tree, map)
    };
    if depth == 0 {
        return named(choices);
    }
    let choice = choices.below(15);
    if choice == 0 {
        return named(choices);
    }
    // Not beside MPI libraries, whose answers are not the oracle's then (MPICH 4.0).
    if choice == 14 && most > 1000 && choices.below(2) == 1 {
        let blocks = many_members(choices, depth.min(3) - 1, most);
        return checked(choices, Tree::Struct(blocks), most);
    }
    if choice == 14 {
        let mut left = most;
        let blocks = (0..choices.some(4))
            .map(|_| {
                let (child, map) = tree(choices, depth - 1, (left / 2).max(1));
                let n = choices.count(left / (map.entries.len() as u64).max(1));
                left = left.saturating_sub(n * map.entries.len() as u64);
                (n, choices.between(-60, 200), child)
            })
            .collect();
        return checked(choices, Tree::Struct(blocks), most);
    }
    let (child, child_map) = tree(choices, depth - 1, most);
    let room = (most / (child_map.entries.len() as u64).max(1)).max(1);
    let extent = child_map.extent().abs().max(1);
    let child = Box::new(child);
    let result = match choice {
        1 => Tree::Dup(child),
        2 => Tree::Contiguous(choices.count(room), child),
        3 | 4 => {
            let length = choices.count(room);
            let count = choices.count(room / length.max(1));
            let stride = choices.between(-(length as i64) - 4, length as i64 + 8);
            if choice == 3 {
                Tree::Vector(count, length, stride, child)
            } else {
                let slack = choices.between(-9, 17);
                Tree::Hvector(count, length, stride * extent + slack, child)
            }
        }
        5 | 6 if room > 300 && choices.below(2) == 1 => {
            let most = 1 + choices.below(4);
            let n = choices.below(room / most + 1);
            let places = choices.places(n, most as i64);
            let even = choices.below(3) == 0;
            let mut noise = choices.noise();
            let mut length = || if even { most } else { noise(most + 1) };
            let blocks = places.into_iter().map(|at| (length(), at));
            if choice == 5 {
                Tree::Indexed(blocks.collect(), child)
            } else {
                Tree::Hindexed(blocks.map(|(n, at)| (n, at * extent)).collect(), child)
            }
        }
        5 | 6 => {
            let mut left = room;
            let mut at = 0;
            let ascending = choices.below(2) == 0;
            let unit = if choice == 5 { 1 } else { extent };
            let blocks = (0..choices.some(11))
                .map(|_| {
                    let n = choices.count(left);
                    left -= n.min(left);
                    at = if ascending {
                        at + choices.between(0, 9)
                    } else {
                        choices.between(-50, 100)
                    };
                    let place = at * unit;
                    if ascending {
                        at += n as i64;
                    }
                    (n, place)
                })
                .collect();
            if choice == 5 {
                Tree::Indexed(blocks, child)
            } else {
                Tree::Hindexed(blocks, child)
            }
        }
        7 | 8 => {
            let n = choices.count(room);
            let fits = room / n.max(1);
            let many = fits > 300 && choices.below(2) == 1;
            let places = choices.some(if many { fits } else { fits.clamp(1, FEW) });
            let regular = choices.below(3);
            let step = choices.between(-5, 9) + n as i64;
            let places: Vec<i64> = if places > FEW {
                choices.places(places, n as i64)
            } else {
                let place = |i| match regular {
                    0 => i * step,
                    1 => (i / 2) * 3 * step + (i % 2) * step,
                    _ => choices.between(-50, 100),
                };
                (0..places as i64).map(place).collect()
            };
            if choice == 7 {
                Tree::IndexedBlock(n, places, child)
            } else {
                Tree::HindexedBlock(n, places.iter().map(|p| p * extent).collect(), child)
            }
        }
        9 | 10 => {
            let mut left = room;
            let dims = (0..1 + choices.below(4))
                .map(|_| {
                    let subsize = choices.count(left.min(20)).max(1);
                    left /= subsize;
                    let start = choices.below(4);
                    (subsize + start + choices.below(4), subsize, start)
                })
                .collect();
            Tree::Subarray(dims, choices.order(), child)
        }
        11 => {
            let mut left = room;
            let mut all = 1;
            let dims: Vec<_> = (0..1 + choices.below(3))
                .map(|_| {
                    let size = choices.count(left.min(20)).max(1);
                    left = (left / size).max(1);
                    let processes = 1 + choices.below(4);
                    let (distribution, processes) = match choices.below(5) {
                        0 => (Distribution::None, 1),
                        1 => (Distribution::Block(None), processes),
                        2 => {
                            let block = size.div_ceil(processes) + choices.below(3);
                            (Distribution::Block(Some(block)), processes)
                        }
                        3 => (Distribution::Cyclic(None), processes),
                        _ => (Distribution::Cyclic(Some(1 + choices.below(5))), processes),
                    };
                    all *= processes;
                    (size, distribution, processes)
                })
                .collect();
            Tree::Darray(dims, choices.below(all), choices.order(), child)
        }
        _ => {
            let lb = choices.between(-20, 20);
            let size = child_map.true_bounds().1 - child_map.true_bounds().0;
            let extent = match choices.below(4) {
                0 => size,
                1 => size + choices.between(0, 30),
                2 => choices.between(-40, 60),
                _ => choices.between(0, 8),
            };
            Tree::Resized(lb, extent, child)
        }
    };
    checked(choices, result, most)
}

/// Hundreds of members of a struct, of one to three types, one behind the other with gaps or
/// anywhere.
fn many_members(choices: &mut Choices, depth: u32, most: u64) -> Vec<(u64, i64, Tree)> {
    let kinds: Vec<(Tree, Map)> = (0..1 + choices.below(3))
        .map(|_| tree(choices, depth, 1 + most / 400))
        .collect();
    let longest = kinds.iter().map(|kind| kind.1.entries.len() as u64).max();
    let even = choices.below(3) == 0;
    // As many members as fit, and for a few entries each some more than are looked at alone.
    let room = most / longest.unwrap_or(1).max(1) / if even { 1 } else { 2 };
    let n = 200.min(room) + choices.below(room.saturating_sub(200).min(3000) + 1);
    let reach = |kind: &(Tree, Map)| {
        let (low, high) = kind.1.true_bounds();
        (high - low).max(kind.1.extent().abs()).clamp(1, 1000)
    };
    let reach = kinds.iter().map(reach).max().unwrap_or(1);
    let places = choices.places(n, reach);
    let mut noise = choices.noise();
    let members = places.into_iter().map(|at| {
        let length = if even {
            1
        } else {
            [1, 1, 1, 0, 2][noise(5) as usize]
        };
        let kind = noise(kinds.len() as u64) as usize;
        (length, at, kinds[kind].0.clone())
    });
    members.collect()
}

/// A type description of some depth and size, its map, and a number of elements of it.
pub fn counted(choices: &mut Choices) -> (Tree, Map, u64) {
    let depth = 1 + choices.below(8) as u32;
    let most = choices.scale();
    let (description, one) = tree(choices, depth, most);
    let count = match choices.below(4) {
        _ if one.entries.len() > 10_000 => 1 + choices.below(2),
        0 => 1,
        1 => choices.below(40).div_ceil(13),
        _ => 1 + choices.below(20),
    };
    (description, one, count)
}

/// Replaces what became too large, by repetition within or by reach, with something harmless.
fn checked(choices: &Choices, tree: Tree, most: u64) -> (Tree, Map) {
    let written = map(&tree);
    let (low, high) = written.true_bounds();
    let far = [low, high, written.lb.unwrap_or(0), written.ub.unwrap_or(0)];
    if written.entries.len() as u64 > most || far.iter().any(|x| x.abs() > choices.reach) {
        let tree = Tree::Named(Named::Int);
        let written = map(&tree);
        return (tree, written);
    }
    (tree, written)
}

/// The library's type for a description.
pub fn build(tree: &Tree) -> Result<Datatype> {
    let (lengths, places): (Vec<u64>, Vec<i64>) = match tree {
        Tree::Indexed(blocks, _) | Tree::Hindexed(blocks, _) => blocks.iter().copied().unzip(),
        Tree::Struct(blocks) => blocks.iter().map(|b| (b.0, b.1)).unzip(),
        _ => Default::default(),
    };
    match tree {
        Tree::Named(named) => Ok(Datatype::named(*named)),
        Tree::Dup(child) => Ok(build(child)?.dup()),
        Tree::Contiguous(count, child) => build(child)?.contiguous(*count),
        Tree::Vector(n, l, s, child) => build(child)?.vector(*n, *l, *s),
        Tree::Hvector(n, l, s, child) => build(child)?.hvector(*n, *l, *s),
        Tree::Indexed(_, child) => build(child)?.indexed(&lengths, &places),
        Tree::Hindexed(_, child) => build(child)?.hindexed(&lengths, &places),
        Tree::IndexedBlock(n, places, child) => build(child)?.indexed_block(*n, places),
        Tree::HindexedBlock(n, places, child) => build(child)?.hindexed_block(*n, places),
        Tree::Struct(blocks) => {
            // Of an even number of members, those that are described alike are one type.
            let mut known: Vec<(&Tree, Datatype)> = Vec::new();
            let mut children = Vec::new();
            for (_, _, tree) in blocks {
                let found = known.iter().find(|(other, _)| *other == tree);
                let child = match found {
                    Some((_, child)) if blocks.len() % 2 == 0 => child.clone(),
                    _ => build(tree)?,
                };
                if found.is_none() && known.len() < 4 {
                    known.push((tree, child.clone()));
                }
                children.push(child);
            }
            Datatype::structure(&lengths, &places, &children)
        }
        Tree::Subarray(dims, order, child) => {
            let sizes: Vec<u64> = dims.iter().map(|d| d.0).collect();
            let subsizes: Vec<u64> = dims.iter().map(|d| d.1).collect();
            let starts: Vec<u64> = dims.iter().map(|d| d.2).collect();
            build(child)?.subarray(&sizes, &subsizes, &starts, *order)
        }
        Tree::Darray(dims, rank, order, child) => {
            let sizes: Vec<u64> = dims.iter().map(|d| d.0).collect();
            let distributions: Vec<_> = dims.iter().map(|d| d.1).collect();
            let processes: Vec<u64> = dims.iter().map(|d| d.2).collect();
            let size = processes.iter().product();
            build(child)?.darray(size, *rank, &sizes, &distributions, &processes, *order)
        }
        Tree::Resized(lb, extent, child) => build(child)?.resized(*lb, *extent),
    }
}
