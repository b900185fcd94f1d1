// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy bench`: its subcommands.

use super::{coll, device, many, types};
use anyhow::Result;
use clap::Subcommand;
use libcopy_measure::gpu_owner::{self, OwnerArgs};
use libcopy_measure::rank;

/// Benchmarks.
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Collectives: transports side by side, against memcpy of the same bytes
    Coll(coll::CollArgs),
    /// The kernel module alone: ioctls, map and unmap, copies, ranges of a region, attach
    Device(device::DeviceArgs),
    /// Collectives beside MPI libraries (see `scripts/bench peers`)
    Peers(coll::PeersArgs),
    /// What a machine with many processors should show: readers of one source, collectives by
    /// plans, flat, simulated and beside MPI libraries (see `scripts/bench many`)
    Many(many::ManyArgs),
    /// Derived datatypes: pack, unpack and copy beside MPI libraries and loops (see
    /// `scripts/bench types`)
    Types(types::TypesArgs),
    /// A process with GPU memory that another one reads
    #[command(hide = true)]
    GpuOwner(OwnerArgs),
    /// One rank of a comparison
    #[command(hide = true)]
    Rank(rank::RankArgs),
}

/// Runs a benchmark.
///
/// # Errors
///
/// Wrong arguments, something to measure that is not there, or wrong bytes.
pub fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Coll(args) => coll::coll(args),
        Bench::Device(args) => device::run(args),
        Bench::Peers(args) => coll::peers(args),
        Bench::Many(args) => many::run(args),
        Bench::Types(args) => types::run(args),
        Bench::GpuOwner(args) => gpu_owner::serve(args),
        Bench::Rank(args) => rank::run(args),
    }
}
