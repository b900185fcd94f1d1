// SPDX-License-Identifier: MIT OR Apache-2.0

//! Profiles: which functions an MPI program spends its time in, by size, type and communicator.
//! Each rank writes a line of JSON ([`RankProfile`]); these add up to a [`Profile`].
//!
//! Time in a function is split into waiting for other ranks and moving bytes, as far as that can be
//! told ([`Split`]). Of blocking collectives, ranks note when they have come to each, by the clock
//! that all processes of a machine have in common; who came last is known when the notes of all
//! ranks are together.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// The version of these words.
pub const PROFILE_VERSION: u32 = 1;

/// What one rank says.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct RankProfile {
    /// [`PROFILE_VERSION`].
    pub profile: u32,
    /// The rank in `MPI_COMM_WORLD`; -1 where that is not known.
    pub rank: i64,
    /// The machine's name.
    pub host: String,
    /// The file that the process runs.
    pub program: String,
    /// The MPI library.
    pub library: String,
    /// Whether everything was forwarded.
    pub plain: bool,
    /// From the end of `MPI_Init` to the beginning of `MPI_Finalize`.
    pub run_ns: u64,
    /// The groups of communicators.
    pub groups: Vec<Group>,
    /// The classes of calls.
    pub classes: Vec<CallClass>,
    /// What was noted of blocking collectives.
    pub sequences: Vec<Sequence>,
    /// Calls of which nothing else was noted, since there were too many classes, and their time.
    pub left_out: u64,
    /// Nanoseconds of these.
    pub left_out_ns: u64,
}

/// The ranks of communicators: all communicators of the same ranks in the same order are one.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct Group {
    /// Of the same ranks, the same.
    pub key: u64,
    /// How many there are; 0 where no communicator is known.
    pub size: u64,
    /// Their ranks in `MPI_COMM_WORLD`; empty if they are not known.
    pub ranks: Vec<u32>,
}

/// How the time of a class is split.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// By the clocks of all participants: blocking collectives.
    Clocks,
    /// By the fastest quarter of the class: what a call takes more than these is waiting.
    Estimate,
    /// Nobody is waited for.
    #[default]
    Local,
}

/// Calls of one function with one class of sizes and types, on communicators of one group.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct CallClass {
    /// The function.
    pub function: String,
    /// Index in [`RankProfile::groups`].
    pub group: usize,
    /// The least size of the class: a power of two, or 0.
    pub least: u64,
    /// Whether a datatype has gaps.
    pub derived: bool,
    /// How time is split.
    pub split: Split,
    /// Calls.
    pub calls: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Nanoseconds of all of them.
    pub time_ns: u64,
    /// Of these, calls that asked for something that was not there.
    pub polled_ns: u64,
    /// Of the others, what they would have taken if none had taken more than the fastest quarter.
    pub fast_ns: u64,
}

/// When this rank called one function on communicators of one group.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct Sequence {
    /// Index in [`RankProfile::groups`].
    pub group: usize,
    /// The function.
    pub function: String,
    /// The calls that were kept ([`is_kept`]).
    pub samples: Vec<Sample>,
}

/// One call.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(into = "[u64; 5]", from = "[u64; 5]")]
pub struct Sample {
    /// Which call of its sequence it is.
    pub number: u64,
    /// The time of the machine's monotonic clock when it was entered.
    pub entered_ns: u64,
    /// What it took.
    pub took_ns: u64,
    /// Index in [`RankProfile::classes`].
    pub class: u32,
    /// The place of the root in the group, if there is one.
    pub root: Option<u32>,
}

impl From<Sample> for [u64; 5] {
    fn from(sample: Sample) -> [u64; 5] {
        let root = sample.root.map_or(0, |root| u64::from(root) + 1);
        [
            sample.number,
            sample.entered_ns,
            sample.took_ns,
            u64::from(sample.class),
            root,
        ]
    }
}

impl From<[u64; 5]> for Sample {
    fn from([number, entered_ns, took_ns, class, root]: [u64; 5]) -> Sample {
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Sample {
            number,
            entered_ns,
            took_ns,
            class: narrow(class),
            root: root.checked_sub(1).map(narrow),
        }
    }
}

/// Whether a call is kept where one of `2^thinned` is: by its number alone, so that all ranks keep
/// the same ones, and not every second, third or fourth of a loop.
pub fn is_kept(number: u64, thinned: u32) -> bool {
    // SplitMix64's mixing.
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    mixed.trailing_zeros() >= thinned
}

/// The least size of the class that a size is in.
pub fn size_class(bytes: u64) -> u64 {
    bytes.checked_ilog2().map_or(0, |power| 1 << power)
}

/// What all ranks say together.
#[derive(Serialize, Clone, Debug, Default)]
pub struct Profile {
    /// Ranks.
    pub ranks: usize,
    /// Their machines.
    pub hosts: BTreeSet<String>,
    /// The files that they ran.
    pub programs: BTreeSet<String>,
    /// Their MPI libraries.
    pub libraries: BTreeSet<String>,
    /// Whether everything was forwarded, on all of them.
    pub plain: bool,
    /// The sum of all ranks' runs.
    pub run_ns: u64,
    /// Classes of calls, those that took most time first.
    pub rows: Vec<ProfileRow>,
    /// Calls that are in no row.
    pub left_out: u64,
    /// Nanoseconds of these.
    pub left_out_ns: u64,
}

/// Calls of one function with one class of sizes and types, on communicators of one size and place.
#[derive(Serialize, Clone, Debug, Default, PartialEq)]
pub struct ProfileRow {
    /// The function.
    pub function: String,
    /// The least size of the class.
    pub least: u64,
    /// Whether a datatype has gaps.
    pub derived: bool,
    /// Ranks of the communicators; 0 where none is known.
    pub ranks: u64,
    /// Whether all of them are on one machine.
    pub one_machine: bool,
    /// How time is split.
    pub split: Split,
    /// Calls.
    pub calls: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Nanoseconds of all of them: the sum of the three that follow.
    pub time_ns: u64,
    /// Waiting for other ranks.
    pub waiting_ns: u64,
    /// Moving bytes, and what a call costs besides.
    pub moving_ns: u64,
    /// Of which nothing is known.
    pub unsplit_ns: u64,
}

impl ProfileRow {
    fn add(&mut self, other: &ProfileRow) {
        self.calls += other.calls;
        self.bytes += other.bytes;
        self.time_ns += other.time_ns;
        self.waiting_ns += other.waiting_ns;
        self.moving_ns += other.moving_ns;
        self.unsplit_ns += other.unsplit_ns;
    }

    /// The types of the class.
    pub fn types(&self) -> &'static str {
        if self.derived {
            "derived"
        } else {
            "contiguous"
        }
    }

    /// How it was split, in a word.
    pub fn split_word(&self) -> &'static str {
        match self.split {
            _ if self.unsplit_ns == self.time_ns && self.time_ns > 0 => "none",
            Split::Clocks => "clocks",
            Split::Estimate => "estimate",
            Split::Local => "local",
        }
    }
}

/// A text that is no profile.
#[derive(Debug)]
pub enum NotAProfile {
    /// A line, by its number from 1, cannot be read.
    Line(usize, serde_json::Error),
    /// A line has another version of the words.
    Version(usize, u32),
    /// A rank has written twice.
    Twice(i64),
    /// There is no line.
    Empty,
}

impl fmt::Display for NotAProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotAProfile::Line(line, _) => {
                write!(f, "line {line} is no profile of libcopy_mpi.so")
            }
            NotAProfile::Version(line, version) => write!(
                f,
                "line {line} has version {version} of the profile; this libcopy reads version \
                 {PROFILE_VERSION}: run the program again with the libcopy_mpi.so that belongs to it"
            ),
            NotAProfile::Twice(rank) => write!(
                f,
                "rank {rank} has written twice: a file has the profile of one run, of one MPI \
                 program"
            ),
            NotAProfile::Empty => write!(f, "no rank has written a profile"),
        }
    }
}

impl std::error::Error for NotAProfile {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NotAProfile::Line(_, error) => Some(error),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
struct Version {
    profile: u32,
}

impl Profile {
    /// Reads the ranks' lines.
    ///
    /// # Errors
    ///
    /// A line is no profile, has another version, a rank has two, or there is none.
    pub fn read(text: &str) -> Result<Profile, NotAProfile> {
        let mut ranks = Vec::new();
        let mut seen = BTreeSet::new();
        for (number, line) in (1..).zip(text.lines()) {
            let unreadable = |error| NotAProfile::Line(number, error);
            let version = serde_json::from_str::<Version>(line).map_err(unreadable)?;
            if version.profile != PROFILE_VERSION {
                return Err(NotAProfile::Version(number, version.profile));
            }
            let rank: RankProfile = serde_json::from_str(line).map_err(unreadable)?;
            if !seen.insert(rank.rank) {
                return Err(NotAProfile::Twice(rank.rank));
            }
            ranks.push(rank);
        }
        if ranks.is_empty() {
            return Err(NotAProfile::Empty);
        }
        Ok(Profile::of(&ranks))
    }

    /// What these say together.
    pub fn of(ranks: &[RankProfile]) -> Profile {
        let waits = waits(ranks);
        let hosts: BTreeMap<i64, &str> = ranks
            .iter()
            .map(|rank| (rank.rank, rank.host.as_str()))
            .collect();
        let mut rows: BTreeMap<_, ProfileRow> = BTreeMap::new();
        let mut profile = Profile {
            ranks: ranks.len(),
            plain: ranks.iter().all(|rank| rank.plain),
            ..Profile::default()
        };
        for (rank, waits) in ranks.iter().zip(&waits) {
            profile.hosts.insert(rank.host.clone());
            profile.programs.insert(rank.program.clone());
            profile.libraries.insert(rank.library.clone());
            profile.run_ns += rank.run_ns;
            profile.left_out += rank.left_out;
            profile.left_out_ns += rank.left_out_ns;
            for (class, wait) in rank.classes.iter().zip(waits) {
                let row = row(rank, class, *wait, &hosts);
                let key = (
                    row.function.clone(),
                    row.least,
                    row.derived,
                    row.ranks,
                    row.one_machine,
                    row.split,
                );
                match rows.get_mut(&key) {
                    Some(known) => known.add(&row),
                    None => {
                        rows.insert(key, row);
                    }
                }
            }
        }
        profile.rows = rows.into_values().collect();
        profile
            .rows
            .sort_by_key(|row| std::cmp::Reverse(row.time_ns));
        profile
    }

    /// Nanoseconds in MPI, in functions that libcopy looks at.
    pub fn mpi_ns(&self) -> u64 {
        self.rows.iter().map(|row| row.time_ns).sum::<u64>() + self.left_out_ns
    }

    /// The sums of each function, those that took most time first.
    pub fn functions(&self) -> Vec<ProfileRow> {
        let mut sums: BTreeMap<&str, ProfileRow> = BTreeMap::new();
        for row in &self.rows {
            sums.entry(&row.function)
                .or_insert_with(|| ProfileRow {
                    function: row.function.clone(),
                    split: row.split,
                    ..ProfileRow::default()
                })
                .add(row);
        }
        let mut sums: Vec<ProfileRow> = sums.into_values().collect();
        sums.sort_by_key(|row| std::cmp::Reverse(row.time_ns));
        sums
    }

    /// The share of all ranks' runs that this is.
    pub fn share(&self, time_ns: u64) -> f64 {
        time_ns as f64 / self.run_ns.max(1) as f64
    }

    /// The rows as CSV.
    pub fn csv(&self) -> String {
        let mut text = format!("{}\n", CSV_HEADER.join(","));
        for row in &self.rows {
            let cells = [
                row.function.clone(),
                row.least.to_string(),
                row.types().to_owned(),
                row.ranks.to_string(),
                place(row).to_owned(),
                row.calls.to_string(),
                row.bytes.to_string(),
                row.time_ns.to_string(),
                row.waiting_ns.to_string(),
                row.moving_ns.to_string(),
                row.unsplit_ns.to_string(),
                row.split_word().to_owned(),
                format!("{:.5}", self.share(row.time_ns)),
            ];
            text.push_str(&cells.join(","));
            text.push('\n');
        }
        text
    }
}

/// The columns of [`Profile::csv`].
pub const CSV_HEADER: [&str; 13] = [
    "function",
    "size_class",
    "types",
    "ranks",
    "place",
    "calls",
    "bytes",
    "time_ns",
    "waiting_ns",
    "moving_ns",
    "unsplit_ns",
    "split",
    "share_of_run",
];

fn place(row: &ProfileRow) -> &'static str {
    match row.ranks {
        0 => "unknown",
        _ if row.one_machine => "machine",
        _ => "machines",
    }
}

/// A class of one rank as a row; `wait` is the share of the time in which others were not there, if
/// that is known.
fn row(
    rank: &RankProfile,
    class: &CallClass,
    wait: Option<f64>,
    hosts: &BTreeMap<i64, &str>,
) -> ProfileRow {
    let group = rank.groups.get(class.group);
    let host = |rank: &u32| hosts.get(&i64::from(*rank));
    let one_machine = group.is_some_and(|group| {
        let mut hosts = group.ranks.iter().map(host);
        let first = hosts.next().flatten();
        first.is_some() && hosts.all(|host| host == first)
    });
    let (waiting_ns, moving_ns) = match class.split {
        Split::Local => (0, class.time_ns),
        Split::Estimate => {
            let moving = class.fast_ns.min(class.time_ns - class.polled_ns);
            (class.time_ns - moving, moving)
        }
        Split::Clocks => wait.map_or((0, 0), |wait| {
            let waiting = (class.time_ns as f64 * wait).round() as u64;
            let waiting = waiting.min(class.time_ns);
            (waiting, class.time_ns - waiting)
        }),
    };
    ProfileRow {
        function: class.function.clone(),
        least: class.least,
        derived: class.derived,
        ranks: group.map_or(0, |group| group.size),
        one_machine,
        split: class.split,
        calls: class.calls,
        bytes: class.bytes,
        time_ns: class.time_ns,
        waiting_ns,
        moving_ns,
        unsplit_ns: class.time_ns - waiting_ns - moving_ns,
    }
}

/// For each class of each rank, the share of its time in which others were not there, by the calls
/// that all ranks of the group have kept.
fn waits(ranks: &[RankProfile]) -> Vec<Vec<Option<f64>>> {
    let by_rank: HashMap<i64, usize> = (0..).zip(ranks).map(|(at, rank)| (rank.rank, at)).collect();
    let mut sums: Vec<Vec<(u64, u64)>> = ranks
        .iter()
        .map(|rank| vec![(0, 0); rank.classes.len()])
        .collect();
    // The calls of each rank, by group, function and number.
    let mut calls: HashMap<(u64, &str), Vec<Option<&Sequence>>> = HashMap::new();
    let mut members: HashMap<u64, Vec<usize>> = HashMap::new();
    for rank in ranks {
        for sequence in &rank.sequences {
            let Some(group) = rank.groups.get(sequence.group) else {
                continue;
            };
            let known = members.entry(group.key).or_insert_with(|| {
                let places = group
                    .ranks
                    .iter()
                    .map(|rank| by_rank.get(&i64::from(*rank)));
                let places: Option<Vec<usize>> = places.map(Option::<&usize>::copied).collect();
                // Only the processes of one machine have a clock in common.
                let places = places.unwrap_or_default();
                let one = |at: &usize| ranks[*at].host == ranks[places[0]].host;
                if places.iter().all(one) {
                    places
                } else {
                    Vec::new()
                }
            });
            let Some(at) = known.iter().position(|at| ranks[*at].rank == rank.rank) else {
                continue;
            };
            let key = (group.key, sequence.function.as_str());
            calls.entry(key).or_insert_with(|| vec![None; known.len()])[at] = Some(sequence);
        }
    }
    for ((key, _), sequences) in &calls {
        let Some(sequences) = sequences.iter().copied().collect::<Option<Vec<_>>>() else {
            continue;
        };
        let members = &members[key];
        let numbered: Vec<HashMap<u64, &Sample>> = sequences
            .iter()
            .map(|sequence| sequence.samples.iter().map(|s| (s.number, s)).collect())
            .collect();
        for number in numbered[0].keys() {
            let all: Option<Vec<&Sample>> = numbered
                .iter()
                .map(|calls| calls.get(number).copied())
                .collect();
            let Some(all) = all else { continue };
            for (me, sample) in all.iter().enumerate() {
                let Some(sum) = sums[members[me]].get_mut(sample.class as usize) else {
                    continue;
                };
                sum.0 += waited(&all, me);
                sum.1 += sample.took_ns;
            }
        }
    }
    let share = |(waiting, all): &(u64, u64)| (*all > 0).then(|| *waiting as f64 / *all as f64);
    sums.iter()
        .map(|sums| sums.iter().map(share).collect())
        .collect()
}

/// How long a rank waited in a call until the last one had come that it depends on.
///
/// A rank that is not the root exchanges bytes with the root alone. Any other may depend on all,
/// but nobody has waited for those who came when it had left.
fn waited(all: &[&Sample], me: usize) -> u64 {
    let own = all[me];
    let left = own.entered_ns + own.took_ns;
    let root = own.root.map(|root| root as usize);
    let matters = |at: &usize| root.is_none_or(|root| root == me || root == *at);
    let came = (0..all.len()).filter(matters).map(|at| all[at].entered_ns);
    let last = came.filter(|came| *came < left).max();
    last.unwrap_or(0).saturating_sub(own.entered_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(number: u64, entered_ns: u64, took_ns: u64, root: Option<u32>) -> Sample {
        Sample {
            number,
            entered_ns,
            took_ns,
            class: 0,
            root,
        }
    }

    /// Two ranks that call one function, as often as each has samples.
    fn two(split: Split, samples: [&[Sample]; 2]) -> [RankProfile; 2] {
        [0, 1].map(|at: usize| RankProfile {
            profile: PROFILE_VERSION,
            rank: at as i64,
            host: "one".to_owned(),
            run_ns: 1000,
            groups: vec![Group {
                key: 7,
                size: 2,
                ranks: vec![0, 1],
            }],
            classes: vec![CallClass {
                function: "MPI_Allreduce".to_owned(),
                least: 8,
                split,
                calls: samples[at].len() as u64,
                bytes: 8 * samples[at].len() as u64,
                time_ns: samples[at].iter().map(|sample| sample.took_ns).sum(),
                ..CallClass::default()
            }],
            sequences: vec![Sequence {
                function: "MPI_Allreduce".to_owned(),
                samples: samples[at].to_vec(),
                ..Sequence::default()
            }],
            ..RankProfile::default()
        })
    }

    #[test]
    fn sizes_are_in_the_class_of_their_power_of_two() {
        let classes = [0, 1, 2, 3, 4, 1023, 1024, u64::MAX].map(size_class);
        assert_eq!(classes, [0, 1, 2, 2, 4, 512, 1024, 1 << 63]);
    }

    #[test]
    fn who_comes_first_waits_for_who_comes_last() {
        let ranks = two(
            Split::Clocks,
            [
                &[sample(0, 100, 60, None), sample(1, 200, 20, None)],
                &[sample(0, 150, 12, None), sample(1, 190, 31, None)],
            ],
        );
        let profile = Profile::of(&ranks);
        let [row] = &profile.rows[..] else {
            panic!("{profile:?}")
        };
        assert_eq!((row.calls, row.bytes, row.time_ns), (4, 32, 123));
        // 50 ns of the first call at rank 0, and 10 of the second at rank 1.
        assert_eq!((row.waiting_ns, row.moving_ns, row.unsplit_ns), (60, 63, 0));
        assert!(row.one_machine && row.ranks == 2);
        assert!((profile.share(row.time_ns) - 0.0615).abs() < 1e-9);
    }

    #[test]
    fn who_has_left_before_another_comes_has_not_waited_for_it() {
        // The root leaves before rank 1 comes; rank 1 finds all that it needs.
        let early = [sample(0, 100, 5, Some(0))];
        let late = [sample(0, 150, 5, Some(0))];
        let profile = Profile::of(&two(Split::Clocks, [&early, &late]));
        assert_eq!(profile.rows[0].waiting_ns, 0);
        // Rank 1 waits for the root.
        let root = [sample(0, 150, 5, Some(0))];
        let other = [sample(0, 100, 57, Some(0))];
        let profile = Profile::of(&two(Split::Clocks, [&root, &other]));
        assert_eq!(profile.rows[0].waiting_ns, 50);
    }

    /// Calls that only one rank has kept, and clocks of two machines, tell nothing.
    #[test]
    fn what_cannot_be_told_is_not_split() {
        let calls = [sample(0, 100, 60, None)];
        let mut ranks = two(Split::Clocks, [&calls, &calls]);
        ranks[1].sequences[0].samples[0].number = 1;
        let row = &Profile::of(&ranks).rows[0];
        assert_eq!((row.unsplit_ns, row.split_word()), (120, "none"));
        let mut ranks = two(Split::Clocks, [&calls, &calls]);
        ranks[1].host = "other".to_owned();
        let row = &Profile::of(&ranks).rows[0];
        assert_eq!((row.unsplit_ns, row.one_machine), (120, false));
    }

    #[test]
    fn the_parts_of_a_row_are_its_time() {
        let calls = [sample(0, 100, 60, None), sample(1, 300, 7, None)];
        for split in [Split::Clocks, Split::Estimate, Split::Local] {
            let mut ranks = two(split, [&calls, &calls]);
            ranks[0].classes[0].polled_ns = 20;
            ranks[0].classes[0].fast_ns = 14;
            ranks[1].classes[0].fast_ns = 1000;
            let row = &Profile::of(&ranks).rows[0];
            let parts = row.waiting_ns + row.moving_ns + row.unsplit_ns;
            assert_eq!((parts, row.time_ns), (134, 134), "{split:?}");
            if split == Split::Estimate {
                assert_eq!(row.moving_ns, 14 + 67);
            }
        }
    }

    #[test]
    fn thinned_calls_are_among_those_that_were_kept_before() {
        let kept = |thinned| (0..1u64 << 16).filter(move |number| is_kept(*number, thinned));
        assert_eq!(kept(0).count(), 1 << 16);
        for thinned in 1..6 {
            assert!(kept(thinned).all(|number| is_kept(number, thinned - 1)));
            let share = kept(thinned).count() as f64 / f64::from(1 << (16 - thinned));
            assert!((0.9..1.1).contains(&share), "{thinned}: {share}");
        }
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let calls = [sample(0, 100, 60, Some(1)), sample(3, 200, 20, None)];
        let ranks = two(Split::Clocks, [&calls, &calls]);
        let lines = ranks
            .each_ref()
            .map(|rank| serde_json::to_string(rank).expect("a line"));
        let read: RankProfile = serde_json::from_str(&lines[0]).expect("a profile");
        assert_eq!(read.sequences[0].samples, calls);
        let profile = Profile::read(&lines.join("\n")).expect("two ranks");
        assert_eq!(profile.rows, Profile::of(&ranks).rows);
        let csv = profile.csv();
        let expected = "MPI_Allreduce,8,contiguous,2,machine,4,32,160,0,160,0,clocks,0.08000";
        assert_eq!(csv.lines().nth(1), Some(expected));
        assert_eq!(
            csv.lines().next().map(|head| head.split(',').count()),
            Some(13)
        );
        let twice = Profile::read(&[&*lines[0], &*lines[0]].join("\n"));
        assert!(matches!(twice, Err(NotAProfile::Twice(0))), "{twice:?}");
        assert!(matches!(Profile::read(""), Err(NotAProfile::Empty)));
        let other = lines[0].replacen("\"profile\":1", "\"profile\":9", 1);
        assert!(matches!(
            Profile::read(&other),
            Err(NotAProfile::Version(1, 9))
        ));
    }
}
