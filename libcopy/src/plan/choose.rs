// SPDX-License-Identifier: MIT OR Apache-2.0

//! The way of a call that takes least: which levels of the machine become groups, and who works.

use crate::topology::{Level, Object};

use super::call::{Call, Lengths, Operation, Prefix, Shape, Workers};
use super::costs::{Costs, Machine};
use super::exchange;
use super::plans::Plans;
use super::stage::Plan;
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

/// Ways that differ by their chunks alone.
struct Kind {
    levels: Vec<Level>,
    tree: Tree,
    shape: Shape,
    chunks: Vec<usize>,
}

/// Trees whose groups are some levels of the machine and have at most so many members, each with
/// these levels.
fn trees(
    machine: &Object,
    places: &[usize],
    sizes: &[usize],
    in_rank_order: bool,
) -> Vec<(Vec<Level>, Tree)> {
    let levels = [Level::Package, Level::Node, Level::Cache];
    let mut trees: Vec<(Vec<Level>, Tree)> = Vec::new();
    let used = 0..1 << levels.len();
    let used = used.flat_map(|used: usize| sizes.iter().map(move |most| (used, *most)));
    for (used, most) in used {
        let used = levels
            .iter()
            .enumerate()
            .filter(|(index, _)| used >> index & 1 != 0);
        let used: Vec<Level> = used.map(|(_, level)| *level).collect();
        let mut tree = Tree::new(machine, places, &used, most);
        if in_rank_order && !tree.is_in_rank_order() {
            tree = Tree::in_rank_order(places.len(), most);
        }
        if trees.iter().all(|(_, other)| *other != tree) {
            trees.push((used, tree));
        }
    }
    trees
}

/// The tree of short calls that take a step for each group ([`Exchange`](super::Exchange)). What
/// was measured has no part in it, as values are combined in its order.
pub(super) fn for_exchange(machine: &Object, places: &[usize]) -> Option<Tree> {
    let trees = trees(machine, places, &exchange::SIZES, false).into_iter();
    let machine = Machine::new(machine, places, Costs::BUILT_IN);
    exchange::best(trees.map(|(_, tree)| tree), &machine)
}

/// The tree that short broadcasts go down, whatever was measured.
pub(super) fn for_descent(machine: &Object, places: &[usize]) -> Option<Tree> {
    let call = Call {
        operation: Operation::Bcast,
        element: 1,
        ..SHORT_ALLREDUCE
    };
    best(machine, places, &call, Costs::BUILT_IN).map(|way| way.tree)
}

/// What ranks do in a short call that goes in steps, as plans that can be simulated; none if it
/// does not. Teams run these steps without plans.
pub fn in_steps(machine: &Object, places: &[usize], call: &Call<'_>) -> Option<Vec<Plan>> {
    if call.operation == Operation::Bcast {
        return exchange::descents(&for_descent(machine, places)?, call);
    }
    let way = best(machine, places, &SHORT_ALLREDUCE, Costs::BUILT_IN)?;
    let tree = if way.tree.depth() <= 1 {
        way.tree
    } else {
        for_exchange(machine, places)?
    };
    exchange::plans(&tree, call)
}

/// Where the ranks of this call are one group, they are one in all short calls.
pub const SHORT_ALLREDUCE: Call<'static> = Call {
    operation: Operation::Allreduce,
    root: 0,
    lengths: Lengths::Same(8),
    in_rank_order: false,
    element: 8,
};

fn kinds(machine: &Object, places: &[usize], call: &Call<'_>, costs: &Costs) -> Vec<Kind> {
    let mut sizes = vec![MOST_MEMBERS, costs.fan_out()];
    sizes.dedup();
    let trees = trees(machine, places, &sizes, call.in_rank_order);
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
    let mut kinds = Vec::new();
    for (levels, tree) in trees {
        for workers in workers {
            for prefix in prefixes {
                kinds.push(Kind {
                    levels: levels.clone(),
                    tree: tree.clone(),
                    shape: Shape {
                        workers: *workers,
                        prefix: *prefix,
                        at_once: costs.at_once,
                        ..Shape::default()
                    },
                    chunks: chunks(call, places.len(), *workers),
                });
            }
        }
    }
    kinds
}

/// The ways that a call can go.
pub fn ways(machine: &Object, places: &[usize], call: &Call<'_>, costs: &Costs) -> Vec<Way> {
    let kinds = kinds(machine, places, call, costs).into_iter();
    let ways = kinds.flat_map(|kind| {
        kind.chunks.into_iter().map(move |chunk| Way {
            levels: kind.levels.clone(),
            tree: kind.tree.clone(),
            shape: kind.shape,
            chunk,
        })
    });
    ways.collect()
}

/// Of ways whose prices differ by less than this, or by less than it takes to see what another rank
/// has written, the one with fewer levels is taken, and of its chunks the shortest.
const NEAR: f64 = 1.02;

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
    let mut kinds = kinds(machine, places, call, &costs);
    if call.operation.is_scan() {
        // Scans have no groups.
        let tree = kinds.first()?.tree.clone();
        kinds.retain(|kind| kind.tree == tree);
    }
    let mut priced: Vec<(f64, usize, &Kind)> = Vec::new();
    for kind in &kinds {
        let estimate = Plans::estimate(&kind.tree, call, kind.shape, &with_ranks, bytes);
        for chunk in &kind.chunks {
            priced.push((estimate.seconds(*chunk), *chunk, kind));
        }
    }
    let prices = priced.iter().map(|(price, ..)| *price);
    let least = prices.fold(f64::MAX, f64::min);
    let most = (least * NEAR).max(least + costs.latency[0]);
    priced.retain(|(price, ..)| *price <= most);
    let taken = priced.iter().min_by(|(one, _, kind), (other, _, its)| {
        let by_depth = kind.tree.depth().cmp(&its.tree.depth());
        by_depth.then(one.total_cmp(other))
    });
    let (_, chunk, kind) = taken?;
    let chunk = if kind.tree.depth() == 1 {
        // With one level nobody follows another one's chunks.
        *chunk
    } else {
        let alike = priced.iter().filter(|(_, _, it)| std::ptr::eq(*it, *kind));
        alike.map(|(_, chunk, _)| *chunk).min()?
    };
    Some(Way {
        levels: kind.levels.clone(),
        tree: kind.tree.clone(),
        shape: kind.shape,
        chunk,
    })
}

/// Seconds that a way takes, roughly. [`best`] compares these.
pub fn estimate(way: &Way, call: &Call<'_>, machine: &Machine) -> f64 {
    let bytes = buffer(call, machine.size());
    Plans::estimate(&way.tree, call, way.shape, machine, bytes).seconds(way.chunk)
}

/// Bytes of a rank's longest buffer.
pub fn buffer(call: &Call<'_>, ranks: usize) -> usize {
    use Operation::{Allgather, Alltoall, ReduceScatter};
    match call.operation {
        Allgather | Alltoall | ReduceScatter => call.lengths.total(ranks),
        _ => call.lengths.block(0).len(),
    }
}
