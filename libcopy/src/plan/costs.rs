// SPDX-License-Identifier: MIT OR Apache-2.0

//! What moving bytes takes of a machine: which caches, memories and links they pass, and how much
//! each of these can.

use crate::topology::{Level, Object};

use super::stage::Piece;
use super::tree::MOST_MEMBERS;

/// What the parts of a machine can do. Rates are in bytes per second, times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// What one processor copies.
    pub core: f64,
    /// What a last-level cache gives to the processors that share it.
    pub cache: f64,
    /// What it gives to other processors, and takes from them.
    pub port: f64,
    /// What the memory of a NUMA node gives and takes.
    pub memory: f64,
    /// What goes from one package to another.
    pub link: f64,
    /// What the memory of one process gives to all that read it at once, where the kernel copies:
    /// they take turns at its locks and at the counts of its pages. Infinite where nothing says so.
    pub source: f64,
    /// Bytes of a last-level cache.
    pub cache_bytes: f64,
    /// Until a processor sees what another has written: one that shares a cache with it, one of the
    /// same node, of the same package, of another package.
    pub latency: [f64; 4],
    /// What a line that several look at takes of each of them, as they get it one after the other.
    pub line: f64,
    /// What a chunk takes of each source however short it is: a system call, or a look at a line.
    pub chunk: f64,
    /// Ranks that move their blocks of a gather or a scatter at the same time, at most: more wait
    /// for each other at the root's memory.
    pub at_once: usize,
}

impl Costs {
    /// Assumed rates of 2 x AMD EPYC 7742 with four nodes per package. Only their proportions
    /// matter, and these have changed little from one generation to the next.
    pub const BUILT_IN: Costs = Costs {
        core: 10e9,
        cache: 150e9,
        port: 39e9,
        memory: 40e9,
        link: 90e9,
        source: f64::INFINITY,
        cache_bytes: 18.0 * 1048576.0,
        latency: [40e-9, 120e-9, 170e-9, 290e-9],
        line: 30e-9,
        chunk: 200e-9,
        at_once: usize::MAX,
    };

    /// Ranks that read from one at once, at most, so that none of them waits for the others:
    /// members of a group.
    pub fn fan_out(&self) -> usize {
        // Infinity is the largest number.
        let readers = (self.source / self.core).ceil() as usize;
        readers.clamp(2, MOST_MEMBERS)
    }
}

/// What bytes pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// The processor of a rank.
    Core(usize),
    /// A last-level cache, seen from the processors that share it.
    Cache(usize),
    /// What leaves a last-level cache for other processors.
    PortOut(usize),
    /// What other processors write to what a last-level cache holds.
    PortIn(usize),
    /// The memory of a NUMA node.
    Memory(usize),
    /// From one package to another.
    Link(usize, usize),
    /// What the kernel copies out of the memory of a rank.
    Source(usize),
}

/// Where a rank is: objects of the machine, by their positions in [`Object::all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    cache: usize,
    node: usize,
    package: usize,
}

/// A machine with ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    places: Vec<Place>,
    /// Ranks that share each rank's cache.
    sharing: Vec<usize>,
    /// What objects are called, by their positions.
    names: Vec<String>,
    /// What its parts can do.
    pub costs: Costs,
}

impl Machine {
    /// A machine whose ranks are at these objects, by their positions in [`Object::all`].
    pub fn new(machine: &Object, places: &[usize], costs: Costs) -> Machine {
        let all = machine.all();
        let of: Vec<Place> = places.iter().map(|at| place(&all, *at)).collect();
        let sharing = of
            .iter()
            .map(|one| of.iter().filter(|it| it.cache == one.cache).count());
        Machine {
            sharing: sharing.collect(),
            names: all.iter().map(|(_, object)| object.name()).collect(),
            places: of,
            costs,
        }
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.places.len()
    }

    /// What a resource can.
    pub fn capacity(&self, resource: Resource) -> f64 {
        let costs = &self.costs;
        match resource {
            Resource::Core(_) => costs.core,
            Resource::Cache(_) => costs.cache,
            Resource::PortOut(_) | Resource::PortIn(_) => costs.port,
            Resource::Memory(_) => costs.memory,
            Resource::Link(..) => costs.link,
            Resource::Source(_) => costs.source,
        }
    }

    /// What a resource is called: "memory of package 0, node 1".
    pub fn name(&self, resource: Resource) -> String {
        let name = |object: usize| self.names.get(object).map_or("", String::as_str);
        match resource {
            Resource::Core(rank) => format!("processor of rank {rank}"),
            Resource::Cache(cache) => name(cache).to_owned(),
            Resource::PortOut(cache) => format!("out of {}", name(cache)),
            Resource::PortIn(cache) => format!("into {}", name(cache)),
            Resource::Memory(node) => format!("memory of {}", name(node)),
            Resource::Link(from, to) => format!("{} to {}", name(from), name(to)),
            Resource::Source(rank) => format!("memory of rank {rank}"),
        }
    }

    /// The memory of the node where a rank is.
    pub fn memory(&self, rank: usize) -> Resource {
        Resource::Memory(self.places[rank].node)
    }

    /// Until one rank sees what another has written.
    pub fn latency(&self, writer: usize, reader: usize) -> f64 {
        if writer == reader {
            return 0.0;
        }
        self.costs.latency[self.distance(writer, reader)]
    }

    /// How far two ranks are from each other: 0 if they share a cache, 1 if a node, 2 if a package,
    /// 3 if the machine alone.
    pub fn distance(&self, one: usize, other: usize) -> usize {
        let (one, other) = (self.places[one], self.places[other]);
        if one.cache == other.cache {
            0
        } else if one.node == other.node {
            1
        } else if one.package == other.package {
            2
        } else {
            3
        }
    }

    /// The last-level cache of a rank, by its position.
    pub fn cache(&self, rank: usize) -> usize {
        self.places[rank].cache
    }

    /// Whether buffers of this length stay in the cache of their rank, which has two of them.
    pub fn is_cached(&self, rank: usize, bytes: usize) -> bool {
        (2 * bytes * self.sharing[rank]) as f64 <= self.costs.cache_bytes
    }

    /// Whether there is a limit to what the memory of one process gives.
    pub(super) fn limits_sources(&self) -> bool {
        self.costs.source.is_finite()
    }

    /// Objects of the machine.
    pub(super) fn objects(&self) -> usize {
        self.names.len()
    }

    /// The cache, the node and the package of a rank, by their positions.
    pub(super) fn holding(&self, rank: usize) -> [usize; 3] {
        let Place {
            cache,
            node,
            package,
        } = self.places[rank];
        [cache, node, package]
    }

    /// What a byte of a piece takes, if a rank moves it: each resource with how many bytes of its
    /// own. `bytes` is the length of a rank's buffer.
    pub fn route(&self, mover: usize, piece: &Piece, bytes: usize) -> Vec<(Resource, f64)> {
        let mut route = vec![(Resource::Core(mover), piece.from.len() as f64)];
        self.pass(mover, piece, bytes, |resource| {
            match route.iter_mut().find(|(it, _)| *it == resource) {
                Some((_, weight)) => *weight += 1.0,
                None => route.push((resource, 1.0)),
            };
        });
        route
    }

    /// Tells what a byte of a piece passes besides the processor of the rank that moves it; twice
    /// what it passes twice.
    pub(super) fn pass(
        &self,
        mover: usize,
        piece: &Piece,
        bytes: usize,
        mut add: impl FnMut(Resource),
    ) {
        let own = self.places[mover];
        for source in &piece.from {
            let rank = source.span.rank;
            let place = self.places[rank];
            // Who follows another reads what has just been written, however long the whole is.
            let since = match source.after {
                Some(_) if source.in_order => 0,
                Some(_) => piece.bytes,
                None => bytes,
            };
            if self.is_cached(rank, since) {
                add(Resource::Cache(place.cache));
                if place.cache != own.cache {
                    add(Resource::PortOut(place.cache));
                }
            } else {
                add(Resource::Memory(place.node));
            }
            if place.package != own.package {
                add(Resource::Link(place.package, own.package));
            }
            if rank != mover && self.limits_sources() {
                add(Resource::Source(rank));
            }
        }
        let to = self.places[piece.to.rank];
        if to.cache != own.cache {
            add(Resource::PortIn(to.cache));
        }
        if to.package != own.package {
            add(Resource::Link(own.package, to.package));
        }
        // What is written gets to memory in the end.
        add(Resource::Memory(to.node));
    }
}

fn place(all: &[(usize, &Object)], at: usize) -> Place {
    let mut place = Place {
        cache: 0,
        node: 0,
        package: 0,
    };
    let Some((mut depth, _)) = all.get(at).copied() else {
        return place;
    };
    // What it is in stands before it, at smaller depths.
    let mut holding = vec![at];
    for (index, (its, _)) in all[..at].iter().enumerate().rev() {
        if *its < depth {
            holding.push(index);
            depth = *its;
        }
    }
    let of = |level: Level| {
        let mut found = holding.iter().copied();
        found.find(|index| all[*index].1.names.iter().any(|name| name.level == level))
    };
    place.package = of(Level::Package).unwrap_or(0);
    place.node = of(Level::Node).unwrap_or(place.package);
    // One that may run anywhere in a node has a cache somewhere in it.
    place.cache = of(Level::Cache).unwrap_or(place.node);
    place
}
