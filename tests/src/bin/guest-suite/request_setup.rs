// SPDX-License-Identifier: MIT OR Apache-2.0

//! What tests of requests have in common: the calls, buffers, the choice of engines and the model
//! of the copy engines.

use std::fs;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::*;
use crate::check;
use crate::device::{Answer, Device};
use crate::harness::{Context, Outcome, Stop};
use crate::sys::Map;

/// Nanoseconds that only a request that hangs takes: the debug kernel, emulated on a busy host,
/// takes more than a minute to stop a channel and to start it again.
pub const HANG_NS: i64 = 900_000_000_000;

pub const PARAMETER: &str = "/sys/module/libcopy/parameters/engine";

/// Restores the parameter.
pub struct Chosen(String);

impl Drop for Chosen {
    // Gives channels back, so that other clients of dmaengine find them.
    fn drop(&mut self) {
        let _ = fs::write(PARAMETER, "off");
        let _ = Device::open().and_then(|device| device.info());
        let _ = fs::write(PARAMETER, &self.0);
    }
}

pub fn choose(engine: &str) -> Outcome<Chosen> {
    if engine == THREADS && !has_threads() {
        return Err(Stop::Skip("a module without engines".to_owned()));
    }
    let before = fs::read_to_string(PARAMETER)?.trim().to_owned();
    fs::write(PARAMETER, engine)?;
    Ok(Chosen(before))
}

/// Runs `body` as [`with_each`] does, with engines that move bytes themselves, beside CPUs that
/// help.
pub fn with_each_engine(body: impl Fn() -> Outcome) -> Outcome {
    if !has_threads() {
        return Err(Stop::Skip("a module without engines".to_owned()));
    }
    with_each(body)
}

/// Whether bytes count as an engine's: not those that a worker has copied.
pub fn engines_count() -> bool {
    has_threads()
}

/// The choice of kernel threads.
pub const THREADS: &str = "kthread";

/// Whether the module has kernel threads as engines: not if it was built with `LIBCOPY_ENGINES=n`.
fn has_threads() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let before = fs::read_to_string(PARAMETER).unwrap_or_default();
        let has = fs::write(PARAMETER, THREADS).is_ok();
        let _ = fs::write(PARAMETER, before.trim());
        has
    })
}

/// An engine that there is in every machine: a kernel thread, or a worker of the process in a
/// module without engines.
pub fn software_engine() -> &'static str {
    if has_threads() { THREADS } else { "auto" }
}

/// The model's engines where there are any.
pub fn any_engine() -> &'static str {
    if modelled() {
        "auto"
    } else {
        software_engine()
    }
}

/// Runs `body` with kernel threads, then with the machine's engines if it has any; with modelled
/// engines, which have a run of their own beside one without, only with those.
pub fn with_each(body: impl Fn() -> Outcome) -> Outcome {
    let all = [THREADS, "auto"];
    let engines = if modelled() { &all[1..] } else { &all };
    for engine in engines {
        let _chosen = match choose(engine) {
            Err(Stop::Skip(_)) => continue,
            other => other?,
        };
        if Device::open()?.info()?.engines_now()? == 0 {
            continue;
        }
        body().map_err(|stop| match stop {
            Stop::Fail(message) => Stop::Fail(format!("engine={engine}: {message}")),
            other => other,
        })?;
    }
    Ok(())
}

pub trait EnginesNow {
    fn engines_now(&self) -> Answer<u32>;
}

impl EnginesNow for Info {
    /// Engines that have a channel.
    fn engines_now(&self) -> Answer<u32> {
        let device = Device::open()?;
        let mut count = 0;
        for index in 0..self.engines {
            count += u32::from(device.engine(index)?.channels > 0);
        }
        Ok(count)
    }
}

impl Device {
    pub fn engine(&self, index: u32) -> Answer<EngineInfo> {
        let mut argument = EngineInfo {
            index,
            ..Default::default()
        };
        self.call(ENGINE_INFO, &mut argument)?;
        Ok(argument)
    }

    pub fn submit_with(&self, rest: RequestSubmit) -> Answer<RequestSubmit> {
        let mut argument = rest;
        self.call(REQUEST_SUBMIT, &mut argument)?;
        Ok(argument)
    }

    pub fn submit(&self, from: (u32, u64), to: (u32, u64), length: u64) -> Answer<u32> {
        self.submit_with(request(from, to, length))
            .map(|answer| answer.id)
    }

    pub fn await_request(&self, id: u32, flags: u32, timeout_ns: i64) -> (Answer<()>, RequestWait) {
        let mut argument = RequestWait {
            id,
            flags,
            timeout_ns,
            ..Default::default()
        };
        (self.call(REQUEST_WAIT, &mut argument), argument)
    }

    /// Waits for the end and releases.
    pub fn complete(&self, id: u32) -> Answer<()> {
        self.await_request(id, REQUEST_RELEASE, -1).0
    }

    /// Asks until the first bytes are in place, or until the request has ended.
    pub fn await_front(&self, id: u32, bytes: u64) -> Answer<()> {
        loop {
            let info = self.request_info(id)?;
            if info.front >= bytes || info.state != REQUEST_RUNNING {
                return Ok(());
            }
            std::thread::yield_now();
        }
    }

    pub fn switch(&self, id: u32, flags: u32) -> (Answer<()>, RequestSwitch) {
        let mut argument = RequestSwitch {
            id,
            flags,
            ..Default::default()
        };
        (self.call(REQUEST_SWITCH, &mut argument), argument)
    }

    pub fn request_info(&self, id: u32) -> Answer<RequestInfo> {
        let mut argument = RequestInfo {
            id,
            ..Default::default()
        };
        self.call(REQUEST_INFO, &mut argument)?;
        Ok(argument)
    }

    pub fn cancel(&self, id: u32) -> Answer<RequestCancel> {
        let mut argument = RequestCancel {
            id,
            ..Default::default()
        };
        self.call(REQUEST_CANCEL, &mut argument)?;
        Ok(argument)
    }
}

pub fn request(from: (u32, u64), to: (u32, u64), length: u64) -> RequestSubmit {
    RequestSubmit {
        source: from.0,
        source_offset: from.1,
        destination: to.0,
        destination_offset: to.1,
        length,
        ..Default::default()
    }
}

/// The status table of a file, mapped.
pub struct Table(Map);

impl Table {
    pub fn of(device: &Device) -> Outcome<Self> {
        Ok(Self(Map::new(
            STATUS_BYTES as usize,
            libc::PROT_READ,
            libc::MAP_SHARED,
            Some(device.as_fd()),
            STATUS_OFFSET,
        )?))
    }

    fn at(&self, id: u32) -> usize {
        self.0.addr() as usize + (id % MAX_REQUESTS) as usize * std::mem::size_of::<RequestStatus>()
    }

    /// The state of a request, to be read before the rest.
    pub fn state(&self, id: u32) -> u32 {
        let at = self.at(id) + std::mem::offset_of!(RequestStatus, state);
        // SAFETY: Inside the mapping, aligned, and only read.
        let word = unsafe { &*(at as *const std::sync::atomic::AtomicU32) };
        word.load(std::sync::atomic::Ordering::Acquire)
    }

    pub fn entry(&self, id: u32) -> RequestStatus {
        let at = self.at(id);
        // SAFETY: Inside the mapping, aligned; the kernel writes meanwhile, hence volatile.
        unsafe { std::ptr::read_volatile(at as *const RequestStatus) }
    }
}

/// Two buffers, published; the destination's old bytes differ everywhere.
pub struct Pair {
    pub from: Map,
    pub to: Map,
    pub source: u32,
    pub destination: u32,
}

impl Pair {
    pub fn new(device: &Device, length: usize) -> Outcome<Self> {
        let from = Map::filled(length, 5)?;
        let to = Map::anon(length)?;
        to.write(
            0,
            &from.bytes().iter().map(|byte| !byte).collect::<Vec<_>>(),
        );
        let source = device.share(&from, RIGHT_READ)?;
        let destination = device.share(&to, RIGHT_WRITE)?;
        Ok(Self {
            from,
            to,
            source,
            destination,
        })
    }

    pub fn submit(&self, device: &Device) -> Answer<u32> {
        device.submit(
            (self.source, 0),
            (self.destination, 0),
            self.from.len() as u64,
        )
    }

    pub fn check(&self) -> Outcome {
        check!(self.to.bytes() == self.from.bytes(), "bytes differ");
        Ok(())
    }
}

/// Enough to be under way for a while: tens of thousands of fragments of a page.
pub const LONG: usize = 32 << 20;

pub fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

/// Asks the model of the copy engines.
pub fn ask(words: &[&str]) -> Outcome<String> {
    let answer = std::process::Command::new("ioat-model")
        .arg("ask")
        .args(words)
        .output()?;
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    check!(answer.status.success(), "ask {words:?}: {answer:?}");
    Ok(text)
}

pub fn modelled() -> bool {
    std::env::var_os("LIBCOPY_IOAT").is_some_and(|value| !value.is_empty())
}

/// A parameter of the module, restored in the end.
pub struct Parameter(&'static str, String);

impl Parameter {
    pub fn set(name: &'static str, value: u32) -> Outcome<Self> {
        let path = format!("/sys/module/libcopy/parameters/{name}");
        let before = fs::read_to_string(&path)?.trim().to_owned();
        fs::write(&path, value.to_string())?;
        Ok(Self(name, before))
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        let _ = fs::write(
            format!("/sys/module/libcopy/parameters/{}", self.0),
            &self.1,
        );
    }
}

/// Waits until every channel that was acquired works.
pub fn all_in_service(context: &Context, device: &Device) -> Outcome {
    let start = Instant::now();
    loop {
        let mut out = 0;
        for index in 0..device.info()?.engines {
            out += device.engine(index)?.out_of_service;
        }
        if out == 0 {
            return Ok(());
        }
        check!(
            start.elapsed() < context.second() * 20,
            "{out} channels are still out of service"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where the driver's functions are bound and unbound.
pub const IOATDMA: &str = "/sys/bus/pci/drivers/ioatdma";
