// SPDX-License-Identifier: MIT OR Apache-2.0

//! What of a machine lies in what: packages, NUMA nodes, last-level caches, cores; read from sysfs
//! (Linux, Documentation/admin-guide/cputopology.rst and
//! Documentation/ABI/stable/sysfs-devices-node).
//!
//! Whether a node lies in a package or a package in a node differs from machine to machine, so the
//! sets of processors alone say what lies in what. Objects with the same processors are one, with
//! several names. A set that cuts another one in two, as firmware may tell, is left out.

use std::fmt;
use std::fs;
use std::path::Path;

use super::cpus::Cpus;

/// What an object of the machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// All of it.
    Machine,
    /// A package, what is put into a socket.
    Package,
    /// A NUMA node with processors.
    Node,
    /// Those that share a last-level cache.
    Cache,
    /// A core, with several processors under simultaneous multithreading.
    Core,
}

impl Level {
    /// Its name: `machine`, `package`, `node`, `cache` or `core`.
    pub fn name(self) -> &'static str {
        match self {
            Level::Machine => "machine",
            Level::Package => "package",
            Level::Node => "node",
            Level::Cache => "cache",
            Level::Core => "core",
        }
    }
}

/// One level's name of an object: "package 0". The number is the kernel's for packages and nodes;
/// caches and cores are counted in the order of their first processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The level.
    pub level: Level,
    /// The number among those of the level.
    pub number: usize,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Level::Machine => f.write_str(self.level.name()),
            level => write!(f, "{} {}", level.name(), self.number),
        }
    }
}

/// Processors that have something in common, and what is inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// What it is; several where they have the same processors, the widest first.
    pub names: Vec<Name>,
    /// Its processors.
    pub cpus: Cpus,
    /// The objects inside, in the order of their first processors. They need not have all of its
    /// processors.
    pub inside: Vec<Object>,
}

impl Object {
    /// Reads the machine whose sysfs is below `root`, of which these processors are online.
    pub(super) fn read_below(root: &Path, online: &Cpus) -> Object {
        Object::of_sets(online.clone(), sets(root, online))
    }

    /// A machine with these processors, in which these sets of them have something in common.
    pub fn of_sets(all: Cpus, mut sets: Vec<(Name, Cpus)>) -> Object {
        // Those that hold others come first; of equal ones the wider level.
        sets.sort_by_cached_key(|(name, cpus)| (usize::MAX - cpus.len(), *name));
        let mut machine = Object::new(Level::Machine, 0, all);
        for (name, cpus) in sets {
            machine.put(name, cpus);
        }
        machine
    }

    fn new(level: Level, number: usize, cpus: Cpus) -> Object {
        Object {
            names: vec![Name { level, number }],
            cpus,
            inside: Vec::new(),
        }
    }

    /// Puts a set of this object's processors where it belongs, after all larger ones.
    fn put(&mut self, name: Name, cpus: Cpus) {
        if self.cpus == cpus {
            self.names.push(name);
            return;
        }
        let mut holding = self.inside.iter_mut();
        if let Some(object) = holding.find(|object| object.cpus.has_all(&cpus)) {
            return object.put(name, cpus);
        }
        let mut inside = self.inside.iter();
        if inside.any(|object| !object.cpus.and(&cpus).is_empty()) {
            return;
        }
        let first = cpus.iter().next();
        let place = self
            .inside
            .partition_point(|it| it.cpus.iter().next() < first);
        self.inside
            .insert(place, Object::new(name.level, name.number, cpus));
    }

    /// The smallest object that has all of these processors: where a rank is that may run on them.
    /// This one if no object inside has, or if none of them is online.
    pub fn place(&self, cpus: &Cpus) -> &Object {
        let cpus = cpus.and(&self.cpus);
        let mut object = self;
        while let Some(smaller) = object.inside.iter().find(|it| it.cpus.has_all(&cpus)) {
            if cpus.is_empty() {
                break;
            }
            object = smaller;
        }
        object
    }

    /// It and all objects inside, each with its depth, those inside behind what they are in.
    pub fn all(&self) -> Vec<(usize, &Object)> {
        let mut all = vec![(0, self)];
        for object in &self.inside {
            all.extend(object.all().into_iter().map(|(depth, it)| (depth + 1, it)));
        }
        all
    }

    /// What it is called: "package 0, node 0".
    pub fn name(&self) -> String {
        let names: Vec<String> = self.names.iter().map(Name::to_string).collect();
        names.join(", ")
    }
}

/// The numbers of the processors (`cpu`) or the nodes (`node`) that are online: the kernel's list,
/// or, where there is none (before Linux 2.6.26), those that it describes.
pub(super) fn online(root: &Path, kind: &str) -> Cpus {
    let all = root.join("sys/devices/system").join(kind);
    let listed = Cpus::from_list(&fs::read_to_string(all.join("online")).unwrap_or_default());
    if !listed.is_empty() {
        return listed;
    }
    let entries = fs::read_dir(all).into_iter().flatten().flatten();
    // A processor without this one is offline.
    let described = entries.filter(|it| kind != "cpu" || it.path().join("topology").is_dir());
    let names = described.filter_map(|entry| entry.file_name().into_string().ok());
    let numbers = names.filter_map(|name| name.strip_prefix(kind)?.parse().ok());
    numbers.collect()
}

/// The processors of each object of the machine, but the machine's.
fn sets(root: &Path, online: &Cpus) -> Vec<(Name, Cpus)> {
    let devices = root.join("sys/devices/system");
    let text = |path: &str| fs::read_to_string(devices.join(path)).unwrap_or_default();
    // The list, or the mask where the kernel is older than the list.
    let read = |list: &str, mask: &str| {
        let cpus = Cpus::from_list(&text(list));
        let cpus = if cpus.is_empty() {
            Cpus::from_mask(&text(mask))
        } else {
            cpus
        };
        cpus.and(online)
    };
    let mut sets: Vec<(Name, Cpus)> = Vec::new();
    let mut put = |level, number: Option<usize>, cpus: Cpus| {
        let mut same = sets.iter().filter(|(name, _)| name.level == level);
        if cpus.is_empty() || same.any(|(_, its)| *its == cpus) {
            return;
        }
        let number = number.unwrap_or_else(|| {
            let same = sets.iter().filter(|(name, _)| name.level == level);
            same.count()
        });
        sets.push((Name { level, number }, cpus));
    };
    for cpu in online.iter() {
        let topology = |list: &str, mask: &str| {
            let at = format!("cpu/cpu{cpu}/topology");
            read(&format!("{at}/{list}"), &format!("{at}/{mask}"))
        };
        let first_of = |names: [(&str, &str); 2]| {
            let mut found = names.into_iter().map(|(list, mask)| topology(list, mask));
            found.find(|cpus| !cpus.is_empty()).unwrap_or_default()
        };
        // The second names are those before Linux 5.3.
        let core = first_of([
            ("core_cpus_list", "core_cpus"),
            ("thread_siblings_list", "thread_siblings"),
        ]);
        put(Level::Core, None, core);
        let package = first_of([
            ("package_cpus_list", "package_cpus"),
            ("core_siblings_list", "core_siblings"),
        ]);
        let number = text(&format!("cpu/cpu{cpu}/topology/physical_package_id"));
        put(Level::Package, number.trim().parse().ok(), package);
        put(Level::Cache, None, last_level(cpu, &text, &read));
    }
    for node in self::online(root, "node").iter() {
        let at = format!("node/node{node}");
        let cpus = read(&format!("{at}/cpulist"), &format!("{at}/cpumap"));
        put(Level::Node, Some(node), cpus);
    }
    sets
}

/// Those that share the last level of caches with a processor.
fn last_level(
    cpu: usize,
    text: &impl Fn(&str) -> String,
    read: &impl Fn(&str, &str) -> Cpus,
) -> Cpus {
    let mut last = (0, Cpus::default());
    for index in 0..16 {
        let at = format!("cpu/cpu{cpu}/cache/index{index}");
        // They are numbered without gaps.
        let Ok(level) = text(&format!("{at}/level")).trim().parse::<u32>() else {
            break;
        };
        if level > last.0 && text(&format!("{at}/type")).trim() != "Instruction" {
            let map = format!("{at}/shared_cpu_map");
            last = (level, read(&format!("{at}/shared_cpu_list"), &map));
        }
    }
    // One that is below level 2 is the core's own, and tells nothing.
    if last.0 < 2 { Cpus::default() } else { last.1 }
}
