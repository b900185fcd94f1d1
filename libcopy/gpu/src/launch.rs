// SPDX-License-Identifier: MIT OR Apache-2.0

//! From plans and addresses to launches of kernels.

use std::ops::Range;

use crate::job::{BatchTable, Dim, Divisor, FLAT, Job, NEST, PIECES, Side, WIDE_PIECES};
use crate::plan::{Grain, Inner, Part, Plan, Step, WIDEST};

/// Threads of a block of most kernels.
pub(crate) const THREADS: u32 = 256;

/// Blocks of a grid, at most (CUDA C++ Programming Guide, "Technical Specifications per Compute
/// Capability").
pub(crate) const MOST_GRID_BLOCKS: u64 = (1 << 31) - 1;

/// Mean bytes of a run from which copy units do better than threads.
const BULK_RUN: u64 = 1024;

/// Words of 16 bytes that a block of `copy_bulk` is given at a time.
const BULK_CHUNK: u32 = 4096;

/// Bytes of shared memory of a block of `copy_bulk`: 8 stages of 16 KiB.
const BULK_SHARED: u32 = 8 * 16384;

/// Words that a thread moves before it looks for more.
const WORDS_PER_THREAD: u64 = 4;

/// Blocks of a launch, at most; threads go on behind those of the others.
const MOST_BLOCKS: u64 = 1 << 20;

/// Runs from this mean length on, in bytes, are copied by groups of lanes where words of 4 bytes do
/// not fit.
const LONG_RUN: u64 = 32;

/// Bytes that each lane of a group is given at a time.
const BYTES_PER_LANE: u64 = 128;

/// A kernel of `kernels/pack.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Pack a nest, a thread per word; the bytes of a word.
    PackStrided(u32),
    /// Unpack into a nest, a thread per word.
    UnpackStrided(u32),
    /// From nest to nest, a thread per word.
    Direct(u32),
    /// Any two sides, a thread per word.
    CopyWords(u32),
    /// Any two sides, a group of lanes per run.
    CopyRuns,
    /// Any two sides, long runs that are multiples of 16 bytes, by copy units; GPUs of compute
    /// capability 9.0 and newer.
    CopyBulk,
    /// Many jobs; its parameter is a [`BatchTable`].
    Batch,
    /// Baseline: pack a nest by TEMPI's mapping, by words; the bytes of a word; see
    /// [`Mapping`](crate::Mapping).
    TempiPack(u32),
    /// Baseline: unpack into a nest by TEMPI's mapping.
    TempiUnpack(u32),
    /// Baseline: pack a nest by yaksa's mapping, by elements; the bytes of an element.
    YaksaPack(u32),
    /// Baseline: unpack into a nest by yaksa's mapping.
    YaksaUnpack(u32),
    /// Baseline: a product of matrices, which packing gets in the way of.
    Gemm,
    /// Baseline: a stencil of nine points, a program's own work between exchanges of halos. Its
    /// parameter is a field (`Stencil` of `pack.cu`).
    Stencil,
}

impl Kernel {
    /// All that libcopy packs and copies with.
    pub fn all() -> impl Iterator<Item = Kernel> {
        let widths = [1, 2, 4, 8, 16].into_iter();
        widths
            .flat_map(|width| {
                [
                    Kernel::PackStrided(width),
                    Kernel::UnpackStrided(width),
                    Kernel::Direct(width),
                    Kernel::CopyWords(width),
                ]
            })
            .chain([Kernel::CopyRuns, Kernel::CopyBulk, Kernel::Batch])
    }

    /// Those that benchmarks compare with.
    pub fn baselines() -> impl Iterator<Item = Kernel> {
        let widths = [1, 2, 4, 8, 16].into_iter();
        widths
            .flat_map(|width| {
                [
                    Kernel::TempiPack(width),
                    Kernel::TempiUnpack(width),
                    Kernel::YaksaPack(width),
                    Kernel::YaksaUnpack(width),
                ]
            })
            .chain([Kernel::Gemm, Kernel::Stencil])
    }

    /// Threads of a block.
    pub fn threads(self) -> u32 {
        // One thread issues bulk copies.
        if self == Kernel::CopyBulk {
            32
        } else {
            THREADS
        }
    }

    /// Bytes of dynamic shared memory of a block.
    pub fn shared_bytes(self) -> u32 {
        if self == Kernel::CopyBulk {
            BULK_SHARED
        } else {
            0
        }
    }
}

impl std::fmt::Display for Kernel {
    /// The name of the function.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kernel::PackStrided(width) => write!(f, "pack_strided_{width}"),
            Kernel::UnpackStrided(width) => write!(f, "unpack_strided_{width}"),
            Kernel::Direct(width) => write!(f, "direct_{width}"),
            Kernel::CopyWords(width) => write!(f, "copy_words_{width}"),
            Kernel::CopyRuns => f.write_str("copy_runs"),
            Kernel::CopyBulk => f.write_str("copy_bulk"),
            Kernel::Batch => f.write_str("batch"),
            Kernel::TempiPack(width) => write!(f, "tempi_pack_{width}"),
            Kernel::TempiUnpack(width) => write!(f, "tempi_unpack_{width}"),
            Kernel::YaksaPack(width) => write!(f, "yaksa_pack_{width}"),
            Kernel::YaksaUnpack(width) => write!(f, "yaksa_unpack_{width}"),
            Kernel::Gemm => f.write_str("gemm"),
            Kernel::Stencil => f.write_str("stencil"),
        }
    }
}

/// One launch of a kernel other than [`Kernel::Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// What is launched.
    pub kernel: Kernel,
    /// Blocks of the grid.
    pub blocks: u32,
    /// Its parameter.
    pub job: Job,
    /// Mean bytes of a run.
    pub mean: u64,
}

impl Launch {
    /// The launch by [`Kernel::CopyBulk`] on at most `blocks` blocks, each of which fills a
    /// multiprocessor's shared memory; `None` unless all runs are multiples of 16 bytes and have a
    /// mean of at least 1 KiB.
    pub fn as_bulk(&self, blocks: u32) -> Option<Launch> {
        let is_whole = self.job.width == WIDEST && self.job.lead == 0 && self.job.trail == 0;
        if !is_whole || self.mean < BULK_RUN {
            return None;
        }
        let chunks = self.job.units.div_ceil(u64::from(BULK_CHUNK));
        Some(Launch {
            kernel: Kernel::CopyBulk,
            blocks: chunks.min(u64::from(blocks.max(1))) as u32,
            job: Job {
                chunk: BULK_CHUNK,
                ..self.job
            },
            mean: self.mean,
        })
    }
}

/// Many jobs that one launch of [`Kernel::Batch`] does, in any order.
#[derive(Clone, Debug)]
pub struct Batch {
    table: Vec<u8>,
    count: u64,
    blocks: u32,
}

impl Batch {
    /// What does the same as these launches, none of which may write what another reads or writes;
    /// `None` of no launches.
    ///
    /// # Panics
    ///
    /// If a launch is one of [`Kernel::CopyBulk`], or there are more than 2^30.
    pub fn of(launches: &[Launch]) -> Option<Batch> {
        let share = MOST_GRID_BLOCKS / (launches.len() as u64).max(1);
        assert!(share > 1, "{} launches", launches.len());
        let (mut table, mut first, mut blocks) = (Vec::new(), Vec::new(), 0_u64);
        for launch in launches {
            assert!(launch.kernel != Kernel::CopyBulk);
            table.extend_from_slice(launch.job.as_bytes());
            first.extend_from_slice(&(blocks as u32).to_le_bytes());
            // Fewer blocks than a launch asks for do all of it, too.
            blocks += u64::from(launch.blocks).min(share);
        }
        first.extend_from_slice(&(blocks as u32).to_le_bytes());
        table.extend_from_slice(&first);
        (blocks > 0).then_some(Batch {
            table,
            count: launches.len() as u64,
            blocks: blocks as u32,
        })
    }

    /// What is to be copied to memory that kernels read, at an address that is a multiple of 8.
    pub fn table(&self) -> &[u8] {
        &self.table
    }

    /// Blocks of the grid.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The kernel's parameter if the table is at that address.
    pub fn parameter(&self, table: u64) -> BatchTable {
        BatchTable {
            jobs: table,
            first: table + self.count * size_of::<Job>() as u64,
            count: self.count,
        }
    }
}

/// Where a layout is: its plan, the address of its origin and that of the plan's tables, as the GPU
/// sees them.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// How its bytes are moved.
    pub plan: &'a Plan,
    /// What displacements count from.
    pub origin: u64,
    /// Where [`Plan::tables`] has been copied to.
    pub tables: u64,
}

impl Placed<'_> {
    /// What packs a range of the packed stream to address `packed`.
    ///
    /// # Panics
    ///
    /// If the range reaches behind the layout's size.
    pub fn pack(&self, range: Range<u64>, packed: u64) -> Vec<Launch> {
        assert!(
            range.end <= self.plan.size(),
            "{range:?} of {} bytes",
            self.plan.size()
        );
        self.parts_in(&range)
            .map(|(part, range_in)| {
                let flat = End::Flat(packed.wrapping_sub(range.start));
                launch(flat, End::Part(part, self), range_in)
            })
            .collect()
    }

    /// What unpacks a range of the packed stream from address `packed`; `None` if the layout has
    /// bytes twice, which must be written in their order.
    ///
    /// # Panics
    ///
    /// If the range reaches behind the layout's size.
    pub fn unpack(&self, range: Range<u64>, packed: u64) -> Option<Vec<Launch>> {
        assert!(
            range.end <= self.plan.size(),
            "{range:?} of {} bytes",
            self.plan.size()
        );
        self.plan.is_disjoint().then(|| {
            self.parts_in(&range)
                .map(|(part, range_in)| {
                    let flat = End::Flat(packed.wrapping_sub(range.start));
                    launch(End::Part(part, self), flat, range_in)
                })
                .collect()
        })
    }

    /// What copies as many bytes as `from` has to this layout, from layout to layout; `None` if
    /// this layout has bytes twice.
    ///
    /// # Panics
    ///
    /// If `from` has more bytes than this layout.
    pub fn copy_from(&self, from: &Placed<'_>) -> Option<Vec<Launch>> {
        let size = from.plan.size();
        assert!(
            size <= self.plan.size(),
            "{size} bytes for {}",
            self.plan.size()
        );
        self.plan.is_disjoint().then(|| {
            self.parts_in(&(0..size))
                .flat_map(|(to, range)| {
                    from.parts_in(&range)
                        .map(|(part, range)| {
                            launch(End::Part(to, self), End::Part(part, from), range)
                        })
                        .collect::<Vec<_>>()
                })
                .collect()
        })
    }

    /// The parts that have bytes in a range of the packed stream, and which.
    fn parts_in(&self, range: &Range<u64>) -> impl Iterator<Item = (&Part, Range<u64>)> {
        let range = range.clone();
        self.plan.parts().iter().filter_map(move |part| {
            let all = part.range();
            let both = all.start.max(range.start)..all.end.min(range.end);
            (both.start < both.end).then_some((part, both))
        })
    }

    fn address(&self, part: &Part) -> u64 {
        self.origin.wrapping_add_signed(part.offset)
    }
}

/// One end of a copy.
#[derive(Clone, Copy)]
pub(crate) enum End<'a> {
    /// Packed bytes; the address of the packed stream's first byte, which need not be there.
    Flat(u64),
    Part(&'a Part, &'a Placed<'a>),
}

impl End<'_> {
    /// Adds what words must divide; `origin` is the position in the stream where words begin.
    pub(crate) fn constrain(&self, grain: &mut Grain, origin: u64) {
        match self {
            End::Flat(stream) => grain.add(stream.wrapping_add(origin) as i64),
            End::Part(part, placed) => {
                grain.add(i64::from(part.grain));
                grain.add(placed.address(part) as i64);
                grain.add(part.start.wrapping_sub(origin) as i64);
            }
        }
    }

    /// Mean bytes of a run.
    fn mean(&self) -> u64 {
        match self {
            End::Flat(_) => u64::MAX,
            End::Part(part, _) => part.mean,
        }
    }

    /// The side of a job that begins at position `begin` of the stream, in units of `width` bytes.
    pub(crate) fn side(&self, begin: u64, width: u64) -> Side {
        match self {
            End::Flat(stream) => Side {
                base: stream.wrapping_add(begin),
                kind: FLAT,
                ..Side::default()
            },
            End::Part(part, placed) => {
                let mut side = Side {
                    base: placed.address(part),
                    skip: (begin - part.start) / width,
                    dims: part.dims.len() as u32,
                    ..Side::default()
                };
                match part.inner {
                    Inner::Block(len) => {
                        side.kind = NEST;
                        side.inner = Divisor::new(len / width);
                    }
                    Inner::Pieces {
                        size,
                        offsets,
                        starts,
                        hints,
                        hint_shift,
                    } => {
                        side.kind = PIECES;
                        side.inner = Divisor::new(size / width);
                        side.offsets = placed.tables + offsets.at;
                        side.starts = placed.tables + starts.at;
                        side.hints = placed.tables + hints;
                        side.hint_shift = hint_shift;
                        if offsets.is_wide {
                            side.wide |= WIDE_PIECES;
                        }
                    }
                }
                for (d, (count, step)) in part.dims.iter().enumerate() {
                    let mut dim = Dim {
                        count: Divisor::new(*count),
                        ..Dim::default()
                    };
                    match step {
                        Step::Stride(stride) => dim.stride = *stride,
                        Step::Table(table) => {
                            dim.table = placed.tables + table.at;
                            side.wide |= u32::from(table.is_wide) << d;
                        }
                    }
                    side.dim[d] = dim;
                }
                side
            }
        }
    }
}

/// What copies a range of the stream, which is not empty and lies in the parts of both ends.
fn launch(to: End<'_>, from: End<'_>, range: Range<u64>) -> Launch {
    // Words begin at multiples of their size from here on.
    let origin = match (&to, &from) {
        (End::Part(part, _), _) | (_, End::Part(part, _)) => part.start,
        _ => range.start,
    };
    let mut grain = Grain::default();
    to.constrain(&mut grain, origin);
    from.constrain(&mut grain, origin);
    let width = u64::from(grain.bytes());
    let mean = to.mean().min(from.mean());
    let lead = (range.start - origin) % width;
    let begin = range.start - lead;
    let mut job = Job {
        to: to.side(begin, width),
        from: from.side(begin, width),
        units: (range.end - begin).div_ceil(width),
        lead: lead as u32,
        trail: ((range.end - begin) % width) as u32,
        width: width as u32,
        ..Job::default()
    };
    if (width < 4 && mean >= LONG_RUN) || job.reaches_far() {
        return launch_runs(to, from, range, mean);
    }
    job.lanes = 1;
    let kernel = match (to, from) {
        (End::Flat(_), _) if job.from.kind == NEST => Kernel::PackStrided(width as u32),
        (_, End::Flat(_)) if job.to.kind == NEST => Kernel::UnpackStrided(width as u32),
        (End::Part(..), End::Part(..)) if job.to.kind == NEST && job.from.kind == NEST => {
            Kernel::Direct(width as u32)
        }
        _ => Kernel::CopyWords(width as u32),
    };
    let blocks = job.units.div_ceil(u64::from(THREADS) * WORDS_PER_THREAD);
    Launch {
        kernel,
        blocks: blocks.min(MOST_BLOCKS) as u32,
        job,
        mean,
    }
}

fn launch_runs(to: End<'_>, from: End<'_>, range: Range<u64>, mean: u64) -> Launch {
    let lanes = (mean / 16).clamp(1, 32).next_power_of_two();
    let chunk = lanes * BYTES_PER_LANE;
    let mut job = Job {
        to: to.side(range.start, 1),
        from: from.side(range.start, 1),
        units: range.end - range.start,
        width: 1,
        lanes: lanes as u32,
        chunk: chunk as u32,
        ..Job::default()
    };
    job.is_long = u32::from(job.reaches_far());
    let blocks = (job.units.div_ceil(chunk) * lanes).div_ceil(u64::from(THREADS));
    Launch {
        kernel: Kernel::CopyRuns,
        blocks: blocks.min(MOST_BLOCKS) as u32,
        job,
        mean,
    }
}
