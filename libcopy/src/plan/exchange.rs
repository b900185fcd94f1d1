// SPDX-License-Identifier: MIT OR Apache-2.0

//! Short collectives among ranks in groups of groups, step by step: in each step a rank reads what
//! one rank of each other member of a group has, and has what all of that group have then. With
//! groups of `k` that is recursive multiplying (Ruefenacht, Bull, Booth, *Generalisation of
//! recursive doubling for AllReduce*, Parallel Computing 69, 2017). No rank leads, and what comes
//! back down a tree otherwise is there already.

use std::sync::Arc;

use super::call::{Call, Operation};
use super::costs::Machine;
use super::signal::ended;
use super::stage::{Buffer, Piece, Plan, Source, Span, Stage};
use super::tree::{MOST_MEMBERS, Member, Tree};

/// Steps of a call, at most: each has memory of its own.
pub const MOST_STEPS: usize = 4;

/// Bytes that a rank publishes in a step, at most.
pub const MOST_OF_STEP: usize = 1000;

/// Bytes of a broadcast that goes down the groups, at most.
pub const MOST_OF_DESCENT: usize = 8192;

/// What a rank does in the steps of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The smallest group first.
    pub steps: Vec<GroupStep>,
    /// Ranks of the largest member of any group: nobody publishes what more ranks have.
    pub most_ranks: usize,
}

/// A step in one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStep {
    /// How far the group is from the one that has all ranks: ranks of one group publish what they
    /// have in the same place, however many groups each has been through.
    pub level: usize,
    /// The group's members in order.
    pub members: Vec<StepMember>,
    /// Which of them is ours.
    pub own: usize,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepMember {
    /// The rank that is read from; in our member that is our own.
    pub partner: usize,
    /// Ranks of the member, in order: all have what these contribute.
    pub ranks: Vec<usize>,
}

impl Exchange {
    /// A rank's steps. None if there are more than [`MOST_STEPS`] of any rank.
    pub fn new(tree: &Tree, rank: usize) -> Option<Exchange> {
        if tree.depth() > MOST_STEPS {
            return None;
        }
        let chain: Vec<usize> = tree.chain(rank).collect();
        let steps = chain.iter().enumerate().map(|(index, group)| {
            let members = &tree.groups()[*group].members;
            let of = |member| tree.ranks(member).to_vec();
            let members: Vec<Vec<usize>> = members.iter().map(|member| of(*member)).collect();
            // Each rank is in one member of each of its groups.
            let place = |ranks: &Vec<usize>| ranks.binary_search(&rank).ok();
            let mut found = members.iter().enumerate();
            let (own, place) = found.find_map(|(own, ranks)| Some((own, place(ranks)?)))?;
            let members = members.into_iter().map(|ranks| StepMember {
                partner: ranks[place % ranks.len()],
                ranks,
            });
            Some(GroupStep {
                level: chain.len() - 1 - index,
                members: members.collect(),
                own,
            })
        });
        let members = tree.groups().iter().flat_map(|group| &group.members);
        Some(Exchange {
            steps: steps.collect::<Option<_>>()?,
            most_ranks: members.map(|it| tree.ranks(*it).len()).max().unwrap_or(1),
        })
    }

    /// What a rank waits for in all steps, roughly, in seconds: in each for the farthest rank that
    /// it reads from, and for the others that look at the same lines.
    fn seconds(&self, rank: usize, machine: &Machine) -> f64 {
        let steps = self.steps.iter().map(|step| {
            let others = step.members.iter().filter(|it| it.partner != rank);
            let farthest = others.map(|it| machine.latency(it.partner, rank));
            let lines = (step.members.len() - 1) as f64 * machine.costs.line;
            farthest.fold(0.0, f64::max) + lines
        });
        steps.sum()
    }
}

/// A rank's part in a broadcast that goes down the groups: in each group one rank of each other
/// member reads from the one that has the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descent {
    /// From whom it reads; nobody if it is the root.
    pub from: Option<usize>,
    /// Who reads from it, those that are farthest first.
    pub readers: Arc<[usize]>,
}

impl Descent {
    /// A rank's part where this one is the root.
    pub fn new(tree: &Tree, root: usize, rank: usize) -> Descent {
        let (mut from, mut readers) = (None, Vec::new());
        // Who has the bytes, of the ranks of the group.
        let (mut holder, mut group) = (root, Some(tree.top()));
        while let Some(members) = group.map(|group| &tree.groups()[group].members) {
            let place = |member: &Member, rank| tree.ranks(*member).binary_search(&rank).ok();
            let is_holder = |member: &&Member| place(member, holder).is_some();
            let at = members.iter().find(is_holder);
            let at = at.and_then(|member| place(member, holder)).unwrap_or(0);
            let first = |member: &Member| {
                let ranks = tree.ranks(*member);
                ranks[at % ranks.len()]
            };
            let mut next = None;
            for member in members {
                let has_holder = is_holder(&member);
                if rank == holder && !has_holder {
                    readers.push(first(member));
                }
                if place(member, rank).is_some() {
                    let holds = if has_holder { holder } else { first(member) };
                    next = Some((holds, member));
                }
            }
            let Some((holds, member)) = next else {
                break;
            };
            if rank == holds && holds != holder {
                from = Some(holder);
            }
            holder = holds;
            group = match member {
                Member::Group(group) => Some(*group),
                Member::Rank(_) => None,
            };
        }
        Descent {
            from,
            readers: readers.into(),
        }
    }
}

/// A broadcast down the groups as plans, as for [`plans`].
pub(super) fn descents(tree: &Tree, call: &Call<'_>) -> Option<Vec<Plan>> {
    let bytes = call.lengths.block(0).len();
    let span = |rank| Span {
        rank,
        buffer: Buffer::Receive,
        at: 0,
    };
    // The root's bytes are there.
    let stages = |rank| match Descent::new(tree, call.root, rank).from {
        None => Vec::new(),
        Some(from) => vec![Stage {
            after: vec![ended(from, usize::from(from != call.root))],
            pieces: vec![Piece {
                to: span(rank),
                bytes,
                from: vec![Source {
                    span: span(from),
                    after: None,
                    in_order: false,
                }],
            }],
        }],
    };
    let plan = |rank| Plan {
        stages: stages(rank),
    };
    (bytes <= MOST_OF_DESCENT).then(|| (0..tree.size()).map(plan).collect())
}

/// The steps of all ranks as plans, to be priced and simulated; none if the call does not go in
/// steps.
pub(super) fn plans(tree: &Tree, call: &Call<'_>) -> Option<Vec<Plan>> {
    let all = (0..tree.size()).map(|rank| Exchange::new(tree, rank));
    let all: Vec<Exchange> = all.collect::<Option<_>>()?;
    let part = call.lengths.block(0).len();
    let published = match call.operation {
        Operation::Barrier => 0,
        Operation::Allreduce => part,
        Operation::Allgather => part * all.first()?.most_ranks,
        _ => return None,
    };
    let span = |rank| Span {
        rank,
        buffer: Buffer::Receive,
        at: 0,
    };
    let source = |rank| Source {
        span: span(rank),
        after: None,
        in_order: false,
    };
    let stage = |rank: usize, step: &GroupStep| {
        let others = step.members.iter().filter(|it| it.partner != rank);
        // Steps of a rank end at level 0.
        let before = |rank: usize| all[rank].steps.len() - 1 - step.level;
        let after = others
            .clone()
            .map(|it| ended(it.partner, before(it.partner)));
        let piece = |bytes, from| Piece {
            to: span(rank),
            bytes,
            from,
        };
        let pieces = match call.operation {
            Operation::Allreduce => {
                let from = step.members.iter().map(|it| source(it.partner));
                vec![piece(part, from.collect())]
            }
            Operation::Allgather => {
                let pieces =
                    others.map(|it| piece(part * it.ranks.len(), vec![source(it.partner)]));
                pieces.collect()
            }
            _ => Vec::new(),
        };
        Stage {
            after: after.collect(),
            pieces,
        }
    };
    let plan = |(rank, exchange): (usize, &Exchange)| Plan {
        stages: exchange
            .steps
            .iter()
            .map(|step| stage(rank, step))
            .collect(),
    };
    (published <= MOST_OF_STEP).then(|| all.iter().enumerate().map(plan).collect())
}

/// What the slowest rank of a tree waits for, roughly; none if there are too many steps.
fn seconds(tree: &Tree, machine: &Machine) -> Option<f64> {
    let ranks = 0..tree.size();
    let times = ranks.map(|rank| Some(Exchange::new(tree, rank)?.seconds(rank, machine)));
    times
        .collect::<Option<Vec<f64>>>()
        .map(|times| times.into_iter().fold(0.0, f64::max))
}

/// The tree whose steps take least, of some.
pub(super) fn best(trees: impl IntoIterator<Item = Tree>, machine: &Machine) -> Option<Tree> {
    let priced = trees.into_iter().filter_map(|tree| {
        let seconds = seconds(&tree, machine)?;
        Some((seconds, tree))
    });
    let least = priced.min_by(|(one, its), (other, others)| {
        one.total_cmp(other).then(its.depth().cmp(&others.depth()))
    });
    least.map(|(_, tree)| tree)
}

/// Members of a group, at most: trees with each of these are tried.
pub(super) const SIZES: [usize; 3] = [4, 8, MOST_MEMBERS];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Costs;
    use crate::topology::{Cpus, Level, Name, Object};

    /// What each rank has after all steps, and from whom it came.
    fn run(tree: &Tree) -> Vec<Vec<usize>> {
        let size = tree.size();
        let all: Vec<Exchange> = (0..size)
            .map(|it| Exchange::new(tree, it).unwrap())
            .collect();
        // What ranks have published in each level.
        let mut published = vec![vec![None; MOST_STEPS]; size];
        let mut has: Vec<Vec<usize>> = (0..size).map(|rank| vec![rank]).collect();
        let mut at = vec![0; size];
        let mut went_on = true;
        while std::mem::take(&mut went_on) {
            for rank in 0..size {
                let Some(step) = all[rank].steps.get(at[rank]) else {
                    continue;
                };
                went_on |= published[rank][step.level].is_none();
                published[rank][step.level].get_or_insert_with(|| has[rank].clone());
                let parts = step.members.iter();
                let parts = parts.map(|it| published[it.partner][step.level].clone());
                let Some(parts) = parts.collect::<Option<Vec<Vec<usize>>>>() else {
                    continue;
                };
                for (part, member) in parts.iter().zip(&step.members) {
                    let mut part = part.clone();
                    part.sort_unstable();
                    assert_eq!(part, member.ranks, "{rank} {step:?}");
                    assert!(part.len() <= all[rank].most_ranks);
                }
                has[rank] = parts.concat();
                at[rank] += 1;
                went_on = true;
            }
        }
        for (rank, exchange) in all.iter().enumerate() {
            assert_eq!(at[rank], exchange.steps.len(), "rank {rank} waits for ever");
        }
        has
    }

    #[test]
    fn everybody_has_everything_in_the_same_order() {
        let mut trees: Vec<Tree> = Vec::new();
        for size in [2, 3, 5, 16, 17, 31, 64, 100] {
            for most in [2, 3, 4, 7, 16] {
                trees.push(Tree::in_rank_order(size, most));
            }
        }
        // Ranks beside groups, groups of other sizes.
        let cpus = |range: std::ops::Range<usize>| range.collect::<Cpus>();
        let name = |level, number| Name { level, number };
        let sets = vec![
            (name(Level::Package, 0), cpus(0..8)),
            (name(Level::Cache, 0), cpus(0..5)),
            (name(Level::Cache, 1), cpus(5..7)),
        ];
        let machine = Object::of_sets(cpus(0..12), sets);
        let places = [2, 2, 2, 2, 2, 3, 3, 1, 0, 0, 0, 0];
        for levels in [&[Level::Cache][..], &[Level::Package, Level::Cache]] {
            trees.push(Tree::new(&machine, &places, levels, MOST_MEMBERS));
        }
        let mut tried = 0;
        for tree in trees.iter().filter(|tree| tree.depth() <= MOST_STEPS) {
            let has = run(tree);
            let mut all = has[0].clone();
            assert!(has.iter().all(|order| *order == all), "{tree:?}");
            all.sort_unstable();
            assert!(all.into_iter().eq(0..tree.size()));
            tried += 1;
        }
        assert!(tried > 30, "{tried}");
        assert_eq!(Exchange::new(&Tree::in_rank_order(64, 2), 0), None);
    }

    #[test]
    fn each_rank_reads_from_one_that_has_the_bytes() {
        let mut trees: Vec<Tree> = Vec::new();
        for size in [1, 2, 5, 16, 17, 31, 100] {
            for most in [2, 3, 7, 16] {
                trees.push(Tree::in_rank_order(size, most));
            }
        }
        for tree in &trees {
            for root in [0, tree.size() / 2, tree.size() - 1] {
                let all: Vec<Descent> = (0..tree.size())
                    .map(|rank| Descent::new(tree, root, rank))
                    .collect();
                for (rank, descent) in all.iter().enumerate() {
                    assert_eq!(descent.from.is_none(), rank == root);
                    if let Some(from) = descent.from {
                        assert!(all[from].readers.contains(&rank));
                    }
                    for reader in descent.readers.iter() {
                        assert_eq!(all[*reader].from, Some(rank));
                    }
                    // Up to the root, by as many ranks as there are levels.
                    let above = std::iter::successors(Some(rank), |rank| all[*rank].from);
                    let above: Vec<usize> = above.take(tree.depth() + 1).collect();
                    assert_eq!(above.last(), Some(&root), "{tree:?}");
                }
            }
        }
    }

    /// Four caches of eight ranks in two packages.
    #[test]
    fn groups_are_those_of_the_machine_where_it_is_far() {
        let mut sets: Vec<(Name, Cpus)> = Vec::new();
        for (level, ranks) in [(Level::Package, 16), (Level::Cache, 8)] {
            for number in 0..32 / ranks {
                let cpus = (number * ranks..(number + 1) * ranks).collect();
                sets.push((Name { level, number }, cpus));
            }
        }
        let object = Object::of_sets((0..32).collect(), sets);
        let places: Vec<usize> = (0..32).map(|rank| [2, 3, 5, 6][rank / 8]).collect();
        let machine = Machine::new(&object, &places, Costs::BUILT_IN);
        let by_cache = Tree::new(&object, &places, &[Level::Cache], MOST_MEMBERS);
        let all = [
            by_cache.clone(),
            Tree::in_rank_order(32, 2),
            Tree::in_rank_order(32, 16),
        ];
        let best = best(all, &machine).unwrap();
        assert_eq!(best, by_cache, "two steps, of which one is near");
    }
}
