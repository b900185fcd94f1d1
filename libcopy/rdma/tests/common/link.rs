// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two soft RoCE devices of the virtual machine, and links between them.

#![allow(dead_code)]

use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread;

use libcopy_datatype::Layout;
use libcopy_rdma::gather::Buffer;
use libcopy_rdma::keys::Memory;
use libcopy_rdma::transfer::{Link, Report, Settings, StreamChannel};
use libcopy_rdma::verbs::Device;
use libcopy_rdma::{CutRule, Method, Result};

/// The two devices, made once; none outside the virtual machine.
pub fn devices() -> Option<[Arc<Device>; 2]> {
    static MADE: OnceLock<bool> = OnceLock::new();
    let is_there = *MADE.get_or_init(|| {
        if std::env::var_os("LIBCOPY_VM").is_none() {
            eprintln!("skipped: not in the virtual machine (scripts/vm)");
            return false;
        }
        let script = "set -e
            # Another test program may have made them.
            if ip netns list | grep -qw libcopy; then exit 0; fi
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
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

pub type TestLink = Link<StreamChannel<UnixStream>>;

/// Runs both ends of a link, each on a thread.
pub fn pair<A: Send, B: Send>(
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
pub struct Elements<'a> {
    pub layout: &'a Layout,
    pub bytes: Vec<u8>,
}

impl<'a> Elements<'a> {
    pub fn new(layout: &'a Layout, seed: u8) -> Elements<'a> {
        let bounds = layout.bounds();
        let len = (bounds.end - bounds.start) as usize;
        let bytes = (0..len).map(|i| (i * 31 + usize::from(seed)) as u8);
        Elements {
            layout,
            bytes: bytes.collect(),
        }
    }

    pub fn buffer(&self, memory: Memory) -> Buffer<'_> {
        let start = self.layout.bounds().start;
        Buffer {
            layout: self.layout,
            base: (self.bytes.as_ptr() as u64).wrapping_add_signed(-start),
            memory,
        }
    }

    pub fn origin(&self) -> isize {
        (-self.layout.bounds().start) as isize
    }
}

pub fn send(link: &mut TestLink, from: &Elements<'_>) -> Result<Report> {
    // SAFETY: the memory lives and nobody changes it.
    unsafe { link.send(&from.buffer(Memory::Unwatched)) }
}

pub fn receive(link: &mut TestLink, to: &mut Elements<'_>) -> Result<Report> {
    // SAFETY: the memory lives and nobody else has it.
    unsafe { link.receive(&to.buffer(Memory::Unwatched)) }
}

/// What receiving `from`'s elements makes of `to`'s memory.
pub fn expected(from: &Elements<'_>, to: &Elements<'_>) -> Vec<u8> {
    let mut packed = vec![0; from.layout.size() as usize];
    from.layout
        .pack(&from.bytes, from.origin(), &mut packed)
        .unwrap();
    let mut bytes = to.bytes.clone();
    to.layout.unpack(&packed, &mut bytes, to.origin()).unwrap();
    bytes
}

pub fn settings(only: Option<Method>, rule: CutRule) -> [Settings; 2] {
    let one = Settings {
        only,
        rule,
        ..Settings::default()
    };
    [one.clone(), one]
}

/// Queue pairs and regions of the kernel.
pub fn resources() -> String {
    let output = Command::new("rdma").args(["resource", "show"]).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}
