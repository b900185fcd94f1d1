// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plans of a call.

use super::call::{Call, Operation, Shape, Workers};
use super::combine::Reduction;
use super::stage::Plan;
use super::tree::{MOST_MEMBERS, Tree};
use super::{blocks, scan};

/// The plans of a call. What they have in common is made once.
pub struct Plans<'a> {
    tree: &'a Tree,
    call: &'a Call<'a>,
    shape: Shape,
    reduction: Option<Reduction<'a>>,
    /// A tree that suits the operation better.
    other_tree: Option<Tree>,
}

impl<'a> Plans<'a> {
    /// The plans of a call that goes in this shape. The tree of a reduction in the order of ranks
    /// must be in that order ([`Tree::is_in_rank_order`]).
    pub fn new(tree: &'a Tree, call: &'a Call<'a>, shape: Shape) -> Self {
        use Operation::{Allgather, Allreduce, Reduce, ReduceScatter};
        let is_reduction = matches!(call.operation, Reduce | Allreduce | ReduceScatter);
        let is_uneven = call.operation == Allgather && !tree.has_even_members();
        Plans {
            tree,
            call,
            shape,
            reduction: is_reduction.then(|| Reduction::new(tree, call, shape)),
            other_tree: is_uneven.then(|| Tree::in_rank_order(tree.size(), MOST_MEMBERS / 2)),
        }
    }

    /// A rank's part.
    pub fn rank(&self, rank: usize) -> Plan {
        let (tree, call) = (self.tree, self.call);
        let mut plan = match call.operation {
            Operation::Barrier => blocks::barrier(tree, rank),
            Operation::Bcast => blocks::bcast(tree, call, rank),
            Operation::Allgather => {
                let tree = self.other_tree.as_ref().unwrap_or(tree);
                // Shares of next to nothing are not worth a step.
                let is_short = call.lengths.total(tree.size()) < 64 * tree.size();
                match self.shape.workers {
                    Workers::All if !is_short => blocks::allgather(tree, call, rank),
                    _ => blocks::allgather_by_leaders(tree, call, rank),
                }
            }
            Operation::Gather => blocks::gather(tree, call, rank, self.shape.at_once),
            Operation::Scatter => blocks::scatter(tree, call, rank, self.shape.at_once),
            Operation::Alltoall => blocks::alltoall(tree, call, rank),
            Operation::Scan | Operation::Exscan => {
                scan::scan(tree.size(), call, rank, self.shape.prefix)
            }
            Operation::Reduce | Operation::Allreduce | Operation::ReduceScatter => {
                let plan = self.reduction.as_ref().map(|it| it.plan(rank));
                plan.unwrap_or_default()
            }
        };
        for stage in &mut plan.stages {
            stage.pieces.retain(|piece| piece.bytes > 0);
        }
        plan
    }

    /// Parts of the buffers that go one after the other: each has stages of its own, at most a
    /// dozen.
    pub fn segments(&self) -> usize {
        self.reduction.as_ref().map_or(1, Reduction::segments)
    }

    /// The parts of all ranks.
    pub fn all(&self) -> Vec<Plan> {
        (0..self.tree.size()).map(|rank| self.rank(rank)).collect()
    }
}
