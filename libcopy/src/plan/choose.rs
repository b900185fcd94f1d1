// SPDX-License-Identifier: MIT OR Apache-2.0

//! The way of a call that takes least: which levels of the machine become groups, and who works.

use crate::topology::{Level, Object};

use super::call::{Call, Operation, Prefix, Shape, Workers};
use super::costs::{Costs, Machine};
use super::plans::Plans;
use super::price::price;
use super::tree::{MOST_MEMBERS, Tree};

/// A way to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Levels of the machine that become groups.
    pub levels: Vec<Level>,
    /// The groups.
    pub tree: Tree,
    /// Who works.
    pub shape: Shape,
    /// Bytes that a rank moves before it tells the others.
    pub chunk: usize,
}

/// Bytes of a chunk: long enough that a system call does not count, short enough that the next
/// level begins early.
const CHUNKS: std::ops::RangeInclusive<usize> = (16 << 10)..=(256 << 10);

/// The chunk for a buffer of this length.
pub fn chunk(bytes: usize) -> usize {
    let wanted = (bytes / 16).next_power_of_two();
    wanted.clamp(*CHUNKS.start(), *CHUNKS.end())
}

/// The ways that a call can go.
pub fn ways(machine: &Object, places: &[usize], call: &Call<'_>) -> Vec<Way> {
    let levels = [Level::Package, Level::Node, Level::Cache];
    let mut trees: Vec<(Vec<Level>, Tree)> = Vec::new();
    for used in 0..1 << levels.len() {
        let used = levels
            .iter()
            .enumerate()
            .filter(|(index, _)| used >> index & 1 != 0);
        let used: Vec<Level> = used.map(|(_, level)| *level).collect();
        let tree = Tree::new(machine, places, &used, MOST_MEMBERS);
        if trees.iter().all(|(_, other)| *other != tree) {
            trees.push((used, tree));
        }
    }
    let workers = match call.operation {
        Operation::ReduceScatter => &[Workers::All, Workers::Leaders, Workers::Owners][..],
        Operation::Reduce | Operation::Allreduce | Operation::Allgather => {
            &[Workers::All, Workers::Leaders]
        }
        _ => &[Workers::All],
    };
    let prefixes = match call.operation {
        Operation::Scan | Operation::Exscan => &[Prefix::Doubling, Prefix::Chain][..],
        _ => &[Prefix::Doubling],
    };
    let mut ways = Vec::new();
    for (levels, tree) in &trees {
        for (workers, prefix) in workers
            .iter()
            .flat_map(|it| prefixes.iter().map(move |p| (it, p)))
        {
            ways.push(Way {
                levels: levels.clone(),
                tree: tree.clone(),
                shape: Shape {
                    workers: *workers,
                    prefix: *prefix,
                    at_once: usize::MAX,
                },
                chunk: chunk(call.lengths.total(1)),
            });
        }
    }
    ways
}

/// The way that takes least. That of a reduction is chosen by [`Costs::default`], whatever was
/// measured: in which order values are combined depends on it, and must not change when the machine
/// is measured anew.
pub fn best(machine: &Object, places: &[usize], call: &Call<'_>, costs: Costs) -> Option<Way> {
    let costs = if call.operation.combines() {
        Costs::default()
    } else {
        costs
    };
    let with_ranks = Machine::new(machine, places, costs);
    let bytes = buffer(call, places.len());
    let priced = ways(machine, places, call).into_iter().map(|way| {
        let plans = Plans::new(&way.tree, call, way.shape).all();
        (price(&plans, &with_ranks, bytes, way.chunk), way)
    });
    let least = priced.min_by(|(one, _), (other, _)| one.total_cmp(other));
    least.map(|(_, way)| way)
}

/// Bytes of a rank's longest buffer.
pub fn buffer(call: &Call<'_>, ranks: usize) -> usize {
    use Operation::{Allgather, Alltoall, ReduceScatter};
    match call.operation {
        Allgather | Alltoall | ReduceScatter => call.lengths.total(ranks),
        _ => call.lengths.block(0).len(),
    }
}
