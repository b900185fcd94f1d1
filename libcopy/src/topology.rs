// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the machine looks like: NUMA nodes, cores, caches; read from sysfs once.
//!
//! Nothing here fails: what the kernel does not tell is filled with a cautious guess.

mod cpus;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::config;

pub use cpus::Cpus;
pub use tree::{Level, Name, Object};

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Number of the node.
    pub id: usize,
    /// Online processors of the node.
    pub cpus: Vec<usize>,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Name of the processor model.
    pub model: String,
    /// Release of the running kernel.
    pub kernel: String,
    /// Online processors.
    pub cpus: Vec<usize>,
    /// NUMA nodes that have processors.
    pub nodes: Vec<Node>,
    /// Bytes of the level 1 data cache of the first processor.
    pub l1d: usize,
    /// Bytes of its level 2 cache.
    pub l2: usize,
    /// Bytes of its last level cache.
    pub llc: usize,
    /// Bytes of a page.
    pub page: usize,
}

impl Topology {
    /// Reads the machine we run on, or the one that `LIBCOPY_TOPOLOGY` has a snapshot of.
    pub fn read() -> Self {
        Self::read_below(&root())
    }

    /// The machine we run on, read once per process: some sixty files of sysfs, which no team and
    /// no communicator needs to read again.
    pub fn current() -> &'static Self {
        static CURRENT: OnceLock<Topology> = OnceLock::new();
        CURRENT.get_or_init(Self::read)
    }

    fn read_below(root: &Path) -> Self {
        let text = |path: &str| {
            fs::read_to_string(root.join(path))
                .map(|s| s.trim().to_owned())
                .unwrap_or_default()
        };
        let cpus: Vec<usize> = online(root).iter().collect();
        let nodes = tree::online(root, "node");
        let mut nodes: Vec<Node> = nodes
            .iter()
            .map(|id| {
                let cpus = text(&format!("sys/devices/system/node/node{id}/cpulist"));
                let cpus = Cpus::from_list(&cpus).iter().collect();
                Node { id, cpus }
            })
            .filter(|node| !node.cpus.is_empty())
            .collect();
        if nodes.is_empty() {
            nodes.push(Node {
                id: 0,
                cpus: cpus.clone(),
            });
        }
        let (mut l1d, mut l2, mut llc) = (0, 0, 0);
        for index in 0..8 {
            let cache = format!("sys/devices/system/cpu/cpu{}/cache/index{index}/", cpus[0]);
            let kind = text(&format!("{cache}type"));
            match kind.as_str() {
                // They are numbered without gaps.
                "" => break,
                "Instruction" => continue,
                _ => {}
            }
            let size = parse_size(&text(&format!("{cache}size")));
            match text(&format!("{cache}level")).as_str() {
                "1" => l1d = size,
                "2" => l2 = size,
                "" => {}
                _ => llc = llc.max(size),
            }
        }
        let l1d = if l1d == 0 { 32 << 10 } else { l1d };
        let l2 = if l2 == 0 { 512 << 10 } else { l2 };
        let llc = if llc == 0 { l2.max(4 << 20) } else { llc };
        let cpuinfo = text("proc/cpuinfo");
        let model = cpuinfo
            .lines()
            .find_map(|line| {
                let (key, value) = line.split_once(':')?;
                matches!(key.trim(), "model name" | "Processor" | "cpu model")
                    .then(|| value.trim().to_owned())
            })
            .unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH));
        let kernel = text("proc/sys/kernel/osrelease");
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        let page = page.and_then(|n| usize::try_from(n).ok()).unwrap_or(4096);
        Topology {
            model,
            kernel,
            cpus,
            nodes,
            l1d,
            l2,
            llc,
            page,
        }
    }

    /// What a profile is keyed by: a file measured elsewhere must not be used here.
    pub fn machine(&self) -> String {
        format!(
            "{}, {} cores, Linux {}",
            self.model,
            self.cpus.len(),
            self.kernel
        )
    }
}

/// Where `sys` and `proc` of the machine are.
fn root() -> PathBuf {
    let snapshot = config::TOPOLOGY.value_os();
    snapshot.map_or_else(|| PathBuf::from("/"), PathBuf::from)
}

/// The processors that are online; of a machine that does not say, as many as this process may use.
fn online(root: &Path) -> Cpus {
    let cpus = tree::online(root, "cpu");
    if cpus.is_empty() {
        (0..std::thread::available_parallelism().map_or(1, |n| n.get())).collect()
    } else {
        cpus
    }
}

/// What lies in what on the machine of [`Topology::read`]: reads some fifteen files for each
/// processor.
pub fn objects() -> Object {
    objects_below(&root())
}

/// The same of the machine whose sys and proc are in a directory.
pub fn objects_below(root: &Path) -> Object {
    Object::read_below(root, &online(root))
}

/// The processors the calling thread may run on; all that can be named if the kernel does not say.
pub fn affinity() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0));
    (0..CpuSet::count())
        .filter(|cpu| set.is_err() || set.is_ok_and(|set| set.is_set(*cpu).unwrap_or(false)))
        .collect()
}

/// Words of a mask of processors: of all that the kernel's `cpu_set_t` can name.
pub const CPU_WORDS: usize = 16;

/// [`affinity`] as a mask: processor `n` is bit `n % 64` of word `n / 64`.
pub fn affinity_mask() -> [u64; CPU_WORDS] {
    let mut mask = [0; CPU_WORDS];
    for cpu in affinity() {
        if let Some(word) = mask.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    mask
}

/// Keeps the calling thread on the `index`-th processor of a set, counted round and round. Where
/// that is forbidden, the thread stays where it may be, which is slower, not wrong.
pub fn pin(cpus: &[usize], index: usize) {
    let mut one = CpuSet::new();
    if let Some(cpu) = cpus.get(index % cpus.len().max(1)) {
        let _ = one.set(*cpu);
        let _ = sched_setaffinity(Pid::from_raw(0), &one);
    }
}

/// Parses a cache size such as "1024K".
fn parse_size(text: &str) -> usize {
    crate::config::parse_bytes(text)
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_sysfs_still_has_a_topology() {
        let topology = Topology::read_below(Path::new("/nonexistent"));
        assert!(!topology.cpus.is_empty());
        assert_eq!(topology.nodes.len(), 1);
        let root = Path::new("/nonexistent");
        let machine = Object::read_below(root, &online(root));
        assert_eq!(
            (machine.name().as_str(), machine.inside.len()),
            ("machine", 0)
        );
        assert!(topology.l2 > 0 && topology.llc >= topology.l2);
    }

    #[test]
    fn we_may_run_somewhere() {
        assert!(!affinity().is_empty());
    }
}
