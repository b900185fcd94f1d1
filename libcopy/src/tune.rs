// SPDX-License-Identifier: MIT OR Apache-2.0

//! Measures the transports against each other and keeps what the policy should know.

pub mod contention;
mod fit;
mod forked;
mod neighbours;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::op::Op;
pub use crate::policy::Profile;
use crate::policy::{Band, MAX_BANDS, Policy};
use crate::team::{Team, TeamKey};
use crate::topology::Topology;
use crate::transport::TransportKind;

/// Sizes that are measured; what lies between two of them goes with the nearer one.
const SIZES: [usize; 6] = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// A threshold up to which calls go another way.
#[derive(Clone, Copy)]
struct Short {
    /// Its name in a line.
    name: &'static str,
    /// Whether it is for teams with more ranks than processors.
    is_oversubscribed: bool,
    /// The operation that shows it.
    op: Op,
    /// What it is tried with: bytes of a message or, where each rank reads those of all others in
    /// one step, of all of these.
    bytes: &'static [usize],
    is_of_all_others: bool,
    /// Where it stands.
    place: fn(&mut Policy) -> &mut u64,
}

/// What chunks of ranks that share processors are tried with.
const SHARED: &[usize] = &[64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// The thresholds of short calls, and of those that go in chunks where ranks share processors.
const SHORT: [Short; 8] = [
    Short {
        name: "step",
        is_oversubscribed: false,
        op: Op::Allgather,
        bytes: &[1 << 10, 4 << 10, 8 << 10],
        is_of_all_others: true,
        place: |policy| &mut policy.step_max,
    },
    Short {
        name: "pieces",
        is_oversubscribed: false,
        op: Op::Bcast,
        bytes: &[16 << 10, 32 << 10, 64 << 10],
        is_of_all_others: false,
        place: |policy| &mut policy.pieces_max,
    },
    Short {
        name: "reduce_pieces",
        is_oversubscribed: false,
        op: Op::Allreduce,
        bytes: &[4 << 10, 16 << 10, 32 << 10],
        is_of_all_others: true,
        place: |policy| &mut policy.reduce_pieces_max,
    },
    Short {
        name: "eager_scatter",
        is_oversubscribed: true,
        op: Op::Scatter,
        bytes: &[4 << 10, 8 << 10, 16 << 10, 64 << 10],
        is_of_all_others: false,
        place: |policy| &mut policy.eager_scatter_max,
    },
    Short {
        name: "chunked_allreduce",
        is_oversubscribed: true,
        op: Op::Allreduce,
        bytes: SHARED,
        is_of_all_others: false,
        place: |policy| &mut policy.chunked_allreduce_max,
    },
    Short {
        name: "chunked_reduce",
        is_oversubscribed: true,
        op: Op::Reduce,
        bytes: SHARED,
        is_of_all_others: false,
        place: |policy| &mut policy.chunked_reduce_max,
    },
    Short {
        name: "chunked_allgather",
        is_oversubscribed: true,
        op: Op::Allgather,
        bytes: SHARED,
        is_of_all_others: false,
        place: |policy| &mut policy.chunked_allgather_max,
    },
    Short {
        name: "chunked_alltoall",
        is_oversubscribed: true,
        op: Op::Alltoall,
        bytes: SHARED,
        is_of_all_others: true,
        place: |policy| &mut policy.chunked_alltoall_max,
    },
];

/// Chunks that shared memory is tried with.
const CHUNKS: [u64; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 128 << 10];

/// Time for each point (an operation, a size, all transports in turn).
const PER_POINT: Duration = Duration::from_millis(700);

/// How much faster another transport must be to be preferred from some size on.
const MARGIN: f64 = 1.05;

/// Measures this machine in under a minute; `progress` gets a fraction and what is measured.
///
/// Two teams are measured: one with a processor per rank, and one with more ranks than
/// processors. Forks, so call it while the process has one thread.
///
/// # Errors
///
/// [`Error::System`] if processes cannot be started, and those of the teams that are measured.
pub fn measure(progress: &mut dyn FnMut(f64, &str)) -> Result<Profile> {
    let topology = Topology::read();
    let cpus = crate::topology::affinity().len();
    let mut policy = Policy::built_in(&topology).checked()?;
    let teams = [(false, 4.min(cpus)), (true, (2 * cpus).clamp(4, 16))];
    let points = (2 * Op::ALL.len() * SIZES.len() + CHUNKS.len() + 3 + SHORT.len()) as f64;
    let mut done = 0.0;
    for (oversubscribed, ranks) in teams {
        // With one processor there is no team that is not oversubscribed.
        if ranks < 2 || (oversubscribed && ranks <= cpus) {
            continue;
        }
        let lines = in_a_team(ranks, &policy.clone(), &mut |what| {
            done += 1.0;
            progress((done / points).min(1.0), &format!("{what}, {ranks} ranks"));
        })?;
        apply(&mut policy, oversubscribed, &lines);
    }
    progress(1.0, "done");
    Ok(Profile {
        machine: topology.machine(),
        policy: policy.checked()?,
    })
}

/// A size, and how long each transport took for it.
type Measured = (u64, Vec<(TransportKind, f64)>);

/// What a team found out, one line each: "chunk N", "nontemporal N", "attach N", one of [`SHORT`]
/// or "op size (transport microseconds)...".
fn apply(policy: &mut Policy, oversubscribed: bool, lines: &[String]) {
    let mut best: BTreeMap<Op, Vec<Measured>> = BTreeMap::new();
    for line in lines {
        let mut words = line.split_whitespace();
        let (Some(what), Some(number)) = (words.next(), words.next().and_then(|w| w.parse().ok()))
        else {
            continue;
        };
        if let Some(short) = SHORT.iter().find(|short| short.name == what) {
            *(short.place)(policy) = number;
            continue;
        }
        match what {
            "chunk" if oversubscribed => policy.chunk_oversubscribed = number,
            "chunk" => policy.chunk = number,
            "nontemporal" => policy.nontemporal_min = number,
            "attach" => policy.attach_max = number,
            _ => {
                let Some(op) = Op::ALL.into_iter().find(|op| op.to_string() == what) else {
                    continue;
                };
                let mut times = Vec::new();
                while let (Some(kind), Some(time)) = (words.next(), words.next()) {
                    if let (Ok(kind), Ok(time)) = (kind.parse(), time.parse()) {
                        times.push((kind, time));
                    }
                }
                best.entry(op).or_default().push((number, times));
            }
        }
    }
    for (op, sizes) in best {
        policy.set_bands(op, oversubscribed, bands(&sizes));
    }
}

/// Turns times per size into bands.
fn bands(sizes: &[Measured]) -> Vec<Band> {
    let mut bands: Vec<Band> = Vec::new();
    let mut previous = 0;
    for (size, times) in sizes {
        let mut times = times.clone();
        times.sort_by(|a, b| a.1.total_cmp(&b.1));
        let prefer: Vec<TransportKind> = times.iter().map(|(kind, _)| *kind).collect();
        let (Some(first), Some(fastest)) = (prefer.first(), times.first()) else {
            continue;
        };
        let from = match previous {
            0 => 0,
            previous => ((previous as f64 * *size as f64).sqrt() as u64).next_multiple_of(4096),
        };
        previous = *size;
        let kept = bands
            .last()
            .and_then(|band| band.prefer.first())
            .is_some_and(|kind| {
                let time = times.iter().find(|(k, _)| k == kind);
                kind == first || time.is_some_and(|(_, time)| *time <= fastest.1 * MARGIN)
            });
        if !kept {
            if bands.len() == MAX_BANDS {
                // Too many changes of mind: what is said last, for the largest, counts.
                bands.pop();
            }
            bands.push(Band { from, prefer });
        }
    }
    if bands.is_empty() {
        bands.push(Band {
            from: 0,
            prefer: TransportKind::ALL.to_vec(),
        });
    }
    bands
}

/// Forks a team that measures itself; returns the lines that its rank 0 writes.
fn in_a_team(ranks: usize, policy: &Policy, step: &mut dyn FnMut(&str)) -> Result<Vec<String>> {
    let key = TeamKey::random()?;
    let work =
        |rank: usize, out: &mut UnixStream| rank_measures(&key, rank, ranks, policy.clone(), out);
    forked::lines_of(ranks, &work, step)
}

fn rank_measures(
    key: &TeamKey,
    rank: usize,
    ranks: usize,
    policy: Policy,
    mut out: impl Write,
) -> Result<()> {
    let cpus = crate::topology::affinity();
    if ranks <= cpus.len() {
        crate::topology::pin(&cpus, rank);
    }
    let mut team = Team::join_with(key, rank, ranks, policy)?;
    let largest = SIZES[SIZES.len() - 1] / if team.is_oversubscribed() { 4 } else { 1 };
    let mut part = vec![1u8; largest];
    let mut whole = vec![1u8; largest * ranks];
    let mut say = |line: String| -> Result<()> {
        if rank != 0 {
            return Ok(());
        }
        writeln!(out, "{line}").map_err(|source| Error::system("writing measurements", source))
    };
    let shm = [Some(TransportKind::Shm)];
    let middle = if team.is_oversubscribed() {
        1 << 20
    } else {
        128 << 10
    };
    let mut chosen = (f64::INFINITY, CHUNKS[0]);
    for chunk in CHUNKS {
        team.try_policy(|policy| (policy.chunk, policy.chunk_oversubscribed) = (chunk, chunk))?;
        let times = point(&mut team, Op::Bcast, middle, &shm, &mut part, &mut whole)?;
        // A larger chunk must be worth it.
        if times[0] * 1.02 < chosen.0 {
            chosen = (times[0], chunk);
        }
    }
    team.try_policy(|policy| (policy.chunk, policy.chunk_oversubscribed) = (chosen.1, chosen.1))?;
    say(format!("chunk {}", chosen.1))?;
    if !team.is_oversubscribed() {
        // From the smallest size on at which going around the cache pays.
        let mut from = u64::MAX;
        for size in [16 << 20, 4 << 20] {
            team.try_policy(|policy| policy.nontemporal_min = u64::MAX)?;
            let cached = point(&mut team, Op::Bcast, size, &shm, &mut part, &mut whole)?[0];
            team.try_policy(|policy| policy.nontemporal_min = 0)?;
            let around = point(&mut team, Op::Bcast, size, &shm, &mut part, &mut whole)?[0];
            if around * MARGIN > cached {
                break;
            }
            from = (size * ranks) as u64;
        }
        team.try_policy(|policy| policy.nontemporal_min = from)?;
        say(format!("nontemporal {from}"))?;
    }
    for short in SHORT {
        if short.is_oversubscribed != team.is_oversubscribed() {
            continue;
        }
        // Up to the largest number of bytes at which it pays: of fewer, both take about as long.
        let mut most = short.bytes[0] / 2;
        for bytes in short.bytes {
            let size = if short.is_of_all_others {
                bytes / (ranks - 1) / 64 * 64
            } else {
                *bytes
            };
            let [without, with] = compared(&mut team, short, size, &mut part, &mut whole)?;
            if with <= without * MARGIN {
                most = *bytes;
            }
        }
        team.try_policy(|policy| *(short.place)(policy) = most as u64)?;
        say(format!("{} {most}", short.name))?;
    }
    if !team.is_oversubscribed() && team.is_usable(TransportKind::Kmod) {
        let kmod = [Some(TransportKind::Kmod)];
        // Up to the largest size at which copying mapped memory pays, and all below do.
        let mut most = 0;
        for size in [64 << 10, 1 << 20, 4 << 20] {
            team.try_policy(|policy| policy.attach_max = 0)?;
            let asked = point(&mut team, Op::Gather, size, &kmod, &mut part, &mut whole)?[0];
            team.try_policy(|policy| policy.attach_max = u64::MAX)?;
            let mapped = point(&mut team, Op::Gather, size, &kmod, &mut part, &mut whole)?[0];
            if mapped * MARGIN > asked {
                break;
            }
            most = (size * ranks) as u64;
        }
        team.try_policy(|policy| policy.attach_max = most)?;
        say(format!("attach {most}"))?;
    }
    let usable: Vec<Option<TransportKind>> = team
        .transports()
        .iter()
        .filter(|t| t.usable)
        .map(|t| Some(t.kind))
        .collect();
    for op in Op::ALL {
        for size in SIZES.into_iter().filter(|size| *size <= largest) {
            let times = point(&mut team, op, size, &usable, &mut part, &mut whole)?;
            let mut line = format!("{op} {size}");
            for (kind, time) in usable.iter().flatten().zip(times) {
                line += &format!(" {kind} {time:.2}");
            }
            say(line)?;
        }
    }
    team.barrier()?;
    say(forked::END.to_owned())
}

/// Microseconds (lower quartile, averaged over the ranks) of an operation through each transport;
/// they take turns, so that what disturbs one disturbs all.
fn point(
    team: &mut Team,
    op: Op,
    size: usize,
    kinds: &[Option<TransportKind>],
    part: &mut [u8],
    whole: &mut [u8],
) -> Result<Vec<f64>> {
    let mut buffers = Buffers::new(op, size, team, part, whole);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); kinds.len()];
    let started = Instant::now();
    for round in 0..200 {
        for (kind, times) in kinds.iter().zip(&mut times) {
            team.set_transport(*kind)?;
            team.barrier()?;
            let start = Instant::now();
            buffers.call(team, op)?;
            // The first rounds touch memory for the first time.
            if round >= 2 {
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        // Rank 0 says when it is enough.
        let mut enough = [u8::from(round >= 4 && started.elapsed() > PER_POINT)];
        team.bcast(&mut enough, 0)?;
        if enough[0] != 0 {
            break;
        }
    }
    team.set_transport(None)?;
    averaged(team, times)
}

/// Calls one after the other that are timed together: a short one takes no longer than to read the
/// clock, and ranks come to it from a barrier one after the other. Fewer of those of ranks that
/// share processors, which take long.
fn burst(short: Short) -> usize {
    if short.is_oversubscribed { 8 } else { 64 }
}

/// Microseconds of a call with a threshold at nothing and at its most, in turns.
fn compared(
    team: &mut Team,
    short: Short,
    size: usize,
    part: &mut [u8],
    whole: &mut [u8],
) -> Result<[f64; 2]> {
    let mut buffers = Buffers::new(short.op, size, team, part, whole);
    let (mut times, burst) = (vec![Vec::new(); 2], burst(short));
    for round in 0..100 {
        for (most, times) in [0, u64::MAX].into_iter().zip(&mut times) {
            team.try_policy(|policy| *(short.place)(policy) = most)?;
            team.barrier()?;
            let start = Instant::now();
            for _ in 0..burst {
                buffers.call(team, short.op)?;
            }
            if round >= 2 {
                times.push(start.elapsed().as_secs_f64() * 1e6 / burst as f64);
            }
        }
    }
    let all = averaged(team, times)?;
    Ok([all[0], all[1]])
}

/// What is sent and received.
struct Buffers<'a> {
    part: &'a mut [u8],
    whole: &'a mut [u8],
    other: Vec<u8>,
}

impl<'a> Buffers<'a> {
    /// For parts of `size` bytes.
    fn new(
        op: Op,
        size: usize,
        team: &Team,
        part: &'a mut [u8],
        whole: &'a mut [u8],
    ) -> Buffers<'a> {
        let all = size * team.size();
        Buffers {
            part: &mut part[..size],
            whole: &mut whole[..all],
            other: match op {
                Op::Alltoall => vec![1; all],
                _ => Vec::new(),
            },
        }
    }

    fn call(&mut self, team: &mut Team, op: Op) -> Result<()> {
        let root = team.rank() == 0;
        let Buffers { part, whole, other } = self;
        match op {
            Op::Bcast => team.bcast(part, 0),
            Op::Gather => team.gather(part, root.then_some(&mut **whole), 0),
            Op::Scatter => team.scatter(root.then_some(&**whole), part, 0),
            Op::Alltoall => team.alltoall(other, whole),
            Op::Allreduce => team.allreduce(None, part, add),
            Op::Reduce if root => team.reduce(None, Some(part), 0, add),
            Op::Reduce => team.reduce(Some(part), None, 0, add),
            _ => team.allgather(part, whole),
        }
    }
}

fn add(from: &[u8], to: &mut [u8]) {
    let pairs = to.iter_mut().zip(from);
    pairs.for_each(|(to, from)| *to = to.wrapping_add(*from));
}

/// The lower quartile of each list, averaged over the ranks.
fn averaged(team: &mut Team, times: Vec<Vec<f64>>) -> Result<Vec<f64>> {
    let mut quartiles = Vec::with_capacity(times.len());
    for mut times in times {
        times.sort_by(f64::total_cmp);
        // Below the median: what others do on the machine meanwhile only ever adds.
        let mine = times[times.len() / 4];
        let mut all = vec![0u8; 8 * team.size()];
        team.allgather(&mine.to_ne_bytes(), &mut all)?;
        let value = |bytes: &[u8]| bytes.try_into().map_or(0.0, f64::from_ne_bytes);
        quartiles.push(all.chunks(8).map(value).sum::<f64>() / team.size() as f64);
    }
    Ok(quartiles)
}

#[cfg(test)]
mod tests {
    use super::*;
    use TransportKind::{Cma, Shm};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    #[test]
    fn without_descriptors_there_is_no_profile() {
        // SAFETY: the child only asks for the profile, and ends.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let none = libc::rlimit {
                    rlim_cur: 0,
                    rlim_max: 0,
                };
                // SAFETY: a limit of this process's.
                unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) };
                let loaded = Profile::load("no machine has this name");
                // SAFETY: ends without the parent's handlers.
                unsafe { libc::_exit(i32::from(!matches!(loaded, Ok(None)))) };
            }
            ForkResult::Parent { child } => {
                let ended = waitpid(child, None).unwrap();
                assert_eq!(ended, WaitStatus::Exited(child, 0));
            }
        }
    }

    #[test]
    fn bands_follow_the_fastest_with_some_inertia() {
        let times = |shm, cma| vec![(Cma, cma), (Shm, shm)];
        let sizes = [
            (16384, times(1.0, 2.0)),
            (65536, times(1.04, 1.0)),
            (262144, times(3.0, 2.0)),
            (1048576, times(5.0, 4.9)),
        ];
        let bands = bands(&sizes);
        assert_eq!(bands.len(), 2);
        assert_eq!(
            bands[0],
            Band {
                from: 0,
                prefer: vec![Shm, Cma]
            }
        );
        assert_eq!(
            bands[1],
            Band {
                from: 131_072,
                prefer: vec![Cma, Shm]
            }
        );
    }

    #[test]
    fn lines_become_a_policy() {
        let mut policy = Policy::built_in(&Topology::read());
        let lines = [
            "chunk 65536",
            "nontemporal 4194304",
            "attach 1048576",
            "step 4096",
            "pieces 16384",
            "reduce_pieces 0",
            "chunked_reduce 32768",
            "gather 16384 cma 3.5 shm 9",
            "noise",
        ];
        apply(&mut policy, true, &lines.map(str::to_owned));
        assert_eq!(policy.chunk_oversubscribed, 65536);
        assert_eq!(policy.nontemporal_min, 4 << 20);
        assert_eq!(policy.attach_max, 1 << 20);
        let short = [policy.step_max, policy.pieces_max, policy.reduce_pieces_max];
        assert_eq!(short, [4096, 16384, 0]);
        assert_eq!(policy.chunked_reduce_max, 32768);
        let expected = vec![Band {
            from: 0,
            prefer: vec![Cma, Shm],
        }];
        assert_eq!(policy.gather.oversubscribed, expected);
        policy.checked().unwrap();
    }
}
