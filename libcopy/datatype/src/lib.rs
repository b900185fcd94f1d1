// SPDX-License-Identifier: MIT OR Apache-2.0

//! Derived datatypes: layouts of memory, and moving the bytes in them.
//!
//! A [`Datatype`] says which bytes lie where, relative to some address, as an MPI datatype does:
//! it is made of predefined types ([`Named`]) by constructors, which nest to any depth. No MPI is
//! needed. [`Layout`] is a number of elements of a type in the canonical form of [`canonical`];
//! it packs, unpacks and copies.
//!
//! ```
//! use libcopy_datatype::{Datatype, Layout, Named};
//!
//! // A column of a matrix of 3 rows and 4 columns:
//! //
//! //      0  1 [2] 3
//! //      4  5 [6] 7
//! //      8  9[10]11
//! let column = Datatype::named(Named::Uint8).vector(3, 1, 4)?;
//! let matrix: Vec<u8> = (0..12).collect();
//! let layout = Layout::new(&column, 1)?;
//! let mut packed = [0; 3];
//! layout.pack(&matrix, 2, &mut packed)?;
//! assert_eq!(packed, [2, 6, 10]);
//! # Ok::<(), libcopy_datatype::Error>(())
//! ```
//!
//! Packed bytes are in type-map order, always: those of the first basic element first, and so on,
//! however the layout is traversed inside.

#[doc(hidden)]
pub mod comparison;
mod construct;
mod cursor;
mod datatype;
mod describe;
mod elements;
mod error;
pub mod expr;
mod external32;
mod flat;
mod form;
mod image;
mod kernel;
mod layout;
#[doc(hidden)]
pub mod memcpy;
mod named;
#[doc(hidden)]
pub mod nearest;
mod normalize;
mod offsets;
mod overlap;
mod pack;
mod plan;
mod reduce;
pub mod room;
mod serialize;
mod signature;
mod steps;
mod tree;
mod typed_copy;

/// The canonical form of a layout.
pub mod canonical {
    pub use crate::form::{Extent, Form, Node, NodeId, Part};
    pub use crate::offsets::Offsets;
}

pub use cursor::{Blocks, Checkpoints, Cursor, Places};
pub use datatype::{
    Combiner, Contents, Datatype, Dimensions, Distribution, Envelope, MemberTypes, Members, Order,
};
pub use elements::Elements;
pub use error::{Allowed, Error, Result, Value};
pub use kernel::{Calibration, CpuProfile, InstructionSet};
pub use layout::{Layout, Segment, Segments};
pub use named::{Class, Element, Named};
pub use reduce::{Reducer, Reduction};
pub use signature::Signature;
