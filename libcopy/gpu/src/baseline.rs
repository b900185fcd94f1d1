// SPDX-License-Identifier: MIT OR Apache-2.0

//! Running what libcopy is compared with: other libraries' mappings, and a product of matrices that
//! keeps the GPU busy.

use crate::buffer::Buffer;
use crate::context::Context;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::gpu::GpuLayout;
use crate::job::{FLAT, Job, Side};
use crate::launch::{Kernel, Placed};
use crate::mapping::{Mapping, Shaped};
use crate::memory::Pointer;
use crate::pending::{Pending, Work};

/// Edge of the tiles of [`Kernel::Gemm`] (`GEMM_TILE` of `pack.cu`).
const GEMM_TILE: u64 = 64;

/// Packs a whole layout by another library's mapping of bytes to threads. Returns when the bytes
/// are there.
///
/// # Errors
///
/// [`Error::NoMethod`] for a layout that the mapping does not fit, [`Error::NotReached`] for
/// pageable memory, a driver that fails.
///
/// # Safety
///
/// All bytes are valid for reads in the layout, and for writes at `packed`; they do not overlap.
pub unsafe fn pack_with(
    driver: &Driver,
    mapping: Mapping,
    layout: &GpuLayout,
    origin: u64,
    packed: u64,
) -> Result<()> {
    for address in [layout.first_byte(origin), packed] {
        if !Pointer::of(driver, address)?.space.is_reached_by_kernels() {
            return Err(Error::NotReached { address });
        }
    }
    let shaped = Placed {
        plan: layout.plan(),
        origin,
        // Only layouts without tables fit.
        tables: 0,
    }
    .baseline(mapping, packed, true)
    .ok_or(Error::NoMethod {
        method: "the baseline kernel",
        why: "it takes blocks under strides whose lengths and places are multiples of its word",
    })?;
    let (_current, context) = Context::at(driver, &Pointer::of(driver, packed)?)?;
    let stream = context.stream();
    let launched = context.launch_shaped(driver, &shaped, stream);
    launched.and(context.settle(driver, stream))
}

/// A product of two square matrices of 32-bit floats on the GPU, by a plain tiled kernel: the
/// program's own work.
#[derive(Debug)]
pub struct Gemm {
    factors: Buffer,
    product: Buffer,
    edge: u64,
    blocks: u32,
}

impl Gemm {
    /// Matrices of `edge` x `edge` zeros, whose product takes the multiprocessors of the GPU that
    /// `near` is on.
    ///
    /// # Errors
    ///
    /// An edge that is not a positive multiple of 64, a driver that fails.
    pub fn new(driver: &Driver, near: &Pointer, edge: u64) -> Result<Gemm> {
        let bytes = edge
            .checked_mul(edge)
            .and_then(|count| usize::try_from(count * 4).ok())
            .filter(|bytes| *bytes > 0 && edge % GEMM_TILE == 0)
            .ok_or(Error::NoMethod {
                method: "the product of matrices",
                why: "their edge is a positive multiple of 64",
            })?;
        let tiles = (edge / GEMM_TILE).pow(2);
        Ok(Gemm {
            factors: Buffer::device(driver, near, 2 * bytes)?,
            product: Buffer::device(driver, near, bytes)?,
            edge,
            blocks: tiles.min(1 << 20) as u32,
        })
    }

    /// The first factor, row by row, and the second one behind it.
    pub fn factors(&self) -> &Buffer {
        &self.factors
    }

    /// Where the product is put.
    pub fn product(&self) -> &Buffer {
        &self.product
    }

    /// Submits the product to a stream that nothing of [`start_pack`](crate::start_pack) uses.
    ///
    /// # Errors
    ///
    /// A driver that fails.
    ///
    /// # Safety
    ///
    /// This is not dropped before the result is done.
    pub unsafe fn start(&self, driver: &'static Driver) -> Result<Pending> {
        let flat = |base| Side {
            base,
            kind: FLAT,
            ..Side::default()
        };
        let shaped = Shaped {
            kernel: Kernel::Gemm,
            blocks: [self.blocks, 1, 1],
            threads: [Kernel::Gemm.threads(), 1, 1],
            job: Job {
                to: flat(self.product.address()),
                from: flat(self.factors.address()),
                units: self.edge,
                ..Job::default()
            },
        };
        let place = Pointer::of(driver, self.product.address())?;
        let (_current, context) = Context::at(driver, &place)?;
        let (mut work, stream) = (None, || context.stream());
        Work::submit(driver, &context, &mut work, stream, Vec::new(), |stream| {
            context
                .launch_shaped(driver, &shaped, stream)
                .map(|()| None)
        })?;
        Ok(Pending::new(driver, work))
    }
}
