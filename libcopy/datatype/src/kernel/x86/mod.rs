// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kernels for x86-64 with AVX2 and AVX-512, where the compiler finds none as good.
//!
//! Those with AVX-512 are written in assembly because the intrinsics are newer than the oldest
//! supported compiler. They use registers above 15, which do not slow down code that does not know
//! AVX.

mod long_blocks;
mod periodic;
mod piece;
mod short;
mod transpose;

pub(super) use long_blocks::{few, long, name, rows};
pub(super) use periodic::Shuffle;
pub(super) use piece::{masked, masked_narrow, piece};
pub(super) use short::{listed, strip};
pub(super) use transpose::{transpose, transposes};
