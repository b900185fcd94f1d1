// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collective operations between real processes, against plain copies.
//!
//! Each test starts this very binary again, once per rank, with what to do in the environment.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libcopy::datatype::Layout;
use libcopy::policy::{Oversubscription, Policy};
use libcopy::{
    Error, Parts, RecvBuffer, SendBuffer, Team, TeamKey, TransportKind, plan, team, topology,
};
use proptest::prelude::*;

mod layouts;

use layouts::mix;

/// What takes so long hangs, also on a machine that others keep busy or that is emulated.
const HANGS: Duration = Duration::from_secs(900);

/// What a rank does; `LIBCOPY_TEST` says which.
const SCRIPT: &str = "LIBCOPY_TEST";

/// Whether this is an everyday run in a virtual machine: there is the module, and the ways without
/// it are tested where tests are faster. `scripts/test --all` tests all there, too.
fn is_for_the_module() -> bool {
    let is_all = std::env::var("LIBCOPY_TEST_ALL").is_ok_and(|asked| asked == "1");
    std::env::var_os("LIBCOPY_VM").is_some() && !is_all
}

/// Starts `size` ranks that run `script`, with more environment if wanted.
fn run(size: usize, script: &str, environment: &[(&str, &str)]) -> Vec<std::process::ExitStatus> {
    let program = std::env::current_exe().unwrap();
    team::launch(size, |_| {
        let mut command = Command::new(&program);
        command
            .args(["--exact", "a_rank", "--nocapture", "--quiet"])
            .env(SCRIPT, script);
        command.env("LIBCOPY_PROFILE", "none");
        command.stdout(std::process::Stdio::null());
        command.envs(environment.iter().copied());
        command
    })
    .unwrap()
}

fn expect_success(size: usize, script: &str, environment: &[(&str, &str)]) {
    let statuses = run(size, script, environment);
    assert!(
        statuses.iter().all(|status| status.success()),
        "{script}: {statuses:?}"
    );
}

/// An environment in which long messages go through CMA, if that works here.
fn through_cma<'a>(environment: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut environment = environment.to_vec();
    let reports = libcopy::transport::probe_machine();
    if reports
        .iter()
        .any(|it| it.kind == TransportKind::Cma && it.usable)
    {
        environment.push(("LIBCOPY_TRANSPORT", "cma"));
    }
    environment
}

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn a_rank() {
    let Ok(script) = std::env::var(SCRIPT) else {
        return;
    };
    let mut words = script.split(' ');
    match words.next().unwrap() {
        "cases" => cases(&mut Team::from_env().unwrap(), words),
        "mismatch" => mismatch(&mut Team::from_env().unwrap(), words.next().unwrap()),
        "die" => {
            let mut number = || words.next().unwrap().parse().unwrap();
            let (millis, victim) = (number(), number() as usize);
            die(millis, victim, words.next().unwrap());
        }
        "leave" => leave(&mut Team::from_env().unwrap()),
        "huge" => huge(&mut Team::from_env().unwrap()),
        "barriers" => barriers(&mut Team::from_env().unwrap()),
        "transports" => transports(&mut Team::from_env().unwrap()),
        "late" => late(&mut Team::from_env().unwrap(), words.next().unwrap()),
        "root" => wrong_root(&mut Team::from_env().unwrap(), words.next().unwrap()),
        "chunks" => chunks(&mut Team::from_env().unwrap()),
        "many-chunks" => many_chunks(&mut Team::from_env().unwrap()),
        "short" => short(&mut Team::from_env().unwrap()),
        "short-in-chunks" => short(&mut without_steps()),
        "ahead" => ahead(&mut Team::from_env().unwrap()),
        "steps" => steps(&mut Team::from_env().unwrap()),
        "turns" => turns(&mut Team::from_env().unwrap()),
        "order" => order(&mut Team::from_env().unwrap()),
        "typed" => typed(&mut Team::from_env().unwrap()),
        "hidden" => hidden(&mut Team::from_env().unwrap()),
        "levels" => levels(),
        "slots" => slots(&mut Team::from_env().unwrap()),
        other => panic!("no script {other}"),
    }
}

/// What `Case::op` goes up to.
const OPERATIONS: usize = 16;

/// One operation with everything that can vary.
#[derive(Clone, Debug)]
struct Case {
    op: usize,
    len: usize,
    root: usize,
    in_place: bool,
    salt: u64,
}

/// The bytes that a rank contributes.
fn pattern(salt: u64, rank: usize, len: usize) -> Vec<u8> {
    let mut state = mix(salt ^ (rank as u64) << 48);
    let mut bytes = vec![0; len];
    // By words: an emulated processor is slow where each byte is work of its own.
    for word in bytes.chunks_mut(8) {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    bytes
}

/// A buffer whose first byte is at an odd place, so that nothing relies on alignment.
struct Skewed {
    bytes: Vec<u8>,
    skew: usize,
}

impl Skewed {
    fn new(salt: u64, contents: &[u8]) -> Self {
        let skew = (mix(salt) % 67) as usize;
        let mut bytes = vec![0xA5; skew];
        bytes.extend_from_slice(contents);
        bytes.extend_from_slice(&[0x5A; 16]);
        Skewed { bytes, skew }
    }

    fn get(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - 16;
        &mut self.bytes[self.skew..end]
    }

    fn check(&mut self, expected: &[u8], what: &str) {
        assert!(self.get() == expected, "{what}: wrong bytes");
        let end = self.bytes.len() - 16;
        assert!(
            self.bytes[..self.skew].iter().all(|b| *b == 0xA5),
            "{what}: bytes before"
        );
        assert!(
            self.bytes[end..].iter().all(|b| *b == 0x5A),
            "{what}: bytes behind"
        );
    }
}

/// Most ranks of a group, where plans are to have groups.
const GROUPS: &str = "LIBCOPY_TEST_GROUPS";

fn set_groups(team: &mut Team) {
    if let Ok(most) = std::env::var(GROUPS) {
        team.set_groups(most.parse().unwrap());
    }
}

fn cases<'a>(team: &mut Team, words: impl Iterator<Item = &'a str>) {
    set_groups(team);
    let list: Vec<Case> = words
        .map(|word| {
            let n: Vec<u64> = word.split(',').map(|n| n.parse().unwrap()).collect();
            Case {
                op: n[0] as usize,
                len: n[1] as usize,
                root: n[2] as usize % team.size(),
                in_place: n[3] == 1,
                salt: n[4],
            }
        })
        .collect();
    let usable: Vec<TransportKind> = team
        .transports()
        .iter()
        .filter(|t| t.usable)
        .map(|t| t.kind)
        .collect();
    let is_kmod_alone = usable.contains(&TransportKind::Kmod) && is_for_the_module();
    let tested = usable
        .into_iter()
        .filter(|kind| !is_kmod_alone || *kind == TransportKind::Kmod);
    for kind in tested.map(Some).chain([None]) {
        team.set_transport(kind).unwrap();
        for case in &list {
            one(
                team,
                case,
                &format!("{case:?} through {kind:?} as rank {}", team.rank()),
            );
        }
    }
}

/// Counts, and places with gaps between them, of a rank's parts in an alltoall, and how long the
/// buffer is. `length` says how long the part with each rank is.
fn spread(
    size: usize,
    gap: usize,
    length: impl Fn(usize) -> usize,
) -> (Vec<usize>, Vec<usize>, usize) {
    let counts: Vec<usize> = (0..size).map(length).collect();
    let mut offsets = vec![0; size];
    let mut whole = 0;
    for rank in (0..size).rev() {
        // Without gaps the parts are in the order of ranks.
        let rank = if gap == 0 { size - 1 - rank } else { rank };
        offsets[rank] = whole;
        whole += counts[rank] + gap;
    }
    (counts, offsets, whole)
}

fn alltoall(team: &mut Team, case: &Case, what: &str) {
    let (me, size, salt) = (team.rank(), team.size(), case.salt);
    let varied = case.op == 9;
    let length = |from: usize, to: usize| {
        if varied {
            mix(salt + (from * size + to) as u64) as usize % (case.len + 1)
        } else {
            case.len
        }
    };
    let gap = if varied { 1 + salt as usize % 40 } else { 0 };
    let (out_counts, out_offsets, out_whole) = spread(size, gap, |to| length(me, to));
    let (in_counts, in_offsets, in_whole) = spread(size, gap, |from| length(from, me));
    let bytes = |from: usize, to: usize| pattern(salt + to as u64, from, length(from, to));
    let (mut source, mut expected) = (vec![0x11; out_whole], vec![0x22; in_whole]);
    let start = expected.clone();
    for rank in 0..size {
        source[out_offsets[rank]..][..out_counts[rank]].copy_from_slice(&bytes(me, rank));
        expected[in_offsets[rank]..][..in_counts[rank]].copy_from_slice(&bytes(rank, me));
    }
    let mut send = Skewed::new(salt + me as u64, &source);
    let mut recv = Skewed::new(salt + 99, &start);
    if varied {
        let outgoing = Parts {
            counts: &out_counts,
            offsets: &out_offsets,
        };
        let incoming = Parts {
            counts: &in_counts,
            offsets: &in_offsets,
        };
        team.alltoallv((send.get(), outgoing), (recv.get(), incoming))
    } else {
        team.alltoall(send.get(), recv.get())
    }
    .unwrap();
    send.check(&source, what);
    recv.check(&expected, what);
}

/// What a rank sends or receives as the elements of layouts: a buffer, its layout, and the origin
/// in it.
type Spot = (Vec<u8>, Layout, isize);

/// An alltoall of layouts' elements, some of them dense. Some ranks call it as an alltoallv.
fn alltoallw(team: &mut Team, case: &Case, what: &str) {
    let (me, size, salt) = (team.rank(), team.size(), case.salt);
    let length =
        |from: usize, to: usize| mix(salt + (from * size + to) as u64) as usize % (case.len + 1);
    let bytes = |from: usize, to: usize| pattern(salt + to as u64, from, length(from, to));
    if mix(salt ^ 77 ^ me as u64) % 4 == 0 {
        let source: Vec<u8> = (0..size).flat_map(|to| bytes(me, to)).collect();
        let expected: Vec<u8> = (0..size).flat_map(|from| bytes(from, me)).collect();
        let (out_counts, out_offsets, _) = spread(size, 0, |to| length(me, to));
        let (in_counts, in_offsets, _) = spread(size, 0, |from| length(from, me));
        let outgoing = Parts {
            counts: &out_counts,
            offsets: &out_offsets,
        };
        let incoming = Parts {
            counts: &in_counts,
            offsets: &in_offsets,
        };
        let mut recv = Skewed::new(salt, &vec![0x22; expected.len()]);
        team.alltoallv((&source, outgoing), (recv.get(), incoming))
            .unwrap();
        return recv.check(&expected, what);
    }
    let spot = |len: usize, kind: u64, fill: u8| -> Spot {
        let (layout, room, origin) = layouts::layout(mix(salt ^ kind), len);
        (vec![fill; room], layout, origin)
    };
    let mut sent: Vec<Spot> = (0..size)
        .map(|to| spot(length(me, to), (me * size + to) as u64, 0x11))
        .collect();
    for (to, (buffer, layout, origin)) in sent.iter_mut().enumerate() {
        layout.unpack(&bytes(me, to), buffer, *origin).unwrap();
    }
    let mut received: Vec<Spot> = (0..size)
        .map(|from| spot(length(from, me), 1 << 20 | (from * size + me) as u64, 0x22))
        .collect();
    let expected: Vec<Vec<u8>> = received
        .iter()
        .enumerate()
        .map(|(from, (buffer, layout, origin))| {
            let mut buffer = buffer.clone();
            layout
                .unpack(&bytes(from, me), &mut buffer, *origin)
                .unwrap();
            buffer
        })
        .collect();
    let send: Vec<SendBuffer<'_>> = sent
        .iter()
        .map(|(buffer, layout, origin)| SendBuffer::typed(buffer, *origin, layout).unwrap())
        .collect();
    let mut recv: Vec<RecvBuffer<'_>> = received
        .iter_mut()
        .map(|(buffer, layout, origin)| RecvBuffer::typed(buffer, *origin, layout).unwrap())
        .collect();
    let before: Vec<Vec<u8>> = sent.iter().map(|(buffer, ..)| buffer.clone()).collect();
    team.alltoallw(&send, &mut recv).unwrap();
    drop(recv);
    for ((buffer, ..), before) in sent.iter().zip(&before) {
        assert!(buffer == before, "{what}: what is sent has changed");
    }
    for (from, ((buffer, ..), expected)) in received.iter().zip(&expected).enumerate() {
        assert!(buffer == expected, "{what}: wrong bytes from {from}");
    }
}

/// Adds elements of four bytes.
fn add(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len());
    let number = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
    for (a, b) in from.chunks_exact(4).zip(to.chunks_exact_mut(4)) {
        let sum = number(a).wrapping_add(number(b));
        b.copy_from_slice(&sum.to_ne_bytes());
    }
}

fn reduction(team: &mut Team, case: &Case, what: &str) {
    let (me, size, root, salt) = (team.rank(), team.size(), case.root, case.salt);
    let len = case.len / 4 * 4;
    let mine = pattern(salt, me, len);
    let mut sum = vec![0u8; len];
    for rank in 0..size {
        add(&pattern(salt, rank, len), &mut sum);
    }
    let mut send = Skewed::new(salt + me as u64, &mine);
    let start = if case.in_place {
        mine.clone()
    } else {
        vec![0x33; len]
    };
    let mut recv = Skewed::new(salt + 99, &start);
    match case.op {
        10 => {
            let is_root = me == root;
            let own = (!(is_root && case.in_place)).then(|| &*send.get());
            team.reduce_bytes(own, is_root.then(|| recv.get()), root, 4, add)
                .unwrap();
            recv.check(if is_root { &sum } else { &start }, what);
        }
        11 => {
            let own = (!case.in_place).then(|| &*send.get());
            team.allreduce_bytes(own, recv.get(), 4, add).unwrap();
            recv.check(&sum, what);
        }
        14 | 15 => {
            let is_exclusive = case.op == 15;
            let mut sum = if is_exclusive {
                vec![0; len]
            } else {
                mine.clone()
            };
            (0..me).for_each(|rank| add(&pattern(salt, rank, len), &mut sum));
            let own = (!case.in_place).then(|| &*send.get());
            if is_exclusive {
                team.exscan_bytes(own, recv.get(), 4, add).unwrap();
            } else {
                team.scan_bytes(own, recv.get(), 4, add).unwrap();
            }
            let is_untouched = is_exclusive && me == 0;
            recv.check(if is_untouched { &start } else { &sum }, what);
        }
        _ => {
            // Everything that is left goes to the last rank; some have nothing.
            let mut counts = vec![0; size];
            let mut left = len;
            for (rank, count) in counts.iter_mut().enumerate() {
                *count = if rank + 1 == size {
                    left
                } else {
                    mix(salt ^ rank as u64) as usize % (left / 4 + 1) * 4 / 2 / 4 * 4
                };
                left -= *count;
            }
            let offset: usize = counts[..me].iter().sum();
            let mut recv = Skewed::new(salt + 98, &vec![0; counts[me]]);
            team.reduce_scatter_bytes(send.get(), recv.get(), &counts, 4, add)
                .unwrap();
            recv.check(&sum[offset..offset + counts[me]], what);
        }
    }
    send.check(&mine, what);
}

/// Combines words commutatively, but not associatively, as floating-point numbers are added.
fn mix_words(from: &[u8], to: &mut [u8]) {
    let number = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
    for (a, b) in from.chunks_exact(4).zip(to.chunks_exact_mut(4)) {
        let mixed = (number(a) ^ number(b)).wrapping_mul(0x9e37_79b1);
        b.copy_from_slice(&mixed.to_ne_bytes());
    }
}

/// Bytes that other processes, and the kernel for them, cannot read; `None` where the kernel has no
/// such, or not enough (that of a virtual machine cannot take every page out of its own mapping,
/// and says SIGBUS to who touches one).
fn secret(len: usize) -> Option<&'static mut [u8]> {
    // SAFETY: a descriptor of our own, and memory that nobody else has.
    unsafe {
        let file = libc::syscall(libc::SYS_memfd_secret, 0) as i32;
        if file < 0 || libc::ftruncate(file, len as i64) != 0 {
            return None;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(
            std::ptr::null_mut(),
            len,
            protection,
            libc::MAP_SHARED,
            file,
            0,
        );
        libc::close(file);
        if at == libc::MAP_FAILED {
            return None;
        }
        let bytes = std::slice::from_raw_parts_mut(at.cast(), len);
        // A page that is not to be had is an error of a system call, where a load would raise a
        // signal.
        let zeros = std::fs::File::open("/dev/zero").ok()?;
        std::io::Read::read_exact(&mut &zeros, bytes).ok()?;
        Some(bytes)
    }
}

#[test]
fn elements_of_any_plain_type_are_moved() {
    expect_success(3, "typed", &[]);
    expect_success(3, "typed", &[("LIBCOPY_TRANSPORT", "shm")]);
}

/// Each collective with elements of several bytes; counts and places are elements, too.
fn typed(team: &mut Team) {
    const LEN: usize = 20_011;
    let (me, size, root) = (team.rank(), team.size(), 1);
    let is_root = me == root;
    let of = |rank: usize| -> Vec<f64> { (0..LEN).map(|i| (rank * LEN + i) as f64).collect() };
    let mine = of(me);
    let all: Vec<f64> = (0..size).flat_map(of).collect();

    let mut data = mine.clone();
    team.bcast(&mut data, root).unwrap();
    assert_eq!(data, of(root));

    let mut recv = vec![0.0; if is_root { all.len() } else { 0 }];
    team.gather(&mine, is_root.then_some(&mut recv[..]), root)
        .unwrap();
    assert!(!is_root || recv == all);
    data.fill(0.0);
    team.scatter(is_root.then_some(&all[..]), &mut data, root)
        .unwrap();
    assert_eq!(data, mine);
    let mut recv = vec![0.0; all.len()];
    team.allgather(&mine, &mut recv).unwrap();
    assert_eq!(recv, all);

    // Rank r has r + 1 triples, which lie in reverse order.
    let triple = |rank: usize| vec![[rank as i16, 7, -1]; rank + 1];
    let counts: Vec<usize> = (1..=size).collect();
    let total: usize = counts.iter().sum();
    let offsets: Vec<usize> = (0..size)
        .map(|rank| counts[rank + 1..].iter().sum())
        .collect();
    let parts = Parts {
        counts: &counts,
        offsets: &offsets,
    };
    let expected: Vec<[i16; 3]> = (0..size).rev().flat_map(triple).collect();
    let mut recv = vec![[0i16; 3]; total];
    team.allgatherv(&triple(me), &mut recv, parts).unwrap();
    assert_eq!(recv, expected);
    recv.fill([0; 3]);
    let into = is_root.then_some((&mut recv[..], parts));
    team.gatherv(&triple(me), into, root).unwrap();
    assert!(!is_root || recv == expected);
    let mut own = vec![[0i16; 3]; me + 1];
    let from = is_root.then_some((&expected[..], parts));
    team.scatterv(from, &mut own, root).unwrap();
    assert_eq!(own, triple(me));
    let sent: Vec<[u32; 2]> = (0..size).map(|to| [me as u32, to as u32]).collect();
    let mut received = vec![[0u32; 2]; size];
    team.alltoall(&sent, &mut received).unwrap();
    let expected: Vec<[u32; 2]> = (0..size).map(|from| [from as u32, me as u32]).collect();
    assert_eq!(received, expected);

    let add = |from: &[f64], into: &mut [f64]| {
        for (a, b) in from.iter().zip(into) {
            *b += a;
        }
    };
    // Whole numbers of which no sum is rounded.
    let sum: Vec<f64> = (0..LEN)
        .map(|i| (0..size).map(|rank| (rank * LEN + i) as f64).sum())
        .collect();
    let mut recv = vec![0.0; LEN];
    team.allreduce(Some(&mine), &mut recv, add).unwrap();
    assert_eq!(recv, sum);
    recv.fill(0.0);
    team.reduce(Some(&mine), is_root.then_some(&mut recv[..]), root, add)
        .unwrap();
    assert!(!is_root || recv == sum);
    let counts = [5, 0, LEN - 5];
    let mut recv = vec![0.0; counts[me]];
    team.reduce_scatter(&mine, &mut recv, &counts, add).unwrap();
    let start: usize = counts[..me].iter().sum();
    assert_eq!(recv, sum[start..start + counts[me]]);

    let counts = vec![usize::MAX / 2; size];
    let parts = Parts {
        counts: &counts,
        offsets: &offsets,
    };
    let refused = team.allgatherv(&mine, &mut data, parts);
    assert!(
        matches!(refused, Err(Error::Argument { .. })),
        "{refused:?}"
    );
}

/// Calls of some KiB go in chunks through shared memory, longer ones in chunks or through CMA,
/// whichever rank 0 finds faster: the bytes and the order are the same, whatever it says when.
#[test]
fn calls_in_chunks_do_what_others_do() {
    for (size, environment) in [
        (2, &[][..]),
        (3, &[]),
        (2, &[("LIBCOPY_TRANSPORT", "shm")]),
        (4, &[("LIBCOPY_TRANSPORT", "shm")]),
    ] {
        expect_success(size, "chunks", environment);
    }
}

fn chunks(team: &mut Team) {
    // As where each has a processor.
    team.set_oversubscription(Oversubscription::None);
    let (me, size) = (team.rank(), team.size());
    let long = [70_000, 300_001].map(|words| 4 * words);
    let lengths = [2052, 8196, 13_000, 16_384, 32_768 - 4, 32_772, 50_000].into_iter();
    for (salt, len) in lengths.chain(long).enumerate() {
        let of = |rank| pattern(salt as u64, rank, len);
        let all: Vec<Vec<u8>> = (0..size).map(of).collect();
        let mine = &all[me];
        let slice = |rank| plan::share(&(0..len), size, rank, 64);
        let expected = mixed_around(&all, |rank| slice(rank).start);
        // Long allreduces have several segments, each with an order of its own.
        let forced = team.transport();
        let mut by_plan = expected.clone();
        if team.set_transport(Some(TransportKind::Cma)).is_ok() {
            team.allreduce_bytes(Some(mine), &mut by_plan, 4, mix_words)
                .unwrap();
        }
        team.set_transport(forced).unwrap();
        // Long enough for rank 0 to try both ways, and to change its mind.
        for turn in 0..6 {
            let in_place = turn % 2 == 1;
            let send = (!in_place).then_some(&mine[..]);
            let mut sum = if in_place { mine.clone() } else { vec![0; len] };
            team.allreduce_bytes(send, &mut sum, 4, mix_words).unwrap();
            assert!(sum == by_plan, "allreduce of {len} bytes, turn {turn}");
            let root = turn % size;
            let mut sum = mine.clone();
            let (send, recv) = if me == root {
                ((!in_place).then_some(&mine[..]), Some(&mut sum[..]))
            } else {
                (Some(&mine[..]), None)
            };
            team.reduce_bytes(send, recv, root, 4, mix_words).unwrap();
            assert!(me != root || sum == expected, "reduce of {len} bytes");
            let counts: Vec<usize> = (0..size).map(|rank| slice(rank).len()).collect();
            let mut sum = vec![0; counts[me]];
            team.reduce_scatter_bytes(mine, &mut sum, &counts, 4, mix_words)
                .unwrap();
            assert!(sum == expected[slice(me)], "reduce_scatter of {len} bytes");
            let mut parts = vec![0; len * size];
            if in_place {
                parts[me * len..][..len].copy_from_slice(mine);
                team.allgather_in_place(&mut parts).unwrap();
            } else {
                team.allgather(mine, &mut parts).unwrap();
            }
            assert!(parts == all.concat(), "allgather of {len} bytes");
            let part = len / size;
            let mut parts = vec![0; part * size];
            team.alltoall(&mine[..part * size], &mut parts).unwrap();
            let for_us = |bytes: &Vec<u8>| bytes[me * part..][..part].to_vec();
            let ours: Vec<u8> = all.iter().flat_map(for_us).collect();
            assert!(parts == ours, "alltoall of {part} bytes");
        }
        // Parts of different lengths with gaps, of some ranks nothing, and of others some chunks.
        let counts: Vec<usize> = (0..size).map(|rank| len * (rank % 3) / 2).collect();
        let offsets: Vec<usize> = (0..size).map(|rank| (len + 5) * rank).collect();
        let parts = Parts {
            counts: &counts,
            offsets: &offsets,
        };
        let mut collected = vec![9; (len + 5) * size];
        let mut expected = collected.clone();
        for rank in 0..size {
            expected[offsets[rank]..][..counts[rank]].copy_from_slice(&all[rank][..counts[rank]]);
        }
        team.allgatherv(&mine[..counts[me]], &mut collected, parts)
            .unwrap();
        assert!(collected == expected, "allgatherv of {len} bytes");
        // Most elements are one rank's, of another one there are none.
        let mut counts = vec![0; size];
        counts[size - 1] = len / 8 * 4;
        counts[0] = len - counts[size - 1];
        let start = |rank: usize| counts[..rank].iter().sum::<usize>();
        let mut expected = all[0].clone();
        all[1..].iter().for_each(|bytes| add(bytes, &mut expected));
        let mut sum = vec![0; counts[me]];
        team.reduce_scatter_bytes(mine, &mut sum, &counts, 4, add)
            .unwrap();
        let ours = start(me)..start(me) + counts[me];
        assert!(sum == expected[ours], "uneven reduce_scatter of {len}");
    }
    assert!(team.chunks_written() > 0);
    let mut transports = team.transports().iter();
    let has_cma = transports.any(|it| it.kind == TransportKind::Cma && it.usable);
    if team.transport().is_none() && has_cma {
        // Rank 0 has had long reductions go both ways.
        assert!(team.plan_counts().calls > 0);
    }
}

/// More ranks than one group has, which share processors, combine in chunks, too: calls of one
/// chunk and of several.
#[test]
fn many_ranks_that_share_processors_combine_in_chunks() {
    expect_success(18, "many-chunks", &[]);
}

fn many_chunks(team: &mut Team) {
    team.set_oversubscription(Oversubscription::Heavy);
    // Through the module they go by plans.
    let mut transports = team.transports().iter();
    let has_module = transports.any(|it| it.kind == TransportKind::Kmod && it.usable);
    let (me, size) = (team.rank(), team.size());
    for (salt, len) in [28_000, 140_004].into_iter().enumerate() {
        let of = |rank| pattern(salt as u64, rank, len);
        let all: Vec<Vec<u8>> = (0..size).map(of).collect();
        let slice = |rank| plan::share(&(0..len), size, rank, 64);
        let expected = mixed_around(&all, |rank| slice(rank).start);
        for root in [0, size - 1] {
            let before = team.chunks_written();
            let mut sum = vec![0; len];
            let send = Some(&all[me][..]);
            let recv = (me == root).then_some(&mut sum[..]);
            team.reduce_bytes(send, recv, root, 4, mix_words).unwrap();
            assert!(me != root || sum == expected, "reduce of {len} bytes");
            let reduced = team.chunks_written();
            team.allreduce_bytes(send, &mut sum, 4, mix_words).unwrap();
            assert!(sum == expected, "allreduce of {len} bytes");
            let all = team.chunks_written();
            assert!(has_module || before < reduced && reduced < all);
        }
    }
    // All elements are one rank's, for which chunks would be too many.
    let (mut counts, len) = (vec![0; size], 100_000);
    counts[size - 2] = len;
    let mine = vec![1; len];
    let mut sum = vec![0; counts[me]];
    let before = team.chunks_written();
    team.reduce_scatter_bytes(&mine, &mut sum, &counts, 4, add)
        .unwrap();
    assert!(sum.iter().all(|byte| *byte == size as u8), "{sum:?}");
    assert_eq!(team.chunks_written(), before);
    // A call that others do not make is an error, also where all wait for the last one.
    let mut bytes = vec![0; 100_000];
    let error = if me == size / 2 {
        team.bcast(&mut bytes, 0).unwrap_err()
    } else {
        team.allreduce_bytes(None, &mut bytes, 4, add).unwrap_err()
    };
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
}

#[test]
fn the_order_of_a_reduction_does_not_depend_on_how_bytes_travel() {
    expect_success(4, "order", &[]);
    // Groups have an order of their own.
    expect_success(5, "order", &[(GROUPS, "2")]);
}

/// Each word from the rank on whose slice it is in, around the circle.
fn mixed_around(all: &[Vec<u8>], start: impl Fn(usize) -> usize) -> Vec<u8> {
    let (size, len) = (all.len(), all[0].len());
    let words = (0..len).step_by(4).flat_map(|at| {
        let owner = (0..size).rposition(|rank| start(rank) <= at).unwrap();
        let word = |rank: usize| all[rank][at..at + 4].to_vec();
        let mut mixed = word(owner);
        for rank in (owner + 1..size).chain(0..owner) {
            mix_words(&word(rank), &mut mixed);
        }
        mixed
    });
    words.collect()
}

/// Short reductions take one step, where nobody has set groups; with `LIBCOPY_EAGER_MAX=0` they go
/// by plans. Either way the order is the same.
#[test]
fn short_reductions_have_the_order_of_long_ones() {
    for environment in [&[][..], &[("LIBCOPY_EAGER_MAX", "0")]] {
        expect_success(2, "short", environment);
        expect_success(5, "short", environment);
    }
    expect_success(2, "short-in-chunks", &[]);
    expect_success(5, "short-in-chunks", &[]);
}

/// A team whose short calls take no step of their own, as if `libcopy tune` had found so.
fn without_steps() -> Team {
    let said = |name| std::env::var(name).unwrap();
    let number = |name| said(name).parse().unwrap();
    let key = said("LIBCOPY_KEY").parse().unwrap();
    let mut policy = Policy::load().unwrap();
    (policy.step_max, policy.pieces_max) = (0, 0);
    policy.reduce_pieces_max = 0;
    let (rank, size) = (number("LIBCOPY_RANK"), number("LIBCOPY_SIZE"));
    Team::join_with(&key, rank, size, policy).unwrap()
}

fn short(team: &mut Team) {
    let (me, size) = (team.rank(), team.size());
    // One slice, two, parts of a line, and as much as goes in one step.
    for (salt, len) in [4, 60, 64, 68, 200, 1000, 8192 / 5 * 4]
        .into_iter()
        .enumerate()
    {
        let all: Vec<Vec<u8>> = (0..size)
            .map(|rank| pattern(salt as u64, rank, len))
            .collect();
        let mine = &all[me];
        let slice = |rank| plan::share(&(0..len), size, rank, 64);
        let expected = mixed_around(&all, |rank| slice(rank).start);
        for turn in 0..5 {
            let mut sum = if turn % 2 == 0 {
                vec![0; len]
            } else {
                mine.clone()
            };
            let send = (turn % 2 == 0).then_some(&mine[..]);
            team.allreduce_bytes(send, &mut sum, 4, mix_words).unwrap();
            assert!(sum == expected, "allreduce of {len} bytes");
        }
        // Who is no root runs ahead.
        for root in [0, 0, size - 1, 0, size - 1, size - 1, 0] {
            let mut sum = mine.clone();
            let (send, recv) = if me == root {
                (None, Some(&mut sum[..]))
            } else {
                (Some(&mine[..]), None)
            };
            team.reduce_bytes(send, recv, root, 4, mix_words).unwrap();
            assert!(me != root || sum == expected, "reduce of {len} bytes");
        }
        let counts: Vec<usize> = (0..size).map(|rank| slice(rank).len()).collect();
        let mut sum = vec![0; counts[me]];
        // More than is divided, on some ranks.
        let longer = [&mine[..], &[7; 9000][..me % 2 * 9000]].concat();
        team.reduce_scatter_bytes(&longer, &mut sum, &counts, 4, mix_words)
            .unwrap();
        assert!(sum == expected[slice(me)], "reduce_scatter of {len} bytes");
        // A scan combines in the order of ranks, where it takes one step.
        let before = all[..me].iter().cloned().reduce(|mut sum, next| {
            mix_words(&next, &mut sum);
            sum
        });
        let mut with_ours = before.clone().unwrap_or_else(|| mine.clone());
        if me > 0 {
            mix_words(mine, &mut with_ours);
        }
        let is_one_step = team.policy().eager_max > 0 && len * (size - 1) <= 8192;
        for turn in 0..3 {
            let mut sum = mine.clone();
            let send = (turn % 2 == 0).then_some(&mine[..]);
            team.scan_bytes(send, &mut sum, 4, mix_words).unwrap();
            assert!(sum == with_ours || !is_one_step, "scan of {len} bytes");
            let mut sum = mine.clone();
            team.exscan_bytes(send, &mut sum, 4, mix_words).unwrap();
            let expected = before.as_ref().unwrap_or(mine);
            assert!(sum == *expected || !is_one_step, "exscan of {len} bytes");
        }
        let mut parts = vec![0; len * size];
        team.allgather(mine, &mut parts).unwrap();
        assert!(parts == all.concat(), "allgather of {len} bytes");
        let part = len / size;
        let mut parts = vec![0; part * size];
        team.alltoall(&mine[..part * size], &mut parts).unwrap();
        let for_us = |bytes: &Vec<u8>| bytes[me * part..][..part].to_vec();
        let expected: Vec<u8> = all.iter().flat_map(for_us).collect();
        assert!(parts == expected, "alltoall of {part} bytes");
    }
}

/// In short calls with a root those who need not wait run ahead of one that is late; where ranks
/// outnumber processors, roots take another way than where they do not.
#[test]
fn nobody_overruns_a_rank_that_is_late() {
    for ranks in [2, 5] {
        for environment in [&[][..], &[("LIBCOPY_EAGER_MAX", "0")]] {
            expect_success(ranks, "ahead", environment);
        }
    }
}

fn ahead(team: &mut Team) {
    let (me, size) = (team.rank(), team.size());
    for under in [Oversubscription::Moderate, Oversubscription::None] {
        team.set_oversubscription(under);
        // On the line that says that they are there, behind it, and as much as goes in one step.
        for len in [0, 1, 40, 41, 1000, 2048, 8192] {
            let roots = [
                [0; 12],
                [size - 1; 12],
                [0, size - 1, 0, 0, 1, 1, 1, 0, 1, 0, 1, 1],
            ];
            for (salt, root) in roots.concat().into_iter().enumerate() {
                let late = salt / 12 + salt / 5;
                if salt % 5 == 0 && me == late % size {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let all: Vec<Vec<u8>> = (0..size)
                    .map(|rank| pattern(salt as u64, rank, len))
                    .collect();
                let is_root = me == root;
                let mut bytes = all[me].clone();
                team.bcast(&mut bytes, root).unwrap();
                assert!(bytes == all[root], "bcast of {len} bytes from {root}");
                let mut parts = vec![0; if is_root { size * len } else { 0 }];
                let recv = is_root.then_some(&mut parts[..]);
                team.gather(&all[me], recv, root).unwrap();
                assert!(
                    !is_root || parts == all.concat(),
                    "gather of {len} bytes to {root}"
                );
                let whole = all.concat();
                let mut part = vec![0; len];
                team.scatter(is_root.then_some(&whole[..]), &mut part, root)
                    .unwrap();
                assert!(part == all[me], "scatter of {len} bytes from {root}");
                if salt % 3 == 0 {
                    let mut data = if is_root { whole.clone() } else { vec![0; len] };
                    team.scatter_in_place(&mut data, root).unwrap();
                    let own = if is_root { me * len } else { 0 };
                    assert!(
                        data[own..][..len] == all[me],
                        "scatter of {len} bytes in place"
                    );
                    team.gather_in_place(&mut data, root).unwrap();
                    assert!(!is_root || data == whole, "gather of {len} bytes in place");
                }
                if salt % 7 == 0 {
                    let mut parts = vec![0; len * size];
                    team.allgather(&all[me], &mut parts).unwrap();
                    assert!(parts == whole, "allgather of {len} bytes");
                }
            }
        }
    }
}

/// Short calls of ranks in groups of groups take a step for each group: two and three levels, full
/// groups and others, and more levels than there may be.
#[test]
fn short_calls_go_group_by_group() {
    for (ranks, most) in [(4, "2"), (7, "2"), (11, "3"), (17, "4"), (17, "2")] {
        expect_success(ranks, "steps", &[(GROUPS, most)]);
    }
    expect_success(7, "steps", &[(GROUPS, "2"), ("LIBCOPY_EAGER_MAX", "0")]);
}

/// Elements of the ranks of a member, group by group.
fn mixed_in_groups(tree: &plan::Tree, member: plan::Member, all: &[Vec<u8>]) -> Vec<u8> {
    match member {
        plan::Member::Rank(rank) => all[rank].clone(),
        plan::Member::Group(group) => {
            let members = tree.groups()[group].members.iter();
            let parts = members.map(|member| mixed_in_groups(tree, *member, all));
            let mixed = parts.reduce(|mut mixed, part| {
                mix_words(&part, &mut mixed);
                mixed
            });
            mixed.unwrap()
        }
    }
}

fn steps(team: &mut Team) {
    set_groups(team);
    let (me, size) = (team.rank(), team.size());
    let most = std::env::var(GROUPS).unwrap().parse().unwrap();
    let tree = plan::Tree::in_rank_order(size, most);
    let by_steps = tree.depth() <= plan::MOST_STEPS && team.policy().eager_max > 0;
    for (salt, len) in [4, 64, 200, 996, 1000, 1004].into_iter().enumerate() {
        let all: Vec<Vec<u8>> = (0..size)
            .map(|rank| pattern(salt as u64, rank, len))
            .collect();
        let mine = &all[me];
        let expected = mixed_in_groups(&tree, plan::Member::Group(tree.top()), &all);
        for turn in 0..4 {
            let before = team.plan_counts().calls;
            let mut sum = if turn % 2 == 0 {
                vec![0; len]
            } else {
                mine.clone()
            };
            let send = (turn % 2 == 0).then_some(&mine[..]);
            team.allreduce_bytes(send, &mut sum, 4, mix_words).unwrap();
            assert!(
                sum == expected || !by_steps || len > 1000,
                "allreduce of {len} bytes"
            );
            team.barrier().unwrap();
            let planned = team.plan_counts().calls - before;
            assert_eq!(planned == 0, by_steps && len <= 1000, "{len} bytes");
            // Others in between, after which ranks may be ahead of each other.
            let root = (turn * 5 + salt) % size;
            for times in 0..5 {
                let expected = pattern(times, root, len);
                let mut bytes = if me == root {
                    expected.clone()
                } else {
                    vec![0; len]
                };
                let before = team.plan_counts().calls;
                team.bcast(&mut bytes, root).unwrap();
                assert!(bytes == expected, "bcast of {len} bytes from {root}");
                // Without steps, the module may move it by a plan.
                let planned = team.plan_counts().calls - before;
                assert!(planned == 0 || !by_steps, "bcast of {len} bytes");
            }
            let mut parts = vec![0; len * size];
            team.allgather(mine, &mut parts).unwrap();
            assert!(parts == all.concat(), "allgather of {len} bytes");
        }
        let counts: Vec<usize> = (0..size)
            .map(|rank| (len / 7).max(1) * (rank % 3))
            .collect();
        let offsets: Vec<usize> = (0..size).map(|rank| (size - 1 - rank) * len).collect();
        let parts = Parts {
            counts: &counts,
            offsets: &offsets,
        };
        let mut received = vec![9; len * size];
        team.allgatherv(&mine[..counts[me]], &mut received, parts)
            .unwrap();
        let mut expected = vec![9; len * size];
        for rank in 0..size {
            expected[offsets[rank]..][..counts[rank]].copy_from_slice(&all[rank][..counts[rank]]);
        }
        assert!(received == expected, "allgatherv of {len} bytes");
    }
}

fn order(team: &mut Team) {
    set_groups(team);
    let (me, size) = (team.rank(), team.size());
    // Several chunks of a slice, which ends in the middle of one.
    let len = 4 * 300_001;
    let mine = pattern(5, me, len);
    let reduce = |team: &mut Team, bytes: &mut [u8]| {
        bytes.copy_from_slice(&mine);
        let mut sum = vec![0; len];
        team.allreduce_bytes(Some(bytes), &mut sum, 4, mix_words)
            .unwrap();
        sum
    };
    let mut bytes = vec![0; len];
    team.set_transport(Some(TransportKind::Shm)).unwrap();
    let expected = reduce(team, &mut bytes);
    if std::env::var(GROUPS).is_err() {
        let all: Vec<Vec<u8>> = (0..size).map(|rank| pattern(5, rank, len)).collect();
        let start = |rank| plan::share(&(0..len), size, rank, 64).start;
        assert!(expected == mixed_around(&all, start), "around the circle");
    }
    for kind in [None, Some(TransportKind::Cma), Some(TransportKind::Kmod)] {
        if team.set_transport(kind).is_err() {
            continue;
        }
        assert!(reduce(team, &mut bytes) == expected, "{kind:?}");
        // One rank's bytes have to be sent, those of the others are fetched.
        let secret = secret(len);
        let mut all = vec![0; size];
        team.allgather(&[u8::from(secret.is_some())], &mut all)
            .unwrap();
        let Some(secret) = secret.filter(|_| !all.contains(&0)) else {
            eprintln!("skipped: no memory that others cannot read");
            continue;
        };
        for hidden in 0..size {
            let from = if me == hidden {
                &mut *secret
            } else {
                &mut bytes[..]
            };
            assert!(reduce(team, from) == expected, "{kind:?}, rank {hidden}");
        }
    }
}

fn one(team: &mut Team, case: &Case, what: &str) {
    match case.op {
        8 | 9 => return alltoall(team, case, what),
        13 => return alltoallw(team, case, what),
        10.. => return reduction(team, case, what),
        _ => {}
    }
    let (me, size, root, salt) = (team.rank(), team.size(), case.root, case.salt);
    // For equal parts, or with parts of different lengths and gaps between them.
    let varied = case.op % 2 == 1;
    let counts: Vec<usize> = (0..size)
        .map(|rank| {
            if varied {
                mix(salt + rank as u64) as usize % (case.len + 1)
            } else {
                case.len
            }
        })
        .collect();
    let mut offsets = vec![0; size];
    let mut whole = 0;
    // The parts need not be in the order of ranks.
    for i in 0..size {
        let rank = if varied {
            (i * (size - 1) + 1) % size
        } else {
            i
        };
        let rank = if varied && offsets.len() > 1 {
            size - 1 - i.min(size - 1)
        } else {
            rank
        };
        whole += if varied {
            mix(salt ^ rank as u64) as usize % 40
        } else {
            0
        };
        offsets[rank] = whole;
        whole += counts[rank];
    }
    let parts = Parts {
        counts: &counts,
        offsets: &offsets,
    };
    let part = |rank: usize| offsets[rank]..offsets[rank] + counts[rank];
    let is_root = me == root;
    match case.op {
        0 | 1 => {
            let expected = pattern(salt, root, case.len);
            let start = if is_root {
                expected.clone()
            } else {
                vec![0; case.len]
            };
            let mut bytes = Skewed::new(salt + me as u64, &start);
            team.bcast(bytes.get(), root).unwrap();
            bytes.check(&expected, what);
        }
        2 | 3 | 6 | 7 => {
            let all = case.op >= 6;
            let receives = all || is_root;
            let mut expected = vec![0x11; whole];
            for rank in 0..size {
                expected[part(rank)].copy_from_slice(&pattern(salt, rank, counts[rank]));
            }
            let mine = pattern(salt, me, counts[me]);
            let mut send = Skewed::new(salt + me as u64, &mine);
            let mut start = vec![0x11; whole];
            if case.in_place {
                start[part(me)].copy_from_slice(&mine);
            }
            let mut recv = Skewed::new(salt + 99, &start);
            match (case.op, case.in_place) {
                (2, false) => team.gather(send.get(), is_root.then(|| recv.get()), root),
                (2, true) if is_root => team.gather_in_place(recv.get(), root),
                (2, true) => team.gather_in_place(send.get(), root),
                (3, false) => team.gatherv(send.get(), is_root.then(|| (recv.get(), parts)), root),
                (3, true) if is_root => team.gatherv_in_place(recv.get(), Some(parts), root),
                (3, true) => team.gatherv_in_place(send.get(), None, root),
                (6, false) => team.allgather(send.get(), recv.get()),
                (6, true) => team.allgather_in_place(recv.get()),
                (7, false) => team.allgatherv(send.get(), recv.get(), parts),
                _ => team.allgatherv_in_place(recv.get(), parts),
            }
            .unwrap();
            send.check(&mine, what);
            recv.check(if receives { &expected } else { &start }, what);
        }
        _ => {
            let mut source = vec![0x11; whole];
            for rank in 0..size {
                source[part(rank)].copy_from_slice(&pattern(salt, rank, counts[rank]));
            }
            let expected = pattern(salt, me, counts[me]);
            let mut send = Skewed::new(salt + 99, &source);
            let mut recv = Skewed::new(salt + me as u64, &vec![0; counts[me]]);
            let stays = case.in_place && is_root;
            let untouched = vec![0; counts[me]];
            match (case.op, case.in_place) {
                (4, false) => team.scatter(is_root.then(|| &*send.get()), recv.get(), root),
                (4, true) if is_root => team.scatter_in_place(send.get(), root),
                (4, true) => team.scatter_in_place(recv.get(), root),
                (5, false) => {
                    team.scatterv(is_root.then(|| (&*send.get(), parts)), recv.get(), root)
                }
                (5, true) if is_root => team.scatterv_in_place(send.get(), Some(parts), root),
                _ => team.scatterv_in_place(recv.get(), None, root),
            }
            .unwrap();
            send.check(&source, what);
            recv.check(if stays { &untouched } else { &expected }, what);
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    let len = prop_oneof![
        4 => 0..200usize,
        4 => 0..20_000usize,
        3 => 0..300_000usize,
        1 => 0..1_500_000usize,
    ];
    (0..OPERATIONS, len, 0..9usize, any::<bool>(), 0..1u64 << 40).prop_map(
        |(op, len, root, in_place, salt)| Case {
            op,
            len,
            root,
            in_place,
            salt,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if is_for_the_module() { 4 } else { 12 },
        max_shrink_iters: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_operation_equals_plain_copies(
        size in 1..9usize,
        list in prop::collection::vec(case(), 1..24),
        tight in any::<bool>(),
        groups in 1..9usize,
    ) {
        let mut script = "cases".to_owned();
        for c in list {
            let in_place = u8::from(c.in_place);
            script += &format!(" {},{},{},{in_place},{}", c.op, c.len, c.root, c.salt);
        }
        // Small rings and chunks make everything wrap around and wait.
        let most = groups.to_string();
        let mut environment = vec![(GROUPS, most.as_str())];
        if tight {
            environment.extend([("LIBCOPY_SHM_RING", "16K"), ("LIBCOPY_SHM_CHUNK", "5000"),
                ("LIBCOPY_EAGER_MAX", "100"), ("LIBCOPY_NONTEMPORAL_MIN", "50K")]);
        }
        expect_success(size, &script, &environment);
    }
}

#[test]
fn edge_sizes_of_every_operation() {
    let script = |sizes: &[usize]| {
        let mut script = "cases".to_owned();
        for op in 0..OPERATIONS {
            for (i, len) in sizes.iter().enumerate() {
                script += &format!(" {op},{len},{},{},{}", i, i % 2, op * 100 + i);
            }
        }
        script
    };
    let sizes = [0, 1, 48, 49, 64, 8191, 8192, 8193, 65536, 300_000, 300_001];
    expect_success(3, &script(&sizes), &[]);
    expect_success(2, &script(&sizes[..8]), &[("LIBCOPY_EAGER_MAX", "0")]);
    let crossed = [("LIBCOPY_EAGER_MAX", "4M"), ("LIBCOPY_SHM_RING", "4K")];
    expect_success(2, &script(&[0, 2000, 4096, 20_000]), &crossed);
}

/// Three levels of groups, the last of them not full; roots in the first, in another and in the
/// last one.
#[test]
fn many_ranks_in_groups_of_groups() {
    let mut script = "cases".to_owned();
    for (op, len, root) in [
        (0, 300_001, 0),
        (0, 70_000, 8),
        (1, 300_001, 22),
        (6, 40_000, 0),
        (8, 20_000, 0),
        (9, 20_000, 0),
        (13, 5_000, 0),
        (11, 9_000, 0),
    ] {
        for in_place in [0, 1] {
            // Short ones, too, whose buffers are in slots.
            script += &format!(" {op},{},{root},{in_place},{op}", len / 500);
            script += &format!(" {op},{len},{root},{in_place},{}", 7 * op + in_place);
        }
    }
    expect_success(23, &script, &through_cma(&[(GROUPS, "3")]));
}

/// Gathers and scatters of equal parts by plans, as where it was measured that so many ranks at
/// once are enough; those of parts of different lengths go on as they do.
#[test]
fn ranks_take_turns_at_the_roots_memory() {
    expect_success(7, "turns", &through_cma(&[]));
    expect_success(3, "turns", &[]);
}

fn turns(team: &mut Team) {
    let (me, size) = (team.rank(), team.size());
    for at_once in [1, 3, size] {
        team.set_at_once(at_once);
        for (len, root) in [(64, 0), (40_000, 1), (300_001, size - 1), (1_000_000, 0)] {
            let all: Vec<Vec<u8>> = (0..size).map(|rank| pattern(2, rank, len)).collect();
            let (mine, is_root) = (&all[me], me == root);
            let before = team.plan_counts().calls;
            let mut recv = vec![0; if is_root { len * size } else { 0 }];
            team.gather(mine, is_root.then_some(&mut recv[..]), root)
                .unwrap();
            assert!(!is_root || recv == all.concat(), "gather of {len} bytes");
            let whole = if is_root { all.concat() } else { Vec::new() };
            let mut part = vec![0; len];
            team.scatter(is_root.then_some(&whole[..]), &mut part, root)
                .unwrap();
            assert!(part == *mine, "scatter of {len} bytes");
            let mut data = vec![0; if is_root { len * size } else { len }];
            let own = if is_root { me * len } else { 0 };
            data[own..][..len].copy_from_slice(mine);
            team.gather_in_place(&mut data, root).unwrap();
            let expected = if is_root { all.concat() } else { mine.clone() };
            assert!(data == expected, "gather in place of {len} bytes");
            if !is_root {
                data.fill(0);
            }
            team.scatter_in_place(&mut data, root).unwrap();
            assert!(data == expected, "scatter in place of {len} bytes");
            let planned = team.plan_counts().calls - before;
            let is_long = len >= 300_001 && team.transport() != Some(TransportKind::Shm);
            if is_long && team.transport().is_some() {
                assert_eq!(planned, 4 * u64::from(at_once < size - 1), "{len} bytes");
            }
        }
        team.barrier().unwrap();
    }
}

/// What no transport reaches of one rank's memory, that rank copies itself.
#[test]
fn memory_that_no_transport_reaches_is_copied_by_its_owner() {
    for groups in ["2", "9"] {
        expect_success(5, "hidden", &[(GROUPS, groups)]);
    }
}

fn hidden(team: &mut Team) {
    set_groups(team);
    let (me, size) = (team.rank(), team.size());
    let len = 1_000_003;
    let secret = secret(len * size);
    let mut all = vec![0; size];
    team.allgather(&[u8::from(secret.is_some())], &mut all)
        .unwrap();
    let Some(secret) = secret.filter(|_| !all.contains(&0)) else {
        return eprintln!("skipped: no memory that others cannot read");
    };
    let mut plain = vec![0; len * size];
    for kind in [Some(TransportKind::Cma), Some(TransportKind::Kmod), None] {
        if team.set_transport(kind).is_err() {
            continue;
        }
        for (hidden, root) in (0..size).flat_map(|rank| [(rank, rank), (rank, (rank + 2) % size)]) {
            let memory = if me == hidden {
                &mut *secret
            } else {
                &mut plain[..]
            };
            let copies = team.plan_counts().copies_for_others;
            let expected = pattern((hidden * size + root) as u64, root, len);
            if me == root {
                memory[..len].copy_from_slice(&expected);
            }
            team.bcast(&mut memory[..len], root).unwrap();
            assert!(
                memory[..len] == expected,
                "{kind:?}, rank {hidden}, root {root}"
            );
            memory[me * len..][..len].copy_from_slice(&pattern(root as u64, me, len));
            team.allgather_in_place(memory).unwrap();
            let copied = team.plan_counts().copies_for_others > copies;
            assert!(
                kind.is_none() || copied == (me == hidden),
                "{kind:?}, rank {hidden}"
            );
            for (rank, part) in memory.chunks(len).enumerate() {
                assert!(
                    part == pattern(root as u64, rank, len),
                    "{kind:?}, part {rank}"
                );
            }
        }
    }
}

/// A rank on each processor: groups are those of the machine.
#[test]
fn ranks_are_in_groups_of_the_machine() {
    let processors = topology::affinity().len();
    if processors < 4 {
        return eprintln!("skipped: {processors} processors, of which plans make no groups");
    }
    expect_success(processors.min(16), "levels", &[]);
}

fn levels() {
    let rank: usize = std::env::var("LIBCOPY_RANK").unwrap().parse().unwrap();
    topology::pin(&topology::affinity(), rank);
    let mut team = Team::from_env().unwrap();
    let size = team.size();
    assert!(!team.is_oversubscribed());
    let mut said = Vec::new();
    for kind in [Some(TransportKind::Cma), Some(TransportKind::Kmod), None] {
        if team.set_transport(kind).is_err() {
            continue;
        }
        for (round, len) in [64, 4096, 100_000, 1_000_000].into_iter().enumerate() {
            let root = (round * 5) % size;
            let mut bytes = pattern(9, rank, len);
            team.bcast(&mut bytes, root).unwrap();
            assert!(
                bytes == pattern(9, root, len),
                "bcast of {len} bytes, {kind:?}"
            );
            let bcast = team.plan_counts();
            let mut all = vec![0; len * size];
            team.allgather(&pattern(3, rank, len), &mut all).unwrap();
            for (from, part) in all.chunks(len).enumerate() {
                assert!(
                    part == pattern(3, from, len),
                    "allgather of {len} bytes, {kind:?}"
                );
            }
            let allgather = team.plan_counts();
            let mut sum = pattern(4, rank, len);
            team.allreduce_bytes(None, &mut sum, 4, add).unwrap();
            let mut expected = pattern(4, 0, len);
            (1..size).for_each(|other| add(&pattern(4, other, len), &mut expected));
            assert!(sum == expected, "allreduce of {len} bytes, {kind:?}");
            let allreduce = team.plan_counts();
            team.barrier().unwrap();
            said.push(format!(
                "{len} bytes: bcast {}, allgather {}, allreduce {}",
                bcast.levels, allgather.levels, allreduce.levels
            ));
        }
    }
    let counts = team.plan_counts();
    if rank == 0 {
        let nodes = Team::topology().nodes.len();
        eprintln!(
            "{size} ranks on {nodes} nodes, {} calls by plans, levels of the last call by a plan: {}",
            counts.calls,
            said.join("; ")
        );
    }
    assert!(counts.calls > 0);
}

/// Three buffers of a reduction, of nearly a third of a slot each: they take whole cache lines.
#[test]
fn slots_are_used_to_their_end() {
    expect_success(2, "slots", &[]);
}

fn slots(team: &mut Team) {
    let me = team.rank();
    for len in (21_760..=21_952).step_by(4) {
        let counts = [0, len];
        let mut sum = vec![0; counts[me]];
        team.reduce_scatter_bytes(&pattern(len as u64, me, len), &mut sum, &counts, 4, add)
            .unwrap();
        let mut expected = pattern(len as u64, 0, len);
        add(&pattern(len as u64, 1, len), &mut expected);
        assert!(sum == expected[..counts[me]], "{len} bytes");
    }
}

/// More than 4 GiB in one message; the memory for it is not everywhere.
#[test]
#[ignore = "needs 9 GiB of memory"]
fn more_than_four_gigabytes() {
    expect_success(2, "huge", &[]);
}

fn huge(team: &mut Team) {
    let len = (4usize << 30) + 12345;
    let mut bytes = vec![0u8; len];
    for kind in TransportKind::ALL {
        if team.set_transport(Some(kind)).is_err() {
            continue;
        }
        let value = kind as u8 + 1;
        if team.rank() == 1 {
            bytes.fill(value);
            bytes[len - 1] = 99;
        }
        team.bcast(&mut bytes, 1).unwrap();
        assert!(bytes[..len - 1].iter().all(|b| *b == value));
        assert_eq!(bytes[len - 1], 99);
        team.barrier().unwrap();
        // Two parts of more than 2 GiB each, which no single system call moves.
        let half = len / 2;
        let me = team.rank();
        bytes[me * half..][..half].fill(10 * value + me as u8);
        match me {
            0 => team.gather_in_place(&mut bytes[..2 * half], 0).unwrap(),
            _ => team.gather(&bytes[half..][..half], None, 0).unwrap(),
        }
        for (rank, part) in bytes[..2 * half].chunks(half).enumerate() {
            let theirs = me == 0 || rank == me;
            assert!(!theirs || part.iter().all(|b| *b == 10 * value + rank as u8));
        }
        team.barrier().unwrap();
        eprintln!("{kind}: {len} bytes");
    }
}

#[test]
fn barriers_hold_everybody() {
    expect_success(2, "barriers", &[]);
    expect_success(7, "barriers", &[]);
}

/// Nanoseconds by the clock that all processes have in common.
fn monotonic() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a writable output.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn barriers(team: &mut Team) {
    // No rank may leave the barrier before the last one has arrived.
    for round in 0..20 {
        if round % team.size() == team.rank() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let before = monotonic();
        team.barrier().unwrap();
        let own = [before.to_ne_bytes(), monotonic().to_ne_bytes()].concat();
        let mut all = vec![0u8; own.len() * team.size()];
        team.allgather(&own, &mut all).unwrap();
        let times = |which: usize| {
            let words = all.chunks_exact(8).skip(which).step_by(2);
            words.map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
        };
        assert!(times(0).max() <= times(1).min(), "{round}");
    }
    for _ in 0..2000 {
        team.barrier().unwrap();
    }
}

#[test]
fn a_mismatch_is_an_error_on_every_rank() {
    for what in [
        "length-small",
        "length-large",
        "length-both",
        "length-place",
        "barrier",
        "collecting",
        "operation",
        "root",
        "root-late",
        "gather",
        "turns",
        "reduce",
        "parts-of-all",
        "parts-in-groups",
        "elements",
        "nothing",
        "parts",
        "transport",
        "argument",
        "short-root",
        "short-part",
        "short-piece",
    ] {
        let started = Instant::now();
        expect_success(3, &format!("mismatch {what}"), &[]);
        // Long broadcasts go by plans then, and short ones do not.
        expect_success(3, &format!("mismatch {what}"), &through_cma(&[]));
        assert!(started.elapsed() < HANGS, "{what} hung");
    }
    // Where each rank has a processor of its own, short calls with a root take one step.
    for what in [
        "length-small",
        "length-both",
        "length-place",
        "barrier",
        "short-root",
        "short-part",
        "short-piece",
    ] {
        expect_success(3, &format!("mismatch {what}"), &[(GROUPS, "0")]);
    }
}

fn mismatch(team: &mut Team, what: &str) {
    let odd = team.rank() == 2;
    let mut bytes = vec![0u8; 8 << 20];
    let mut all = vec![0u8; 3 << 20];
    let lens = |normal: usize, other: usize| if odd { other } else { normal };
    match what {
        "turns" => team.set_at_once(1),
        "parts-in-groups" => team.set_groups(2),
        _ if std::env::var_os(GROUPS).is_some() => {
            team.set_oversubscription(Oversubscription::None)
        }
        _ => {}
    }
    // A rank may have got or given all it had to before the mismatch shows: then the next call
    // fails.
    let mut attempt = |team: &mut Team| match what {
        "length-small" => team.bcast(&mut bytes[..lens(100, 101)], 0),
        "length-large" => team.bcast(&mut bytes[..lens(5_000_000, 6_000_000)], 1),
        "length-both" => team.bcast(&mut bytes[..lens(100, 6_000_000)], 0),
        // One length has places of its own.
        "length-place" => team.bcast(&mut bytes[..lens(100, 300)], 0),
        "barrier" if odd => team.barrier(),
        "barrier" => team.bcast(&mut bytes[..100], 0),
        "collecting" if odd => team.gather(&bytes[..100], Some(&mut all[..300]), 2),
        "collecting" => team.bcast(&mut bytes[..100], 0),
        "operation" if odd => team.allgather(&bytes[..100], &mut all[..300]),
        "operation" => team.bcast(&mut bytes[..5_000_000], 0),
        "root" => team.bcast(&mut bytes[..5_000_000], lens(0, 1)),
        // The other leaf has gone on to its next call.
        "root-late" => {
            if odd {
                std::thread::sleep(Duration::from_millis(100));
            }
            team.bcast(&mut bytes[..5_000_000], lens(0, 1))
        }
        // Both take themselves for the root.
        "short-root" => team.bcast(&mut bytes[..100], lens(0, 2)),
        "short-part" => {
            let recv = (team.rank() == 0).then_some(&mut all[..300]);
            team.gather(&bytes[..lens(100, 101)], recv, 0)
        }
        "short-piece" => {
            let send = (team.rank() == 0).then_some(&all[..300]);
            team.scatter(send, &mut bytes[..lens(100, 101)], 0)
        }
        "gather" => {
            let recv = (team.rank() == 0).then_some(&mut all[..]);
            team.gather(&bytes[..lens(1 << 20, 1 << 19)], recv, 0)
        }
        // One length goes by a plan, and the other one does not.
        "turns" => {
            let send = (team.rank() == 0).then_some(&all[..]);
            team.scatter(send, &mut bytes[..lens(1 << 20, 1 << 9)], 0)
        }
        // One length goes in one step, and the other one does not.
        "reduce" => {
            let (len, is_root) = (lens(4000, 40_000), team.rank() == 0);
            let recv = is_root.then_some(&mut all[..len]);
            team.reduce_bytes(Some(&bytes[..len]), recv, 0, 4, add)
        }
        "parts-of-all" => {
            let counts = [100, 100, lens(100, 60_000)];
            let parts = Parts {
                counts: &counts,
                offsets: &[0, 100, 200],
            };
            let len = counts[team.rank()];
            team.allgatherv(&bytes[..len], &mut all[..60_200], parts)
        }
        // As many bytes of all ranks together, otherwise divided.
        "parts-in-groups" => {
            let counts = [lens(30, 40), lens(30, 20), 30];
            let parts = Parts {
                counts: &counts,
                offsets: &[0, 100, 200],
            };
            team.allgatherv(&bytes[..30], &mut all[..300], parts)
        }
        "elements" | "nothing" => {
            let send: Vec<SendBuffer<'_>> = (0..3).map(|_| (&bytes[..1 << 20]).into()).collect();
            let len = |from: usize| {
                if from == 0 {
                    lens(1 << 20, if what == "nothing" { 0 } else { 1 << 19 })
                } else {
                    1 << 20
                }
            };
            let parts = all.chunks_mut(1 << 20).enumerate();
            let mut recv: Vec<RecvBuffer<'_>> = parts
                .map(|(from, part)| (&mut part[..len(from)]).into())
                .collect();
            team.alltoallw(&send, &mut recv)
        }
        "parts" => {
            let send: Vec<SendBuffer<'_>> = (0..lens(3, 2)).map(|_| (&bytes[..9]).into()).collect();
            let parts = all.chunks_mut(1 << 20);
            let mut recv: Vec<RecvBuffer<'_>> = parts.map(|part| (&mut part[..9]).into()).collect();
            team.alltoallw(&send, &mut recv)
        }
        "transport" => team.set_transport(Some(if odd {
            TransportKind::Shm
        } else {
            TransportKind::Cma
        })),
        _ => team.gather(
            &bytes[..10],
            (team.rank() == 0).then_some(&mut all[..31]),
            0,
        ),
    };
    let late = what != "transport";
    let mut result = attempt(team);
    let deadline = Instant::now() + HANGS;
    while late && result.is_ok() && Instant::now() < deadline {
        result = attempt(team);
    }
    let error = result.expect_err(what);
    let again = team.barrier().expect_err("the team is broken");
    if what == "parts" {
        let is_argument = matches!(error, Error::Argument { .. });
        assert_eq!(is_argument, odd, "{what}: {error}");
    } else if what != "argument" {
        assert!(matches!(error, Error::Mismatch { .. }), "{what}: {error}");
        assert!(matches!(again, Error::Mismatch { .. }), "{what}: {again}");
    }
}

/// A rank that comes late to a call which the others have ended without it gets its bytes, whatever
/// has gone wrong in the call after it: which call fails does not depend on who is how fast.
#[test]
fn a_call_that_others_have_ended_is_ended_by_all() {
    for what in ["bcast", "gather", "scatter", "reduce"] {
        let script = format!("late {what}");
        expect_success(4, &script, &[]);
        expect_success(4, &script, &[(GROUPS, "0")]);
        expect_success(4, &script, &through_cma(&[]));
    }
}

fn late(team: &mut Team, what: &str) {
    if std::env::var_os(GROUPS).is_some() {
        team.set_oversubscription(Oversubscription::None);
    }
    let (me, size) = (team.rank(), team.size());
    for len in [100, 3000] {
        let is_last = len == 3000;
        let mine = vec![me as u8 + 1; len];
        // The rank that the others do not wait for.
        let is_late = me == 1;
        team.barrier().unwrap();
        if is_late && is_last {
            let (usage, started) = (team.usage(), Instant::now());
            while !usage.is_in_disagreement() && started.elapsed() < Duration::from_secs(1) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let mut all = vec![9; len * size];
        let (send, recv) = (&mine[..], is_late.then_some(&mut all[..]));
        let result = match what {
            "bcast" => {
                all.fill(me as u8);
                team.bcast(&mut all, 3)
            }
            "gather" => team.gather(send, recv, 1),
            "scatter" => {
                let root = me == 3;
                let parts: Vec<u8> = (0..size).flat_map(|rank| vec![rank as u8; len]).collect();
                team.scatter(root.then_some(&parts), &mut all[..len], 3)
            }
            _ => team.reduce_bytes(Some(send), recv.map(|all| &mut all[..len]), 1, 4, add),
        };
        let outcome = result.map_err(|error| error.to_string());
        assert_eq!(outcome, Ok(()), "{what} of {len} bytes");
        let expected = match what {
            "bcast" => vec![3; len * size],
            "gather" if is_late => (1..=size).flat_map(|it| vec![it as u8; len]).collect(),
            "scatter" => vec![me as u8; len],
            "reduce" if is_late => vec![10; len],
            _ => vec![],
        };
        assert!(all.starts_with(&expected), "{what} of {len} bytes");
    }
    let result = if me == 2 {
        team.gather(&[0; 8], Some(&mut [0; 32]), 2)
    } else {
        team.barrier()
    };
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
}

/// A rank whose operation of the program panics, and that goes on without the team, is not waited
/// for.
#[test]
fn a_call_that_panics_is_an_error_for_all() {
    for what in ["reduce", "allreduce", "scan", "reduce_scatter"] {
        for len in [8, 3000, 1 << 20] {
            let (key, ended) = (TeamKey::random().unwrap(), AtomicUsize::new(0));
            std::thread::scope(|scope| {
                for rank in 0..3 {
                    let (key, ended) = (&key, &ended);
                    scope.spawn(move || panicking(key, rank, (what, len), ended));
                }
            });
        }
    }
}

fn panicking(key: &TeamKey, rank: usize, (what, len): (&str, usize), ended: &AtomicUsize) {
    let mut team = Team::join(key, rank, 3).unwrap();
    team.barrier().unwrap();
    let (send, mut recv) = (vec![1u8; 3 * len], vec![0u8; len]);
    let (own, counts) = (&send[..len], [len; 3]);
    let combine = |from: &[u8], to: &mut [u8]| {
        assert_ne!(rank, 1, "a panic that is meant");
        add(from, to);
    };
    let call = || match what {
        "reduce" => {
            let recv = (rank == 1).then_some(&mut recv[..]);
            team.reduce_bytes(Some(own), recv, 1, 4, combine)
        }
        "allreduce" => team.allreduce_bytes(Some(own), &mut recv, 4, combine),
        "scan" => team.scan_bytes(Some(own), &mut recv, 4, combine),
        _ => team.reduce_scatter_bytes(&send, &mut recv, &counts, 4, combine),
    };
    let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    let result = match (rank, called) {
        (1, Err(_)) => {
            // This rank does not leave either before the others are done.
            let started = Instant::now();
            while ended.load(Ordering::Acquire) < 2 && started.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            team.barrier()
        }
        (1, Ok(_)) => panic!("{what} of {len} bytes: nothing was combined"),
        // Who does not need the rank in this call hears of it in the next one.
        (_, called) => called.unwrap().and_then(|()| team.barrier()),
    };
    ended.fetch_add(1, Ordering::Release);
    let error = result.unwrap_err();
    let is_broken = matches!(error, Error::Broken { rank: 1 });
    assert!(is_broken, "{what} of {len} bytes: {error}");
}

#[test]
fn every_rank_hears_of_its_wrong_root() {
    for what in ["bcast", "gather", "scatter", "reduce"] {
        expect_success(3, &format!("root {what}"), &[]);
    }
}

fn wrong_root(team: &mut Team, what: &str) {
    team.barrier().unwrap();
    // The others call when this one has broken the team.
    if team.rank() != 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    let (mut bytes, root) = ([0; 8], team.size());
    let result = match what {
        "bcast" => team.bcast(&mut bytes, root),
        "gather" => team.gather(&bytes, None, root),
        "scatter" => team.scatter(None, &mut bytes, root),
        _ => team.reduce_bytes(Some(&bytes), None, root, 4, add),
    };
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Argument { .. }), "{error}");
    assert!(team.barrier().is_err());
}

#[test]
fn transports_agree_on_every_rank() {
    expect_success(3, "transports", &[]);
    expect_success(2, "transports", &[("LIBCOPY_TRANSPORT", "shm")]);
}

fn transports(team: &mut Team) {
    let usable: u64 = team
        .transports()
        .iter()
        .map(|t| 1 << t.kind as u64 & -i64::from(t.usable) as u64)
        .sum();
    let mut all = vec![0u8; 8 * team.size()];
    team.allgather(&usable.to_ne_bytes(), &mut all).unwrap();
    assert!(all.chunks(8).all(|word| word == usable.to_ne_bytes()));
    assert!(team.transports().iter().all(|t| !t.why.is_empty()));
    for report in team.transports().to_vec() {
        assert_eq!(team.set_transport(Some(report.kind)).is_ok(), report.usable);
    }
    team.barrier().unwrap();
}

/// The shared segments that are there.
fn segments() -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir("/dev/shm").unwrap().flatten();
    all.filter(|entry| entry.file_name().to_string_lossy().starts_with("libcopy-"))
        .map(|entry| entry.path())
        .collect()
}

#[test]
fn survivors_of_a_kill_get_an_error_within_a_second() {
    // Of programs that were killed with all their ranks.
    let before = segments();
    for (millis, what) in [
        (0, "bcast"),
        (7, "bcast"),
        (13, "gather"),
        (29, "mixed"),
        (31, "barrier"),
        (53, "sleep"),
    ] {
        for report in libcopy::transport::probe_machine()
            .iter()
            .filter(|t| t.usable)
        {
            let transport = report.kind.name();
            let statuses = run(
                4,
                &format!("die {millis} 2 {what}"),
                &[("LIBCOPY_TRANSPORT", transport), (GROUPS, "2")],
            );
            for (rank, status) in statuses.iter().enumerate() {
                match rank {
                    2 => assert_eq!(status.signal(), Some(9), "{what}"),
                    _ => assert!(status.success(), "{what}: rank {rank}: {status}"),
                }
            }
        }
    }
    // Tests that run beside this one have segments, too, but no longer than they run.
    let deadline = Instant::now() + HANGS;
    for path in segments() {
        while !before.contains(&path) && path.exists() {
            assert!(Instant::now() < deadline, "left over: {path:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Any of 64 ranks in three levels of groups, at any time: all others hear which it was.
#[test]
fn one_of_many_ranks_is_killed() {
    let all = std::env::var_os("LIBCOPY_TEST_ALL").is_some();
    let kills: u64 = if all { 200 } else { 2 };
    for kill in 0..kills {
        let (victim, millis) = (mix(kill) as usize % 64, mix(kill ^ 7) % 400);
        let environment = through_cma(&[(GROUPS, "4")]);
        let statuses = run(64, &format!("die {millis} {victim} plans"), &environment);
        for (rank, status) in statuses.iter().enumerate() {
            let is_right = if rank == victim {
                status.signal() == Some(9)
            } else {
                status.success()
            };
            assert!(
                is_right,
                "kill {kill} of rank {victim}: rank {rank}: {status}"
            );
        }
    }
}

fn die(millis: u64, victim: usize, what: &str) {
    let mut team = match Team::from_env() {
        Ok(mut team) => {
            set_groups(&mut team);
            team
        }
        // Dying while others join is dying, too.
        Err(Error::PeerDied { rank }) if rank == victim => return,
        Err(error) if error.to_string().contains("kmod") => return,
        Err(error) => panic!("{error}"),
    };
    let (me, size) = (team.rank(), team.size());
    if me == victim {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(millis));
            // SAFETY: that is the point.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
    }
    let killed = Instant::now() + Duration::from_millis(millis);
    let mut bytes = vec![me as u8; 400_000];
    let mut all = vec![0u8; 400_000 * size];
    for round in 0.. {
        let root = round % size;
        let result = match what {
            "bcast" => team.bcast(&mut bytes, root),
            "gather" => team.gather(&bytes, (me == root).then_some(&mut all), root),
            "barrier" => team.barrier(),
            "sleep" if me == victim => {
                std::thread::sleep(Duration::from_secs(5));
                Ok(())
            }
            "sleep" => team.barrier(),
            "plans" => match round % 4 {
                0 => team.bcast(&mut bytes, root),
                1 => team.allreduce_bytes(None, &mut bytes[..40_000], 4, add),
                2 => team.allgather(&bytes[..10_000], &mut all[..10_000 * size]),
                _ => team.barrier(),
            },
            _ => match round % 6 {
                0 => team.bcast(&mut bytes, root),
                3 => {
                    let mut other = vec![0; all.len()];
                    team.alltoall(&all, &mut other)
                }
                4 => team.allreduce_bytes(None, &mut bytes, 4, add),
                1 => team.scatter((me == root).then_some(&all), &mut bytes, root),
                2 => team.allgather(&bytes, &mut all),
                _ => team.bcast(&mut bytes[..100], root),
            },
        };
        if let Err(error) = result {
            let is_told =
                |error: &Error| matches!(error, Error::PeerDied { rank } if *rank == victim);
            assert!(is_told(&error), "{error}");
            let late = Instant::now().saturating_duration_since(killed);
            assert!(late < HANGS, "noticed after {late:?}");
            if what == "plans" {
                eprintln!("rank {me} noticed after {} ms", late.as_millis());
            }
            let error = team.barrier().unwrap_err();
            assert!(is_told(&error), "{error}");
            return;
        }
    }
}

#[test]
fn a_rank_that_leaves_early_is_an_error_not_a_hang() {
    let started = Instant::now();
    expect_success(3, "leave", &[]);
    assert!(started.elapsed() < HANGS);
}

fn leave(team: &mut Team) {
    team.barrier().unwrap();
    if team.rank() == 1 {
        return;
    }
    let error = team.barrier().unwrap_err();
    assert!(matches!(error, Error::PeerLeft { rank: 1 }), "{error}");
}
