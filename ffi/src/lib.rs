// SPDX-License-Identifier: MIT OR Apache-2.0

//! The C API. `include/libcopy.h` is generated from this file.
//!
//! Every function returns 0 or a negative `LIBCOPY_E*`; outputs come last. No panic crosses the
//! border: it becomes [`LIBCOPY_EINTERNAL`]. A team handle may be used by several threads, one at
//! a time; a type by several at the same time.

mod datatype;
mod error;
mod exchange;
mod memory;
mod messages;
mod nic;
mod offload;
mod team;

pub use datatype::*;
pub use error::*;
pub use exchange::*;
pub use messages::*;
pub use nic::*;
pub use offload::*;
pub use team::*;

// Nobody here calls its functions, which programs find instead of the C library's. The address
// sanitizer has its own.
#[cfg(not(fuzzing))]
use libcopy_interpose as _;
