// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPU memory of other processes: the stand-in driver (`tests/fakecuda`) in several processes.

mod common;
#[path = "common/cuda.rs"]
#[allow(dead_code)]
mod cuda;
#[path = "../../datatype/tests/datatype/generate.rs"]
#[allow(dead_code)]
mod generate;
#[path = "../../datatype/tests/datatype/oracle.rs"]
#[allow(dead_code)]
mod oracle;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::noise;
use cuda::{Cuda, Memory, Shape, driver, random_shapes, turn};
use libcopy_datatype::{Datatype, Layout, Named};
use libcopy_gpu::peer::{Exported, Probe, close_idle, export, offered, open, try_out_once};
use libcopy_gpu::{
    Error, Pointer, Space, copy, copy_batch, copy_blocks, copy_layout, copy_planes,
    start_copy_layout,
};

/// Makes a test of this program an owner of memory.
const OWNER: &str = "LIBCOPY_TEST_OWNER";

/// A process that does what it is told: `alloc BYTES SEED` and `probe` answer with bytes in
/// hexadecimal, `free INDEX` and `spoil` with nothing.
struct Owner {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Owner {
    fn start(variables: &[(&str, &str)]) -> Owner {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "owner", "--nocapture", "--test-threads=1"])
            .env(OWNER, "1")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Owner {
            requests: process.stdin.take().unwrap(),
            answers: BufReader::new(process.stdout.take().unwrap()),
            process,
        }
    }

    /// What stands behind `answer:` in the next line that has it.
    fn tell(&mut self, request: &str) -> String {
        writeln!(self.requests, "{request}").unwrap();
        loop {
            let mut line = String::new();
            let read = self.answers.read_line(&mut line).unwrap();
            assert!(read > 0, "the owner ended at {request:?}");
            // The test harness prints the test's name without a line feed.
            if let Some((_, answer)) = line.trim_end().split_once("answer:") {
                return answer.to_owned();
            }
        }
    }

    fn alloc(&mut self, bytes: usize, seed: u64) -> Exported {
        let answer = self.tell(&format!("alloc {bytes} {seed}"));
        Exported::from_bytes(&from_hex(&answer)).unwrap()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn from_hex<const N: usize>(text: &str) -> [u8; N] {
    let bytes: Vec<u8> = (0..text.len() / 2)
        .map(|i| {
            u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap_or_else(|_| panic!("{text}"))
        })
        .collect();
    bytes.try_into().unwrap_or_else(|_| panic!("{text}"))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The other side; no test of its own.
#[test]
fn owner() {
    if std::env::var_os(OWNER).is_none() {
        return;
    }
    Cuda::start();
    let mut memories: Vec<Option<Memory>> = Vec::new();
    let mut probe: Option<Probe> = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        let answer = match words[0] {
            "alloc" => {
                let content = noise(number(2), number(1) as usize);
                let memory = Memory::new(Space::Device, &content);
                let exported = export(driver(), memory.address);
                memories.push(Some(memory));
                exported.map_or_else(
                    |error| error.to_string(),
                    |exported| to_hex(&exported.to_bytes()),
                )
            }
            "free" => {
                memories[number(1) as usize] = None;
                String::new()
            }
            "probe" => {
                let near = Memory::new(Space::Device, &[0]);
                let near = Pointer::of(driver(), near.address).unwrap();
                let offered = Probe::offer(driver(), &near).unwrap();
                let message = to_hex(offered.message());
                probe = Some(offered);
                message
            }
            "spoil" => {
                let message = probe.as_ref().unwrap().message();
                let exported = Exported::from_bytes(message[..Exported::BYTES].try_into().unwrap());
                let address = exported.unwrap().base;
                // SAFETY: the probe's memory has more bytes.
                unsafe { copy(driver(), address + 100, [1_u8; 8].as_ptr() as u64, 8) }.unwrap();
                String::new()
            }
            other => panic!("{other}"),
        };
        println!("answer:{answer}");
        let _ = std::io::stdout().flush();
    }
}

/// Memory near which others' is opened.
fn near() -> Pointer {
    static NEAR: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let address = NEAR.get_or_init(|| {
        let memory = std::mem::ManuallyDrop::new(Memory::new(Space::Device, &[0]));
        // What is kept per context is allocated once.
        read(memory.address, 1);
        memory.address
    });
    Pointer::of(driver(), *address).unwrap()
}

/// The bytes at an address.
fn read(address: u64, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    // SAFETY: as many bytes on both sides.
    unsafe { copy(driver(), found.as_mut_ptr() as u64, address, bytes) }.unwrap();
    found
}

#[test]
fn layouts_are_copied_out_of_another_process() {
    let _turn = turn();
    Cuda::start();
    let mut owner = Owner::start(&[]);
    for delayed in [false, true] {
        if delayed {
            // SAFETY: tests that read the environment have their turns.
            unsafe { std::env::set_var("FAKECUDA_DELAYED", "1") };
        }
        let mut under_way = Vec::new();
        for (case, from, to) in random_shapes(25) {
            let content = noise(case + 5, from.len.max(1));
            let exported = owner.alloc(content.len(), case + 5);
            let remote = open(driver(), &near(), &exported).unwrap();
            let before = noise(case + 1, to.len);
            let target = Memory::new(Space::Device, &before);
            let from_origin = remote.address().wrapping_add_signed(-from.low);
            let to_origin = to.origin(&target);
            // SAFETY: the memory was made for the layouts.
            let started =
                unsafe { start_copy_layout(driver(), &to.gpu, to_origin, &from.gpu, from_origin) };
            let Ok(mut pending) = started else {
                assert!(!to.gpu.layout().form().is_disjoint());
                continue;
            };
            pending.keep(remote);
            let expected = to.unpacked(&from.packed(&content[..from.len]), &before);
            under_way.push((pending, target, expected));
        }
        for (case, (pending, target, expected)) in under_way.into_iter().enumerate() {
            drop(pending);
            assert!(target.read() == expected, "{case}, delayed: {delayed}");
        }
    }
    // SAFETY: as above.
    unsafe { std::env::remove_var("FAKECUDA_DELAYED") };
    // Other tests count what there is: tables of layouts go with the next call.
    assert_eq!(close_idle(), 0);
    read(near().address, 1);
}

#[test]
fn a_mapping_is_made_once_and_kept() {
    let _turn = turn();
    let cuda = Cuda::start();
    let mut owner = Owner::start(&[]);
    let exported = owner.alloc(5000, 1);
    near();
    let before = cuda.counts()[2];
    let first = open(driver(), &near(), &exported).unwrap();
    let again = open(driver(), &near(), &exported).unwrap();
    assert_eq!(first.address(), again.address());
    let mut within = exported;
    within.offset = 1234;
    let within = open(driver(), &near(), &within).unwrap();
    assert_eq!(within.address(), first.address() + 1234);
    assert_eq!(cuda.counts()[2], before + 1);
    drop((first, again, within));
    // It is still there for the next message.
    let again = open(driver(), &near(), &exported).unwrap();
    assert_eq!(cuda.counts()[2], before + 1);
    assert_eq!(read(again.address(), 5000), noise(1, 5000));
    assert_eq!(close_idle(), 1);
    drop(again);
    assert_eq!(close_idle(), 0);
    assert_eq!(cuda.counts()[2], before);
}

#[test]
fn memory_at_an_address_that_is_used_again_is_not_mistaken() {
    let _turn = turn();
    let cuda = Cuda::start();
    near();
    let before = cuda.counts()[2];
    let mut owner = Owner::start(&[]);
    let old = owner.alloc(5000, 1);
    let held = open(driver(), &near(), &old).unwrap();
    assert_eq!(read(held.address(), 5000), noise(1, 5000));
    owner.tell("free 0");
    let new = owner.alloc(5000, 2);
    assert_eq!(new.base, old.base, "the stand-in uses addresses again");
    assert_ne!(new.buffer, old.buffer);
    // The old one is in use and stays until its user is done.
    let fresh = open(driver(), &near(), &new).unwrap();
    assert_eq!(read(fresh.address(), 5000), noise(2, 5000));
    assert_eq!(cuda.counts()[2], before + 2);
    drop(held);
    assert_eq!(cuda.counts()[2], before + 1);
    // One that nobody uses is closed at once.
    drop(fresh);
    owner.tell("free 1");
    let newest = owner.alloc(4500, 3);
    let newest = open(driver(), &near(), &newest).unwrap();
    assert_eq!(read(newest.address(), 4500), noise(3, 4500));
    assert_eq!(cuda.counts()[2], before + 1);
    drop(newest);
    assert_eq!(close_idle(), 0);
}

#[test]
fn mappings_in_use_are_not_closed_for_others() {
    let _turn = turn();
    let cuda = Cuda::start();
    near();
    let before = cuda.counts()[2];
    let mut owner = Owner::start(&[]);
    let held: Vec<_> = (0..5)
        .map(|seed| {
            let exported = owner.alloc(100, seed);
            open(driver(), &near(), &exported).unwrap()
        })
        .collect();
    for seed in 5..300 {
        let exported = owner.alloc(100, seed);
        let remote = open(driver(), &near(), &exported).unwrap();
        assert_eq!(read(remote.address(), 100), noise(seed, 100));
    }
    assert!(cuda.counts()[2] - before <= 128, "idle ones are bounded");
    for (seed, remote) in held.iter().enumerate() {
        assert_eq!(read(remote.address(), 100), noise(seed as u64, 100));
    }
    drop(held);
    assert_eq!(close_idle(), 0);
    assert_eq!(cuda.counts()[2], before);
}

#[test]
fn what_cannot_be_exported_has_a_reason() {
    let _turn = turn();
    Cuda::start();
    for (space, why) in [
        (Space::Host, "host memory"),
        (Space::Pinned, "pinned host memory"),
        (Space::Managed, "managed memory"),
    ] {
        let memory = Memory::new(space, &[1; 10]);
        let error = export(driver(), memory.address).unwrap_err();
        assert!(matches!(error, Error::NotExportable { .. }));
        assert!(error.to_string().contains(why), "{error}");
    }
    let mut owner = Owner::start(&[("FAKECUDA_IPC", "0")]);
    let why = owner.tell("alloc 10 1");
    assert!(
        why.contains("cuIpcGetMemHandle failed with CUDA_ERROR_NOT_SUPPORTED"),
        "{why}"
    );
}

#[test]
fn what_cannot_be_opened_has_a_reason() {
    let _turn = turn();
    Cuda::start();
    let mut owner = Owner::start(&[]);
    let exported = owner.alloc(10, 1);
    // SAFETY: tests that read the environment have their turns.
    unsafe { std::env::set_var("FAKECUDA_IPC", "0") };
    let error = open(driver(), &near(), &exported).unwrap_err();
    // SAFETY: as above.
    unsafe { std::env::remove_var("FAKECUDA_IPC") };
    assert!(matches!(error, Error::NoPeer { process, .. } if process == exported.process));
    assert!(
        error.to_string().contains("CUDA_ERROR_NOT_SUPPORTED"),
        "{error}"
    );

    let mut bytes = exported.to_bytes();
    bytes[0] = b'X';
    assert!(matches!(
        Exported::from_bytes(&bytes),
        Err(Error::Malformed { .. })
    ));
    bytes = exported.to_bytes();
    bytes[40..48].copy_from_slice(&10_u64.to_le_bytes());
    assert!(matches!(
        Exported::from_bytes(&bytes),
        Err(Error::Malformed { .. })
    ));
    assert_eq!(Exported::from_bytes(&exported.to_bytes()), Ok(exported));
}

#[test]
fn memory_of_a_killed_process_stays_until_it_is_closed() {
    let _turn = turn();
    Cuda::start();
    let mut owner = Owner::start(&[]);
    let opened = owner.alloc(700, 1);
    let other = owner.alloc(700, 2);
    let held = open(driver(), &near(), &opened).unwrap();
    drop(owner);
    assert_eq!(read(held.address(), 700), noise(1, 700));
    let error = open(driver(), &near(), &other).unwrap_err();
    assert!(matches!(error, Error::NoPeer { .. }), "{error}");
    drop(held);
    assert_eq!(close_idle(), 0);
}

#[test]
fn own_memory_needs_no_mapping() {
    let _turn = turn();
    let cuda = Cuda::start();
    near();
    let memory = Memory::new(Space::Device, &noise(4, 300));
    let before = cuda.counts()[2];
    let exported = export(driver(), memory.address + 77).unwrap();
    assert_eq!((exported.base, exported.offset), (memory.address, 77));
    assert_eq!(exported.bytes, 300);
    let remote = open(driver(), &near(), &exported).unwrap();
    assert_eq!(remote.address(), memory.address + 77);
    assert_eq!(cuda.counts()[2], before);
}

#[test]
fn a_probe_tells_whether_bytes_arrive() {
    let _turn = turn();
    Cuda::start();
    let mut owner = Owner::start(&[]);
    let message = from_hex(&owner.tell("probe"));
    Probe::try_out(driver(), &near(), &message).unwrap();
    owner.tell("spoil");
    let error = Probe::try_out(driver(), &near(), &message).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("other bytes are read than were written"),
        "{error}"
    );
    close_idle();
}

#[test]
fn a_probe_is_tried_out_once() {
    let _turn = turn();
    let cuda = Cuda::start();
    near();
    let exported = |message: &[u8; Probe::BYTES]| {
        Exported::from_bytes(message[..Exported::BYTES].try_into().unwrap()).unwrap()
    };
    let mut owner = Owner::start(&[]);
    let message = from_hex(&owner.tell("probe"));
    let asked = std::cell::Cell::new(0);
    let ask = |message: [u8; Probe::BYTES]| {
        try_out_once(driver(), &near(), &exported(&message), || {
            asked.set(asked.get() + 1);
            Ok(message)
        })
    };
    ask(message).unwrap();
    // Bytes that are not what was written would be found if it were tried again.
    owner.tell("spoil");
    ask(message).unwrap();
    assert_eq!(asked.get(), 1);
    // A bad answer is remembered as well, for that process.
    let mut other = Owner::start(&[]);
    let message = from_hex(&other.tell("probe"));
    other.tell("spoil");
    let first = ask(message).unwrap_err();
    assert_eq!(ask(message), Err(first));
    assert_eq!(asked.get(), 2);
    // What this process offers is one piece of memory, and its own is not tried out.
    let before = cuda.counts()[2];
    let own = offered(driver(), &near()).unwrap();
    assert_eq!(offered(driver(), &near()).unwrap().message(), own.message());
    assert_eq!(cuda.counts()[2], before + 1);
    ask(*own.message()).unwrap();
    assert_eq!(asked.get(), 2);
    close_idle();
}

#[test]
fn copies_by_block_and_by_plane_move_the_same_bytes() {
    let _turn = turn();
    let cuda = Cuda::start();
    let byte = Datatype::named(Named::Byte);
    let shape = |datatype: &Datatype| Shape::new(Layout::new(datatype, 1).unwrap());
    let vector = byte.vector(50, 8, 20).unwrap();
    let other = byte.vector(50, 8, 32).unwrap();
    let halves = byte.vector(100, 4, 9).unwrap();
    let cube = byte.vector(5, 8, 16).unwrap().hvector(10, 1, 200).unwrap();
    let flat = byte.contiguous(400).unwrap();
    let cases = [
        (&vector, &other, 50, Some(1)),
        (&vector, &halves, 100, None),
        (&vector, &flat, 50, Some(1)),
        (&flat, &vector, 50, Some(1)),
        (&flat, &cube, 50, Some(10)),
        (&flat, &flat, 1, Some(1)),
        (&vector, &cube, 50, None),
    ];
    for (to, from, blocks, planes) in cases {
        let (to, from) = (shape(to), shape(from));
        let (content, before) = (noise(3, from.len), noise(4, to.len));
        let source = Memory::new(Space::Device, &content);
        let target = Memory::new(Space::Device, &before);
        let expected = to.unpacked(&from.packed(&content), &before);
        let (to_at, from_at) = (to.origin(&target), from.origin(&source));
        let counted = cuda.counts()[1];
        // SAFETY: the memory was made for the layouts.
        let copied = unsafe { copy_blocks(driver(), &to.gpu, to_at, &from.gpu, from_at) };
        assert_eq!(copied, Ok(blocks));
        assert_eq!(cuda.counts()[1] - counted, blocks);
        assert!(target.read() == expected);
        target.write(&before);
        // SAFETY: as above.
        let copied = unsafe { copy_batch(driver(), &to.gpu, to_at, &from.gpu, from_at) };
        assert_eq!(copied, Ok(blocks));
        assert_eq!(cuda.counts()[1] - counted, blocks + 1, "one call");
        assert!(target.read() == expected);
        target.write(&before);
        // SAFETY: as above.
        let copied = unsafe { copy_planes(driver(), &to.gpu, to_at, &from.gpu, from_at) };
        match planes {
            Some(planes) => {
                assert_eq!(copied, Ok(planes));
                assert!(target.read() == expected);
            }
            None => assert!(matches!(copied, Err(Error::NoMethod { .. })), "{copied:?}"),
        }
    }
    // A short contiguous source is not read behind its end.
    let (to, from) = (shape(&vector), shape(&byte.contiguous(100).unwrap()));
    let source = Memory::new(Space::Device, &[1; 100]);
    let target = Memory::new(Space::Device, &vec![0; to.len]);
    // SAFETY: as above.
    unsafe {
        let copied = copy_planes(driver(), &to.gpu, target.address, &from.gpu, source.address);
        assert!(matches!(copied, Err(Error::NoMethod { .. })));
        copy_layout(driver(), &to.gpu, target.address, &from.gpu, source.address).unwrap();
    }
}
