// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two soft RoCE devices of the virtual machine, and links between them.

#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread;

use libcopy_datatype::Layout;
use libcopy_rdma::gather::Buffer;
use libcopy_rdma::keys::Memory;
use libcopy_rdma::transfer::{Link, Report, Settings, StreamChannel};
use libcopy_rdma::verbs::Device;
use libcopy_rdma::workloads::applications;
use libcopy_rdma::{CutRule, Method, Result};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// The file whose lock the program has that has devices.
pub const LOCK: &str = "/tmp/libcopy-rdma.lock";

/// Makes the devices, says so, and removes them when its input ends: when the test program has
/// ended, however it did. Gets the name of [`LOCK`].
const SETUP: &str = "
    exec 9>$0 && flock 9 || exit 1
    remove() {
        set +e
        for device in rxe_a rxe_b; do rdma link delete $device; done
        ip link delete rdma0
        ip netns delete libcopy
    } 2>/dev/null
    trap remove EXIT
    trap 'exit 1' INT TERM
    set -e
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
    done
    echo made
    cat >/dev/null";

/// What runs [`SETUP`].
static KEEPER: Mutex<Option<Child>> = Mutex::new(None);

/// Has the devices removed and waits for that.
extern "C" fn remove() {
    let keeper = KEEPER.lock().unwrap_or_else(|e| e.into_inner()).take();
    if let Some(mut keeper) = keeper {
        drop(keeper.stdin.take());
        let _ = keeper.wait();
    }
}

fn make() {
    let keeper = Command::new("sh")
        .args(["-c", SETUP, LOCK])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut keeper = keeper.unwrap();
    let mut said = String::new();
    let output = keeper.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut said).unwrap();
    assert_eq!(said, "made\n", "cannot set up soft RoCE");
    *KEEPER.lock().unwrap() = Some(keeper);
    // SAFETY: the function may be called at any time.
    assert_eq!(unsafe { libc::atexit(remove) }, 0);
}

/// What a process that a test has started is to do: it uses the test's devices.
pub const ROLE: &str = "RDMA_TEST_ROLE";

/// The two devices, made once in a program; none outside the virtual machine.
pub fn devices() -> Option<[Arc<Device>; 2]> {
    static MADE: OnceLock<bool> = OnceLock::new();
    let is_there = *MADE.get_or_init(|| {
        if std::env::var_os("LIBCOPY_VM").is_none() {
            eprintln!("skipped: not in the virtual machine (scripts/vm)");
            return false;
        }
        if std::env::var_os(ROLE).is_none() {
            make();
        }
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
        Elements {
            layout,
            bytes: Elements::bytes((bounds.end - bounds.start) as usize, seed),
        }
    }

    /// Bytes whose neighbours differ.
    pub fn bytes(len: usize, seed: u8) -> Vec<u8> {
        (0..len)
            .map(|i| (i * 31 + usize::from(seed)) as u8)
            .collect()
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

/// Layouts of applications, of both ends: those that are no larger than the virtual machine has
/// time for.
pub fn application_pairs() -> Vec<(Layout, Layout)> {
    let all = applications().unwrap().into_iter();
    // The largest have megabytes in gaps.
    all.filter(|one| one.layout.bounds().end < 1 << 21)
        .map(|one| (one.layout.clone(), one.layout))
        .collect()
}

/// Messages that a test with random layouts sends per rule: what the variable says, else `default`.
pub fn messages(default: u32) -> u32 {
    std::env::var("LIBCOPY_RDMA_MESSAGES").map_or(default, |count| count.parse().unwrap())
}

/// As many random pairs of layouts, the same ones each time.
pub fn random_pairs(count: u32) -> Vec<(Layout, Layout)> {
    let mut runner = TestRunner::deterministic();
    (0..count)
        .map(|_| {
            crate::common::pairs()
                .new_tree(&mut runner)
                .unwrap()
                .current()
        })
        .collect()
}

/// Sends a message per pair of layouts and compares every byte of the receiver's memory; the
/// reports of both ends.
pub fn move_all(settings: [Settings; 2], all: &[(Layout, Layout)]) -> Option<[Vec<Report>; 2]> {
    let name = format!("{:?} {:?}", settings[0].only, settings[0].rule);
    let (sent, received) = pair(
        settings,
        |link| {
            let from = all.iter().map(|(from, _)| Elements::new(from, 7));
            from.map(|from| send(link, &from).unwrap()).collect()
        },
        |link| {
            let mut receive_one = |(from, to): &(Layout, Layout)| {
                let mut target = Elements::new(to, 100);
                let expected = expected(&Elements::new(from, 7), &target);
                let report = receive(link, &mut target).unwrap();
                assert!(target.bytes == expected, "{name}");
                report
            };
            all.iter().map(&mut receive_one).collect()
        },
    )?;
    Some([sent, received])
}

/// Queue pairs and regions of the kernel.
pub fn resources() -> String {
    let output = Command::new("rdma").args(["resource", "show"]).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}
