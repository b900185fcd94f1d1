// SPDX-License-Identifier: MIT OR Apache-2.0

//! Real verbs over the kernel's soft RoCE (rdma_rxe), for which this must run as root in the
//! virtual machine: two devices on the ends of a veth pair, one of them in a network namespace of
//! its own. With both in one namespace a reliable connection does not come about.

mod common;
#[path = "common/link.rs"]
mod link;

use libcopy_datatype::{Datatype, Layout, Named};
use libcopy_rdma::gather::Buffer;
use libcopy_rdma::keys::Memory;
use libcopy_rdma::verbs::sys::Sge;
use libcopy_rdma::verbs::{Connection, Device, Options, Region, Wait, device_names};
use libcopy_rdma::workloads::vector;
use libcopy_rdma::{CutRule, Error, Iov, Method};

use link::{
    Elements, alone, application_pairs, devices, expected, messages, move_all, pair, random_pairs,
    receive, resources, send, settings,
};

#[test]
fn every_method_moves_every_layout() {
    let _alone = alone();
    let mut all = application_pairs();
    let byte = Datatype::named(Named::Uint8);
    let dense = |bytes| Layout::new(&byte, bytes).unwrap();
    all.push((vector(64, 1024).unwrap(), dense(1 << 16)));
    all.push((dense(1 << 16), vector(128, 512).unwrap()));
    all.push((vector(60, 700).unwrap(), vector(50, 840).unwrap()));
    all.push((dense(0), dense(0)));
    all.push((dense(3 << 20), dense(3 << 20)));
    for method in Method::ALL {
        for rule in [CutRule::Agreed, CutRule::Maximal] {
            let Some([reports, _]) = move_all(settings(Some(method), rule), &all) else {
                return;
            };
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
    let pairs = random_pairs(messages(120));
    for rule in [CutRule::Agreed, CutRule::Maximal] {
        // Lists for all, and packing between.
        let Some([_, received]) = move_all(settings(Some(Method::Sge), rule), &pairs) else {
            return;
        };
        let fell_back = received.iter().filter(|report| report.fell_back).count();
        // Under the paper's rule a layout with one short piece may need more receives than the
        // queue has.
        assert!(rule == CutRule::Agreed || fell_back == 0, "{fell_back}");
        println!(
            "{rule:?}: {} messages, {fell_back} packed instead",
            received.len()
        );
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
    // SAFETY: peers write nothing.
    let region = unsafe { Region::new(&a, range, false) }.unwrap();
    let list = [Sge {
        addr: range.addr,
        length: 64,
        lkey: region.lkey(),
    }];
    let [sender, _receiver] = connect(1);
    // SAFETY: the memory outlives the flush.
    unsafe { sender.post_send(&list, 1).unwrap() };
    let error = sender.flush(Wait::Event).unwrap_err();
    // IBV_WC_RNR_RETRY_EXC_ERR
    assert!(
        matches!(error, Error::WorkRequest { code: 13, .. }),
        "{error}"
    );
    // A key that the peer does not have.
    let [sender, _receiver] = connect(7);
    // SAFETY: as above.
    unsafe { sender.post_write(&list, 4096, 0x7fff_ff00, 2).unwrap() };
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
    unsafe { sender.post_write(&list, 4096, 1, 3).unwrap() };
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
    let nothing = Iov {
        addr: 4096,
        len: 64,
    };
    // SAFETY: nothing is mapped there.
    let unmapped = unsafe { Region::new(&a, nothing, true) }.unwrap_err();
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
    // SAFETY: nobody is told of the region.
    let register = |is_target| unsafe { Region::new(&a, constant, is_target) };
    assert!(register(true).is_err());
    assert!(register(false).is_ok());
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

/// Has this thread register no more memory than RLIMIT_MEMLOCK allows (capabilities(7):
/// CAP_IPC_LOCK).
fn drop_ipc_lock() {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let mut header = [VERSION_3, 0];
    // Effective, permitted and inheritable, twice 32 bits.
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: both are as long as the kernel's structures (capget(2)).
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    assert_eq!(got, 0);
    sets[0][0] &= !(1 << CAP_IPC_LOCK);
    // SAFETY: as above.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()) };
    assert_eq!(set, 0);
}

/// Sets the soft limit of locked memory; gives back what it was.
fn limit_locked(bytes: u64) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is written.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    assert_eq!(got, 0);
    let before = std::mem::replace(&mut limit.rlim_cur, bytes);
    // SAFETY: the structure is read.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
    assert_eq!(set, 0);
    before
}

#[test]
fn more_memory_than_may_be_locked_is_packed_or_refused() {
    let _alone = alone();
    let Some(_) = devices() else { return };
    let before = resources();
    // 64 KiB in 128 KiB; page by page even more.
    let (layout, longer) = (vector(64, 1024).unwrap(), vector(128, 1024).unwrap());
    let done = pair(
        settings(Some(Method::Sge), CutRule::Agreed),
        |link| {
            let from = Elements::new(&layout, 1);
            let packed = send(link, &from).unwrap();
            let refused = send(link, &Elements::new(&longer, 1)).unwrap_err();
            assert_eq!(refused, Error::Refused { rank: 1 });
            // The link is as good as before.
            (packed, send(link, &from).unwrap())
        },
        |link| {
            drop_ipc_lock();
            let mut target = Elements::new(&layout, 2);
            let wanted = expected(&Elements::new(&layout, 1), &target);
            let unlimited = limit_locked(100 << 10);
            let packed = receive(link, &mut target).unwrap();
            assert!(packed.fell_back && target.bytes == wanted);
            // Not even a staging buffer: this message needs a longer one.
            limit_locked(16 << 10);
            let error = receive(link, &mut Elements::new(&longer, 2)).unwrap_err();
            assert!(error.to_string().contains("ulimit -l"), "{error}");
            limit_locked(unlimited);
            target.bytes.fill(0);
            receive(link, &mut target).unwrap();
            let blank = Elements {
                layout: &layout,
                bytes: vec![0; target.bytes.len()],
            };
            assert!(target.bytes == expected(&Elements::new(&layout, 1), &blank));
        },
    );
    let ((packed, again), ()) = done.unwrap();
    assert_eq!((packed.method, again.method), (Method::Pack, Method::Sge));
    assert_eq!(resources(), before);
}
