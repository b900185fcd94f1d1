// SPDX-License-Identifier: MIT OR Apache-2.0

//! Measures the tables of the model on a GPU, keeps them in the cache directory, finds them again.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libcopy_datatype::{Datatype, Layout, Named};

use crate::buffer::{Buffer, copy};
use crate::context::{Context, lock};
use crate::device::{Device, Uuid};
use crate::driver::Driver;
use crate::engine::copy_planes;
use crate::error::Result;
use crate::gpu::{GpuLayout, copy_layout, pack, unpack};
use crate::memory::Pointer;
use crate::model::{
    CURVE_BYTES, Curve, GRID_BLOCKS, GRID_BYTES, GRID_STRIDE, Grid, Origin, Profile,
};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Time for all, about.
    pub budget: Duration,
    /// Largest cell that is measured; times of larger ones follow from it.
    pub most_bytes: u64,
    /// Bytes that a layout may span, at least `most_bytes`. Blocks that do not fit lie between the
    /// others.
    pub most_span: u64,
}

impl Effort {
    /// For a GPU, or, since it is slow, less for the stand-in.
    pub fn for_device(device: &Device) -> Effort {
        if device.is_stand_in() {
            Effort {
                budget: Duration::from_secs(4),
                most_bytes: 4 << 10,
                most_span: 1 << 20,
            }
        } else {
            Effort {
                budget: Duration::from_millis(4500),
                most_bytes: 8 << 20,
                most_span: 256 << 20,
            }
        }
    }
}

/// Runs of a cell, at least and at most.
const RUNS: std::ops::RangeInclusive<usize> = 3..=25;

/// `bytes` bytes in blocks of `block` bytes, [`GRID_STRIDE`] bytes from one to the next (TEMPI).
///
/// # Errors
///
/// None for powers of two up to the tables' ends.
pub fn grid_layout(bytes: u64, block: u64, most_span: u64) -> Result<GpuLayout> {
    let blocks = (bytes / block).max(1);
    let block = block.min(bytes);
    // Not less than all bytes have place in.
    let rows = blocks.min((most_span.max(bytes) / GRID_STRIDE).max(1));
    let byte = Datatype::named(Named::Byte);
    let plane = byte.vector(rows, block, GRID_STRIDE as i64);
    let all = plane.and_then(|plane| plane.hvector(blocks / rows, 1, block as i64));
    let layout = all.and_then(|all| Layout::new(&all, 1));
    GpuLayout::new(layout.expect("powers of two, which fit"))
}

/// What is being measured: memory, and the time that is left.
struct Bench<'a> {
    driver: &'static Driver,
    effort: Effort,
    end: Instant,
    cells_left: usize,
    progress: &'a mut dyn FnMut(f64, &str),
    cells: usize,
    /// Two buffers for layouts, one for packed bytes, one pinned.
    user: [Buffer; 2],
    packed: Buffer,
    pinned: Buffer,
}

impl Bench<'_> {
    /// The median of some runs in microseconds; none if there is no time left.
    fn time(
        &mut self,
        what: &str,
        mut run: impl FnMut(&Self) -> Result<()>,
    ) -> Result<Option<f64>> {
        let now = Instant::now();
        let left = self.end.saturating_duration_since(now);
        (self.progress)(1.0 - self.cells_left as f64 / self.cells as f64, what);
        let share = left / self.cells_left.max(1) as u32;
        self.cells_left = self.cells_left.saturating_sub(1);
        if left.is_zero() {
            return Ok(None);
        }
        run(self)?;
        let mut times = Vec::new();
        while times.len() < *RUNS.end() && (times.len() < *RUNS.start() || now.elapsed() < share) {
            let begin = Instant::now();
            run(self)?;
            times.push(begin.elapsed().as_nanos() as f64 / 1000.0);
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(Some(times[times.len() / 2].max(0.001)))
    }

    fn grid(
        &mut self,
        what: &str,
        mut run: impl FnMut(&Self, &GpuLayout, u64) -> Result<()>,
    ) -> Result<Grid> {
        let mut grid = Grid([[0.0; GRID_BLOCKS]; GRID_BYTES]);
        for row in 0..GRID_BYTES {
            for column in 0..GRID_BLOCKS {
                let bytes = Grid::bytes(row);
                let mut time = None;
                if bytes <= self.effort.most_bytes {
                    let layout = grid_layout(bytes, 1 << column, self.effort.most_span)?;
                    time = self.time(what, |bench| run(bench, &layout, bytes))?;
                } else {
                    self.cells_left = self.cells_left.saturating_sub(1);
                }
                // Four times the bytes of the row above.
                grid.0[row][column] = match time {
                    Some(time) => time,
                    None if row > 0 => 4.0 * grid.0[row - 1][column],
                    None => f64::from(1 << column),
                };
            }
        }
        Ok(grid)
    }

    fn curve(
        &mut self,
        what: &str,
        mut run: impl FnMut(&Self, usize) -> Result<()>,
    ) -> Result<Curve> {
        let mut curve = Curve([0.0; CURVE_BYTES]);
        for point in 0..CURVE_BYTES {
            let bytes = Curve::bytes(point);
            let mut time = None;
            if bytes <= self.effort.most_bytes {
                time = self.time(what, |bench| run(bench, bytes as usize))?;
            } else {
                self.cells_left = self.cells_left.saturating_sub(1);
            }
            curve.0[point] = match time {
                Some(time) => time,
                None if point > 0 => 2.0 * curve.0[point - 1],
                None => 1.0,
            };
        }
        Ok(curve)
    }
}

/// Measures a GPU. `progress` is told the share that is done, from 0 to 1, and what comes.
///
/// Messages are not sent: `cpu_cpu` is a copy between host memory, `gpu_gpu` one within the GPU,
/// which MPI libraries do not undercut.
///
/// # Errors
///
/// Too little memory, a driver that fails.
pub fn measure(
    driver: &'static Driver,
    device: &Device,
    effort: Effort,
    progress: &mut dyn FnMut(f64, &str),
) -> Result<Profile> {
    let context = device.primary_context(driver)?;
    let near = context.near();
    let most = effort.most_bytes.min(8 << 20) as usize;
    let span = (effort.most_span.max(effort.most_bytes) + GRID_STRIDE) as usize;
    let cells = 6 * GRID_BYTES * GRID_BLOCKS + 4 * CURVE_BYTES;
    let mut bench = Bench {
        driver,
        effort,
        end: Instant::now() + effort.budget,
        cells_left: cells,
        cells,
        progress,
        user: [
            Buffer::device(driver, &near, span)?,
            Buffer::device(driver, &near, span)?,
        ],
        packed: Buffer::device(driver, &near, most)?,
        pinned: Buffer::pinned(driver, &near, 2 * most)?,
    };
    let mut profile = Profile::assumed(&device.uuid.to_string(), driver.version()?);
    profile.origin = Origin::Measured;
    let host = vec![0_u8; 2 * most];
    let host = host.as_ptr() as u64;

    // The short ones first: should time run out, the tables' ends are extrapolated.
    let contiguous = |to: u64, from: u64| {
        // SAFETY: both have `most` bytes.
        move |bench: &Bench<'_>, bytes: usize| unsafe { copy(bench.driver, to, from, bytes) }
    };
    let (packed, pinned) = (bench.packed.address(), bench.pinned.address());
    profile.d2h = bench.curve("from GPU to host", contiguous(pinned, packed))?;
    profile.h2d = bench.curve("from host to GPU", contiguous(packed, pinned))?;
    profile.gpu_gpu = bench.curve(
        "within the GPU",
        contiguous(bench.user[0].address(), packed),
    )?;
    profile.cpu_cpu = bench.curve("within the host", |_, bytes| {
        // SAFETY: both have `most` bytes; they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(host as *const u8, pinned as *mut u8, bytes) };
        Ok(())
    })?;
    // The buffers hold the layouts' span and `most` packed bytes.
    let packs = |to: u64| {
        move |b: &Bench<'_>, layout: &GpuLayout, bytes: u64| {
            // SAFETY: as said above.
            unsafe { pack(b.driver, layout, b.user[0].address(), 0..bytes, to) }
        }
    };
    let unpacks = |from: u64| {
        move |b: &Bench<'_>, layout: &GpuLayout, bytes: u64| {
            // SAFETY: as said above.
            unsafe { unpack(b.driver, layout, b.user[0].address(), 0..bytes, from) }
        }
    };
    profile.pack_device = bench.grid("pack", packs(packed))?;
    profile.unpack_device = bench.grid("unpack", unpacks(packed))?;
    profile.pack_host = bench.grid("pack to the host", packs(pinned))?;
    profile.unpack_host = bench.grid("unpack from the host", unpacks(pinned))?;
    profile.peer = bench.grid("layout to layout", |b, layout, _| {
        let [to, from] = [b.user[1].address(), b.user[0].address()];
        // SAFETY: as said above.
        unsafe { copy_layout(b.driver, layout, to, layout, from) }
    })?;
    profile.engine = bench.grid("copy engine", |b, layout, _| {
        let [to, from] = [b.user[1].address(), b.user[0].address()];
        // SAFETY: as said above.
        unsafe { copy_planes(b.driver, layout, to, layout, from) }.map(|_| ())
    })?;
    (bench.progress)(1.0, "done");
    Ok(profile)
}

/// Where the profile of a GPU and driver is kept: `libcopy/GPU-UUID-DRIVER` below `$XDG_CACHE_HOME`
/// or `~/.cache`; `None` if neither is known.
pub fn profile_path(gpu: &str, driver: i32) -> Option<PathBuf> {
    let absolute = |name: &str| {
        let value = PathBuf::from(std::env::var_os(name)?);
        value.is_absolute().then_some(value)
    };
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("libcopy").join(format!("{gpu}-{driver}")))
}

impl Profile {
    /// Writes the file of this profile; says where it is. Programs that start from now on use it.
    ///
    /// # Errors
    ///
    /// Why it cannot be written.
    pub fn save(&self) -> io::Result<PathBuf> {
        let path = profile_path(&self.gpu, self.driver).ok_or_else(|| {
            io::Error::other("no place for the GPU's profile: set HOME or XDG_CACHE_HOME")
        })?;
        let directory = path.parent().expect("a directory and a name");
        fs::create_dir_all(directory)?;
        // Nobody reads half of one.
        let unfinished = directory.join(format!(".gpu-profile.{}", std::process::id()));
        fs::write(&unfinished, self.to_text())?;
        fs::rename(&unfinished, &path)?;
        Ok(path)
    }

    /// The profile of a GPU: the one that was measured, or, without one or if it is damaged, the
    /// built-in one. Read once per process and GPU.
    ///
    /// # Errors
    ///
    /// A driver that fails.
    pub fn of(driver: &Driver, device: &Device) -> Result<Arc<Profile>> {
        static KNOWN: Mutex<Vec<(Uuid, Arc<Profile>)>> = Mutex::new(Vec::new());
        let mut known = lock(&KNOWN);
        if let Some((_, profile)) = known.iter().find(|(gpu, _)| *gpu == device.uuid) {
            return Ok(profile.clone());
        }
        let (gpu, version) = (device.uuid.to_string(), driver.version()?);
        let profile = Arc::new(
            Profile::saved(&gpu, version).unwrap_or_else(|| Profile::assumed(&gpu, version)),
        );
        known.push((device.uuid, profile.clone()));
        Ok(profile)
    }

    /// The profile of the GPU that memory is on; see [`Profile::of`].
    ///
    /// # Errors
    ///
    /// Memory without a context, a driver that fails.
    pub fn near(driver: &Driver, memory: &Pointer) -> Result<Arc<Profile>> {
        let (_current, context) = Context::at(driver, memory)?;
        Profile::of(driver, context.device())
    }

    /// The profile that was measured for a GPU and driver, if there is one and it is whole.
    pub fn saved(gpu: &str, driver: i32) -> Option<Profile> {
        let text = fs::read_to_string(profile_path(gpu, driver)?).ok()?;
        let profile = Profile::from_text(&text).ok()?;
        (profile.gpu == gpu && profile.driver == driver).then_some(profile)
    }
}
