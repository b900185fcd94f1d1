// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kernels for x86-64 with AVX2 and AVX-512, where the compiler finds none as good.
//!
//! Those with AVX-512 are written in assembly because the intrinsics are newer than the oldest
//! supported compiler. They use registers above 15, which do not slow down code that does not know
//! AVX.

mod piece;
mod rows;
mod short;
mod transpose;
mod weave;

pub(super) use piece::{has_512, has_masks, masked, masked_narrow, piece};
pub(super) use rows::{few, long, name, rows};
pub(super) use short::{listed, strip};
pub(super) use transpose::{transpose, transposes};
pub(super) use weave::Shuffle;
