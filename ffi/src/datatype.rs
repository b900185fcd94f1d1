// SPDX-License-Identifier: MIT OR Apache-2.0

//! Derived datatypes.
//!
//! A handle counts its references: types built on a type keep what they need of it, so it may be
//! freed as soon as nobody calls with it. Handles may be used by several threads at a time.

mod constants;
mod construct;
mod gpu;
mod handle;
mod inspect;
mod transfer;

pub use constants::*;
pub use construct::*;
pub use gpu::*;
pub use handle::*;
pub use inspect::*;
pub use transfer::*;
