// SPDX-License-Identifier: MIT OR Apache-2.0

//! What other libraries do, as plans, and what no library can do better.

use libcopy::plan::choose::buffer;
use libcopy::plan::{
    After, Buffer, Call, Lengths, MOST_MEMBERS, Machine, Member, Operation, Piece, Plan, Plans,
    Prefix, Progress, Resource, Shape, Source, Span, Stage, Tree, all_have_ended,
};
use libcopy::topology::{Level, Object};

/// How an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// Every rank reads from every other one that it needs, as libcopy did before there were trees.
    Flat,
    /// Open MPI's XHC (PR 11418) with its defaults: levels numa,socket, and l3,numa,socket where
    /// elements are combined; chunks of 16 KiB.
    Xhc,
    /// A binomial tree of whole messages.
    Binomial,
    /// A ring: each rank reads from the one before.
    Ring,
}

impl Peer {
    /// All.
    pub const ALL: [Peer; 4] = [Peer::Flat, Peer::Xhc, Peer::Binomial, Peer::Ring];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Flat => "flat",
            Peer::Xhc => "xhc",
            Peer::Binomial => "binomial",
            Peer::Ring => "ring",
        }
    }
}

/// XHC's chunk.
const XHC_CHUNK: usize = 16 << 10;

/// The plans of a peer, and its chunk; None where it does not have the operation.
pub fn plans(
    peer: Peer,
    machine: &Object,
    places: &[usize],
    call: &Call<'_>,
) -> Option<(Vec<Plan>, usize)> {
    let size = places.len();
    let bytes = call.lengths.total(1);
    let whole = bytes.max(1);
    match peer {
        Peer::Flat => {
            let tree = Tree::in_rank_order(size, usize::MAX);
            let shape = Shape {
                prefix: Prefix::Chain,
                ..Shape::default()
            };
            Some((Plans::new(&tree, call, shape).all(), whole))
        }
        Peer::Xhc => {
            let combines = call.operation.combines();
            let levels = if combines {
                &[Level::Cache, Level::Node, Level::Package][..]
            } else {
                &[Level::Node, Level::Package]
            };
            // Its groups are as large as what they share.
            let tree = Tree::new(machine, places, levels, usize::MAX);
            match call.operation {
                Operation::Bcast | Operation::Barrier => {
                    let plans = Plans::new(&tree, call, Shape::default());
                    Some((plans.all(), XHC_CHUNK))
                }
                Operation::Allreduce | Operation::Reduce => {
                    Some((xhc_reduction(&tree, call), XHC_CHUNK))
                }
                _ => None,
            }
        }
        Peer::Binomial => match call.operation {
            Operation::Bcast => Some((binomial_bcast(size, call.root, bytes), whole)),
            _ => None,
        },
        Peer::Ring => match call.operation {
            Operation::Bcast => Some((ring_bcast(size, call.root, bytes), 128 << 10)),
            Operation::Allreduce => Some((ring_allreduce(size, bytes, call.element), whole)),
            Operation::Allgather => Some((ring_allgather(size, bytes), whole)),
            _ => None,
        },
    }
}

fn after(rank: usize, stage: usize, bytes: usize) -> After {
    After {
        rank,
        progress: Progress { stage, bytes },
    }
}

fn span(rank: usize, buffer: Buffer, at: usize) -> Span {
    Span { rank, buffer, at }
}

/// A copy from one rank's `Receive` to another's, once that one is so far.
fn copy(
    from: usize,
    to: usize,
    at: usize,
    bytes: usize,
    after: Option<After>,
    in_order: bool,
) -> Piece {
    Piece {
        to: span(to, Buffer::Receive, at),
        bytes,
        from: vec![Source {
            span: span(from, Buffer::Receive, at),
            after,
            in_order,
        }],
    }
}

fn binomial_bcast(size: usize, root: usize, bytes: usize) -> Vec<Plan> {
    let plan = |rank: usize| {
        let number = (rank + size - root) % size;
        // The parent's number is this one without its lowest bit.
        let parent = (number & number.wrapping_sub(1)).wrapping_add(root) % size;
        let piece = (number > 0).then(|| {
            let has_it = (parent != root).then(|| after(parent, 1, 0));
            copy(parent, rank, 0, bytes, has_it, false)
        });
        let mut stages = vec![Stage::moving(piece)];
        let bits = (0..usize::BITS).map(|bit| 1usize << bit);
        let bits = bits.take_while(|bit| {
            *bit < size && (number == 0 || *bit < (number & number.wrapping_neg()))
        });
        let children = bits.filter(|bit| number + bit < size);
        let children = children.map(|bit| after((number + bit + root) % size, 1, 0));
        stages.push(Stage::waiting(children));
        Plan { stages }
    };
    (0..size).map(plan).collect()
}

fn ring_bcast(size: usize, root: usize, bytes: usize) -> Vec<Plan> {
    let plan = |rank: usize| {
        let before = (rank + size - 1) % size;
        let piece = (rank != root).then(|| {
            let has_it = (before != root).then(|| after(before, 0, bytes));
            copy(before, rank, 0, bytes, has_it, true)
        });
        let next = (rank + 1) % size;
        let read = (next != root).then(|| after(next, 1, 0));
        let last = Stage::waiting(read);
        Plan {
            stages: vec![Stage::moving(piece), last],
        }
    };
    (0..size).map(plan).collect()
}

/// A part of a buffer, of as many whole elements as the others.
fn part(bytes: usize, element: usize, parts: usize, number: usize) -> std::ops::Range<usize> {
    let elements = bytes / element;
    elements * number / parts * element..elements * (number + 1) / parts * element
}

/// Reduce-scatter around the ring, then allgather around the ring.
fn ring_allreduce(size: usize, bytes: usize, element: usize) -> Vec<Plan> {
    let part = |number: usize| part(bytes, element.max(1), size, number % size);
    let plan = |rank: usize| {
        let before = (rank + size - 1) % size;
        let mut stages = Vec::new();
        // In step s the rank combines the part that the one before combined in step s - 1.
        for step in 0..size - 1 {
            let range = part(rank + 2 * size - step - 2);
            let (buffer, has_it) = match step {
                0 => (Buffer::Send, None),
                step => (Buffer::Receive, Some(after(before, step, 0))),
            };
            stages.push(Stage::moving(vec![Piece {
                to: span(rank, Buffer::Receive, range.start),
                bytes: range.len(),
                from: vec![
                    Source {
                        span: span(before, buffer, range.start),
                        after: has_it,
                        in_order: false,
                    },
                    Source {
                        span: span(rank, Buffer::Send, range.start),
                        after: None,
                        in_order: true,
                    },
                ],
            }]));
        }
        for step in 0..size - 1 {
            let range = part(rank + size - 1 - step);
            let has_it = Some(after(before, size - 1 + step, 0));
            stages.push(Stage::moving(vec![copy(
                before,
                rank,
                range.start,
                range.len(),
                has_it,
                false,
            )]));
        }
        stages.push(Stage::waiting([after(
            (rank + 1) % size,
            2 * (size - 1),
            0,
        )]));
        Plan { stages }
    };
    if size == 1 {
        vec![Plan::default()]
    } else {
        (0..size).map(plan).collect()
    }
}

fn ring_allgather(size: usize, bytes: usize) -> Vec<Plan> {
    let plan = |rank: usize| {
        let before = (rank + size - 1) % size;
        let own = Piece {
            to: span(rank, Buffer::Receive, rank * bytes),
            bytes,
            from: vec![Source {
                span: span(rank, Buffer::Send, 0),
                after: None,
                in_order: true,
            }],
        };
        let mut stages = vec![Stage::moving(vec![own])];
        for step in 1..size {
            let block = (rank + size - step) % size;
            let has_it = Some(after(before, step, 0));
            stages.push(Stage::moving(vec![copy(
                before,
                rank,
                block * bytes,
                bytes,
                has_it,
                false,
            )]));
        }
        stages.push(Stage::waiting([after((rank + 1) % size, size, 0)]));
        Plan { stages }
    };
    (0..size).map(plan).collect()
}

/// A slice of a segment that a rank combines into its leader's buffer.
#[derive(Clone, Copy)]
struct Slice {
    start: usize,
    end: usize,
    leader: usize,
    /// Who combines it, and its progress when it has.
    after: After,
}

/// XHC's reduction: in each group all but the leader combine slices of all members' buffers into
/// the leader's, segment by segment, so that the leaders can begin with the next level; an
/// allreduce then broadcasts down the same tree. Ranks that lead work on the level above only. Its
/// roots other than 0 send the result once more, which is left out.
fn xhc_reduction(tree: &Tree, call: &Call<'_>) -> Vec<Plan> {
    let (bytes, element) = (call.lengths.total(1), call.element.max(1));
    let size = tree.size();
    let root = 0;
    let all = call.operation == Operation::Allreduce;
    let buffer = if all {
        Buffer::Receive
    } else {
        Buffer::Scratch
    };
    let result = |rank: usize| {
        if rank == root {
            Buffer::Receive
        } else {
            buffer
        }
    };
    // Pieces of each rank's only stage of work, and their bytes.
    let mut pieces: Vec<Vec<Piece>> = vec![Vec::new(); size];
    let mut moved = vec![0; size];
    let mut done: Vec<Vec<Slice>> = vec![Vec::new(); tree.groups().len()];
    let most = tree
        .groups()
        .iter()
        .map(|group| group.members.len())
        .max()
        .unwrap_or(1);
    let segments = bytes
        .div_ceil(XHC_CHUNK * most.saturating_sub(1).max(1))
        .clamp(1, 64);
    for segment in 0..segments {
        let range = part(bytes, element, segments, segment);
        for (number, group) in tree.groups().iter().enumerate() {
            let leader = tree.leader(Member::Group(number), root);
            let leaders: Vec<usize> = group
                .members
                .iter()
                .map(|it| tree.leader(*it, root))
                .collect();
            let workers: Vec<usize> = leaders.iter().copied().filter(|it| *it != leader).collect();
            let workers = if workers.is_empty() {
                vec![leader]
            } else {
                workers
            };
            // Where members' slices end, a worker's piece must, too.
            let mut cuts: Vec<usize> = (0..=workers.len())
                .map(|worker| {
                    range.start
                        + part(
                            range.len(),
                            element,
                            workers.len(),
                            worker.min(workers.len() - 1),
                        )
                        .start
                })
                .collect();
            cuts[workers.len()] = range.end;
            let borders = cuts.clone();
            for member in &group.members {
                if let Member::Group(below) = member {
                    let slices = done[*below].iter().filter(|it| range.contains(&it.start));
                    cuts.extend(slices.map(|it| it.start));
                }
            }
            cuts.sort_unstable();
            cuts.dedup();
            for pair in cuts.windows(2) {
                let (start, end) = (pair[0], pair[1]);
                let worker = borders.partition_point(|border| *border <= start) - 1;
                let worker = workers[worker.min(workers.len() - 1)];
                let from = group
                    .members
                    .iter()
                    .zip(&leaders)
                    .map(|(member, rank)| match member {
                        Member::Rank(_) => Source {
                            span: span(*rank, Buffer::Send, start),
                            after: None,
                            in_order: true,
                        },
                        Member::Group(below) => {
                            let slice = done[*below]
                                .iter()
                                .find(|it| it.start <= start && end <= it.end);
                            Source {
                                span: span(*rank, result(*rank), start),
                                after: slice.map(|it| it.after),
                                in_order: false,
                            }
                        }
                    });
                pieces[worker].push(Piece {
                    to: span(leader, result(leader), start),
                    bytes: end - start,
                    from: from.collect(),
                });
                moved[worker] += end - start;
                done[number].push(Slice {
                    start,
                    end,
                    leader,
                    after: after(worker, 0, moved[worker]),
                });
            }
        }
    }
    let slices = &done[tree.top()];
    let plan = |rank: usize| {
        let mut stages = vec![Stage::moving(pieces[rank].clone())];
        let mut copies = Vec::new();
        if let Some(parent) = tree.parent(rank, root).filter(|_| all) {
            if parent == root {
                copies.extend(slices.iter().map(|it| {
                    debug_assert_eq!(it.leader, root);
                    copy(
                        root,
                        rank,
                        it.start,
                        it.end - it.start,
                        Some(it.after),
                        false,
                    )
                }));
            } else {
                copies.push(copy(
                    parent,
                    rank,
                    0,
                    bytes,
                    Some(after(parent, 1, bytes)),
                    true,
                ));
            }
        }
        stages.push(Stage::moving(copies));
        // Nobody returns before all have what they need.
        stages.extend(all_have_ended(tree, rank, |_| 2));
        Plan { stages }
    };
    (0..size).map(plan).collect()
}

/// Seconds that no way can be faster than: each rank's result is written to the memory of its node,
/// each rank takes in what it has not, and what one package needs of the other crosses once.
pub fn bound(machine: &Machine, call: &Call<'_>) -> f64 {
    let size = machine.size();
    let bytes = call.lengths.total(1) as f64;
    let others = (size - 1) as f64;
    // What each rank writes, and what it takes in.
    let (written, taken) = match call.operation {
        Operation::Bcast => (bytes, bytes),
        // A bandwidth-optimal allreduce takes in nearly twice the buffer.
        Operation::Allreduce => (bytes, 2.0 * bytes * others / size as f64),
        Operation::Allgather | Operation::Alltoall => (bytes * size as f64, bytes * size as f64),
        Operation::ReduceScatter => (bytes, bytes * others),
        Operation::Gather | Operation::Scatter | Operation::Reduce => (0.0, 0.0),
        Operation::Barrier => (0.0, 0.0),
        Operation::Scan | Operation::Exscan => (bytes, bytes),
    };
    // A broadcast's root has its buffer.
    let receives = |rank: usize| call.operation != Operation::Bcast || rank != call.root;
    let mut memory: std::collections::BTreeMap<Resource, f64> = std::collections::BTreeMap::new();
    for rank in (0..size).filter(|rank| receives(*rank)) {
        *memory.entry(machine.memory(rank)).or_default() += written;
    }
    // What is too long for the caches is read from memory once.
    let read = match call.operation {
        Operation::Bcast | Operation::Barrier | Operation::Gather | Operation::Scatter => 0.0,
        Operation::ReduceScatter | Operation::Alltoall => bytes * size as f64,
        _ => bytes,
    };
    for rank in 0..size {
        if !machine.is_cached(rank, buffer(call, size)) {
            *memory.entry(machine.memory(rank)).or_default() += read;
        }
    }
    let of_memory = memory.values().map(|bytes| bytes / machine.costs.memory);
    let of_core = taken / machine.costs.core;
    // Blocks of one length: a root moves all others' with one link and one memory.
    let of_root = match call.operation {
        Operation::Gather | Operation::Scatter => bytes * others / machine.costs.memory,
        Operation::Reduce => bytes / machine.costs.memory,
        _ => 0.0,
    };
    let least = of_memory.fold(of_core.max(of_root), f64::max);
    debug_assert!(matches!(call.lengths, Lengths::Same(_)) && MOST_MEMBERS > 1);
    if size == 1 { 0.0 } else { least }
}
