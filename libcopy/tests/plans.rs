// SPDX-License-Identifier: MIT OR Apache-2.0

//! Plans of collectives are right for any tree, length and root, in any order that they allow:
//! every byte arrives once, nobody waits for ever or touches what is not there, and no progress is
//! followed by more than a group's members.

use libcopy::plan::check::{Findings, run};
use libcopy::plan::choose::ways;
use libcopy::plan::{
    Call, Costs, Lengths, MOST_MEMBERS, Member, Operation, Plan, Plans, Prefix, Shape, Tree,
    Workers,
};
use libcopy::topology::{Cpus, Level, Name, Object};

/// Numbers that look random and are the same in every run (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % end.max(1) as u64) as usize
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// An object of a machine with these numbers of objects inside each other.
fn object(level: Level, number: usize, inside: &[(Level, usize)]) -> Object {
    let objects = inside
        .first()
        .into_iter()
        .flat_map(|(level, count)| (0..*count).map(|number| object(*level, number, &inside[1..])));
    Object {
        names: vec![Name { level, number }],
        cpus: Cpus::default(),
        inside: objects.collect(),
    }
}

/// A machine and a place for each rank.
fn machine(random: &mut Random, ranks: usize) -> (Object, Vec<usize>) {
    let counts = [
        (Level::Package, 1 + random.below(3)),
        (Level::Node, 1 + random.below(4)),
        (Level::Cache, 1 + random.below(6)),
        (Level::Core, 1 + random.below(8)),
    ];
    let skipped = random.below(8);
    let levels = counts
        .iter()
        .enumerate()
        .filter(|(index, _)| skipped & 1 << index == 0);
    let levels: Vec<(Level, usize)> = levels.map(|(_, level)| *level).collect();
    let machine = object(Level::Machine, 0, &levels);
    let objects = machine.all().len();
    // Bound one after the other, round robin, anywhere, or not at all.
    let kind = random.below(4);
    let place = |rank: usize, random: &mut Random| match kind {
        0 => rank * objects / ranks,
        1 => rank % objects,
        2 => random.below(objects),
        _ => 0,
    };
    let places = (0..ranks).map(|rank| place(rank, random)).collect();
    (machine, places)
}

fn tree(random: &mut Random, ranks: usize) -> Tree {
    let (machine, places) = machine(random, ranks);
    let levels = [Level::Package, Level::Node, Level::Cache, Level::Core];
    let used = random.below(16);
    let levels = levels
        .iter()
        .enumerate()
        .filter(|(index, _)| used & 1 << index != 0);
    let levels: Vec<Level> = levels.map(|(_, level)| *level).collect();
    let most = random.one(&[2, 3, 5, 8, MOST_MEMBERS, MOST_MEMBERS]);
    Tree::new(&machine, &places, &levels, most)
}

/// The number of ranks: small ones more often, as there the strange cases are.
fn size(random: &mut Random) -> usize {
    let most = random.one(&[2, 4, 8, 8, 16, 16, 32, 32, 64, 256]);
    1 + random.below(most)
}

fn check(number: u64) -> Result<Findings, String> {
    let mut random = Random(number);
    let ranks = size(&mut random);
    let operation = random.one(&Operation::ALL);
    // An alltoall's plans have pieces for each pair.
    let ranks = if operation == Operation::Alltoall {
        ranks.min(48)
    } else {
        ranks
    };
    let mut tree = tree(&mut random, ranks);
    let in_rank_order = operation.is_scan() || operation.combines() && random.below(2) > 0;
    if in_rank_order && !tree.is_in_rank_order() {
        tree = Tree::in_rank_order(ranks, 2 + random.below(MOST_MEMBERS - 1));
    }
    let element = if operation.combines() {
        random.one(&[1, 4, 8, 24, 48])
    } else {
        1
    };
    let most = random.one(&[1, 3, 40, 200, 2000]) / ranks.div_ceil(8);
    let each: Vec<usize> = (0..ranks)
        .map(|_| element * random.below(most + 2))
        .collect();
    let starts = each.iter().scan(0, |start, bytes| {
        *start += bytes;
        Some(*start)
    });
    let starts: Vec<usize> = std::iter::once(0).chain(starts).collect();
    let lengths = match operation {
        Operation::Barrier => Lengths::Same(0),
        Operation::Alltoall => Lengths::Same(each[0].min(64)),
        _ if operation.has_blocks() && random.below(2) > 0 => Lengths::Starts(&starts),
        _ => Lengths::Same(each[0]),
    };
    let call = Call {
        operation,
        root: if operation.has_root() {
            random.below(ranks)
        } else {
            0
        },
        lengths,
        in_rank_order,
        element,
    };
    let owners = if matches!(operation, Operation::ReduceScatter | Operation::Reduce) {
        Workers::Owners
    } else {
        Workers::All
    };
    let shape = Shape {
        workers: random.one(&[Workers::All, Workers::All, Workers::Leaders, owners]),
        prefix: random.one(&[Prefix::Chain, Prefix::Doubling]),
        at_once: random.one(&[1, 2, 7, usize::MAX]),
        segments: random.one(&[1, usize::MAX]),
    };
    let in_place = random.below(2) > 0;
    let of_call = Plans::new(&tree, &call, shape);
    let plans = of_call.all();
    let found = run(&tree, &plans, &call, in_place, &mut |end| random.below(end));
    let text = format!(
        "case {number}: {call:?}, {shape:?}, in place: {in_place}, {:?}",
        tree.groups()
    );
    let findings = found.map_err(|fault| format!("{fault}\n{text}"))?;
    // A core in a cache in a node in a package in a machine.
    if tree.depth() <= 5 && findings.stages > 12 * of_call.segments() {
        return Err(format!("{} stages\n{text}", findings.stages));
    }
    if findings.fan_out > MOST_MEMBERS {
        return Err(format!("{} ranks follow one\n{text}", findings.fan_out));
    }
    Ok(findings)
}

#[test]
fn every_byte_arrives_once() {
    let all = std::env::var("LIBCOPY_TEST_ALL").is_ok_and(|asked| asked == "1");
    let cases = if all { 100_000 } else { 3000 };
    let mut most = Findings::default();
    for number in 0..cases {
        match check(number) {
            Ok(findings) => {
                most.stages = most.stages.max(findings.stages);
                most.fan_out = most.fan_out.max(findings.fan_out);
            }
            Err(what) => panic!("{what}"),
        }
    }
    println!("{cases} calls: {most:?}");
}

#[test]
fn groups_are_small_and_have_all_ranks() {
    for number in 0..2000 {
        let mut random = Random(number);
        let ranks = size(&mut random);
        let tree = tree(&mut random, ranks);
        let mut seen = vec![0; ranks];
        for (number, group) in tree.groups().iter().enumerate() {
            assert!(group.members.len() <= MOST_MEMBERS && !group.members.is_empty());
            assert!(
                group.members.len() > 1 || ranks == 1,
                "a group of one: {group:?}"
            );
            let mut of_members: Vec<usize> = Vec::new();
            for member in &group.members {
                of_members.extend(tree.ranks(*member));
                if let Member::Rank(rank) = member {
                    seen[*rank] += 1;
                    assert_eq!(tree.chain(*rank).next(), Some(number));
                }
            }
            of_members.sort_unstable();
            assert_eq!(of_members, group.ranks);
        }
        assert!(seen.iter().all(|times| *times == 1), "{tree:?}");
        assert_eq!(tree.groups()[tree.top()].ranks.len(), ranks);
        // Each but the root has a parent, and all parents lead to the root.
        let root = random.below(ranks);
        for rank in 0..ranks {
            let steps = std::iter::successors(Some(rank), |rank| tree.parent(*rank, root));
            assert_eq!(steps.take(ranks + 1).last(), Some(root), "{tree:?}");
        }
    }
}

/// Where ranks are bound to cores, a group is what shares a cache, then a node, then a package.
#[test]
fn groups_are_what_the_machine_has() {
    let machine = object(
        Level::Machine,
        0,
        &[
            (Level::Package, 2),
            (Level::Node, 2),
            (Level::Cache, 3),
            (Level::Core, 4),
        ],
    );
    let cores = machine.all();
    let cores = cores
        .iter()
        .enumerate()
        .filter(|(_, (_, object))| object.inside.is_empty());
    let places: Vec<usize> = cores.map(|(index, _)| index).collect();
    let levels = [Level::Package, Level::Node, Level::Cache];
    let sizes = |tree: &Tree| {
        let groups = tree.groups().iter();
        groups
            .map(|group| (group.members.len(), group.ranks.len()))
            .collect::<Vec<_>>()
    };
    let tree = Tree::new(&machine, &places, &levels, MOST_MEMBERS);
    let node = [(4, 4), (4, 4), (4, 4), (3, 12)];
    let package = [&node[..], &node, &[(2, 24)]].concat();
    let all = [&package[..], &package, &[(2, 48)]].concat();
    assert_eq!(sizes(&tree), all);
    assert!(tree.is_in_rank_order());
    // One rank per cache: nodes have three, and no group has one.
    let few: Vec<usize> = places.iter().copied().step_by(4).collect();
    let tree = Tree::new(&machine, &few, &levels, MOST_MEMBERS);
    let package = [(3, 3), (3, 3), (2, 6)];
    assert_eq!(sizes(&tree), [&package[..], &package, &[(2, 12)]].concat());
    // Not bound: in the order of ranks, not all in one.
    let tree = Tree::new(&machine, &[0; 48], &levels, MOST_MEMBERS);
    assert_eq!(sizes(&tree), [(16, 16), (16, 16), (16, 16), (3, 48)]);
}

/// Of an operation that does not commute, whatever the ranks share.
#[test]
fn ways_keep_the_order_of_ranks() {
    for number in 0..10 {
        let mut random = Random(number);
        let ranks = 1 + random.below(24);
        let (machine, places) = machine(&mut random, ranks);
        for operation in [
            Operation::Allreduce,
            Operation::Reduce,
            Operation::ReduceScatter,
        ] {
            let call = Call {
                operation,
                root: random.below(ranks),
                lengths: Lengths::Same(512),
                in_rank_order: true,
                element: 8,
            };
            for way in ways(&machine, &places, &call, &Costs::BUILT_IN) {
                let plans = Plans::new(&way.tree, &call, way.shape).all();
                let found = run(&way.tree, &plans, &call, false, &mut |end| {
                    random.below(end)
                });
                assert_eq!(found.err(), None, "{operation:?} {:?}", way.levels);
            }
        }
    }
}

/// What the check is there for: it sees a plan that does less than it should.
#[test]
fn a_plan_that_lacks_something_is_found() {
    let ranks = 12;
    let tree = Tree::in_rank_order(ranks, 4);
    let shape = Shape {
        prefix: Prefix::Chain,
        ..Shape::default()
    };
    for operation in Operation::ALL {
        let element = if operation.combines() { 8 } else { 1 };
        let call = Call {
            operation,
            root: 0,
            lengths: Lengths::Same(640),
            in_rank_order: operation.is_scan(),
            element,
        };
        let made: Vec<Plan> = Plans::new(&tree, &call, shape).all();
        let fails = |plans: &[Plan]| {
            // A wait that is missing shows in some orders only.
            (0..300).any(|seed| {
                let mut random = Random(seed);
                run(&tree, plans, &call, seed % 2 > 0, &mut |end| {
                    random.below(end)
                })
                .is_err()
            })
        };
        assert!(!fails(&made), "{operation:?}");
        for (rank, plan) in made.iter().enumerate() {
            let mut has_waited = false;
            for (number, stage) in plan.stages.iter().enumerate() {
                if !stage.pieces.is_empty() {
                    let mut plans = made.clone();
                    plans[rank].stages[number].pieces.pop();
                    assert!(
                        fails(&plans),
                        "{operation:?}: rank {rank} lacks a piece of {stage:?}"
                    );
                }
                // What is waited for later may have been waited for before.
                let mut sources = stage.pieces.iter().flat_map(|piece| &piece.from);
                let waits = sources.any(|source| source.after.is_some_and(|it| it.rank != rank));
                if waits && !has_waited {
                    let mut plans = made.clone();
                    let pieces = plans[rank].stages[number].pieces.iter_mut();
                    for source in pieces.flat_map(|piece| &mut piece.from) {
                        source.after = None;
                    }
                    assert!(
                        fails(&plans),
                        "{operation:?}: rank {rank} does not wait in {stage:?}"
                    );
                }
                has_waited |= waits || !stage.after.is_empty();
            }
        }
    }
}
