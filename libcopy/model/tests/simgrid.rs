// SPDX-License-Identifier: MIT OR Apache-2.0

//! The same cases with SimGrid (`simgrid.cpp`), a simulator with a max-min solver of its own. Runs
//! if `LIBCOPY_TEST_SIMGRID` is set, which `scripts/test --all` does where it can install SimGrid.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use libcopy_model::flow::{Activity, Resources, simulate};

/// What times may differ by, as a part of the time.
const TOLERANCE: f64 = 1e-3;

const NEEDS: &str = "this needs a C++ compiler and SimGrid (Debian: g++, libsimgrid-dev)";

fn checked(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; {NEEDS}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}\n{NEEDS}");
    output
}

/// The program, where it is to be run.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if env::var_os("LIBCOPY_TEST_SIMGRID").is_none() {
        eprintln!("skipped: LIBCOPY_TEST_SIMGRID is not set");
        return None;
    }
    Some(PROGRAM.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (program, source) = (place.join("simgrid"), "tests/simgrid.cpp");
        let mut compiler = Command::new(env::var("CXX").unwrap_or_else(|_| "c++".to_owned()));
        compiler.current_dir(env!("CARGO_MANIFEST_DIR"));
        compiler.args(["-std=c++17", "-Wall", "-Wextra", "-Werror"]);
        // SimGrid renames some of its functions from release to release, and keeps the old ones.
        compiler.args(["-Wno-deprecated-declarations", source]);
        checked(compiler.arg("-lsimgrid").arg("-o").arg(&program));
        program
    }))
}

/// The case in the words that the program reads.
fn words(resources: &Resources, activities: &[Activity]) -> String {
    let mut words = format!("{}\n", resources.len());
    for capacity in resources.capacities() {
        writeln!(words, "{capacity:e}").unwrap();
    }
    writeln!(words, "{}", activities.len()).unwrap();
    for activity in activities {
        let cap = activity.rate_cap.unwrap_or(0.0);
        write!(words, "{:e} {:e} {cap:e}", activity.work, activity.latency).unwrap();
        write!(words, " {}", activity.uses.len()).unwrap();
        for (resource, weight) in &activity.uses {
            write!(words, " {resource} {weight}").unwrap();
        }
        write!(words, " {}", activity.after.len()).unwrap();
        for after in &activity.after {
            write!(words, " {after}").unwrap();
        }
        words.push('\n');
    }
    words
}

fn compare(name: &str, resources: &Resources, activities: &[Activity]) {
    let Some(program) = program() else { return };
    let case = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&case, words(resources, activities)).expect("the case can be written");
    let input = File::open(&case).expect("the case was just written");
    let output = checked(Command::new(program).stdin(input));
    let said = String::from_utf8(output.stdout).expect("numbers are text");
    let theirs: Vec<f64> = said
        .lines()
        .map(|line| {
            line.parse()
                .unwrap_or_else(|error| panic!("'{line}': {error}"))
        })
        .collect();
    let ours = simulate(resources, activities)
        .expect("this can be simulated")
        .ends;
    assert_eq!(ours.len(), theirs.len(), "{said}");
    let mut worst = 0.0_f64;
    for (index, (&ours, &theirs)) in ours.iter().zip(&theirs).enumerate() {
        let difference = (ours - theirs).abs() / theirs;
        assert!(
            difference <= TOLERANCE,
            "{name}: activity {index} ends at {ours} s, with SimGrid at {theirs} s"
        );
        worst = worst.max(difference);
    }
    println!(
        "{name}: {} activities, times differ by {worst:.1e} or less",
        ours.len()
    );
}

/// Flows of different sizes on one link; some pass a second one, some have a cap, some are late.
#[test]
fn a_shared_link() {
    let mut resources = Resources::new();
    let wide = resources.add("wide", 40e9);
    let narrow = resources.add("narrow", 6e9);
    let activities: Vec<Activity> = (0..24_u32)
        .map(|index| Activity {
            work: f64::from(1_000_000 * (1 + index * index % 17)),
            latency: f64::from(index % 5) * 1e-4,
            rate_cap: (index % 7 == 3).then_some(0.5e9),
            // Each third one passes the wide link twice.
            uses: match index % 3 {
                0 => vec![(wide, 2.0)],
                1 => vec![(wide, 1.0)],
                _ => vec![(wide, 1.0), (narrow, 1.0)],
            },
            after: Vec::new(),
        })
        .collect();
    compare("shared-link", &resources, &activities);
}

/// A broadcast down a tree: 32 ranks on four memories, each copies a chunk from its parent as soon
/// as the parent has it and the chunk before is done.
#[test]
fn a_tree_of_chunks() {
    const RANKS: usize = 32;
    const CHUNKS: usize = 12;
    let mut resources = Resources::new();
    let mut some = |name: &str, count, first: f64, step: f64| -> Vec<usize> {
        (0..count)
            .map(|index| resources.add(format!("{name} {index}"), first + step * index as f64))
            .collect()
    };
    let cores = some("core", RANKS, 10e9, 0.11e9);
    let memories = some("memory", 4, 50e9, 3e9);
    let link = some("link", 1, 25e9, 0.0)[0];
    let node = |rank: usize| rank / 8;
    let mut activities = Vec::new();
    for rank in 1..RANKS {
        // The leaders of memories read from rank 0, the others from their leader.
        let parent = if rank % 8 == 0 { 0 } else { rank - rank % 8 };
        for chunk in 0..CHUNKS {
            let index = |rank: usize, chunk: usize| (rank - 1) * CHUNKS + chunk;
            let mut uses = vec![(cores[rank], 1.0)];
            if node(rank) == node(parent) {
                // Read and written.
                uses.push((memories[node(rank)], 2.0));
            } else {
                uses.push((memories[node(rank)], 1.0));
                uses.push((memories[node(parent)], 1.0));
                uses.push((link, 1.0));
            }
            let mut after = Vec::new();
            if chunk > 0 {
                after.push(index(rank, chunk - 1));
            }
            if parent > 0 {
                after.push(index(parent, chunk));
            }
            activities.push(Activity {
                // The last chunk is smaller.
                work: if chunk + 1 < CHUNKS {
                    262_144.0
                } else {
                    50_000.0
                },
                latency: 0.3e-6,
                rate_cap: None,
                uses,
                after,
            });
        }
    }
    compare("tree", &resources, &activities);
}

/// All ranks read the same source, and write to memories of their own; those of the second socket
/// come over a link.
#[test]
fn all_read_one_source() {
    const RANKS: usize = 48;
    let mut resources = Resources::new();
    let port = resources.add("port of the source", 45e9);
    let link = resources.add("link", 18e9);
    let memories: Vec<usize> = (0..6)
        .map(|index| resources.add(format!("memory {index}"), 4e9 + 2e9 * index as f64))
        .collect();
    let mut activities = Vec::new();
    for rank in 0..RANKS {
        let core = resources.add(format!("core {rank}"), 0.5e9 + 0.05e9 * rank as f64);
        let mut uses = vec![(port, 1.0), (core, 1.0), (memories[rank % 6], 1.0)];
        if rank >= RANKS / 2 {
            uses.push((link, 1.0));
        }
        activities.push(Activity {
            work: (1 << 20) as f64 + (rank * 1_000) as f64,
            latency: 1e-6 * (rank % 4) as f64,
            rate_cap: None,
            uses,
            after: Vec::new(),
        });
    }
    compare("one-source", &resources, &activities);
}
