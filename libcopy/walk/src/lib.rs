// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which bytes of memory a part of a packed stream belongs to, found without allocating.
//!
//! An MPI datatype maps a *packed stream* (its bytes one after the other) to *pieces* of memory.
//! This crate walks that map. It is `no_std`, has no dependencies, no `unsafe`, and does not panic,
//! so the same code runs in the library, and in handlers on a network card that process a message
//! packet by packet ("Network-Accelerated Non-Contiguous Memory Transfers", SC'19, section 3.2).
//!
//! - [`Image`] is a layout as 32-bit words, without pointers: it can be copied to the memory of a
//!   card or sent to a peer. [`Image::check`] accepts an image from an untrusted source.
//!   `libcopy-datatype` makes the image of a layout (`Layout::image`); [`Builder`] makes one by
//!   hand.
//! - [`State`] is a position in the packed stream, as a stack of at most `DEPTH` [`Frame`]s. A copy
//!   of a state is a *checkpoint*. The paper calls it a segment (612 bytes there, 108 bytes here
//!   for `DEPTH` 8).
//! - [`Tree`] is what a state walks over. [`Image`] is one; the canonical form of
//!   `libcopy-datatype` is another, with 64-bit offsets.
//!
//! ```
//! use libcopy_walk::{Builder, Child, Image, State};
//!
//! // A column: 3 blocks of 4 bytes, 20 bytes apart.
//! let mut words = [0; 16];
//! let mut builder = Builder::new(&mut words, 1)?;
//! let root = builder.stream(3, 20, Child::dense(4))?;
//! let image = builder.finish(root, 0)?;
//! let image = Image::check(image.words())?;
//!
//! // A packet with bytes 6 to 11 of the message.
//! let mut state = State::<8>::start(image);
//! state.seek(image, 6);
//! let mut pieces = [(0, 0, 0); 2];
//! let mut n = 0;
//! state.pieces(image, 6, |memory, packet, len| {
//!     pieces[n] = (memory, packet, len);
//!     n += 1;
//! });
//! assert_eq!(pieces, [(22, 0, 2), (40, 2, 4)]);
//! # Ok::<(), libcopy_walk::ImageError>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]

mod builder;
mod check;
mod image;
mod state;
mod tree;
mod word;

pub use builder::Builder;
pub use check::ImageError;
pub use image::{HEADER_WORDS, Image, List, PART_WORDS, Parts, RECORD_WORDS};
pub use state::{Frame, State, Strip};
pub use tree::{Child, Node, NodeId, Offsets, Part, PartList, Tree};
pub use word::Word;
