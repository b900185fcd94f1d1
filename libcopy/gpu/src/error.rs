// SPDX-License-Identifier: MIT OR Apache-2.0

//! What can go wrong.

/// Why something could not be done on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
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
    /// The driver does not say which context memory belongs to (`cuMemAllocAsync`, virtual memory management).
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
    /// The layout has too many irregular pieces for a plan.
    #[error("a layout with more than 2^24 irregular pieces has no plan for the GPU")]
    TooManyPieces,
}

/// The result of what may fail on a GPU.
pub type Result<T> = std::result::Result<T, Error>;
