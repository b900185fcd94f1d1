// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory keys over the kernel's soft RoCE, in the virtual machine, with a double of libmlx5.so.1
//! (tests/umr) that keeps the rules of the card. The backend is the one that a ConnectX has.

mod common;
#[path = "common/link.rs"]
mod link;

use std::ffi::{CString, c_char, c_void};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use libcopy_datatype::{Datatype, Layout, Named};
use libcopy_rdma::card::Card;
use libcopy_rdma::gather::Buffer;
use libcopy_rdma::keys::Memory;
use libcopy_rdma::pool::PoolSize;
use libcopy_rdma::transfer::{Link, Report, Settings, StreamChannel, TransferId};
use libcopy_rdma::verbs::{Connection, Device, Mkey, Options, Regions, Wait, shared_keys};
use libcopy_rdma::workloads::vector;
use libcopy_rdma::{CutRule, Error, Iov, Method, counts};

use link::{
    Elements, ROLE, TestLink, alone, application_pairs, expected, messages, move_all, pair,
    random_pairs, receive, resources, send, settings,
};

/// The double, once it is loaded.
struct Double {
    faults: unsafe extern "C" fn(*const c_char),
    keys: unsafe extern "C" fn(*mut u32, *mut u32),
    entries: unsafe extern "C" fn() -> u64,
    records: unsafe extern "C" fn() -> u64,
}

impl Double {
    /// Entries of all requests that were to map a key.
    fn entries(&self) -> u64 {
        // SAFETY: it has no argument.
        unsafe { (self.entries)() }
    }

    /// Records of queue pairs.
    fn records(&self) -> u64 {
        // SAFETY: it has no argument.
        unsafe { (self.records)() }
    }

    /// Which calls fail from now on (tests/umr/faults.c).
    fn fail(&self, text: &str) {
        let text = CString::new(text).unwrap();
        // SAFETY: the string is read during the call.
        unsafe { (self.faults)(text.as_ptr()) }
    }

    /// Keys, and how many of them are mapped.
    fn keys(&self) -> (u32, u32) {
        let (mut all, mut mapped) = (0, 0);
        // SAFETY: both are written.
        unsafe { (self.keys)(&raw mut all, &raw mut mapped) }
        (all, mapped)
    }
}

/// The two devices with memory keys; none outside the virtual machine.
fn devices() -> Option<(&'static Double, [Arc<Device>; 2])> {
    static DOUBLE: OnceLock<Option<Double>> = OnceLock::new();
    let double = DOUBLE.get_or_init(|| {
        std::env::var_os("LIBCOPY_VM")?;
        let own = std::env::current_exe().unwrap();
        let file = own.ancestors().nth(2)?.join("umr/libmlx5.so.1");
        if !file.exists() {
            eprintln!("skipped: no {} (built with libibverbs-dev)", file.display());
            return None;
        }
        let name = CString::new(file.to_str()?).unwrap();
        // The loader knows it by its soname from now on: dlopen("libmlx5.so.1") finds this one.
        // SAFETY: its constructors do nothing, and it stays for ever.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "cannot load {}", file.display());
        let symbol = |name: &str| {
            let name = CString::new(name).unwrap();
            // SAFETY: the library is open.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            assert!(!found.is_null(), "{name:?}");
            found
        };
        // SAFETY: the types of tests/umr/double.h.
        unsafe {
            Some(Double {
                faults: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char)>(
                    symbol("libcopy_umr_faults"),
                ),
                keys: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u32, *mut u32)>(
                    symbol("libcopy_umr_keys"),
                ),
                entries: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u64>(symbol(
                    "libcopy_umr_entries",
                )),
                records: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u64>(symbol(
                    "libcopy_umr_records",
                )),
            })
        }
    });
    let double = double.as_ref()?;
    let devices = link::devices()?;
    assert!(devices.iter().all(|device| device.has_memory_keys()));
    Some((double, devices))
}

fn send_kept(link: &mut TestLink, from: &Elements<'_>) -> libcopy_rdma::Result<Report> {
    // SAFETY: the memory outlives the link's use of it, and nobody changes it.
    unsafe { link.send(&from.buffer(Memory::Generation(0))) }
}

fn receive_kept(link: &mut TestLink, to: &Elements<'_>) -> libcopy_rdma::Result<Report> {
    // SAFETY: the memory is used by the link alone, until it has been dropped.
    unsafe { link.receive(&to.buffer(Memory::Generation(0))) }
}

fn only_umr(pool: PoolSize) -> [Settings; 2] {
    settings(Some(Method::Umr), CutRule::Agreed).map(|one| Settings { pool, ..one })
}

/// Both ends of a reliable connection that maps keys, without a link.
fn connections(devices: &[Arc<Device>; 2]) -> [Arc<Connection>; 2] {
    let ends = devices
        .each_ref()
        .map(|device| Arc::new(Connection::new(device, Options::of(device)).unwrap()));
    ends[0].connect(&ends[1].address()).unwrap();
    ends[1].connect(&ends[0].address()).unwrap();
    ends
}

fn range(bytes: &[u8]) -> Iov {
    Iov {
        addr: bytes.as_ptr() as u64,
        len: bytes.len() as u64,
    }
}

/// A WRITE from the pieces of a key of one end to those of a key of the other one.
struct Write<'a> {
    ends: &'a [Arc<Connection>; 2],
    keys: [Mkey; 2],
    _regions: [Regions; 2],
}

impl<'a> Write<'a> {
    /// Maps both keys; peers may write to that of `places` if it `is_target`.
    fn new(
        devices: &[Arc<Device>; 2],
        ends: &'a [Arc<Connection>; 2],
        [pieces, places]: [&[Iov]; 2],
        is_target: bool,
    ) -> Write<'a> {
        let keys = devices.each_ref().map(|device| Mkey::new(device).unwrap());
        // SAFETY: the tests keep the memory for as long as the result, and look at it when the
        // WRITEs are over.
        let regions = unsafe {
            let regions = [
                Regions::new(&devices[0], pieces, false).unwrap(),
                Regions::new(&devices[1], places, true).unwrap(),
            ];
            ends[0].map(&keys[0], pieces, &regions[0], false).unwrap();
            let mapped = ends[1].map(&keys[1], places, &regions[1], is_target);
            mapped.unwrap();
            regions
        };
        Write {
            ends,
            keys,
            _regions: regions,
        }
    }

    fn run(&self) -> libcopy_rdma::Result<()> {
        let [from, to] = &self.keys;
        self.ends[0].post_mapped(from, to.rkey(), 1).unwrap();
        self.ends[0].flush(Wait::Poll)
    }

    /// Runs it, which the other end's card refuses: IBV_WC_REM_ACCESS_ERR.
    fn assert_refused(&self) {
        let error = self.run().unwrap_err();
        assert!(
            matches!(error, Error::WorkRequest { code: 10, .. }),
            "{error}"
        );
    }
}

#[test]
fn every_method_moves_every_layout_beside_the_others() {
    let _alone = alone();
    let Some((double, _)) = devices() else { return };
    let before = resources();
    let mut all = application_pairs();
    let byte = Datatype::named(Named::Uint8);
    let dense = |bytes| Layout::new(&byte, bytes).unwrap();
    all.push((dense(1 << 16), vector(128, 512).unwrap()));
    all.push((vector(60, 700).unwrap(), vector(50, 840).unwrap()));
    all.push((vector(64, 1024).unwrap(), dense(1 << 16)));
    for method in Method::ALL {
        for rule in [CutRule::Agreed, CutRule::Maximal] {
            let [reports, _] = move_all(settings(Some(method), rule), &all).unwrap();
            let last = reports.last().unwrap();
            assert_eq!((last.method, last.fell_back), (method, false));
            if method == Method::Umr {
                // 64 pieces at one end, 32 per key.
                assert_eq!(last.requests, 2);
            }
        }
    }
    assert_eq!(double.keys(), (0, 0));
    assert_eq!(resources(), before);
}

#[test]
fn random_layouts_arrive_byte_for_byte_through_keys() {
    let _alone = alone();
    let Some((double, _)) = devices() else { return };
    let pairs = random_pairs(messages(40));
    for rule in [CutRule::Agreed, CutRule::Maximal] {
        // As many keys as the layout with the shortest pieces takes.
        let pool = PoolSize {
            initial: 800,
            step: 64,
            max: 2048,
        };
        let settings = settings(Some(Method::Umr), rule).map(|one| Settings { pool, ..one });
        let [_, received] = move_all(settings, &pairs).unwrap();
        let by_keys = |report: &Report| (report.method, report.fell_back) == (Method::Umr, false);
        assert!(received.iter().all(by_keys));
        println!("{rule:?}: {} messages", received.len());
    }
    assert_eq!(double.keys(), (0, 0));
}

#[test]
fn counts_over_devices_are_the_papers() {
    let _alone = alone();
    let Some((_, devices)) = devices() else {
        return;
    };
    let rows = counts::over_verbs(
        &devices,
        &|case| {
            [
                "vector-1024x16",
                "vector-4096x128",
                "milc-D",
                "sw4lite-y",
                "fft-alltoallw",
            ]
            .contains(&case)
        },
        &mut |_| (),
    )
    .unwrap();
    assert_eq!(rows.len(), 5);
    assert!(rows.iter().all(counts::Row::is_right), "{rows:#?}");
    let row = |name: &str| {
        let found = rows.iter().find(|row| row.case.ends_with(name));
        found.unwrap().counted
    };
    let vector = row("/vector-4096x128");
    assert_eq!((vector.keys, vector.cts_bytes), (4, 16));
    assert_eq!((vector.writes, vector.hits), (440, 109));
    assert_eq!(row("/sw4lite-y").method, Method::Pack);
}

#[test]
fn an_exhausted_pool_packs_and_no_byte_is_wrong() {
    let _alone = alone();
    let Some((double, _)) = devices() else { return };
    // Four keys are needed, two exist.
    let layout = vector(128, 1024).unwrap();
    let pool = PoolSize {
        initial: 2,
        step: 1,
        max: 2,
    };
    let done = pair(
        only_umr(pool),
        |link| {
            for seed in 0..3 {
                send(link, &Elements::new(&layout, seed)).unwrap();
            }
        },
        |link| {
            for seed in 0..3 {
                let mut target = Elements::new(&layout, 50);
                let expected = expected(&Elements::new(&layout, seed), &target);
                let report = receive(link, &mut target).unwrap();
                assert_eq!((report.method, report.fell_back), (Method::Pack, true));
                assert!(target.bytes == expected);
                assert_eq!(link.pool_counts().free, 2);
            }
        },
    );
    done.unwrap();
    // The sender alone lacks keys: it packs too.
    let few = only_umr(pool)[0].clone();
    let many = only_umr(PoolSize::default())[0].clone();
    let done = pair(
        [few, many],
        |link| send(link, &Elements::new(&layout, 9)).unwrap(),
        |link| {
            let mut target = Elements::new(&layout, 50);
            let expected = expected(&Elements::new(&layout, 9), &target);
            receive(link, &mut target).unwrap();
            assert!(target.bytes == expected);
            link.pool_counts()
        },
    );
    let (report, counts) = done.unwrap();
    assert_eq!((report.method, report.fell_back), (Method::Pack, true));
    assert_eq!(counts.free, counts.initial + counts.added);
    assert_eq!(double.keys(), (0, 0));
}

#[test]
fn a_recycled_key_is_mapped_again_and_a_stale_one_refused() {
    let _alone = alone();
    let Some((double, devices)) = devices() else {
        return;
    };
    // Two keys for buffers that take two each: a message to the other buffer finds none free and is
    // packed, and the peer is asked to forget the keys, which the next message gets.
    let layout = vector(64, 1024).unwrap();
    let pool = PoolSize {
        initial: 2,
        step: 1,
        max: 2,
    };
    let done = pair(
        only_umr(pool),
        |link| {
            let sources = [1, 2].map(|seed| Elements::new(&layout, seed));
            for round in 0..8 {
                send_kept(link, &sources[round / 2 % 2]).unwrap();
            }
            link.key_counts()
        },
        |link| {
            let mut targets = [3, 4].map(|seed| Elements::new(&layout, seed));
            let mut used = 0;
            for round in 0..8 {
                let target = &mut targets[round % 2];
                target.bytes.fill(0);
                let seed = [1, 2][round / 2 % 2];
                let expected = expected(&Elements::new(&layout, seed), target);
                let report = receive_kept(link, target).unwrap();
                used += usize::from(report.method == Method::Umr);
                assert!(target.bytes == expected, "round {round}");
            }
            (used, link.key_counts())
        },
    );
    let (sender, (used, receiver)) = done.unwrap();
    assert!(used > 1, "{used} of 8 messages used keys");
    assert!(receiver.evictions > 0 && sender.evictions > 0);
    assert_eq!(double.keys(), (0, 0));

    // Without the protocol: a key that is not mapped any more.
    let ends = connections(&devices);
    let (source, target) = (vec![7_u8; 4096], vec![0_u8; 4096]);
    let pieces = [range(&source[..1000]), range(&source[2000..3000])];
    let places = [range(&target[..500]), range(&target[1000..2500])];
    let write = Write::new(&devices, &ends, [&pieces, &places], true);
    write.run().unwrap();
    assert!(
        target[..500]
            .iter()
            .chain(&target[1000..2500])
            .all(|byte| *byte == 7)
    );
    assert!(
        target[500..1000]
            .iter()
            .chain(&target[2500..])
            .all(|byte| *byte == 0)
    );
    ends[1].unmap(&write.keys[1]).unwrap();
    write.assert_refused();
}

#[test]
fn equal_pieces_are_mapped_as_a_repeated_block_within_16_bits() {
    let _alone = alone();
    let Some((double, devices)) = devices() else {
        return;
    };
    let count = 8_usize;
    // The source's stride, the target's, and the entries that mapping takes at both ends.
    for (len, from, to, entries) in [
        (512, 2048, 1024, 2 + 2),
        (512, 65535, 65536, 2 + 8),
        (512, 65536, 65535, 8 + 2),
        (65535, 65536, 65535, 8 + 2),
        (65536, 65536, 70000, 8 + 8),
    ] {
        let ends = connections(&devices);
        let memory = |stride: usize, seed: u8| Elements::bytes(count * stride.max(len), seed);
        let (source, target) = (memory(from, 1), memory(to, 50));
        let pieces = |bytes: &[u8], stride: usize| -> Vec<Iov> {
            let places = (0..count).map(|index| index * stride);
            places.map(|at| range(&bytes[at..at + len])).collect()
        };
        let (pieces, places) = (pieces(&source, from), pieces(&target, to));
        let mut wanted = target.clone();
        for index in 0..count {
            wanted[index * to..][..len].copy_from_slice(&source[index * from..][..len]);
        }
        let before = double.entries();
        let write = Write::new(&devices, &ends, [&pieces, &places], true);
        let case = format!("{count} of {len} bytes, {from} and {to} apart");
        assert_eq!(double.entries() - before, entries, "{case}");
        write.run().unwrap();
        assert!(target == wanted, "{case}");
        for (end, key) in ends.iter().zip(&write.keys) {
            end.unmap(key).unwrap();
        }
    }
}

#[test]
fn the_double_frees_its_records_of_destroyed_queue_pairs() {
    let _alone = alone();
    let Some((double, devices)) = devices() else {
        return;
    };
    drop(connections(&devices));
    let before = double.records();
    let rounds = 24;
    for _ in 0..rounds {
        drop(connections(&devices));
    }
    // A record goes when its queue pair's address or completion queue's is used again.
    let more = double.records().saturating_sub(before);
    assert!(more < rounds, "{more} more records after {rounds} pairs");
}

#[test]
fn rules_of_the_card_are_kept() {
    let _alone = alone();
    let Some((_, devices)) = devices() else {
        return;
    };
    let memory = vec![1_u8; 1 << 16];
    // In lists: pieces of two lengths are no block that is repeated.
    let many: Vec<Iov> = memory
        .chunks(1024)
        .enumerate()
        .map(|(index, part)| range(&part[..512 + index % 2 * 8]))
        .collect();
    let refused = |connection: &Connection, pieces: &[Iov], regions: &Regions, times: usize| {
        let key = Mkey::new(&devices[0]).unwrap();
        let mut result = Ok(());
        for _ in 0..times {
            // SAFETY: nobody is told of the key.
            result = unsafe { connection.map(&key, pieces, regions, true) };
        }
        result.unwrap_err()
    };
    // SAFETY: nobody is told of the regions.
    let regions = unsafe { Regions::new(&devices[0], &many, true) }.unwrap();
    // More pieces than max_entries; the connection holds.
    let [connection, _peer] = connections(&devices);
    let error = refused(&connection, &many[..33], &regions, 1);
    assert!(
        matches!(
            error,
            Error::Verbs {
                function: "wr_mr_list",
                errno: libc::ENOMEM
            }
        ),
        "{error}"
    );
    // Mapped twice without LOCAL_INV: IBV_WC_MW_BIND_ERR.
    let error = refused(&connection, &many[..32], &regions, 2);
    assert!(
        matches!(error, Error::WorkRequest { code: 6, .. }),
        "{error}"
    );
    // A key of another protection domain.
    let [connection, _peer] = connections(&devices);
    let other = Device::open("rxe_a").unwrap();
    let key = Mkey::new(&other).unwrap();
    // SAFETY: nobody is told of the key.
    let error = unsafe { connection.map(&key, &many[..2], &regions, true) }.unwrap_err();
    assert!(
        matches!(error, Error::WorkRequest { code: 6, .. }),
        "{error}"
    );
    // A key that peers may not write to, and one that has too few bytes.
    for (is_target, places) in [(false, &many[..4]), (true, &many[..1])] {
        let ends = connections(&devices);
        Write::new(&devices, &ends, [&many[4..8], places], is_target).assert_refused();
    }
}

#[test]
fn faults_of_the_card_are_errors_or_right_bytes_and_leave_nothing() {
    let _alone = alone();
    let Some((double, _)) = devices() else { return };
    let layout = vector(64, 1024).unwrap();
    // Its gaps differ: no block is repeated.
    let lens = [1024; 64];
    let places: Vec<i64> = (0..64).map(|index| index * 2048 + index % 3 * 16).collect();
    let byte = Datatype::named(Named::Uint8);
    let uneven = Layout::new(&byte.hindexed(&lens, &places).unwrap(), 1).unwrap();
    let before = resources();
    // No key, and keys at one end or too few: other ways are taken.
    for fault in ["create_mkey:1-", "create_mkey:3-"] {
        double.fail(fault);
        let done = pair(
            only_umr(PoolSize::default()),
            |link| send(link, &Elements::new(&layout, 1)).unwrap(),
            |link| {
                let mut target = Elements::new(&layout, 2);
                let expected = expected(&Elements::new(&layout, 1), &target);
                receive(link, &mut target).unwrap();
                assert!(target.bytes == expected);
            },
        );
        let (report, ()) = done.unwrap();
        assert!(fault != "create_mkey:1-" || report.method == Method::Pack);
    }
    for (fault, layout) in [
        ("wr_mr_interleaved:1", &layout),
        ("wr_mr_interleaved:3", &layout),
        ("wr_mr_list:1", &uneven),
        ("wr_mr_list:3", &uneven),
        ("wr_rdma_write:1", &layout),
        ("wr_rdma_write:2", &layout),
    ] {
        double.fail(fault);
        let (sent, received) = pair(
            only_umr(PoolSize::default()),
            |link| send(link, &Elements::new(layout, 1)),
            |link| receive(link, &mut Elements::new(layout, 2)),
        )
        .unwrap();
        let errors: Vec<Error> = [sent.err(), received.err()].into_iter().flatten().collect();
        assert!(!errors.is_empty(), "{fault}");
        for error in errors {
            assert!(
                matches!(
                    error,
                    Error::WorkRequest { .. } | Error::PeerGone { .. } | Error::Refused { .. }
                ),
                "{fault}: {error}"
            );
        }
    }
    double.fail("");
    assert_eq!(double.keys(), (0, 0));
    assert_eq!(resources(), before);
}

/// A message that a rank of [`ranks_are_processes`] sends or receives.
struct OfRank {
    id: TransferId,
    bytes: Vec<u8>,
    /// What a receiver's memory is to be.
    wanted: Option<Vec<u8>>,
}

/// The layouts of message `index` from one rank to another.
fn layouts_of(from: u32, to: u32, index: u32) -> (Layout, Layout) {
    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let mut seed = [0; 32];
    for (place, number) in seed.chunks_exact_mut(4).zip([from, to, index]) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    common::pairs().new_tree(&mut runner).unwrap().current()
}

/// Messages per direction and method that are under way at a time.
const UNDER_WAY: usize = 4;

/// One rank of [`ranks_are_processes`]: exchanges `count` messages by each method, in both
/// directions, with every rank whose port is in the other namespace.
fn rank_main(rank: u32, ranks: u32, count: u32, place: &str) {
    let (_, devices) = devices().unwrap();
    let device = &devices[(rank % 2) as usize];
    let listener = UnixListener::bind(format!("{place}/{rank}")).unwrap();
    let keys = shared_keys(
        device,
        PoolSize {
            initial: 256,
            step: 64,
            max: 512,
        },
    );
    for (round, only) in [
        None,
        Some(Method::Pack),
        Some(Method::Sge),
        Some(Method::Umr),
    ]
    .into_iter()
    .enumerate()
    {
        let settings = &settings(only, [CutRule::Agreed, CutRule::Maximal][round % 2])[0];
        let mut links = Vec::new();
        // The lower rank of a pair listens. All ranks make their links in the order of the lower,
        // then of the higher one.
        let peers = (0..ranks).filter(|peer| (peer + rank) % 2 == 1);
        for peer in peers {
            let stream = if rank < peer {
                listener.accept().unwrap().0
            } else {
                connect_to(&format!("{place}/{peer}"))
            };
            let mut channel = StreamChannel::new(stream, peer);
            let peer = whom(&mut channel, rank);
            let link = Link::connect(device, channel, peer, settings.clone(), keys.clone());
            links.push((peer, link.unwrap()));
        }
        let first = round as u32 * count;
        exchange(rank, &mut links, first..first + count);
    }
}

fn connect_to(path: &str) -> UnixStream {
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return stream,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    }
}

/// Tells the other end who this is, and gives back who that is.
fn whom(channel: &mut StreamChannel<UnixStream>, rank: u32) -> u32 {
    use libcopy_rdma::channel::Channel;
    channel.send(&rank.to_le_bytes()).unwrap();
    loop {
        if let Some(theirs) = channel.try_receive().unwrap() {
            return u32::from_le_bytes(theirs.try_into().unwrap());
        }
        channel.idle(true);
    }
}

fn exchange(
    rank: u32,
    links: &mut [(u32, Link<StreamChannel<UnixStream>>)],
    numbers: std::ops::Range<u32>,
) {
    let mut next: Vec<[u32; 2]> = vec![[numbers.start; 2]; links.len()];
    // Dropped behind the links if a check fails: nobody writes there any more then.
    let mut under_way: Vec<[Vec<OfRank>; 2]> = links.iter().map(|_| Default::default()).collect();
    let mut is_done = false;
    while !is_done {
        is_done = true;
        for ((peer, link), (next, under_way)) in
            links.iter_mut().zip(next.iter_mut().zip(&mut under_way))
        {
            for sends in [false, true] {
                let its = &mut under_way[usize::from(sends)];
                let number = &mut next[usize::from(sends)];
                while *number < numbers.end && its.len() < UNDER_WAY {
                    its.push(start_of_rank(link, rank, *peer, *number, sends));
                    *number += 1;
                }
                let mut index = 0;
                while index < its.len() {
                    let Some(result) = link.test(its[index].id) else {
                        index += 1;
                        continue;
                    };
                    let one = its.swap_remove(index);
                    result.unwrap();
                    if let Some(wanted) = one.wanted {
                        assert!(one.bytes == wanted, "from {peer} to {rank}");
                    }
                }
            }
            let is_finished = *next == [numbers.end; 2]
                && under_way.iter().all(Vec::is_empty)
                && !link.has_unsent();
            if !is_finished {
                is_done = false;
                link.progress().unwrap();
            }
        }
        std::thread::yield_now();
    }
}

fn start_of_rank(
    link: &mut Link<StreamChannel<UnixStream>>,
    rank: u32,
    peer: u32,
    number: u32,
    sends: bool,
) -> OfRank {
    let (sender, receiver) = if sends { (rank, peer) } else { (peer, rank) };
    let (from, to) = layouts_of(sender, receiver, number);
    let source = Elements::new(&from, number as u8);
    let (bytes, wanted) = if sends {
        (source.bytes, None)
    } else {
        let target = Elements::new(&to, 200);
        let wanted = expected(&source, &target);
        (target.bytes, Some(wanted))
    };
    let layout = if sends { from } else { to };
    let buffer = Buffer {
        base: (bytes.as_ptr() as u64).wrapping_add_signed(-layout.bounds().start),
        layout: &layout,
        memory: Memory::Unwatched,
    };
    // SAFETY: the bytes are used by nobody else until the transfer has ended or the process does.
    let id = unsafe {
        if sends {
            link.start_send(&buffer)
        } else {
            link.start_receive(&buffer)
        }
    };
    OfRank {
        id: id.unwrap(),
        bytes,
        wanted,
    }
}

#[test]
fn ranks_are_processes() {
    let _alone = alone();
    // Of a process that this test has started.
    if let Ok(words) = std::env::var(ROLE) {
        let words: Vec<&str> = words.split_whitespace().collect();
        let number = |index: usize| words[index].parse().unwrap();
        return rank_main(number(0), number(1), number(2), words[3]);
    }
    let Some((double, _)) = devices() else { return };
    let before = resources();
    let asked = messages(70);
    for ranks in [2_u32, 4, 8] {
        let pairs = (ranks / 2) * (ranks - ranks / 2);
        // Two directions and four rounds.
        let count = asked.div_ceil(pairs * 8);
        let place = std::env::temp_dir().join(format!("rdma-{}-{ranks}", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        let start = |rank: u32| {
            let words = format!("{rank} {ranks} {count} {}", place.display());
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "ranks_are_processes", "--nocapture"]);
            // Its summary is not one of this program's.
            command.stdout(Stdio::null());
            command.env(ROLE, words).spawn().unwrap()
        };
        let children: Vec<_> = (0..ranks).map(start).collect();
        let statuses = children.into_iter().map(|mut child| child.wait().unwrap());
        let statuses: Vec<_> = statuses.collect();
        std::fs::remove_dir_all(&place).unwrap();
        let is_right = statuses.iter().all(|status| status.success());
        assert!(is_right, "{ranks} ranks: {statuses:?}");
        println!("{ranks} ranks: {} messages", pairs * 8 * count);
    }
    assert_eq!(double.keys(), (0, 0));
    assert_eq!(resources(), before);
}
