// SPDX-License-Identifier: MIT OR Apache-2.0

//! The program `ioat-model` as QEMU meets it: over vfio-user, with shared memory and event
//! descriptors, and as a test meets it, over the control socket and the mailbox.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ioat_model::client::{self, Client};
use ioat_model::descriptor::{Descriptor, Operation};
use ioat_model::mailbox::{self, command, offset, state};
use ioat_model::pci;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE,
    VFIO_PCI_BAR0_REGION_INDEX as BAR, VFIO_PCI_CONFIG_REGION_INDEX as CONFIG,
    VFIO_PCI_MSIX_IRQ_INDEX as MSIX,
};

const MEMORY: u64 = 4 << 20;
const BASE: u64 = 0x8000_0000;
const RING: u64 = BASE + 0x1000;
const COMPLETION: u64 = BASE + 0x40;
const SOURCE: u64 = BASE + (1 << 20);
const DESTINATION: u64 = BASE + (2 << 20);

struct Model {
    child: Child,
    directory: tempfile::TempDir,
}

impl Model {
    fn start(engines: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut child = Command::new(env!("CARGO_BIN_EXE_ioat-model"))
            .args(["serve", "--engines", engines, "--directory"])
            .arg(directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Self { child, directory }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn control(&self) -> Client {
        Client::connect(&self.path("control")).expect("the socket is there")
    }

    /// Waits for the end of the program.
    fn ended(&mut self, patience: Duration) -> Option<std::process::ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            let status = self.child.try_wait().expect("our child");
            if status.is_some() || Instant::now() > deadline {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A monitor with one device, driven as the driver would.
struct Monitor {
    device: vfio_user::Client,
    memory: File,
    event: File,
}

impl Monitor {
    fn new(socket: &Path) -> Self {
        // SAFETY: the name is a valid string and the flags are the call's own.
        let fd = unsafe { libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC) };
        let memory = owned(fd);
        memory.set_len(MEMORY).expect("a memfd takes any length");
        // SAFETY: the call takes two numbers.
        let event = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) });
        let mut device = vfio_user::Client::new(socket).expect("a monitor connects");
        device
            .dma_map(0, BASE, MEMORY, memory.as_raw_fd())
            .expect("mapped");
        // As QEMU does: first nobody listens, then an event descriptor does.
        let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
        device.set_irqs(MSIX, flags, 0, 1, &[]).expect("set");
        device
            .set_irqs(MSIX, flags, 0, 1, &[event.as_raw_fd()])
            .expect("set");
        Self {
            device,
            memory,
            event,
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.device
            .region_write(BAR, offset, data)
            .expect("written");
    }

    fn read<const N: usize>(&mut self, region: u32, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        self.device
            .region_read(region, offset, &mut data)
            .expect("read");
        data
    }

    /// Starts the channel with a ring of one descriptor, pointing to itself.
    fn start(&mut self, size: u64) {
        let descriptor = Descriptor {
            operation: Operation::Copy {
                source: SOURCE,
                destination: DESTINATION,
                size,
            },
            interrupt: true,
            completion: true,
            next: RING,
        };
        self.memory
            .write_all_at(&descriptor.encode(), RING - BASE)
            .expect("in range");
        self.write(0x03, &[0x09]);
        self.write(0x80, &[0x1d, 0]);
        self.write(0x98, &COMPLETION.to_le_bytes());
        self.write(0x90, &RING.to_le_bytes());
    }

    fn interrupted(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if self.event.read(&mut [0; 8]).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

fn owned(fd: RawFd) -> File {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and nobody else owns it.
    unsafe { File::from_raw_fd(fd) }
}

const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn a_monitor_has_something_copied() {
    let mut model = Model::start("1x2");
    let mut monitor = Monitor::new(&model.path("0.1"));
    assert_eq!(monitor.read(CONFIG, 0), [0x86, 0x80, 0x21, 0x2f]);
    assert_eq!(monitor.read(BAR, 0x08), [0x32]);
    let data: Vec<u8> = (0..100_000u32).map(|at| (at * 7) as u8).collect();
    monitor
        .memory
        .write_all_at(&data, SOURCE - BASE)
        .expect("in range");
    monitor.start(data.len() as u64);
    monitor.write(0x86, &[1, 0]);
    assert!(monitor.interrupted(PATIENCE));
    let mut seen = vec![0; data.len()];
    monitor
        .memory
        .read_exact_at(&mut seen, DESTINATION - BASE)
        .expect("in range");
    assert_eq!(seen, data);
    let mut completion = [0; 8];
    monitor
        .memory
        .read_exact_at(&mut completion, COMPLETION - BASE)
        .expect("in range");
    assert_eq!(u64::from_le_bytes(completion), RING | 1);
    assert_eq!(u64::from_le_bytes(monitor.read(BAR, 0x88)), RING | 1);
    let stats = model.control().ask("stats 0.1").expect("answered");
    assert_eq!(stats[0]["bytes"], 100_000);
    assert_eq!(stats[0]["interrupts"], 1);
    assert_eq!(
        model.control().ask("totals 0.0").expect("answered")["bytes"],
        0
    );

    // It ends with its machine: when every function that it offers has lost its monitor.
    let other = Monitor::new(&model.path("0.0"));
    monitor.device.shutdown().expect("open");
    assert!(model.ended(Duration::from_millis(100)).is_none());
    other.device.shutdown().expect("open");
    assert!(model.ended(PATIENCE).expect("the program ends").success());
    let left = std::fs::read_dir(model.directory.path())
        .expect("there")
        .count();
    assert_eq!(left, 0, "no socket is left");
}

#[test]
fn an_error_is_reported_in_both_places_and_cleared_in_either() {
    let model = Model::start("1x1");
    let mut monitor = Monitor::new(&model.path("0.0"));
    model.control().ask("fault 0.0 read-error").expect("armed");
    monitor.start(64);
    monitor.write(0x86, &[1, 0]);
    assert!(monitor.interrupted(PATIENCE));
    assert_eq!(monitor.read(BAR, 0xa8), [0, 1, 0, 0]);
    assert_eq!(monitor.read(CONFIG, 0x180), [0, 1, 0, 0]);
    monitor
        .device
        .region_write(CONFIG, 0x180, &[0, 1, 0, 0])
        .expect("written");
    assert_eq!(monitor.read(BAR, 0xa8), [0; 4]);
}

#[test]
fn a_vector_that_is_taken_away_hears_nothing() {
    let model = Model::start("1x1");
    let mut monitor = Monitor::new(&model.path("0.0"));
    let flags = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
    monitor
        .device
        .set_irqs(MSIX, flags, 0, 0, &[])
        .expect("set");
    monitor.start(64);
    monitor.write(0x86, &[1, 0]);
    assert!(!monitor.interrupted(Duration::from_millis(200)));
    let stats = model.control().ask("stats").expect("answered");
    assert_eq!(
        (&stats[0]["copies"], &stats[0]["interrupts"]),
        (&1.into(), &0.into())
    );
}

#[test]
fn a_function_reset_and_an_unmap_are_obeyed() {
    let model = Model::start("1x1,bw=1M");
    let mut monitor = Monitor::new(&model.path("0.0"));
    monitor.start(1 << 20);
    monitor.write(0x86, &[5, 0]);
    monitor.device.reset().expect("reset");
    let deadline = Instant::now() + PATIENCE;
    while monitor.read(BAR, 0x84) != [0] {
        assert!(Instant::now() < deadline, "the reset lasts");
    }
    assert_eq!(monitor.read::<1>(BAR, 0x88)[0] & 7, 3);
    monitor.device.dma_unmap(BASE, MEMORY).expect("unmapped");
    monitor.start(64);
    monitor.write(0x86, &[1, 0]);
    let deadline = Instant::now() + PATIENCE;
    while monitor.read::<1>(BAR, 0x88)[0] & 7 != 3 {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(
        monitor.read::<1>(BAR, 0xa8)[0] & 4,
        4,
        "the descriptor is nowhere"
    );
}

#[test]
fn the_mailbox_speaks_as_the_socket_does() {
    let model = Model::start("2x2,bw=5M");
    let mut monitor = Monitor::new(&model.path("1.0"));
    let at = |register: u64| pci::MAILBOX as u64 + register;
    assert_eq!(
        monitor.read(CONFIG, at(offset::SIGNATURE)),
        mailbox::SIGNATURE
    );
    assert_eq!(monitor.read(CONFIG, at(offset::IDENTITY)), [1, 0, 2, 2]);
    let mut ask = |request: &str| -> (u32, String) {
        let mut put = |register, value: u32| {
            let data = value.to_le_bytes();
            monitor
                .device
                .region_write(CONFIG, at(register), &data)
                .expect("written");
        };
        put(offset::COMMAND, command::BEGIN);
        for word in request.as_bytes().chunks(4) {
            let mut bytes = [0; 4];
            bytes[..word.len()].copy_from_slice(word);
            put(offset::DATA, u32::from_le_bytes(bytes));
        }
        put(offset::LENGTH, request.len() as u32);
        put(offset::COMMAND, command::EXECUTE);
        let mut get = |register| u32::from_le_bytes(monitor.read(CONFIG, at(register)));
        let length = get(offset::LENGTH) as usize;
        let mut answer = Vec::new();
        while answer.len() < length {
            answer.extend(get(offset::DATA).to_le_bytes());
        }
        answer.truncate(length);
        (
            get(offset::COMMAND),
            String::from_utf8(answer).expect("text"),
        )
    };
    assert_eq!(
        ask("fault * corrupt after=2"),
        (state::DONE, "4".to_owned())
    );
    let (done, stats) = ask("stats");
    assert_eq!(done, state::DONE);
    assert_eq!(
        stats,
        model.control().ask("stats").expect("answered").to_string()
    );
    let (refused, reason) = ask("fault 3.3 corrupt");
    assert_eq!(refused, state::REFUSED);
    assert!(reason.contains("3.3"), "{reason}");
}

#[test]
fn wrong_use_is_answered() {
    let model = Model::start("1x1");
    let error = model
        .control()
        .ask("nonsense")
        .expect_err("refused")
        .to_string();
    assert!(error.contains("'nonsense'"), "{error}");
    let again = Command::new(env!("CARGO_BIN_EXE_ioat-model"))
        .args(["serve", "--engines", "1x1", "--directory"])
        .arg(model.directory.path())
        .output()
        .expect("the program starts");
    assert!(!again.status.success());
    let message = String::from_utf8_lossy(&again.stderr);
    assert!(message.contains("0.0"), "{message}");
    let ask = Command::new(env!("CARGO_BIN_EXE_ioat-model"))
        .args(["ask", "--socket"])
        .arg(model.path("control"))
        .args(["bandwidth", "0.*", "7M"])
        .output()
        .expect("the program starts");
    assert_eq!(String::from_utf8_lossy(&ask.stdout), "null\n");
    let topology = model.control().ask("topology").expect("answered");
    assert_eq!(topology["bandwidth"][0], 7_000_000);
    assert!(
        client::functions().is_ok_and(|found| found.is_empty()),
        "this is no guest"
    );
}
