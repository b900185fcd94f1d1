// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy type bench --commit`: what it costs to make a type ready.
//!
//! A type is committed once, so every measurement builds its own. The cases are those that differ
//! for the engine: what a million entries come down to decides how much there is to do for each.

use anyhow::{Context, Result, bail};
use clap::Args;
use libcopy::datatype::{Datatype, Named, Order};
use libcopy_measure::report::check_file;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `libcopy type bench` that are about commit.
#[derive(Args, Debug)]
pub struct CommitArgs {
    /// Measure commit, not moving: of TYPE, or of a subarray of three million segments, of indexed
    /// types of a million entries and of structs of a tenth as many subarrays
    #[arg(long)]
    pub commit: bool,

    /// Entries of the indexed types
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000_000,
        requires = "commit"
    )]
    entries: usize,

    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT", requires = "commit")]
    only: Option<String>,

    /// Also write the results to a file
    #[arg(long, value_name = "FILE", requires = "commit")]
    csv: Option<PathBuf>,
}

/// One type that is committed again and again.
struct Case {
    name: String,
    what: String,
    build: Box<dyn Fn() -> libcopy::datatype::Result<Datatype>>,
}

/// What was found out about a case.
#[derive(Serialize)]
struct Found {
    case: String,
    what: String,
    segments: u64,
    /// Building the type: checks and copies of the lists.
    create_us: f64,
    commit_us: f64,
    commit_p90_us: f64,
    form_bytes: usize,
}

/// Numbers that look random and are the same in every run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// Lengths, and where each block begins if the gap behind the one before it is known.
fn places(lengths: &[u64], mut gap: impl FnMut(usize) -> u64) -> Vec<i64> {
    let mut at = 0;
    lengths
        .iter()
        .enumerate()
        .map(|(i, &length)| {
            let place = at;
            at += (length + gap(i)) as i64;
            place
        })
        .collect()
}

/// An indexed type of doubles, its lengths in a list.
fn listed(name: &str, what: &str, lengths: Vec<u64>, displacements: Vec<i64>) -> Case {
    let double = Datatype::named(Named::Double);
    Case {
        name: name.to_owned(),
        what: what.to_owned(),
        build: Box::new(move || double.indexed(&lengths, &displacements)),
    }
}

/// An indexed type of blocks of one length.
fn equal(name: &str, what: &str, child: Datatype, displacements: Vec<i64>) -> Case {
    Case {
        name: name.to_owned(),
        what: what.to_owned(),
        build: Box::new(move || child.indexed_block(1, &displacements)),
    }
}

/// Where the numbers of a case begin.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

fn cases(n: usize) -> Result<Vec<Case>> {
    let mut random = Random(SEED);
    let double = Datatype::named(Named::Double);
    let ones = vec![1; n];
    // The distance from one block to the next, which is one behind its end or farther.
    let mut irregular = |lengths: &[u64]| places(lengths, |_| 1 + random.below(8));
    let mut all = vec![Case {
        name: "subarray".to_owned(),
        what: "2000 x 1500 pieces of 8 doubles of 2000 x 1600 x 16".to_owned(),
        build: {
            let double = double.clone();
            Box::new(move || {
                double.subarray(&[2000, 1600, 16], &[2000, 1500, 8], &[0, 50, 4], Order::C)
            })
        },
    }];
    let irregular_ones = irregular(&ones);
    all.push(equal(
        "equal",
        "blocks of one length at irregular places",
        double.clone(),
        irregular_ones.clone(),
    ));
    all.push(listed(
        "equal, listed",
        "the same, every length given",
        ones.clone(),
        irregular_ones.clone(),
    ));
    let pair = double.vector(2, 1, 2)?.resized(0, 24)?;
    all.push(equal(
        "children with a gap",
        "vectors at irregular places",
        pair,
        irregular_ones.clone(),
    ));
    all.push(equal(
        "far apart",
        "blocks of one length, 8 GiB from the first to the last",
        double.clone(),
        irregular_ones.iter().map(|at| at * 200).collect(),
    ));
    let threes = vec![3; n];
    let far: Vec<i64> = irregular(&threes).iter().map(|at| at * 200).collect();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut lengths =
        |low: u64, high: u64| -> Vec<u64> { (0..n).map(|_| low + random.below(high)).collect() };
    let (two, eight, empty, many) = (lengths(1, 2), lengths(1, 8), lengths(0, 8), lengths(1, 400));
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut gaps = |lengths: &[u64]| places(lengths, |_| 1 + random.below(8));
    for (name, what, lengths) in [
        ("two lengths", "1 or 2 doubles", two),
        ("mixed lengths", "1 to 8 doubles", eight.clone()),
        ("some empty", "0 to 7 doubles", empty),
        ("long and short", "1 to 400 doubles", many),
    ] {
        let at = gaps(&lengths);
        all.push(listed(name, what, lengths, at));
    }
    let at = gaps(&eight).iter().map(|at| at * 200).collect();
    all.push(listed(
        "mixed, far apart",
        "1 to 8 doubles, over 8 GiB",
        eight.clone(),
        at,
    ));
    all.push(listed(
        "threes, far apart",
        "3 doubles, over 8 GiB",
        threes,
        far,
    ));
    let mut random = Random(0x0fed_cba9_8765_4321);
    for (name, tenths) in [("few neighbours", 1), ("half neighbours", 5)] {
        let at = places(&ones, |_| {
            if random.below(10) < tenths {
                0
            } else {
                1 + random.below(8)
            }
        });
        let what = format!("blocks of one length, {tenths} of 10 beside the one before");
        all.push(equal(name, &what, double.clone(), at));
    }
    let at = places(&eight, |_| random.below(4));
    all.push(listed(
        "mixed neighbours",
        "1 to 8 doubles, 1 of 4 beside the one before",
        eight.clone(),
        at,
    ));
    for run in [2, 3, 4, 5, 16, 100] {
        let mut within = 2;
        let at = places(&ones, |i| {
            if (i + 1) % run == 0 {
                within = 1 + random.below(3);
                10 + random.below(20)
            } else {
                within
            }
        });
        let what = format!("runs of {run} at equal distances, which differ from run to run");
        all.push(equal(&format!("runs of {run}"), &what, double.clone(), at));
        let at = places(&ones, |i| {
            if (i + 1) % run == 0 {
                10 + random.below(20)
            } else {
                2
            }
        });
        let what = format!("runs of {run} at equal distances, the same everywhere");
        let name = format!("equal runs of {run}");
        all.push(equal(&name, &what, double.clone(), at));
    }
    let (mut left, mut within) = (0, 0);
    let at = places(&ones, |_| {
        if left == 0 {
            left = 1 + random.below(8);
            within = 1 + random.below(3);
            return 10 + random.below(20);
        }
        left -= 1;
        within
    });
    all.push(equal(
        "runs of all lengths",
        "runs of 2 to 9, and distances that differ",
        double.clone(),
        at,
    ));
    let (mut left, mut length) = (0, 0);
    let lengths: Vec<u64> = (0..n)
        .map(|_| {
            if left == 0 {
                left = 5;
                length = 1 + random.below(8);
            }
            left -= 1;
            length
        })
        .collect();
    let at = places(
        &lengths,
        |i| if i % 5 == 4 { 20 + random.below(9) } else { 3 },
    );
    all.push(listed(
        "runs of pieces",
        "runs of 5 of one length, which differs from run to run",
        lengths,
        at,
    ));
    let mut at = irregular_ones;
    for i in (1..at.len()).rev() {
        at.swap(i, random.below(i as u64 + 1) as usize);
    }
    all.push(equal(
        "shuffled",
        "blocks of one length in no order",
        double.clone(),
        at,
    ));
    all.push(equal(
        "regular",
        "blocks at one distance, as a list",
        double.clone(),
        (0..n as i64).map(|i| 3 * i).collect(),
    ));
    let at = (0..n as i64).map(|i| 3 * i + i64::from(i == n as i64 - 1));
    all.push(equal(
        "nearly regular",
        "blocks at one distance but for the last",
        double.clone(),
        at.collect(),
    ));
    let at = (0..n as i64).map(|i| i / 100 * 1000 + i % 100 * (i % 100));
    all.push(equal(
        "periodic",
        "a hundred places again and again",
        double,
        at.collect(),
    ));
    all.extend(structs(n.div_ceil(10).max(3)));
    Ok(all)
}

/// Structs of `n` subarrays, as `tests/peers/mpi_commit.c` makes them with an MPI library: the same
/// numbers in the same order. What a case makes includes its subarrays.
fn structs(n: usize) -> impl Iterator<Item = Case> {
    /// The array of a member, the slowest dimension first.
    type Array = &'static [u64];
    /// Chooses the box within the array: sizes and starts.
    type Choice = fn(&mut Random, Array) -> ([u64; 3], [u64; 3]);
    const SQUARE: Array = &[10, 8];
    const WIDE: Array = &[10, 64];
    const CUBE: Array = &[10, 8, 4];
    fn within(random: &mut Random, array: Array, sizes: [u64; 3]) -> ([u64; 3], [u64; 3]) {
        let mut starts = [0; 3];
        for (start, (all, size)) in starts.iter_mut().zip(array.iter().zip(sizes)) {
            *start = random.below(all - size + 1);
        }
        (sizes, starts)
    }
    let kinds: [(&str, &str, Array, Choice); 6] = [
        (
            "struct: boxes",
            "1..4 x 1..4 of 10 x 8 doubles",
            SQUARE,
            |r, array| {
                let sizes = [1 + r.below(4), 1 + r.below(4), 1];
                within(r, array, sizes)
            },
        ),
        (
            "struct: equal boxes",
            "3 x 2 of 10 x 8 doubles",
            SQUARE,
            |r, array| within(r, array, [3, 2, 1]),
        ),
        (
            "struct: rows",
            "1..4 rows of 8 doubles",
            SQUARE,
            |r, array| {
                let sizes = [1 + r.below(4), 8, 1];
                within(r, array, sizes)
            },
        ),
        (
            "struct: equal rows",
            "3 rows of 8 doubles",
            SQUARE,
            |r, array| within(r, array, [3, 8, 1]),
        ),
        (
            "struct: wide boxes",
            "1..4 x 20..49 of 10 x 64 doubles",
            WIDE,
            |r, array| {
                let sizes = [1 + r.below(4), 20 + r.below(30), 1];
                within(r, array, sizes)
            },
        ),
        (
            "struct: cubes",
            "1..3 x 1..3 x 1..2 of 10 x 8 x 4 doubles",
            CUBE,
            |r, array| {
                let sizes = [1 + r.below(3), 1 + r.below(3), 1 + r.below(2)];
                within(r, array, sizes)
            },
        ),
    ];
    let double = Datatype::named(Named::Double);
    let boxes = kinds.map(|(name, what, array, choice)| {
        let double = double.clone();
        let build = move || {
            let mut random = Random(SEED);
            let mut children = Vec::with_capacity(n);
            for _ in 0..n {
                let (sizes, starts) = choice(&mut random, array);
                let (sizes, starts) = (&sizes[..array.len()], &starts[..array.len()]);
                children.push(double.subarray(array, sizes, starts, Order::C)?);
            }
            let bytes = 8 * array.iter().product::<u64>() as i64;
            let places: Vec<i64> = (0..n as i64).map(|i| i * bytes).collect();
            Datatype::structure(&vec![1; n], &places, &children)
        };
        Case {
            name: name.to_owned(),
            what: format!("subarrays of {what}, each a type of its own"),
            build: Box::new(build),
        }
    });
    // One type, at irregular and at regular places.
    let shared = [("struct: one type", 8), ("struct: one type, even", 1)].map(|(name, gaps)| {
        let double = double.clone();
        let build = move || {
            let mut random = Random(SEED);
            let child = double.subarray(SQUARE, &[3, 2], &[1, 2], Order::C)?;
            let places = places(&vec![80; n], |_| random.below(gaps));
            let places: Vec<i64> = places.iter().map(|at| 8 * at).collect();
            Datatype::structure(&vec![1; n], &places, vec![&child; n])
        };
        Case {
            name: name.to_owned(),
            what: format!("one subarray of 3 x 2 of 10 x 8 doubles, {gaps} distances"),
            build: Box::new(build),
        }
    });
    boxes.into_iter().chain(shared)
}

/// Measures; `expression` is the one type that the command line names.
pub fn run(args: &CommitArgs, expression: Option<&str>, time: f64, json: bool) -> Result<()> {
    if !(3..=100_000_000).contains(&args.entries) {
        bail!("--entries {}: between 3 and 100000000", args.entries);
    }
    if let Some(path) = &args.csv {
        check_file("--csv", path)?;
    }
    let cases = match expression {
        Some(text) => {
            let parsed: Datatype = text.parse()?;
            let text = text.to_owned();
            vec![Case {
                name: "TYPE".to_owned(),
                what: format!("{} bytes of data", parsed.size()),
                build: Box::new(move || text.parse()),
            }]
        }
        None => cases(args.entries)?,
    };
    let mut found = Vec::new();
    let wanted = |case: &&Case| {
        args.only
            .as_ref()
            .is_none_or(|part| case.name.contains(part))
    };
    for case in cases.iter().filter(wanted) {
        found.push(measure(case, Duration::from_secs_f64(time))?);
    }
    if found.is_empty() {
        let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        bail!("--only: no case is left of {}", names.join(", "));
    }
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&found)?)?;
    } else {
        writeln!(
            out,
            "{:20} {:>10} {:>11} {:>11} {:>11} {:>11}  what",
            "case", "segments", "create us", "commit us", "p90 us", "form bytes"
        )?;
        for f in &found {
            writeln!(
                out,
                "{:20} {:>10} {:>11.2} {:>11.2} {:>11.2} {:>11}  {}",
                f.case, f.segments, f.create_us, f.commit_us, f.commit_p90_us, f.form_bytes, f.what
            )?;
        }
    }
    if let Some(path) = &args.csv {
        let mut text =
            "case,segments,create_us,commit_us,commit_p90_us,form_bytes,what\n".to_owned();
        for f in &found {
            let _ = writeln!(
                text,
                "\"{}\",{},{:.3},{:.3},{:.3},{},\"{}\"",
                f.case, f.segments, f.create_us, f.commit_us, f.commit_p90_us, f.form_bytes, f.what
            );
        }
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("CSV:  {}", path.display());
    }
    Ok(())
}

fn measure(case: &Case, time: Duration) -> Result<Found> {
    let (mut create, mut commit) = (Vec::new(), Vec::new());
    let mut last = None;
    let begin = Instant::now();
    while begin.elapsed() < time || commit.len() < 5 {
        // The one before goes first: its memory is used again, as in a program that runs on.
        drop(last.take());
        let start = Instant::now();
        let datatype = (case.build)()?;
        let built = Instant::now();
        datatype.commit()?;
        let done = Instant::now();
        create.push(built.duration_since(start).as_secs_f64() * 1e6);
        commit.push(done.duration_since(built).as_secs_f64() * 1e6);
        last = Some(datatype);
        // Types that take no time would fill the memory with figures.
        if commit.len() == 100_000 {
            break;
        }
    }
    let datatype = last.context("nothing was measured")?;
    create.sort_unstable_by(f64::total_cmp);
    commit.sort_unstable_by(f64::total_cmp);
    Ok(Found {
        case: case.name.clone(),
        what: case.what.clone(),
        segments: datatype.commit()?.segments(),
        create_us: create[create.len() / 2],
        commit_us: commit[commit.len() / 2],
        commit_p90_us: commit[commit.len() * 9 / 10],
        form_bytes: datatype.commit()?.memory(),
    })
}
