// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stages that move nothing: who has come, who has ended, up and down the tree, so that nobody
//! looks at more than a group's members.

use super::stage::{After, Progress, Stage};
use super::tree::{Member, Tree};

/// When a rank has ended this many stages.
pub(super) fn ended(rank: usize, stages: usize) -> After {
    After {
        rank,
        progress: Progress {
            stage: stages,
            bytes: 0,
        },
    }
}

/// The groups that a rank leads, the smallest first.
pub(super) fn led(tree: &Tree, rank: usize, root: usize) -> impl Iterator<Item = usize> + '_ {
    let chain = tree.chain(rank);
    chain.take_while(move |group| tree.leader(Member::Group(*group), root) == rank)
}

/// Ranks that look at each other to learn that all have come so far. By [`Costs::BUILT_IN`], three
/// lines read one after the other take 90 ns, and the second of two steps, up and down a tree, 40
/// ns in a cache and 120 ns or more beyond it.
///
/// [`Costs::BUILT_IN`]: super::costs::Costs::BUILT_IN
const FEW: usize = 4;

/// How many stages [`gathered`] has for a rank.
pub(super) fn gathered_stages(tree: &Tree, rank: usize, root: usize) -> usize {
    led(tree, rank, root).count()
}

/// Up the tree: once the root has ended these stages, all ranks have ended those that they had
/// before, of which `before` has the number.
pub(super) fn gathered(
    tree: &Tree,
    rank: usize,
    root: usize,
    before: impl Fn(usize) -> usize,
) -> Vec<Stage> {
    let groups = led(tree, rank, root).map(|group| {
        let children = tree.children(group, root);
        let stages = |child| before(child) + gathered_stages(tree, child, root);
        Stage::waiting(children.map(|child| ended(child, stages(child))))
    });
    groups.collect()
}

/// Down the tree: a rank ends this stage after the root has. `before` says how many stages a rank
/// has before it.
pub(super) fn released(
    tree: &Tree,
    rank: usize,
    root: usize,
    before: impl Fn(usize) -> usize,
) -> Stage {
    let parent = tree.parent(rank, root);
    let after = parent.map(|parent| ended(parent, before(parent) + 1));
    Stage::waiting(after)
}

/// Behind stages of which `before` has the number: nobody goes on before all have ended these. Few
/// ranks look at each other.
pub fn all_have_ended(tree: &Tree, rank: usize, before: impl Fn(usize) -> usize) -> Vec<Stage> {
    if tree.size() <= FEW {
        let others = (0..tree.size()).filter(|other| *other != rank);
        return vec![Stage::waiting(
            others.map(|other| ended(other, before(other))),
        )];
    }
    let mut stages = gathered(tree, rank, 0, &before);
    let all = |rank| before(rank) + gathered_stages(tree, rank, 0);
    stages.push(released(tree, rank, 0, all));
    stages
}

/// Of several times of the same ranks, the last of each rank.
pub(super) fn latest(times: impl IntoIterator<Item = After>) -> Vec<After> {
    let mut latest: Vec<After> = times.into_iter().collect();
    latest.sort_unstable_by_key(|after| (after.rank, std::cmp::Reverse(after.progress)));
    latest.dedup_by_key(|after| after.rank);
    latest
}
