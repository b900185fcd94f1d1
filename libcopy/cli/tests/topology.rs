// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `libcopy info` says of a machine's packages, NUMA nodes, caches and cores is what hwloc's
//! `lstopo` says: of this machine, and of snapshots of others (`scripts/topologies`).

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{json, said, tool};
use libcopy::topology::Cpus;
use serde_json::Value;

/// Machines that differ: nodes that are packages, parts of packages, or have several; caches of two
/// to eight cores; several threads; processors that are offline or counted across packages; other
/// architectures; a node with a GPU's memory and no processors.
const SNAPSHOTS: [&str; 12] = [
    "128arm-2pa2n8cluster4co",
    "16amd64-8n2c",
    "16em64t-4s2c2t",
    "16em64t-4s2c2t-offlines",
    "256ppc-8n8s4t",
    "32amd64-4s2n4c-cgroup2",
    "48amd64-4d2n6c-sparse",
    "40intel64-2g2n4c+pci",
    "8em64t-2s2ca2c",
    "96em64t-4n4d3ca2co",
    "fakecpuid1f-64intel64-2p4d2n2c2t",
    "nvidiagpunumanodes",
];

/// The sets of processors of a level.
type Sets = BTreeSet<Cpus>;

/// What `lstopo` says: objects of one of these types, of the first that there is.
fn lstopo(snapshot: Option<&Path>, types: &[&str]) -> Sets {
    let sets = types.iter().map(|kind| {
        let mut command = Command::new("lstopo-no-graphics");
        command.args([
            "--of",
            "console",
            "--disallowed",
            "--cpuset-only",
            "--only",
            kind,
        ]);
        if let Some(snapshot) = snapshot {
            command.args(["--if", "fsroot", "-i"]).arg(snapshot);
        }
        let said = said(&mut command);
        let masks = said.lines().filter(|line| line.starts_with("0x"));
        // hwloc writes nothing for a word that is 0, and 0x before each other one.
        let word = |word: &str| format!("0{}", word.trim_start_matches("0x"));
        let masks = masks.map(|mask| mask.split(',').map(word).collect::<Vec<_>>().join(","));
        let masks = masks.map(|mask| Cpus::from_mask(&mask));
        masks.filter(|cpus| !cpus.is_empty()).collect::<Sets>()
    });
    sets.into_iter()
        .find(|sets| !sets.is_empty())
        .unwrap_or_default()
}

/// What `libcopy info` says: objects of a level.
fn info(said: &Value, level: &str) -> Sets {
    let objects = said["machine"]["objects"].as_array().unwrap().iter();
    let is_of_level = |name: &Value| name.as_str().unwrap().starts_with(level);
    objects
        .filter(|object| object["names"].as_array().unwrap().iter().any(is_of_level))
        .map(|object| Cpus::from_list(object["cpus"].as_str().unwrap()))
        .collect()
}

fn compare(snapshot: Option<&Path>) {
    let name = snapshot.map_or("this machine".into(), |it| {
        it.file_name().unwrap().to_string_lossy()
    });
    let mut command = tool(&["info", "--json"]);
    if let Some(snapshot) = snapshot {
        command.env("LIBCOPY_TOPOLOGY", snapshot);
    }
    let said = json(&mut command);
    for (level, types) in [
        ("machine", &["Machine"][..]),
        ("package", &["Package"]),
        ("node", &["NUMANode"]),
        ("cache", &["L3Cache", "L2Cache"]),
        ("core", &["Core"]),
    ] {
        assert_eq!(
            info(&said, level),
            lstopo(snapshot, types),
            "{name}: {level}"
        );
    }
}

/// Whether hwloc's program is here.
fn has_lstopo() -> bool {
    let lstopo = Command::new("lstopo-no-graphics").arg("--version").output();
    if lstopo.is_err() {
        eprintln!("lstopo-no-graphics (Debian: hwloc-nox) is not installed: nothing is compared");
    }
    lstopo.is_ok()
}

#[test]
fn this_machine_is_what_lstopo_says() {
    if has_lstopo() {
        compare(None);
    }
}

#[test]
fn snapshots_are_what_lstopo_says() {
    if !has_lstopo() {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/topologies");
    let all = PathBuf::from(said(&mut Command::new(script)).trim());
    for name in SNAPSHOTS {
        compare(Some(&all.join(name)));
    }
}
