// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether this library intercepts anything, and from how many bytes on.

pub mod active;
pub mod protocol;
pub mod threshold;
