// SPDX-License-Identifier: MIT OR Apache-2.0

//! What experiments need: a GPU, its copy rate, buffers with known bytes, the clock.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libcopy::datatype::{Datatype, Layout};
use libcopy_gpu::{Buffer, Device, Driver, GpuLayout, Pointer, PrimaryContext, copy};
use libcopy_measure::sample::Spread;

use libcopy_measure::gpu_owner::content;

use super::cell::Cell;
use super::program::Program;

/// A GPU, and how much is measured.
pub struct Setup {
    pub driver: &'static Driver,
    pub device: Device,
    _context: PrimaryContext,
    pub near: Pointer,
    /// Bytes per microsecond that a copy within the GPU reads and writes, both counted.
    pub rate: f64,
    /// Bytes per microsecond of a copy from the GPU to pinned host memory.
    pub host_rate: f64,
    /// Small sizes: for tests, and for the stand-in.
    pub is_small: bool,
    /// When all has to be done.
    pub end: Instant,
    /// The rest of the time that one cell may take.
    pub share: Duration,
    /// What sends messages, if there is an MPI library.
    pub program: Option<Program>,
}

impl Setup {
    pub fn new(ordinal: usize, is_small: bool, seconds: f64) -> Result<Setup> {
        let driver = Driver::load()?;
        let mut devices = Device::all(driver)?;
        let count = devices.len();
        anyhow::ensure!(
            ordinal < count,
            "there is no GPU {ordinal}: this process sees {count} (see CUDA_VISIBLE_DEVICES)"
        );
        let device = devices.swap_remove(ordinal);
        let context = device.primary_context(driver)?;
        let near = context.near();
        let mut setup = Setup {
            driver,
            is_small: is_small || device.is_stand_in(),
            device,
            _context: context,
            near,
            rate: 1.0,
            host_rate: 1.0,
            end: Instant::now() + Duration::from_secs_f64(seconds),
            share: Duration::from_millis(500),
            program: None,
        };
        let bytes = setup.sized(256 << 20, 1 << 18);
        let from = Buffer::device(driver, &near, bytes)?;
        let to = Buffer::device(driver, &near, bytes)?;
        let host = Buffer::pinned(driver, &near, bytes)?;
        let run = |to: u64| {
            // SAFETY: all three have as many bytes.
            unsafe { copy(driver, to, from.address(), bytes) }?;
            Ok(())
        };
        let within = setup.time(|| run(to.address()))?;
        let out = setup.time(|| run(host.address()))?;
        setup.rate = 2.0 * bytes as f64 / within.median;
        setup.host_rate = bytes as f64 / out.median;
        Ok(setup)
    }

    /// One of two sizes.
    pub fn sized<T>(&self, full: T, small: T) -> T {
        if self.is_small { small } else { full }
    }

    /// Runs something until its share of the time is over: once before, then three to a hundred
    /// times, or once if that took long.
    pub fn time(&self, mut run: impl FnMut() -> Result<()>) -> Result<Spread> {
        let begin = Instant::now();
        run()?;
        let first = begin.elapsed();
        let mut times = Vec::new();
        if first > 4 * self.share {
            times.push(first.as_nanos() as f64 / 1000.0);
        }
        while times.is_empty()
            || (first <= 4 * self.share
                && times.len() < 100
                && (times.len() < 3 || begin.elapsed() < self.share))
        {
            let one = Instant::now();
            run()?;
            times.push(one.elapsed().as_nanos() as f64 / 1000.0);
        }
        Spread::of(&times).context("no timing")
    }

    /// Microseconds for bytes that are read and written together.
    pub fn bound(&self, bytes: u64) -> f64 {
        bytes as f64 / self.rate
    }
}

/// A layout with its buffer on the GPU and the same bytes on the host.
pub struct Typed {
    pub gpu: GpuLayout,
    pub host: Vec<u8>,
    pub buffer: Buffer,
}

impl Typed {
    pub fn new(setup: &Setup, datatype: &Datatype, count: u64) -> Result<Typed> {
        let layout = Layout::new(datatype, count)?;
        anyhow::ensure!(layout.bounds().start >= 0, "a layout before its origin");
        let host = content(layout.bounds().end as usize);
        let typed = Typed {
            gpu: GpuLayout::new(layout)?,
            buffer: Buffer::device(setup.driver, &setup.near, host.len())?,
            host,
        };
        put(setup, &typed.buffer, &typed.host)?;
        Ok(typed)
    }

    pub fn size(&self) -> u64 {
        self.gpu.layout().size()
    }

    /// Mean bytes of a block.
    pub fn block(&self) -> u64 {
        (self.size() / self.gpu.layout().segment_count().max(1)).max(1)
    }

    pub fn packed(&self) -> Result<Vec<u8>> {
        let mut packed = vec![0; self.size() as usize];
        self.gpu.layout().pack(&self.host, 0, &mut packed)?;
        Ok(packed)
    }

    /// The buffer's bytes after `packed` was unpacked over zeros.
    pub fn unpacked(&self, packed: &[u8]) -> Result<Vec<u8>> {
        let mut host = vec![0; self.host.len()];
        self.gpu.layout().unpack_range(packed, 0, &mut host, 0)?;
        Ok(host)
    }

    /// Bytes of the 32-byte sectors that its data lies in.
    pub fn touched(&self) -> u64 {
        let (mut sectors, mut last) = (0, -1);
        for segment in self.gpu.layout().segments() {
            let first = (segment.offset / 32).max(last + 1);
            let end = (segment.offset + segment.len as i64 - 1) / 32;
            sectors += (end - first + 1).max(0);
            last = last.max(end);
        }
        32 * sectors as u64
    }
}

/// Copies host bytes to a buffer.
pub fn put(setup: &Setup, buffer: &Buffer, bytes: &[u8]) -> Result<()> {
    let from = bytes.as_ptr() as u64;
    // SAFETY: the buffer has as many bytes.
    unsafe { copy(setup.driver, buffer.address(), from, bytes.len()) }?;
    Ok(())
}

/// The bytes of a buffer.
pub fn get(setup: &Setup, address: u64, bytes: usize) -> Result<Vec<u8>> {
    let mut found = vec![0_u8; bytes];
    // SAFETY: the caller's buffer has as many bytes.
    unsafe { copy(setup.driver, found.as_mut_ptr() as u64, address, bytes) }?;
    Ok(found)
}

/// Where cells go while experiments run.
pub struct Sheet<'a> {
    pub cells: Vec<Cell>,
    pub notes: Vec<String>,
    pub say: &'a dyn Fn(&str),
}

impl Sheet<'_> {
    /// A note that stands in the report once, however often it is given.
    pub fn note_once(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// A layout that was packed or unpacked by a method within the GPU's memory: its bound is that
    /// of the packed bytes and of the touched sectors.
    pub fn add_packing(
        &mut self,
        setup: &Setup,
        (experiment, case, method): (&'static str, &str, &str),
        typed: &Typed,
        (time, verified): (Spread, bool),
    ) {
        self.cells.push(Cell {
            experiment,
            case: case.to_owned(),
            bytes: typed.size(),
            block: typed.block(),
            method: method.to_owned(),
            time,
            bound_us: setup.bound(typed.size() + typed.touched()),
            verified,
        });
    }
}
