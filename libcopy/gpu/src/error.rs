// SPDX-License-Identifier: MIT OR Apache-2.0

//! What can go wrong.

use libcopy_datatype::room::NoRoom;

/// Why something could not be done on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no driver.
    #[error("no CUDA driver: {why}")]
    NoDriver {
        /// What the loader says.
        why: String,
    },
    /// The driver's library lacks a function: it is older than CUDA 12.0.
    #[error("libcuda.so.1 has no {function}: libcopy needs the driver of CUDA 12.0 or newer")]
    MissingFunction {
        /// Its name.
        function: &'static str,
    },
    /// A call of the driver failed.
    #[error("{function} failed with {name} ({code})")]
    Driver {
        /// The function.
        function: &'static str,
        /// The driver's name of the error.
        name: String,
        /// The number of the error (`CUresult`).
        code: i32,
    },
    /// The driver does not say which context memory belongs to (`cuMemAllocAsync`, virtual memory
    /// management).
    #[error("the driver names no context for the memory at {address:#x}")]
    NoContext {
        /// An address in it.
        address: u64,
    },
    /// The layout has bytes twice, so that it cannot be written to in any order.
    #[error(
        "a layout with overlapping bytes cannot be unpacked on a GPU; unpack it in host memory"
    )]
    Overlap,
    /// The range is not one of the packed stream.
    #[error("the range {start}..{end} of the packed stream is not within its {size} bytes")]
    Range {
        /// Its start.
        start: u64,
        /// Its end.
        end: u64,
        /// Bytes of the packed stream.
        size: u64,
    },
    /// Kernels do not reach memory that they would have to.
    #[error(
        "kernels do not reach the memory at {address:#x}; stream-ordered calls need pinned, managed or device memory"
    )]
    NotReached {
        /// An address in it.
        address: u64,
    },
    /// Another process cannot be given memory.
    #[error("the memory at {address:#x} cannot be exported by CUDA IPC: {why}")]
    NotExportable {
        /// An address in it.
        address: u64,
        /// The reason.
        why: String,
    },
    /// Memory of another process cannot be reached.
    #[error("the GPU memory of process {process} cannot be reached by CUDA IPC: {why}")]
    NoPeer {
        /// The other process.
        process: u32,
        /// The reason.
        why: String,
    },
    /// What was received from another process or read from a file is not what was expected.
    #[error("{what} is not valid: {why}")]
    Malformed {
        /// What.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// The layout is not one that a method can do.
    #[error("{method} cannot copy this layout: {why}")]
    NoMethod {
        /// The method.
        method: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// The layout has too many irregular pieces for a plan.
    #[error("a layout with more than 2^24 irregular pieces has no plan for the GPU")]
    TooManyPieces,
    /// There is no room in memory for a list that is as long as the layout says.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

/// The result of what may fail on a GPU.
pub type Result<T> = std::result::Result<T, Error>;
