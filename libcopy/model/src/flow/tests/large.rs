// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cases as large as collectives of the largest machines. How long each took is printed
//! (`cargo test -p libcopy-model large -- --nocapture`).

use std::time::Instant;

use super::fair::{assert_fair, is_near};
use super::reference;
use crate::flow::classes::Classes;
use crate::flow::simulate::simulate_watched;
use crate::flow::{Activity, Outcome, Resources, simulate};

const RANKS: usize = 192;
/// Ranks of one last-level cache, and of one memory controller; the latter are half of a socket's.
const GROUP: usize = 8;
const NODE: usize = 24;
const SOCKET: usize = 96;

/// A machine of two sockets: cores, caches and their ports, memory, and the link each way.
struct Machine {
    resources: Resources,
    cores: Vec<usize>,
    caches: Vec<usize>,
    ports: Vec<usize>,
    memories: Vec<usize>,
    links: [usize; 2],
}

impl Machine {
    fn new() -> Machine {
        let mut resources = Resources::new();
        let mut some = |name: &str, count, capacity| -> Vec<usize> {
            (0..count)
                .map(|index| resources.add(format!("{name} {index}"), capacity))
                .collect()
        };
        let cores = some("core", RANKS, 12e9);
        let caches = some("cache", RANKS / GROUP, 150e9);
        let ports = some("port", RANKS / GROUP, 45e9);
        let memories = some("memory", RANKS / NODE, 80e9);
        let links = some("link", 2, 90e9);
        Machine {
            links: [links[0], links[1]],
            cores,
            caches,
            ports,
            memories,
            resources,
        }
    }

    /// What `reader` uses when it copies from the cache or the memory of `source`.
    fn copy(&self, reader: usize, source: usize) -> Vec<(usize, f64)> {
        let group = |rank| rank / GROUP;
        let mut uses = vec![(self.cores[reader], 1.0), (self.caches[group(reader)], 2.0)];
        if group(reader) != group(source) {
            uses.push((self.ports[group(reader)], 1.0));
            uses.push((self.ports[group(source)], 1.0));
            uses.push((self.memories[source / NODE], 1.0));
        }
        uses.push((self.memories[reader / NODE], 0.5));
        if reader / SOCKET != source / SOCKET {
            uses.push((self.links[source / SOCKET], 1.0));
        }
        uses
    }

    /// A broadcast in chunks: each rank copies a chunk from its parent as soon as that has it.
    fn bcast(&self, chunks: usize, bytes: f64, parent: impl Fn(usize) -> usize) -> Vec<Activity> {
        let index = |rank: usize, chunk: usize| (rank - 1) * chunks + chunk;
        let mut activities = Vec::new();
        for rank in 1..RANKS {
            let parent = parent(rank);
            for chunk in 0..chunks {
                let mut after = Vec::new();
                if chunk > 0 {
                    after.push(index(rank, chunk - 1));
                }
                if parent > 0 {
                    after.push(index(parent, chunk));
                }
                activities.push(Activity {
                    work: bytes / chunks as f64,
                    latency: 0.2e-6 * (1 + rank % 3) as f64,
                    rate_cap: None,
                    uses: self.copy(rank, parent),
                    after,
                });
            }
        }
        activities
    }
}

/// The first rank of the smallest object that holds the rank but does not begin with it.
fn leader(rank: usize) -> usize {
    for size in [GROUP, NODE, SOCKET] {
        if rank % size > 0 {
            return rank - rank % size;
        }
    }
    0
}

/// Simulates twice: once for the time, once with rates checked at some events.
fn run(name: &str, resources: &Resources, activities: &[Activity], every: usize) -> Outcome {
    let begin = Instant::now();
    let outcome = simulate(resources, activities).unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    let classes = Classes::new(activities);
    let (mut events, mut most) = (0, 0);
    let watched = simulate_watched(resources, activities, |_, sharing| {
        if events % every == 0 {
            assert_fair(resources.capacities(), &classes, sharing);
            let running = (0..classes.len() as u32).map(|class| sharing.running(class));
            most = most.max(running.sum());
        }
        events += 1;
    });
    assert_eq!(watched.unwrap(), outcome);
    println!(
        "{name}: {} activities, {} classes, {events} events, up to {most} at once: {seconds:.3} s",
        activities.len(),
        classes.len(),
    );
    for (index, activity) in activities.iter().enumerate() {
        let before = activity.after.iter().map(|&after| outcome.ends[after]);
        let ready = before.fold(0.0, f64::max) + activity.latency;
        let start = outcome.starts[index];
        assert!((start - ready).abs() <= 1e-9 * ready, "activity {index}");
    }
    for part in outcome.utilisation(resources) {
        assert!((0.0..=1.0 + 1e-6).contains(&part));
    }
    outcome
}

#[test]
fn a_tree_of_chunks() {
    let machine = Machine::new();
    let activities = machine.bcast(40, 16e6, leader);
    let outcome = run("tree", &machine.resources, &activities, 50);
    // A core moves 12 GB/s.
    assert!(outcome.makespan > 16e6 / 12e9);
}

#[test]
fn many_small_chunks() {
    let machine = Machine::new();
    let activities = machine.bcast(200, 16e6, leader);
    run("small chunks", &machine.resources, &activities, 500);
}

#[test]
fn all_read_one() {
    let machine = Machine::new();
    let activities = machine.bcast(40, 1e6, |_| 0);
    let outcome = run("flat", &machine.resources, &activities, 50);
    // All but the root's group go through its port.
    let through = 1e6 * (RANKS - GROUP) as f64;
    assert!(outcome.makespan >= through / 45e9);
}

/// Each rank copies from all others, one after the other, beginning with the next.
#[test]
fn all_to_all() {
    let machine = Machine::new();
    let mut activities = Vec::new();
    for rank in 0..RANKS {
        for step in 1..RANKS {
            let source = (rank + step) % RANKS;
            let before = activities.len().checked_sub(1).filter(|_| step > 1);
            activities.push(Activity {
                work: 65_536.0,
                latency: 0.2e-6 * (1 + rank % 3) as f64,
                rate_cap: None,
                uses: machine.copy(rank, source),
                after: before.into_iter().collect(),
            });
        }
    }
    run("all to all", &machine.resources, &activities, 500);
}

/// Flow i uses resources i and i + 1, and gets what the flow before it leaves. When the first one
/// ends, the second gets more, the third less, the fourth more, and so on: one after the other.
#[test]
fn a_change_goes_through_a_chain() {
    const FLOWS: usize = 60;
    let mut resources = Resources::new();
    for index in 0..=FLOWS {
        resources.add(format!("r{index}"), (2 * index.max(2) - 1) as f64);
    }
    let activities: Vec<Activity> = (0..FLOWS)
        .map(|index| Activity {
            work: if index == 0 { 1.0 } else { 10.0 * index as f64 },
            uses: vec![(index, 1.0), (index + 1, 1.0)],
            ..Activity::default()
        })
        .collect();
    let outcome = run("chain", &resources, &activities, 1);
    let expected = reference::ends(&resources, &activities);
    for (index, (&found, &expected)) in outcome.ends.iter().zip(&expected).enumerate() {
        assert!(
            is_near(found, expected),
            "{index} ends at {found}, not {expected}"
        );
    }
}

/// Nothing is alike, and everything is connected.
#[test]
fn unlike_activities() {
    let mut state = 1_u64;
    let mut random = move |below: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for (activities, at_once) in [(8_000, 200), (40_000, 400)] {
        let mut resources = Resources::new();
        for index in 0..1_000 {
            resources.add(format!("r{index}"), 1e9 * (1 + random(1_000)) as f64);
        }
        let list: Vec<Activity> = (0..activities)
            .map(|index: usize| Activity {
                work: (1 + random(1_000_000)) as f64,
                latency: random(3) as f64 * 1e-9,
                rate_cap: None,
                uses: (0..5)
                    .map(|_| (random(1_000), (1 + random(4)) as f64))
                    .collect(),
                after: index.checked_sub(at_once).into_iter().collect(),
            })
            .collect();
        run("unlike", &resources, &list, 1_000);
    }
}
