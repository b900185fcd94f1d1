// SPDX-License-Identifier: MIT OR Apache-2.0

//! Operations that move bytes and combine none.

use std::ops::Range;

use super::call::{Call, share};
use super::held::Held;
use super::signal::{all_have_ended, ended, gathered, gathered_stages, latest, led, released};
use super::stage::{After, Buffer, Piece, Plan, Progress, Source, Span, Stage};
use super::tree::{MOST_MEMBERS, Member, Tree};

/// A barrier.
pub(super) fn barrier(tree: &Tree, rank: usize) -> Plan {
    Plan {
        stages: all_have_ended(tree, rank, |_| 0),
    }
}

/// A broadcast: each rank follows its parent, chunk by chunk.
pub(super) fn bcast(tree: &Tree, call: &Call<'_>, rank: usize) -> Plan {
    let bytes = call.lengths.total(1);
    let span = |rank| Span {
        rank,
        buffer: Buffer::Receive,
        at: 0,
    };
    let all_of = |rank| After {
        rank,
        progress: Progress { stage: 0, bytes },
    };
    let pieces = tree.parent(rank, call.root).map(|parent| Piece {
        to: span(rank),
        bytes,
        from: vec![Source {
            span: span(parent),
            after: (parent != call.root).then(|| all_of(parent)),
            in_order: true,
        }],
    });
    let children = led(tree, rank, call.root).flat_map(|group| tree.children(group, call.root));
    let first = Stage::moving(pieces);
    let last = Stage::waiting(children.map(all_of));
    Plan {
        stages: vec![first, last],
    }
}

/// A gather: each rank writes to the root, at most `at_once` at a time.
pub(super) fn gather(tree: &Tree, call: &Call<'_>, rank: usize, at_once: usize) -> Plan {
    let block = call.lengths.block(rank);
    let piece = Piece {
        to: Span {
            rank: call.root,
            buffer: Buffer::Receive,
            at: block.start,
        },
        bytes: block.len(),
        from: vec![Held::own(block, rank, Buffer::Send, 0).source()],
    };
    with_root(tree, call, rank, at_once, piece)
}

/// A scatter: each rank reads from the root, at most `at_once` at a time.
pub(super) fn scatter(tree: &Tree, call: &Call<'_>, rank: usize, at_once: usize) -> Plan {
    let block = call.lengths.block(rank);
    let piece = Piece {
        to: Span {
            rank,
            buffer: Buffer::Receive,
            at: 0,
        },
        bytes: block.len(),
        from: vec![Held::own(block.clone(), call.root, Buffer::Send, block.start).source()],
    };
    with_root(tree, call, rank, at_once, piece)
}

/// The root tells that it is there, each rank moves its piece, and the root learns that all have.
fn with_root(tree: &Tree, call: &Call<'_>, rank: usize, at_once: usize, piece: Piece) -> Plan {
    let mut stages = vec![released(tree, rank, call.root, |_| 0)];
    let size = tree.size();
    let number = |rank: usize| (rank + size - call.root) % size;
    let before = number(rank).checked_sub(at_once.max(1));
    // The root's own block is not in the others' way.
    let before = before.filter(|number| *number > 0);
    let after = before.map(|number| ended((number + call.root) % size, 2));
    stages.push(Stage {
        after: after.into_iter().collect(),
        pieces: vec![piece],
    });
    stages.extend(gathered(tree, rank, call.root, |_| 2));
    Plan { stages }
}

/// An allgather: from the largest groups to the smallest, the ranks of each member share out what
/// they fetch from the other members, so that it crosses between two members once.
pub(super) fn allgather(tree: &Tree, call: &Call<'_>, rank: usize) -> Plan {
    let own = call.lengths.block(rank);
    let mut stages = vec![Stage::moving([Piece {
        to: Span {
            rank,
            buffer: Buffer::Receive,
            at: own.start,
        },
        bytes: own.len(),
        from: vec![Held::own(own, rank, Buffer::Send, 0).source()],
    }])];
    let blocks =
        (0..tree.size()).map(|rank| Held::own(call.lengths.block(rank), rank, Buffer::Send, 0));
    let mut held: Vec<Held> = blocks.filter(|it| !it.range.is_empty()).collect();
    let mut readers = Vec::new();
    // Of a small team each rank looks at those that read from it.
    let is_small = tree.size() <= MOST_MEMBERS;
    let chain: Vec<usize> = tree.chain(rank).collect();
    for group in chain.into_iter().rev() {
        let mut pieces = Vec::new();
        let mut below = Vec::new();
        for (number, member) in tree.groups()[group].members.iter().enumerate() {
            let ranks = tree.ranks(*member);
            let is_here = ranks.binary_search(&rank).is_ok();
            if !is_here && !is_small {
                continue;
            }
            for (reader, parts) in shared_out(tree, group, number, &held, call.granule()) {
                let its_groups = tree.chain(reader).count();
                // Its own block first, then one stage for each group from the largest on.
                let stage = its_groups - tree.position(reader, group);
                let mut bytes = 0;
                for part in parts {
                    bytes += part.range.len();
                    let to = Span {
                        rank: reader,
                        buffer: Buffer::Receive,
                        at: part.range.start,
                    };
                    let after = After {
                        rank: reader,
                        progress: Progress { stage, bytes },
                    };
                    if part.span.rank == rank {
                        readers.push(after);
                    }
                    if reader == rank {
                        pieces.push(Piece {
                            to,
                            bytes: part.range.len(),
                            from: vec![part.source()],
                        });
                    }
                    if is_here {
                        below.push(Held {
                            range: part.range,
                            span: to,
                            after: Some(after),
                            in_order: true,
                        });
                    }
                }
            }
            if is_here {
                let kept = held
                    .iter()
                    .filter(|it| ranks.binary_search(&it.span.rank).is_ok());
                below.extend(kept.cloned());
            }
        }
        below.sort_unstable_by_key(|it| it.range.start);
        held = below;
        stages.push(Stage::moving(pieces));
    }
    // A rank reads from many, each of which would look at it.
    if !is_small {
        stages.extend(all_have_ended(tree, rank, |rank| {
            1 + tree.chain(rank).count()
        }));
    } else {
        stages.push(Stage::waiting(latest(readers)));
    }
    Plan { stages }
}

/// An allgather of short blocks: up the tree each leader gets the blocks of its group's ranks, and
/// down the tree each rank gets what it has not.
pub(super) fn allgather_by_leaders(tree: &Tree, call: &Call<'_>, rank: usize) -> Plan {
    let root = 0;
    let copy = |from: usize, buffer: Buffer, at: usize, range: Range<usize>, after| Piece {
        to: Span {
            rank,
            buffer: Buffer::Receive,
            at: range.start,
        },
        bytes: range.len(),
        from: vec![Source {
            span: Span {
                rank: from,
                buffer,
                at,
            },
            after,
            in_order: false,
        }],
    };
    let own = call.lengths.block(rank);
    let mut stages = vec![Stage::moving([copy(rank, Buffer::Send, 0, own, None)])];
    // The stages of a rank that gathers: its own block, and one for each group that it leads.
    let gathered = |rank| 1 + gathered_stages(tree, rank, root);
    let mut has = tree.ranks(Member::Rank(rank)).to_vec();
    for group in led(tree, rank, root) {
        let mut pieces = Vec::new();
        for member in &tree.groups()[group].members {
            let child = tree.leader(*member, root);
            if child == rank {
                continue;
            }
            let after = Some(ended(child, gathered(child)));
            for range in runs(call, tree.ranks(*member).iter().copied()) {
                pieces.push(copy(child, Buffer::Receive, range.start, range, after));
            }
        }
        has.clone_from(&tree.groups()[group].ranks);
        stages.push(Stage::moving(pieces));
    }
    let parent = tree.parent(rank, root);
    let pieces = parent.into_iter().flat_map(|parent| {
        let after = Some(ended(parent, gathered(parent) + 1));
        let others = (0..tree.size()).filter(|rank| has.binary_search(rank).is_err());
        let missing = runs(call, others);
        missing.into_iter().map(move |range| (parent, after, range))
    });
    let pieces = pieces
        .map(|(parent, after, range)| copy(parent, Buffer::Receive, range.start, range, after));
    stages.push(Stage::moving(pieces));
    let children = led(tree, rank, root).flat_map(|group| tree.children(group, root));
    let fetched = children.map(|child| ended(child, gathered(child) + 1));
    let fetched = fetched.chain(parent.map(|parent| ended(parent, gathered(parent))));
    stages.push(Stage::waiting(fetched));
    Plan { stages }
}

/// The blocks of ranks, in order, as few ranges.
fn runs(call: &Call<'_>, ranks: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for block in ranks.map(|rank| call.lengths.block(rank)) {
        match runs.last_mut() {
            Some(last) if last.end == block.start => last.end = block.end,
            _ => runs.push(block),
        }
    }
    runs
}

/// What each rank of a member fetches of what the other members of the group hold: equal shares,
/// the next member's bytes first.
fn shared_out(
    tree: &Tree,
    group: usize,
    number: usize,
    held: &[Held],
    granule: usize,
) -> Vec<(usize, Vec<Held>)> {
    let members = &tree.groups()[group].members;
    let others = (1..members.len()).map(|step| members[(number + step) % members.len()]);
    let missing: Vec<&Held> = others
        .flat_map(|other| {
            let ranks = tree.ranks(other);
            held.iter()
                .filter(move |it| ranks.binary_search(&it.span.rank).is_ok())
        })
        .collect();
    let total: usize = missing.iter().map(|it| it.range.len()).sum();
    let ranks = tree.ranks(members[number]);
    // Shares that are shorter than a line are still to be equal.
    let granule = if total < ranks.len() * granule {
        1
    } else {
        granule
    };
    // Where the next piece starts in what is missing.
    let (mut next, mut start) = (0, 0);
    let shares = ranks.iter().enumerate().map(|(index, rank)| {
        let mut range = share(&(0..total), ranks.len(), index, granule);
        let mut parts = Vec::new();
        while !range.is_empty() {
            let it = &missing[next];
            let from = it.range.start + (range.start - start);
            let to = it.range.end.min(from + range.len());
            parts.push(it.part(from..to));
            range.start += to - from;
            if to == it.range.end {
                start += it.range.len();
                next += 1;
            }
        }
        (*rank, parts)
    });
    shares.collect()
}

/// An alltoall: each rank reads its blocks from the others, in the order in which each source has
/// one reader at a time.
pub(super) fn alltoall(tree: &Tree, call: &Call<'_>, rank: usize) -> Plan {
    let size = tree.size();
    let bytes = call.lengths.block(0).len();
    let pieces = (0..size).map(|step| {
        let peer = (rank + step) % size;
        let to = Span {
            rank,
            buffer: Buffer::Receive,
            at: peer * bytes,
        };
        let from = Held::own(0..bytes, peer, Buffer::Send, rank * bytes);
        Piece {
            to,
            bytes,
            from: vec![from.source()],
        }
    });
    let mut stages = vec![Stage::moving(pieces)];
    if size > MOST_MEMBERS {
        stages.extend(all_have_ended(tree, rank, |_| 1));
        return Plan { stages };
    }
    let peers = (0..size).filter(|peer| *peer != rank);
    let after = peers.map(|peer| {
        let step = (rank + size - peer) % size;
        let progress = Progress {
            stage: 0,
            bytes: (step + 1) * bytes,
        };
        After {
            rank: peer,
            progress,
        }
    });
    stages.push(Stage::waiting(after));
    Plan { stages }
}
