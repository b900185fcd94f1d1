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

/// The chunks that a call can go in: all at once, or, where ranks follow each other, some sixteen
/// or thirty-two.
fn chunks(call: &Call<'_>, ranks: usize, workers: Workers) -> Vec<usize> {
    let whole = buffer(call, ranks).max(1);
    let is_followed = match call.operation {
        Operation::Gather | Operation::Scatter | Operation::Alltoall => false,
        _ => workers != Workers::Owners,
    };
    if !is_followed {
        return vec![whole];
    }
    let of = |parts: usize| {
        let wanted = (whole / parts).next_power_of_two();
        wanted.clamp(*CHUNKS.start(), *CHUNKS.end()).min(whole)
    };
    let mut chunks = vec![of(32), of(16), whole];
    chunks.dedup();
    chunks
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
        let mut tree = Tree::new(machine, places, &used, MOST_MEMBERS);
        if call.in_rank_order && !tree.is_in_rank_order() {
            tree = Tree::in_rank_order(places.len(), MOST_MEMBERS);
        }
        if trees.iter().all(|(_, other)| *other != tree) {
            trees.push((used, tree));
        }
    }
    let workers = match call.operation {
        Operation::ReduceScatter | Operation::Reduce => {
            &[Workers::All, Workers::Leaders, Workers::Owners][..]
        }
        Operation::Allreduce | Operation::Allgather => &[Workers::All, Workers::Leaders],
        _ => &[Workers::All],
    };
    let prefixes = match call.operation {
        Operation::Scan | Operation::Exscan => &[Prefix::Doubling, Prefix::Chain][..],
        _ => &[Prefix::Doubling],
    };
    let mut ways = Vec::new();
    for (levels, tree) in &trees {
        for workers in workers {
            for prefix in prefixes {
                for chunk in chunks(call, places.len(), *workers) {
                    ways.push(Way {
                        levels: levels.clone(),
                        tree: tree.clone(),
                        shape: Shape {
                            workers: *workers,
                            prefix: *prefix,
                            ..Shape::default()
                        },
                        chunk,
                    });
                }
            }
        }
    }
    ways
}

/// Of ways whose prices differ by less than estimates do from what is simulated (some per cent),
/// the one with fewer levels is taken, and of its chunks the shortest.
const NEAR: f64 = 1.05;

/// The way that takes least. That of a reduction is chosen by [`Costs::BUILT_IN`], whatever was
/// measured: in which order values are combined depends on it, and must not change when the machine
/// is measured anew.
pub fn best(machine: &Object, places: &[usize], call: &Call<'_>, costs: Costs) -> Option<Way> {
    let costs = if call.operation.combines() {
        Costs::BUILT_IN
    } else {
        costs
    };
    let with_ranks = Machine::new(machine, places, costs);
    let bytes = buffer(call, places.len());
    let priced = ways(machine, places, call).into_iter().map(|way| {
        let plans = Plans::new(&way.tree, call, way.shape).all();
        (price(&plans, &with_ranks, bytes, way.chunk), way)
    });
    let priced: Vec<(f64, Way)> = priced.collect();
    let least = priced
        .iter()
        .map(|(price, _)| *price)
        .fold(f64::MAX, f64::min);
    let near = priced
        .into_iter()
        .filter(|(price, _)| *price <= least * NEAR);
    let near: Vec<(f64, Way)> = near.collect();
    let taken = near.iter().min_by(|(one, way), (other, other_way)| {
        let by_depth = way.tree.depth().cmp(&other_way.tree.depth());
        by_depth.then(one.total_cmp(other))
    });
    let (_, taken) = taken?;
    // With one level nobody follows another one's chunks.
    if taken.tree.depth() == 1 {
        return Some(taken.clone());
    }
    let alike = near.iter().map(|(_, way)| way);
    let alike = alike.filter(|way| way.tree == taken.tree && way.shape == taken.shape);
    alike.min_by_key(|way| way.chunk).cloned()
}

/// [`best`] for a rank that cannot wait long for it. An allgather's pieces are too many to be
/// priced for each way: it takes all levels of the machine, which is never far from the best
/// (`libcopy/model/tests/scale.rs` compares them).
pub fn quick(machine: &Object, places: &[usize], call: &Call<'_>, costs: Costs) -> Option<Way> {
    if call.operation != Operation::Allgather {
        return best(machine, places, call, costs);
    }
    let levels = vec![Level::Package, Level::Node, Level::Cache];
    let shape = Shape::default();
    let chunks = chunks(call, places.len(), shape.workers);
    Some(Way {
        tree: Tree::new(machine, places, &levels, MOST_MEMBERS),
        levels,
        shape,
        chunk: chunks[chunks.len() / 2],
    })
}

/// Bytes of a rank's longest buffer.
pub fn buffer(call: &Call<'_>, ranks: usize) -> usize {
    use Operation::{Allgather, Alltoall, ReduceScatter};
    match call.operation {
        Allgather | Alltoall | ReduceScatter => call.lengths.total(ranks),
        _ => call.lengths.block(0).len(),
    }
}
