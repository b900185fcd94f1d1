// SPDX-License-Identifier: MIT OR Apache-2.0

//! Machines with many cores. What their parts can do is assumed: the data sheets' channels and
//! links, at the part of their rates that copies get; `libcopy tune` measures it where it runs.

use libcopy::plan::{Costs, Machine};
use libcopy::topology::{Cpus, Level, Name, Object};

/// A machine as a table describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// Its name in tables and on the command line.
    pub name: &'static str,
    /// What it is.
    pub description: &'static str,
    /// Packages, NUMA nodes of a package, last-level caches of a node, cores of a cache.
    pub counts: [usize; 4],
    /// What its parts can do.
    pub costs: Costs,
}

const fn costs(rates: [f64; 5], mib: f64, nanoseconds: [f64; 4]) -> Costs {
    let [core, cache, port, memory, link] = rates;
    let [a, b, c, d] = nanoseconds;
    Costs {
        core: core * 1e9,
        cache: cache * 1e9,
        port: port * 1e9,
        memory: memory * 1e9,
        link: link * 1e9,
        source: f64::INFINITY,
        cache_bytes: mib * 1048576.0,
        latency: [a * 1e-9, b * 1e-9, c * 1e-9, d * 1e-9],
        line: 30e-9,
        chunk: 200e-9,
        at_once: usize::MAX,
    }
}

/// The machines of `scripts/bench scale`. Rates in 10^9 bytes per second (a core, a cache, its
/// port, a node's memory, a link between packages), MiB of a cache with its cores' own, and
/// nanoseconds until a write is seen (in the cache, the node, the package, the machine).
pub const MACHINES: [Preset; 6] = [
    Preset {
        name: "epyc-9654",
        description: "2 x AMD EPYC 9654 (Zen 4), four nodes per package, 12 channels of DDR5-4800",
        counts: [2, 4, 3, 8],
        costs: costs(
            [14.0, 300.0, 59.0, 100.0, 180.0],
            40.0,
            [50.0, 110.0, 150.0, 250.0],
        ),
    },
    Preset {
        name: "epyc-7742",
        description: "2 x AMD EPYC 7742 (Zen 2), four nodes per package, 8 channels of DDR4-3200",
        counts: [2, 4, 4, 4],
        costs: Costs::BUILT_IN,
    },
    Preset {
        name: "xeon-8480",
        description: "2 x Intel Xeon 8480+, four nodes per package, 8 channels of DDR5-4800",
        counts: [2, 4, 1, 14],
        costs: costs(
            [11.0, 250.0, 114.0, 65.0, 90.0],
            54.0,
            [70.0, 100.0, 120.0, 220.0],
        ),
    },
    Preset {
        name: "xeon-6148",
        description: "2 x Intel Xeon 6148, one node per package, 6 channels of DDR4-2666",
        counts: [2, 1, 1, 20],
        costs: costs(
            [10.0, 200.0, 100.0, 100.0, 50.0],
            47.0,
            [70.0, 70.0, 70.0, 180.0],
        ),
    },
    Preset {
        name: "grace",
        description: "2 x NVIDIA Grace, one node per package, LPDDR5X",
        counts: [2, 1, 1, 72],
        costs: costs(
            [20.0, 800.0, 265.0, 380.0, 350.0],
            186.0,
            [80.0, 80.0, 80.0, 300.0],
        ),
    },
    Preset {
        name: "desktop",
        description: "AMD Ryzen with 16 cores (Zen 3), two caches, 2 channels of DDR4-3200",
        counts: [1, 1, 2, 8],
        costs: costs(
            [15.0, 300.0, 60.0, 60.0, 60.0],
            36.0,
            [40.0, 90.0, 90.0, 90.0],
        ),
    },
];

impl Preset {
    /// The machine of a name.
    pub fn named(name: &str) -> Option<&'static Preset> {
        MACHINES.iter().find(|it| it.name == name)
    }

    /// The objects of the machine, and the positions of its cores in [`Object::all`].
    pub fn objects(&self) -> (Object, Vec<usize>) {
        let levels = [Level::Package, Level::Node, Level::Cache, Level::Core];
        let levels: Vec<(Level, usize)> = levels.into_iter().zip(self.counts).collect();
        let mut next = 0;
        let machine = object(Level::Machine, 0, &levels, &mut next);
        let all = machine.all();
        let cores = all
            .iter()
            .enumerate()
            .filter(|(_, (_, it))| it.inside.is_empty());
        let cores = cores.map(|(index, _)| index).collect();
        (machine, cores)
    }

    /// The number of cores.
    pub fn cores(&self) -> usize {
        self.counts.iter().product()
    }

    /// The machine with this many ranks, on cores that follow each other, as `--bind-to core` puts
    /// them, and its objects and places.
    pub fn with_ranks(&self, ranks: usize) -> (Object, Vec<usize>, Machine) {
        let (object, cores) = self.objects();
        let places: Vec<usize> = (0..ranks).map(|rank| cores[rank % cores.len()]).collect();
        let machine = Machine::new(&object, &places, self.costs);
        (object, places, machine)
    }
}

fn object(level: Level, number: usize, inside: &[(Level, usize)], next: &mut usize) -> Object {
    let mut cpus = Cpus::default();
    let mut objects = Vec::new();
    if let Some(((level, count), inside)) = inside.split_first() {
        for number in 0..*count {
            let object = object(*level, number, inside, next);
            object.cpus.iter().for_each(|cpu| cpus.insert(cpu));
            objects.push(object);
        }
    } else {
        cpus.insert(*next);
        *next += 1;
    }
    Object {
        names: vec![Name { level, number }],
        cpus,
        inside: objects,
    }
}
