// SPDX-License-Identifier: MIT OR Apache-2.0

//! The states of the handlers.

use libcopy_walk::State;

/// Frames of the handlers' states. Deeper images are walked too; they descend from the root more
/// often.
pub const DEPTH: usize = 8;

/// The state of a walk, 108 bytes: what the paper calls a segment, and, when it is kept, a
/// checkpoint.
pub type Segment = State<DEPTH>;

/// A state that takes as many bytes as the paper's segment, 612, to compare what copies of it cost.
pub type PaperSegment = State<50>;

const _: () = assert!(size_of::<Segment>() == 108);
const _: () = assert!(size_of::<PaperSegment>() == 612);
