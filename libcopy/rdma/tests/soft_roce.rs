// SPDX-License-Identifier: MIT OR Apache-2.0

//! Real verbs over the kernel's soft RoCE (rdma_rxe), for which this must run as root in the virtual machine: two
//! devices on the ends of a veth pair, one of them in a network namespace of its own. With both in one namespace
//! a reliable connection does not come about.

mod common;

use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread;

use libcopy_datatype::{Datatype, Layout, Named};
use libcopy_rdma::gather::Buffer;
use libcopy_rdma::keys::Memory;
use libcopy_rdma::transfer::{Link, Report, Settings, StreamChannel};
use libcopy_rdma::verbs::sys::Sge;
use libcopy_rdma::verbs::{Connection, Device, Options, Region, Wait, device_names};
use libcopy_rdma::workloads::{applications, vector};
use libcopy_rdma::{CutRule, Error, Iov, Method, Result};

/// The two devices, made once; none outside the virtual machine.
fn devices() -> Option<[Arc<Device>; 2]> {
    static MADE: OnceLock<bool> = OnceLock::new();
    let is_there = *MADE.get_or_init(|| {
        if std::env::var_os("LIBCOPY_VM").is_none() {
            eprintln!("skipped: not in the virtual machine (scripts/vm)");
            return false;
        }
        let script = "set -e
            for module in ib_uverbs rdma_rxe veth; do modprobe $module; done
            ip netns add libcopy
            ip link add rdma0 type veth peer name rdma1
            ip link set rdma1 netns libcopy
            ip addr add 10.77.0.1/24 dev rdma0 && ip link set rdma0 up
            ip netns exec libcopy ip addr add 10.77.0.2/24 dev rdma1
            ip netns exec libcopy ip link set rdma1 up
            rdma link add rxe_a type rxe netdev rdma0
            ip netns exec libcopy rdma link add rxe_b type rxe netdev rdma1
            # The device file comes a moment later; an address is used once it has been checked for duplicates.
            for i in $(seq 100); do
                [ -e /dev/infiniband/uverbs1 ] && ip link show rdma0 | grep -q LOWER_UP && break
                sleep 0.1
            done";
        let status = Command::new("sh").arg("-c").arg(script).status().unwrap();
        assert!(status.success(), "cannot set up soft RoCE");
        true
    });
    is_there.then(|| ["rxe_a", "rxe_b"].map(|name| Device::open(name).unwrap()))
}

/// One test at a time: they count what is left behind.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

type TestLink = Link<StreamChannel<UnixStream>>;

/// Runs both ends of a link, each on a thread.
fn pair<A: Send, B: Send>(
    settings: [Settings; 2],
    first: impl FnOnce(&mut TestLink) -> A + Send,
    second: impl FnOnce(&mut TestLink) -> B + Send,
) -> Option<(A, B)> {
    let [a, b] = devices()?;
    let [one, two] = settings;
    let (left, right) = UnixStream::pair().unwrap();
    Some(thread::scope(|scope| {
        let first = scope.spawn(move || {
            let mut link = Link::new(&a, StreamChannel::new(left, 1), 1, one).unwrap();
            first(&mut link)
        });
        let second = scope.spawn(move || {
            let mut link = Link::new(&b, StreamChannel::new(right, 0), 0, two).unwrap();
            second(&mut link)
        });
        (first.join().unwrap(), second.join().unwrap())
    }))
}

/// Memory for a layout.
struct Elements<'a> {
    layout: &'a Layout,
    bytes: Vec<u8>,
}

impl<'a> Elements<'a> {
    fn new(layout: &'a Layout, seed: u8) -> Elements<'a> {
        let bounds = layout.bounds();
        let len = (bounds.end - bounds.start) as usize;
        let bytes = (0..len).map(|i| (i * 31 + usize::from(seed)) as u8);
        Elements {
            layout,
            bytes: bytes.collect(),
        }
    }

    fn buffer(&self, memory: Memory) -> Buffer<'_> {
        let start = self.layout.bounds().start;
        Buffer {
            layout: self.layout,
            base: (self.bytes.as_ptr() as u64).wrapping_add_signed(-start),
            memory,
        }
    }

    fn origin(&self) -> isize {
        (-self.layout.bounds().start) as isize
    }
}

fn send(link: &mut TestLink, from: &Elements<'_>) -> Result<Report> {
    // SAFETY: the memory lives and nobody changes it.
    unsafe { link.send(&from.buffer(Memory::Unwatched)) }
}

fn receive(link: &mut TestLink, to: &mut Elements<'_>) -> Result<Report> {
    // SAFETY: the memory lives and nobody else has it.
    unsafe { link.receive(&to.buffer(Memory::Unwatched)) }
}

/// What receiving `from`'s elements makes of `to`'s memory.
fn expected(from: &Elements<'_>, to: &Elements<'_>) -> Vec<u8> {
    let mut packed = vec![0; from.layout.size() as usize];
    from.layout
        .pack(&from.bytes, from.origin(), &mut packed)
        .unwrap();
    let mut bytes = to.bytes.clone();
    to.layout.unpack(&packed, &mut bytes, to.origin()).unwrap();
    bytes
}

fn settings(only: Option<Method>, rule: CutRule) -> [Settings; 2] {
    let one = Settings {
        only,
        rule,
        ..Settings::default()
    };
    [one.clone(), one]
}

/// Queue pairs and regions of the kernel.
fn resources() -> String {
    let output = Command::new("rdma").args(["resource", "show"]).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

#[test]
fn every_method_moves_every_layout() {
    let _alone = alone();
    let mut all: Vec<(Layout, Layout)> = applications()
        .unwrap()
        .into_iter()
        // The largest have megabytes in gaps.
        .filter(|one| one.layout.bounds().end < 1 << 21)
        .map(|one| (one.layout.clone(), one.layout))
        .collect();
    let byte = Datatype::named(Named::Uint8);
    let dense = |bytes| Layout::new(&byte, bytes).unwrap();
    all.push((vector(64, 1024).unwrap(), dense(1 << 16)));
    all.push((dense(1 << 16), vector(128, 512).unwrap()));
    all.push((vector(60, 700).unwrap(), vector(50, 840).unwrap()));
    all.push((dense(0), dense(0)));
    all.push((dense(3 << 20), dense(3 << 20)));
    for method in Method::ALL {
        for rule in [CutRule::Agreed, CutRule::Maximal] {
            let all = &all;
            let done = pair(
                settings(Some(method), rule),
                |link| {
                    let send =
                        |(from, _): &(Layout, _)| send(link, &Elements::new(from, 7)).unwrap();
                    all.iter().map(send).collect::<Vec<_>>()
                },
                |link| {
                    for (from, to) in all {
                        let mut target = Elements::new(to, 100);
                        let expected = expected(&Elements::new(from, 7), &target);
                        receive(link, &mut target).unwrap();
                        assert!(target.bytes == expected, "{method} {rule:?}");
                    }
                },
            );
            let Some((reports, ())) = done else { return };
            // Soft RoCE has no memory keys: they are packed instead.
            let used = if method == Method::Umr {
                Method::Pack
            } else {
                method
            };
            let vector = reports.len() - 5;
            assert_eq!(reports[vector].method, used);
        }
    }
}

#[test]
fn random_layouts_arrive_byte_for_byte() {
    let _alone = alone();
    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;
    let rounds = std::env::var("LIBCOPY_RDMA_MESSAGES").map_or(120, |n| n.parse().unwrap());
    let mut runner = TestRunner::deterministic();
    let pairs: Vec<(Layout, Layout)> = (0..rounds)
        .map(|_| common::pairs().new_tree(&mut runner).unwrap().current())
        .collect();
    for rule in [CutRule::Agreed, CutRule::Maximal] {
        let pairs = &pairs;
        // Lists for all, and packing between.
        let mut settings = settings(Some(Method::Sge), rule);
        settings[1].only = Some(Method::Sge);
        let done = pair(
            settings,
            |link| {
                for (from, _) in pairs {
                    send(link, &Elements::new(from, 3)).unwrap();
                }
            },
            |link| {
                let mut fell_back = 0;
                for (from, to) in pairs {
                    let mut target = Elements::new(to, 200);
                    let expected = expected(&Elements::new(from, 3), &target);
                    let report = receive(link, &mut target).unwrap();
                    fell_back += usize::from(report.fell_back);
                    assert!(target.bytes == expected, "{rule:?}");
                }
                fell_back
            },
        );
        let Some(((), fell_back)) = done else { return };
        // Under the paper's rule a layout with one short piece may need more receives than the queue has.
        assert!(rule == CutRule::Agreed || fell_back == 0, "{fell_back}");
    }
}

#[test]
fn both_directions_and_sizes_that_differ() {
    let _alone = alone();
    let (long, short) = (vector(32, 1024).unwrap(), vector(31, 1024).unwrap());
    pair(
        settings(None, CutRule::Agreed),
        |link| {
            assert_eq!(
                send(link, &Elements::new(&long, 1)).unwrap().method,
                Method::Sge
            );
            let mut target = Elements::new(&long, 9);
            receive(link, &mut target).unwrap();
            let error = send(link, &Elements::new(&long, 1)).unwrap_err();
            assert!(
                matches!(error, Error::Size { sender: 32768, .. }),
                "{error}"
            );
            // The link is as good as before.
            send(link, &Elements::new(&short, 1)).unwrap();
        },
        |link| {
            receive(link, &mut Elements::new(&long, 2)).unwrap();
            send(link, &Elements::new(&long, 5)).unwrap();
            let error = receive(link, &mut Elements::new(&short, 2)).unwrap_err();
            let size = Error::Size {
                sender: 32768,
                receiver: 31744,
            };
            assert_eq!(error, size);
            let mut target = Elements::new(&short, 2);
            let expected = expected(&Elements::new(&short, 1), &target);
            receive(link, &mut target).unwrap();
            assert!(target.bytes == expected);
        },
    );
}

#[test]
fn a_receiver_that_is_not_ready_is_an_error() {
    let _alone = alone();
    let Some([a, b]) = devices() else { return };
    let connect = |retries| {
        let ends = [&a, &b].map(|device| {
            let options = Options {
                retries,
                ..Options::of(device)
            };
            Connection::new(device, options).unwrap()
        });
        ends[0].connect(&ends[1].address()).unwrap();
        ends[1].connect(&ends[0].address()).unwrap();
        ends
    };
    let memory = [1_u8; 64];
    let range = Iov {
        addr: memory.as_ptr() as u64,
        len: 64,
    };
    let region = Region::new(&a, range, false).unwrap();
    let list = [Sge {
        addr: range.addr,
        length: 64,
        lkey: region.lkey(),
    }];
    let [sender, _receiver] = connect(1);
    // SAFETY: the memory outlives the flush.
    unsafe { sender.post_send(&list).unwrap() };
    let error = sender.flush(Wait::Event).unwrap_err();
    // IBV_WC_RNR_RETRY_EXC_ERR
    assert!(
        matches!(error, Error::WorkRequest { code: 13, .. }),
        "{error}"
    );
    // A key that the peer does not have.
    let [sender, _receiver] = connect(7);
    // SAFETY: as above.
    unsafe { sender.post_write(&list, 4096, 0x7fff_ff00).unwrap() };
    let error = sender.flush(Wait::Poll).unwrap_err();
    // IBV_WC_REM_ACCESS_ERR
    assert!(
        matches!(error, Error::WorkRequest { code: 10, .. }),
        "{error}"
    );
    // What is posted to a connection that has ended.
    let [sender, _receiver] = connect(7);
    sender.disconnect().unwrap();
    // SAFETY: as above.
    unsafe { sender.post_write(&list, 4096, 1).unwrap() };
    let error = sender.flush(Wait::Poll).unwrap_err();
    // IBV_WC_WR_FLUSH_ERR
    assert!(
        matches!(error, Error::WorkRequest { code: 5, .. }),
        "{error}"
    );
}

#[test]
fn a_peer_that_ends_is_an_error_and_leaves_nothing() {
    let _alone = alone();
    let Some(_) = devices() else { return };
    let before = resources();
    let layout = vector(64, 1024).unwrap();
    pair(
        settings(None, CutRule::Agreed),
        |link| {
            send(link, &Elements::new(&layout, 1)).unwrap();
            // The peer has gone by the time of the answer.
            let error = send(link, &Elements::new(&layout, 1)).unwrap_err();
            assert!(matches!(error, Error::PeerGone { rank: 1, .. }), "{error}");
        },
        |link| {
            receive(link, &mut Elements::new(&layout, 2)).unwrap();
        },
    );
    assert_eq!(resources(), before);
}

#[test]
fn memory_that_is_unmapped_between_messages() {
    let _alone = alone();
    let layout = vector(32, 4096).unwrap();
    let bytes = (layout.bounds().end) as usize;
    // The same address, with new pages for each message.
    let map = |at: *mut libc::c_void| {
        let fixed = if at.is_null() {
            0
        } else {
            libc::MAP_FIXED_NOREPLACE
        };
        // SAFETY: new pages, where nothing is.
        let memory = unsafe {
            libc::mmap(
                at,
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed,
                -1,
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        memory
    };
    pair(
        settings(Some(Method::Sge), CutRule::Agreed),
        |link| {
            for seed in 0..4 {
                send(link, &Elements::new(&layout, seed)).unwrap();
            }
        },
        |link| {
            let mut memory = map(std::ptr::null_mut());
            for seed in 0..4 {
                let buffer = Buffer {
                    layout: &layout,
                    base: memory as u64,
                    memory: Memory::Unwatched,
                };
                // SAFETY: the pages are mapped.
                unsafe { link.receive(&buffer).unwrap() };
                // SAFETY: as above.
                let seen = unsafe { std::slice::from_raw_parts(memory.cast::<u8>(), bytes) };
                let mut blank = Elements::new(&layout, 0);
                blank.bytes.fill(0);
                assert!(
                    seen == expected(&Elements::new(&layout, seed), &blank),
                    "{seed}"
                );
                // SAFETY: mapped above.
                unsafe { libc::munmap(memory, bytes) };
                memory = map(memory);
            }
        },
    );
}

#[test]
fn memory_that_cannot_be_registered_is_packed_or_refused() {
    let _alone = alone();
    let Some([a, _]) = devices() else { return };
    let unmapped = Region::new(
        &a,
        Iov {
            addr: 4096,
            len: 64,
        },
        true,
    )
    .unwrap_err();
    assert!(
        matches!(
            unmapped,
            Error::Register {
                errno: libc::EFAULT,
                ..
            }
        ),
        "{unmapped}"
    );
    // A list of constants cannot be written to, but sent.
    static CONSTANT: [u8; 64] = [1; 64];
    let constant = Iov {
        addr: CONSTANT.as_ptr() as u64,
        len: 64,
    };
    assert!(Region::new(&a, constant, true).is_err());
    assert!(Region::new(&a, constant, false).is_ok());
}

#[test]
fn devices_are_named_and_missing_ones_too() {
    let _alone = alone();
    let Some([a, b]) = devices() else { return };
    assert_eq!(device_names().unwrap(), ["rxe_a", "rxe_b"]);
    assert_eq!((a.name(), b.name()), ("rxe_a", "rxe_b"));
    assert!(
        a.abilities()
            .sge
            .is_some_and(|limits| limits.max_iovs >= 16)
    );
    let error = Device::open("mlx5_0").unwrap_err().to_string();
    assert!(error.contains("rxe_a, rxe_b"), "{error}");
}
