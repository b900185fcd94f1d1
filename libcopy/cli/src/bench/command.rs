// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy bench`: its subcommands.

use super::{coll, device, gpu, offload, rank, speedup, types};
use anyhow::Result;
use clap::Subcommand;

/// Benchmarks.
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Collectives: transports side by side, against memcpy of the same bytes
    Coll(coll::CollArgs),
    /// The kernel module alone: ioctls, map and unmap, copies, ranges of a region, attach
    Device(device::DeviceArgs),
    /// Collectives beside MPI libraries (see `scripts/bench peers`)
    Peers(coll::PeersArgs),
    /// Derived datatypes: pack, unpack and copy beside MPI libraries and loops (see
    /// `scripts/bench types`)
    Types(types::TypesArgs),
    /// Derived datatypes in GPU memory (CUDA): pack, unpack, copies between processes
    Gpu(gpu::GpuArgs),
    /// How many times as fast MPI calls are with libcopy_mpi.so, from paired blocks of several
    /// launches (`scripts/bench mpi` calls this)
    Speedup(speedup::SpeedupArgs),
    /// The experiments of the paper on copy engines: shared engines, fragments, switching (see
    /// `scripts/vm --ioat`)
    Paper003(offload::PaperArgs),
    /// A process with GPU memory that another one reads
    #[command(hide = true)]
    GpuOwner(gpu::OwnerArgs),
    /// One rank of a comparison
    #[command(hide = true)]
    Rank(rank::RankArgs),
    /// One rank of a parallel program of the paper on copy engines
    #[command(hide = true)]
    Player(offload::player::PlayerArgs),
}

/// Runs a benchmark.
pub fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Coll(args) => coll::coll(args),
        Bench::Device(args) => device::run(args),
        Bench::Peers(args) => coll::peers(args),
        Bench::Types(args) => types::run(args),
        Bench::Gpu(args) => gpu::run(args),
        Bench::GpuOwner(args) => gpu::serve(args),
        Bench::Speedup(args) => speedup::run(args),
        Bench::Paper003(args) => offload::run(args),
        Bench::Rank(args) => rank::run(args),
        Bench::Player(args) => offload::player::run(args),
    }
}
