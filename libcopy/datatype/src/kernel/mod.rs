// SPDX-License-Identifier: MIT OR Apache-2.0

//! The loops that move bytes: equal blocks along any number of dimensions, and lists of blocks.
//!
//! Every loop copies from a strided place to a strided place; packing is the case where the target
//! is dense, unpacking the one where the source is. Which loop runs depends on the length of the
//! blocks, a constant in the loops for small ones, and on which strides are small:
//!
//! ```text
//! short blocks              short_blocks: one after the other, along up to three dimensions
//! longer ones               long_blocks: vectors for each, or a call for each of the long ones
//! inner stride large on     transpose: done, done square by square, so that every cache
//! one side, outer small     line is used up while it is there
//! ```
//!
//! Vector loads may read bytes between two blocks that are at most two cache lines apart; bytes
//! between blocks are never written.

mod block_writer;
mod caches;
mod calibrate;
mod far;
mod indexed;
mod instructions;
mod long_blocks;
mod loop_nest;
mod order;
mod pattern;
mod periodic;
mod piece;
mod prefetch;
mod profile;
mod select;
mod short_blocks;
mod sorted;
mod tiles;
mod transpose;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86;

pub(super) use block_writer::{Filler, LONGEST, Row};
pub(super) use caches::second_level;
pub use calibrate::Calibration;
pub(super) use indexed::{Pieces, pieces, scattered};
pub use instructions::InstructionSet;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) use instructions::has_avx2;
pub(super) use loop_nest::{Dim, Nest};
pub(super) use order::PieceOrder;
pub(super) use pattern::{Piece, Repeats};
pub(super) use periodic::Weave;
pub(super) use piece::{dense, fragment};
pub use profile::CpuProfile;
pub(super) use select::{name, name_of_pieces, nest, transposes_blocks};
