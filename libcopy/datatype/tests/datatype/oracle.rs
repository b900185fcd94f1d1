// SPDX-License-Identifier: MIT OR Apache-2.0

//! A naive interpreter of type descriptions: writes out the type map, entry by entry, as the
//! definitions in MPI 4.1 section 5.1 say. Slow and obvious; everything is compared with it.

use libcopy_datatype::{Distribution, Named, Order};

/// A type as a person would write it down.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    Named(Named),
    Dup(Box<Tree>),
    Contiguous(u64, Box<Tree>),
    Vector(u64, u64, i64, Box<Tree>),
    Hvector(u64, u64, i64, Box<Tree>),
    Indexed(Vec<(u64, i64)>, Box<Tree>),
    Hindexed(Vec<(u64, i64)>, Box<Tree>),
    IndexedBlock(u64, Vec<i64>, Box<Tree>),
    HindexedBlock(u64, Vec<i64>, Box<Tree>),
    Struct(Vec<(u64, i64, Tree)>),
    /// Per dimension: size, subsize, start.
    Subarray(Vec<(u64, u64, u64)>, Order, Box<Tree>),
    /// Per dimension: size, distribution, processes; and the rank.
    Darray(Vec<(u64, Distribution, u64)>, u64, Order, Box<Tree>),
    Resized(i64, i64, Box<Tree>),
}

/// A written-out type.
#[derive(Clone, Debug, Default)]
pub struct Map {
    /// Displacement and length of every basic element, in order.
    pub entries: Vec<(i64, i64)>,
    pub lb: Option<i64>,
    pub ub: Option<i64>,
    /// Whether the bounds come from a resized type.
    pub marked: bool,
    pub align: i64,
}

impl Map {
    pub fn size(&self) -> i64 {
        self.entries.iter().map(|e| e.1).sum()
    }

    pub fn extent(&self) -> i64 {
        self.ub.unwrap_or(0) - self.lb.unwrap_or(0)
    }

    pub fn true_bounds(&self) -> (i64, i64) {
        let low = self.entries.iter().map(|e| e.0).min().unwrap_or(0);
        let high = self.entries.iter().map(|e| e.0 + e.1).max().unwrap_or(0);
        (low, high)
    }

    /// The displacement of every single byte, in packed order.
    pub fn bytes(&self) -> Vec<i64> {
        let bytes = |&(at, len): &(i64, i64)| at..at + len;
        self.entries.iter().flat_map(bytes).collect()
    }

    /// Children at displacements, in order: what every constructor comes down to.
    pub fn place<'a>(blocks: impl IntoIterator<Item = (i64, &'a Map)>) -> Map {
        let mut all = Map {
            align: 1,
            ..Map::default()
        };
        for (at, child) in blocks {
            if child.entries.is_empty() && !child.marked {
                continue;
            }
            all.align = all.align.max(child.align);
            all.entries
                .extend(child.entries.iter().map(|e| (e.0 + at, e.1)));
            let (Some(lb), Some(ub)) = (child.lb, child.ub) else {
                continue;
            };
            if child.marked && !all.marked {
                (all.marked, all.lb, all.ub) = (true, None, None);
            }
            if child.marked == all.marked {
                all.lb = Some(all.lb.map_or(lb + at, |old| old.min(lb + at)));
                all.ub = Some(all.ub.map_or(ub + at, |old| old.max(ub + at)));
            }
        }
        if let (Some(lb), Some(ub), false) = (all.lb, all.ub, all.marked) {
            all.ub = Some(lb + (ub - lb + all.align - 1) / all.align * all.align);
        }
        all
    }

    fn repeat(&self, at: i64, count: u64) -> Vec<(i64, &Map)> {
        (0..count as i64)
            .map(|i| (at + i * self.extent(), self))
            .collect()
    }

    pub fn resized(mut self, lb: i64, extent: i64) -> Map {
        (self.marked, self.lb, self.ub) = (true, Some(lb), Some(lb + extent));
        self
    }
}

/// The type map of a description.
pub fn map(tree: &Tree) -> Map {
    match tree {
        Tree::Named(named) => Map {
            entries: named
                .elements()
                .iter()
                .map(|e| (e.offset.into(), e.size.into()))
                .collect(),
            lb: Some(0),
            ub: Some(named.extent().into()),
            marked: false,
            align: named.align().into(),
        },
        Tree::Dup(child) => map(child),
        Tree::Contiguous(count, child) => {
            let child = map(child);
            Map::place(child.repeat(0, *count))
        }
        Tree::Vector(count, length, stride, child) => {
            let child = map(child);
            let step = stride * child.extent();
            Map::place((0..*count as i64).flat_map(|i| child.repeat(i * step, *length)))
        }
        Tree::Hvector(count, length, stride, child) => {
            let child = map(child);
            Map::place((0..*count as i64).flat_map(|i| child.repeat(i * stride, *length)))
        }
        Tree::Indexed(blocks, child) => {
            let child = map(child);
            let extent = child.extent();
            Map::place(
                blocks
                    .iter()
                    .flat_map(|&(n, at)| child.repeat(at * extent, n)),
            )
        }
        Tree::Hindexed(blocks, child) => {
            let child = map(child);
            Map::place(blocks.iter().flat_map(|&(n, at)| child.repeat(at, n)))
        }
        Tree::IndexedBlock(n, places, child) => {
            let child = map(child);
            let extent = child.extent();
            Map::place(places.iter().flat_map(|&at| child.repeat(at * extent, *n)))
        }
        Tree::HindexedBlock(n, places, child) => {
            let child = map(child);
            Map::place(places.iter().flat_map(|&at| child.repeat(at, *n)))
        }
        Tree::Struct(blocks) => {
            let maps: Vec<Map> = blocks.iter().map(|(_, _, child)| map(child)).collect();
            let pairs = blocks.iter().zip(&maps);
            Map::place(pairs.flat_map(|((n, at, _), child)| child.repeat(*at, *n)))
        }
        Tree::Subarray(dims, order, child) => {
            let wanted: Vec<Vec<u64>> = dims
                .iter()
                .map(|&(_, subsize, start)| (start..start + subsize).collect())
                .collect();
            let sizes: Vec<u64> = dims.iter().map(|d| d.0).collect();
            picked(&sizes, &wanted, *order, &map(child))
        }
        Tree::Darray(dims, rank, order, child) => {
            // The grid is numbered with the last dimension fastest.
            let mut rest = *rank;
            let mut wanted: Vec<Vec<u64>> = Vec::new();
            for &(size, distribution, processes) in dims.iter().rev() {
                let mine = rest % processes;
                rest /= processes;
                let owner = |index: u64| match distribution {
                    Distribution::None => 0,
                    Distribution::Block(b) => index / b.unwrap_or(size.div_ceil(processes)).max(1),
                    Distribution::Cyclic(b) => index / b.unwrap_or(1) % processes,
                };
                wanted.push((0..size).filter(|&index| owner(index) == mine).collect());
            }
            wanted.reverse();
            let sizes: Vec<u64> = dims.iter().map(|d| d.0).collect();
            picked(&sizes, &wanted, *order, &map(child))
        }
        Tree::Resized(lb, extent, child) => map(child).resized(*lb, *extent),
    }
}

/// The elements of an array whose index in each dimension is wanted.
fn picked(sizes: &[u64], wanted: &[Vec<u64>], order: Order, child: &Map) -> Map {
    let dims: Vec<usize> = match order {
        Order::C => (0..sizes.len()).collect(),
        Order::Fortran => (0..sizes.len()).rev().collect(),
    };
    // From the slowest dimension to the fastest, each index splits into those of the next.
    let mut indices = vec![0i64];
    for d in dims {
        let inner = |&at: &i64| {
            wanted[d]
                .iter()
                .map(move |&i| at * sizes[d] as i64 + i as i64)
                .collect::<Vec<_>>()
        };
        indices = indices.iter().flat_map(inner).collect();
    }
    let extent = child.extent();
    let whole = sizes.iter().product::<u64>() as i64 * extent;
    Map::place(indices.into_iter().map(|i| (i * extent, child))).resized(0, whole)
}
